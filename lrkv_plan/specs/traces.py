"""Public request traces as populations: Azure LLM inference, BurstGPT, Mooncake.

A format is known by its exact column names or keys. Only arrival order and token counts are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from lrkv_plan.errors import SpecError, did_you_mean, shown
from lrkv_plan.specs.columns import (
    INSTANT,
    MAX_TOKENS,
    SECONDS,
    TOKENS,
    ColumnKind,
    csv_header,
    csv_rows,
    read_column,
)
from lrkv_plan.specs.lengths import Population, sequences_that_hold_tokens
from lrkv_plan.specs.line_blocks import Lines, line_blocks

if TYPE_CHECKING:
    from lrkv_plan.specs.columns import IntArray

    Requests: TypeAlias = tuple[Any, IntArray, IntArray]  # arrival times, prompts, outputs


@dataclass(frozen=True, kw_only=True)
class CsvTrace:
    """The columns of a published CSV trace."""

    name: str
    arrival: str
    arrival_kind: ColumnKind
    prompt: str
    output: str
    unread: tuple[str, ...] = ()
    sometimes: tuple[str, ...] = ()  # columns that only some releases have
    no_output_is_failure: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that every release has."""
        return (self.arrival, self.prompt, self.output, *self.unread)


AZURE = CsvTrace(
    name="Azure LLM inference",
    arrival="TIMESTAMP",
    arrival_kind=INSTANT,
    prompt="ContextTokens",
    output="GeneratedTokens",
)
BURSTGPT = CsvTrace(
    name="BurstGPT",
    arrival="Timestamp",
    arrival_kind=SECONDS,
    prompt="Request tokens",
    output="Response tokens",
    unread=("Model", "Total tokens", "Log Type"),
    sometimes=("Session ID", "Elapsed time"),
    no_output_is_failure=True,
)
CSV_TRACES = (AZURE, BURSTGPT)

_Tokens: TypeAlias = Annotated[int, Field(ge=0, le=MAX_TOKENS)]


class MooncakeRequest(TypedDict):
    """The keys of a Mooncake line that are read; ``hash_ids`` and others are not."""

    timestamp: Annotated[float, Field(allow_inf_nan=False)]
    input_length: _Tokens
    output_length: _Tokens


_MOONCAKE_KEYS = tuple(MooncakeRequest.__annotations__)


def read_trace(path: Path) -> Population:
    """Requests of a public trace, in order of arrival.

    Parameters
    ----------
    path : a file in one of the formats below; blank lines and # lines are left out.

    Returns
    -------
    Prompt and output tokens by request. Remarks say which format was read, whether rows were
    sorted by arrival (stably) or dropped for holding no token, and what the format leaves open.

    Raises
    ------
    SpecError
        Naming file and line, if the file is missing, empty, larger than 2 GiB or binary, is in
        none of the formats, or holds a value that its format does not allow.

    Notes
    -----
    - Azure LLM inference 2023 and 2024, CSV ``TIMESTAMP,ContextTokens,GeneratedTokens``
      (Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and ...2024.md); times without a
      zone order as UTC. The 2025 multimodal trace is refused: its description does not say
      whether ContextTokens counts the images of NumImages.
    - BurstGPT, CSV ``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``,
      seconds (HPMLL/BurstGPT, README.md); later files add ``Session ID,Elapsed time``. Requests
      that failed have 0 response tokens; they are kept, with their prompts, and counted.
    - Mooncake, one JSON object a line with ``timestamp`` [ms], ``input_length``,
      ``output_length`` and ``hash_ids`` (kvcache-ai/Mooncake, FAST25-release). The hashes name
      prefixes in common; here every request is counted with its own.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.jsonl")
    ...     _ = path.write_text('{"timestamp": 0, "input_length": 6, "output_length": 2}\\n')
    ...     read_trace(path).lengths.tolist()
    [8]
    """
    blocks = line_blocks(path)
    first = next(blocks)
    if first.texts[0].lstrip().startswith("{"):
        remarks = (
            "read as Mooncake; prefixes that requests share (hash_ids) are counted for each",
        )
        return _population(path, map(_mooncake_block, chain([first], blocks)), remarks)
    names = csv_header(first)
    trace = _recognised(first, names)
    rows = (block for block in chain([first.after_first()], blocks) if block.texts)
    requests = (_csv_block(block, trace, names) for block in rows)
    population = _population(path, requests, (f"read as {trace.name}",))
    n_failed = int((population.output_tokens == 0).sum()) if trace.no_output_is_failure else 0
    if not n_failed:
        return population
    failed = f"failed requests (0 response tokens), kept with their prompts: {n_failed:,}"
    return replace(population, remarks=(*population.remarks, failed))


