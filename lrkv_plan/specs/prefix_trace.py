"""Requests whose prompts begin alike: the ``hash_ids`` of a trace in Mooncake's format.

An id names a block of the prompt and all that stands before it, so that equal ids are equal
prefixes (kvcache-ai/Mooncake, FAST25-release/README.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.errors import SpecError, shown
from lrkv_plan.specs.parquet_columns import is_parquet
from lrkv_plan.specs.request_files import request_files
from lrkv_plan.specs.text_blocks import Line, blocks_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    IntArray: TypeAlias = npt.NDArray[np.int64]

# Replayed in about a second; the longest of Mooncake's traces has 400,000.
MAX_IDS = 1_000_000
MAX_TOKENS = 10**9
USUAL_BLOCK_TOKENS = 512  # of Mooncake's own traces


@dataclass(frozen=True, eq=False)
class PrefixTrace:
    """Requests in order of arrival; request i has the ids ``ids[starts[i]:starts[i + 1]]``.

    The k-th id names the tokens from k ``block_tokens`` on, up to as many more or the prompt's end;
    tokens after the last id are the request's own. ``is_whole`` is False where
    the file holds more requests than were read.
    """

    prompt_tokens: IntArray
    output_tokens: IntArray
    ids: IntArray
    starts: IntArray
    block_tokens: int
    is_whole: bool

    @property
    def n_requests(self) -> int:
        """Requests that were read."""
        return int(self.prompt_tokens.size)


def read_prefixes(path: Path) -> PrefixTrace | None:
    """The requests of a trace with their prefixes; None where it names none.

    Requests without a token are left out. Those that did not arrive in order are sorted by arrival,
    stably. At most ``MAX_IDS`` ids are read.

    Raises
    ------
    SpecError
        Naming file and line, if the file is missing, a line is no request with its ids, or no block
        size makes the ids those of whole prompts.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.jsonl")
    ...     _ = path.write_text('{"timestamp": 0, "input_length": 700, "output_length": 2, '
    ...                         '"hash_ids": [7, 8]}\\n')
    ...     trace = read_prefixes(path)
    >>> trace.ids.tolist(), trace.block_tokens
    ([7, 8], 512)
    """
    import numpy as np

    times: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    several: list[list[int]] = []
    n_ids, is_whole = 0, True
    for line in _lines(path):
        if not several and not (line.text.lstrip().startswith("{") and "hash_ids" in line.text):
            return None
        request = _request(line)
        if not request["input_length"] and not request["output_length"]:
            continue
        if n_ids + len(request["hash_ids"]) > MAX_IDS:
            is_whole = False
            break
        n_ids += len(request["hash_ids"])
        times.append(request["timestamp"])
        prompts.append(request["input_length"])
        outputs.append(request["output_length"])
        several.append(request["hash_ids"])
    if not several:
        return None
    order = np.argsort(np.array(times), kind="stable")
    counts = np.array([len(ids) for ids in several], dtype=np.int64)[order]
    prompt = np.array(prompts, dtype=np.int64)[order]
    return PrefixTrace(
        prompt_tokens=prompt,
        output_tokens=np.array(outputs, dtype=np.int64)[order],
        ids=np.array([one for i in order for one in several[i]], dtype=np.int64),
        starts=np.concatenate([[0], counts.cumsum()]).astype(np.int64),
        block_tokens=block_tokens_of(path, prompt, counts),
        is_whole=is_whole,
    )


def _lines(path: Path) -> Iterator[Line]:
    """Lines of all files that the path names, packed or not; none of Parquet, which has no ids."""
    for file in request_files(path):
        if is_parquet(file):
            return
        for block in blocks_of(file):
            yield from block.lines()


def _request(line: Line) -> dict[str, Any]:
    try:
        request = json.loads(line.text)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise line.error(shown(line.text), "must be a JSON object")
    for key in ("input_length", "output_length"):
        value = request.get(key)
        if not _is_whole(value, MAX_TOKENS):
            raise line.error(f"{key} {shown(value)}", f"must be a whole number to {MAX_TOKENS:,}")
    time = request.get("timestamp")
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise line.error(f"timestamp {shown(time)}", "must be a number")
    ids = request.get("hash_ids")
    if not isinstance(ids, list) or not all(_is_whole(one, 2**63 - 1) for one in ids):
        raise line.error(
            f"hash_ids {shown(ids)}",
            "must be a list of whole numbers, one for each block of the prompt, on every line or "
            "on none",
        )
    return request


def _is_whole(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def block_tokens_of(path: Path, prompt: IntArray, counts: IntArray) -> int:
    """The tokens of a block that make every request's ids those of its prompt.

    With n ids of blocks of b tokens a prompt has from (n - 1) b to (n + 1) b: its last block may be
    in part, or have no id. The sizes that suit all requests are a range: 512 where it lies there,
    as in Mooncake's own traces, else the only power of two.

    Raises
    ------
    SpecError
        If none or several would suit.
    """
    import numpy as np

    low = -(-prompt // (counts + 1))
    high = np.where(counts > 1, prompt // np.maximum(counts - 1, 1), 2**62)
    least: int = low.max(initial=1).item()
    most: int = high.min(initial=2**62).item()
    if least <= USUAL_BLOCK_TOKENS <= most:
        return USUAL_BLOCK_TOKENS
    powers: list[int] = [2**k for k in range(21) if least <= 2**k <= most]
    if len(powers) == 1:
        return powers[0]
    worst = "more than one size of block makes" if powers else "no size of block makes"
    raise SpecError(
        f"{path}: hash_ids: {worst} them those of the prompts; an id stands for a block of 512 "
        "tokens in Mooncake's traces"
    )
