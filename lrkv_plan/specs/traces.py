"""Which requests does a public trace hold? Azure LLM inference, BurstGPT and Mooncake, by their
exact column names or keys, in CSV, JSON lines or Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from lrkv_plan.errors import SpecError, did_you_mean, shown
from lrkv_plan.specs.columns import (
    INSTANT,
    MAX_TOKENS,
    MILLISECONDS,
    SECONDS,
    TOKENS,
    ColumnKind,
    Columns,
    header_of,
    refuse_absurd_sum,
)
from lrkv_plan.specs.parquet_columns import is_parquet, parquet_chunks, parquet_names
from lrkv_plan.specs.population import Gathering, Population
from lrkv_plan.specs.request_files import request_files
from lrkv_plan.specs.text_blocks import Block, Line, first_line, without_line


@dataclass(frozen=True, kw_only=True)
class TraceColumns:
    """The columns of a published trace."""

    name: str
    arrival: str
    arrival_kind: ColumnKind
    prompt: str
    output: str
    unread: tuple[str, ...] = ()
    sometimes: tuple[str, ...] = ()  # columns that only some releases have
    others_say_nothing: bool = False  # any further column leaves the meaning of these alone
    no_output_is_failure: bool = False
    remark: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that every release has."""
        return (self.arrival, self.prompt, self.output, *self.unread)

    @property
    def wanted(self) -> dict[str, ColumnKind]:
        """Columns that are read, prompts first, then outputs, then arrival times."""
        return {self.prompt: TOKENS, self.output: TOKENS, self.arrival: self.arrival_kind}

    def has(self, names: Sequence[str]) -> bool:
        """Whether a file with these columns is such a trace."""
        known = {*names} if self.others_say_nothing else {*self.columns, *self.sometimes}
        return set(self.columns) <= set(names) <= known and len(set(names)) == len(names)


AZURE = TraceColumns(
    name="Azure LLM inference",
    arrival="TIMESTAMP",
    arrival_kind=INSTANT,
    prompt="ContextTokens",
    output="GeneratedTokens",
)
BURSTGPT = TraceColumns(
    name="BurstGPT",
    arrival="Timestamp",
    arrival_kind=SECONDS,
    prompt="Request tokens",
    output="Response tokens",
    unread=("Model", "Total tokens", "Log Type"),
    sometimes=("Session ID", "Elapsed time"),
    no_output_is_failure=True,
)
MOONCAKE = TraceColumns(
    name="Mooncake",
    arrival="timestamp",
    arrival_kind=MILLISECONDS,
    prompt="input_length",
    output="output_length",
    others_say_nothing=True,
    remark="; prefixes that requests share (hash_ids) are counted for each",
)
TRACES = (AZURE, BURSTGPT, MOONCAKE)

_Tokens: TypeAlias = Annotated[int, Field(ge=0, le=MAX_TOKENS)]


class MooncakeRequest(TypedDict):
    """The keys of a Mooncake line that are read; ``hash_ids`` and others are not."""

    timestamp: Annotated[float, Field(allow_inf_nan=False)]
    input_length: _Tokens
    output_length: _Tokens


_MOONCAKE_KEYS = tuple(MooncakeRequest.__annotations__)


def read_trace(path: Path) -> Population:
    """Requests of a public trace: how often each prompt and output occurs, and the first to arrive.

    Parameters
    ----------
    path : a file in one of the formats below, a folder or a pattern of files in the same format
        (``request_files``), text packed with gzip or zstd or not. Blank lines of text and lines
        that start with # are left out.

    Returns
    -------
    Prompt and output tokens by request. Remarks say which format was read, whether rows were
    sorted by arrival (stably) or dropped for holding no token, and what the format leaves open.

    Raises
    ------
    SpecError
        Naming file and line or row, if a file is missing, empty, damaged or binary, is in none of
        the formats or in another than the first, or holds a value that its format does not allow.

    Notes
    -----
    - Azure LLM inference 2023 and 2024, columns ``TIMESTAMP,ContextTokens,GeneratedTokens``
      (Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and ...2024.md); times without a
      zone order as UTC. The 2025 multimodal trace is refused: its description does not say
      whether ContextTokens counts the images of NumImages.
    - BurstGPT, columns ``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``,
      seconds (HPMLL/BurstGPT, README.md); later files add ``Session ID,Elapsed time``. Requests
      that failed have 0 response tokens; they are kept, with their prompts, and counted.
    - Mooncake, one JSON object a line, or columns, with ``timestamp`` [ms], ``input_length``,
      ``output_length`` and ``hash_ids`` (kvcache-ai/Mooncake, FAST25-release). The hashes name
      prefixes in common; here every request is counted with its own.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.jsonl")
    ...     _ = path.write_text('{"timestamp": 0, "input_length": 6, "output_length": 2}\\n')
    ...     read_trace(path).lengths.first.tolist()
    [8]
    """
    gathering, files, n_bytes = Gathering(str(path)), request_files(path), 0
    read_as = None
    for file in files:
        trace, chunks = _opened(file, n_bytes)
        if read_as not in (None, trace):
            raise SpecError(
                f"{file}: holds {trace.name}, but {files[0]} holds {read_as.name}; the files of a "
                "trace must be of one format"
            )
        read_as, n_before = trace, gathering.n_rows
        for prompt, output, arrival in chunks:
            gathering.add(prompt, output, arrival)
        if gathering.n_rows == n_before:
            raise SpecError(f"{file}: holds only a header; at least one request is needed")
        n_bytes += file.stat().st_size
    assert read_as is not None, "a path names at least one file"
    remarks = [f"read as {read_as.name}{read_as.remark}"]
    if len(files) > 1:
        remarks.append(f"{len(files):,} files, {files[0].name} to {files[-1].name}")
    if not gathering.is_in_order:
        remarks.append("timestamps were out of order; rows were sorted by arrival")
    n_failed = gathering.n_without_output if read_as.no_output_is_failure else 0
    failed = f"failed requests (0 response tokens), kept with their prompts: {n_failed:,}"
    return gathering.population(
        path.name or str(path), tuple(remarks), (failed,) if n_failed else ()
    )