def _population(path: Path, blocks: Iterable[Requests], remarks: tuple[str, ...]) -> Population:
    import numpy as np

    parts = list(blocks)
    if not parts:
        raise SpecError(f"{path}: holds only a header; at least one request is needed")
    arrival, prompt, output = (np.concatenate(column) for column in zip(*parts, strict=True))
    if (arrival[1:] < arrival[:-1]).any():
        order = np.argsort(arrival, kind="stable")
        prompt, output = prompt[order], output[order]
        remarks = (*remarks, "timestamps were out of order; rows were sorted by arrival")
    return sequences_that_hold_tokens(path, prompt, output, remarks)


def _recognised(first: Lines, names: Sequence[str]) -> CsvTrace:
    """The format whose columns these are. Raises ``SpecError`` that names the nearest."""
    for trace in CSV_TRACES:
        known = {*trace.columns, *trace.sometimes}
        if set(trace.columns) <= set(names) <= known and len(set(names)) == len(names):
            return trace
    nearest = min(CSV_TRACES, key=lambda trace: len(set(trace.columns) - set(names)))
    missing = [column for column in nearest.columns if column not in names]
    unknown = [n for n in names if n not in (*nearest.columns, *nearest.sometimes)]
    hint = next((h for h in (did_you_mean(name, missing) for name in unknown) if h), "")
    if len(missing) < len(nearest.columns) and not hint:
        what = f"lacks {', '.join(missing)}" if missing else f"also has {', '.join(unknown)}"
        hint = f"; nearest is {nearest.name}, but this {what}"
    formats = "; ".join(f"{trace.name} ({','.join(trace.columns)})" for trace in CSV_TRACES)
    raise first.error(
        0,
        f"header {shown(first.texts[0])}",
        f"not a known trace{hint.rstrip('?')}; known: {formats}; Mooncake (JSON lines with "
        f"{','.join(_MOONCAKE_KEYS)}); for one column of lengths, name that column",
    )


def _csv_block(lines: Lines, trace: CsvTrace, names: Sequence[str]) -> Requests:
    rows = csv_rows(lines, len(names))

    def column(name: str, kind: ColumnKind) -> Any:
        return read_column(lines, name, list(map(itemgetter(names.index(name)), rows)), kind)

    prompt, output = column(trace.prompt, TOKENS), column(trace.output, TOKENS)
    _refuse_absurd_sums(lines, prompt, output)
    return column(trace.arrival, trace.arrival_kind), prompt, output


def _mooncake_block(lines: Lines) -> Requests:
    import numpy as np

    validate = _mooncake_validator()
    joined = "\n".join(lines.texts)
    try:
        requests = [validate(text, strict=True) for text in lines.texts]
        is_clean = all(joined.count(f'"{key}"') == len(requests) for key in _MOONCAKE_KEYS)
    except ValidationError:
        is_clean = False
    if not is_clean:
        requests = [_mooncake_request(lines, i) for i in range(len(lines.texts))]
    count = len(requests)
    arrival = np.fromiter(map(itemgetter("timestamp"), requests), np.float64, count)
    prompt = np.fromiter(map(itemgetter("input_length"), requests), np.int64, count)
    output = np.fromiter(map(itemgetter("output_length"), requests), np.int64, count)
    _refuse_absurd_sums(lines, prompt, output)
    return arrival, prompt, output


@cache
def _mooncake_validator() -> Any:
    return TypeAdapter(MooncakeRequest).validator.validate_json


def _mooncake_request(lines: Lines, index: int) -> Any:
    text = lines.texts[index]
    try:
        request = _mooncake_validator()(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        message = first["msg"].replace(" at line 1 column", " at column")
        problem = f"{key}: {message}" if key else message
        allowed = f"{problem}; a Mooncake line is one JSON object with {', '.join(_MOONCAKE_KEYS)}"
        value = shown(text if first["type"] in ("missing", "json_invalid") else first["input"])
        raise lines.error(index, value, allowed) from None
    # Numbers stay text: a value that is not read may have more digits than Python converts.
    pairs = json.loads(text, object_pairs_hook=list, parse_int=str, parse_float=str)
    keys = [key for key, _ in pairs]
    for key in _MOONCAKE_KEYS:
        if keys.count(key) > 1:
            raise lines.error(index, f"key {key!r}", "appears twice; remove one")
    return request


def _refuse_absurd_sums(lines: Lines, prompt: IntArray, output: IntArray) -> None:
    lengths = prompt + output
    if int(lengths.max()) > MAX_TOKENS:
        index = int(lengths.argmax())
        allowed = f"prompt and output together must be at most {MAX_TOKENS:,} tokens; mend the line"
        raise lines.error(index, str(int(lengths[index])), allowed)