def _opened(path: Path, n_bytes_before: int) -> tuple[TraceColumns, Iterator[list[Any]]]:
    """The format of a file, and its prompts, outputs and arrival times, some at a time."""
    if is_parquet(path):
        names = parquet_names(path)
        trace = _recognised(f"{path}: columns {shown(','.join(names))}: ", names)
        return trace, parquet_chunks(path, trace.wanted)
    first, blocks = first_line(path)
    if first.text.lstrip().startswith("{"):
        return MOONCAKE, _mooncake_chunks(blocks)
    names = header_of(first)
    trace = _recognised(f"{path}: line {first.number}: header {shown(first.text)}: ", names)
    columns = Columns(names=names, wanted=trace.wanted)
    return trace, columns.chunks(without_line(first, blocks), n_bytes_before)


def _recognised(where: str, names: Sequence[str]) -> TraceColumns:
    """The format whose columns these are. Raises ``SpecError`` that names the nearest."""
    for trace in TRACES:
        if trace.has(names):
            return trace
    nearest = min(TRACES, key=lambda trace: len(set(trace.columns) - set(names)))
    missing = [column for column in nearest.columns if column not in names]
    unknown = [n for n in names if n not in (*nearest.columns, *nearest.sometimes)]
    hint = next((h for h in (did_you_mean(name, missing) for name in unknown) if h), "")
    if len(missing) < len(nearest.columns) and not hint:
        what = f"lacks {', '.join(missing)}" if missing else f"also has {', '.join(unknown)}"
        hint = f"; nearest is {nearest.name}, but this {what}"
    formats = "; ".join(f"{trace.name} ({','.join(trace.columns)})" for trace in TRACES)
    raise SpecError(
        f"{where}not a known trace{hint.rstrip('?')}; known: {formats}, also as JSON lines; "
        "for one column of lengths, name that column"
    )


def _mooncake_chunks(blocks: Iterable[Block]) -> Iterator[list[Any]]:
    import numpy as np

    keys = (("input_length", np.int64), ("output_length", np.int64), ("timestamp", np.float64))

    def columns_of(requests: list[Any]) -> list[Any]:
        return [np.fromiter(map(itemgetter(key), requests), dtype) for key, dtype in keys]

    for block in blocks:
        requests = _mooncake_at_once(block.raw)
        chunk = None if requests is None else columns_of(requests)
        if chunk is None or (chunk[0] + chunk[1]).max() > MAX_TOKENS:
            chunk = columns_of(_mooncake_line_by_line(block.lines()))
        yield chunk


def _mooncake_at_once(raw: bytes) -> list[Any] | None:
    """The requests of a block of clean lines; None where each must be looked at."""
    if not raw.isascii() or b"\0" in raw or b"\r" in raw:
        return None
    lines = raw.removesuffix(b"\n").split(b"\n")
    if any(raw.count(f'"{key}"'.encode()) != len(lines) for key in _MOONCAKE_KEYS):
        return None
    validate = _mooncake_validator()
    try:
        return [validate(line, strict=True) for line in lines]
    except ValidationError:
        return None


def _mooncake_line_by_line(lines: Iterable[Line]) -> list[Any]:
    requests = []
    for line in lines:
        requests.append(_mooncake_request(line))
        refuse_absurd_sum(line, requests[-1]["input_length"] + requests[-1]["output_length"])
    return requests


@cache
def _mooncake_validator() -> Any:
    return TypeAdapter(MooncakeRequest).validator.validate_json


def _mooncake_request(line: Line) -> Any:
    text = line.text
    try:
        request = _mooncake_validator()(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        message = first["msg"].replace(" at line 1 column", " at column")
        problem = f"{key}: {message}" if key else message
        allowed = f"{problem}; a Mooncake line is one JSON object with {', '.join(_MOONCAKE_KEYS)}"
        value = shown(text if first["type"] in ("missing", "json_invalid") else first["input"])
        raise line.error(value, allowed) from None
    # Numbers stay text: a value that is not read may have more digits than Python converts.
    pairs = json.loads(text, object_pairs_hook=list, parse_int=str, parse_float=str)
    keys = [key for key, _ in pairs]
    for key in _MOONCAKE_KEYS:
        if keys.count(key) > 1:
            raise line.error(f"key {key!r}", "appears twice; remove one")
    return request
