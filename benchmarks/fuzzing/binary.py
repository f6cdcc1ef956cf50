"""Parquet and GGUF files taken apart into plain documents, and put together after damage."""

from __future__ import annotations

import io
import random
import struct
from typing import Any

from tests.gguf import written

MAX_ZEROS = 2**22  # of a damaged file's tensors


def from_parquet(content: bytes) -> dict[str, list[Any]]:
    """Columns by name."""
    import pyarrow.parquet

    columns: dict[str, list[Any]] = pyarrow.parquet.read_table(io.BytesIO(content)).to_pydict()
    return columns


def to_parquet(document: Any, chance: random.Random | None = None) -> bytes:
    """Columns of equal length as a file of one or several row groups; odd ones become text."""
    import pyarrow as pa
    import pyarrow.parquet

    columns = document if isinstance(document, dict) else {"odd": document}
    arrays = {str(name): _column(values) for name, values in columns.items()}
    n_rows = max((len(array) for array in arrays.values()), default=0)
    filled = [
        pa.concat_arrays([a, pa.nulls(n_rows - len(a), a.type)]) for a in arrays.values()
    ]  # fmt: skip
    names = [name.encode(errors="replace").decode() for name in arrays]
    file = io.BytesIO()
    table = pa.table(filled, names=names)
    groups = 10**6 if chance is None else chance.choice((1, 2, 10**6))
    pyarrow.parquet.write_table(table, file, row_group_size=groups)
    return file.getvalue()


def _column(values: Any) -> Any:
    import pyarrow as pa

    listed = values if isinstance(values, list) else [values]
    try:
        array = pa.array(listed)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, RecursionError):
        return pa.array([ascii(value)[:1000] for value in listed])
    nested = pa.types.is_nested(array.type) or pa.types.is_null(array.type)
    return pa.array([ascii(value)[:1000] for value in listed]) if nested else array


def small_gguf() -> dict[str, Any]:
    """A llama of one layer, 2 heads of 16 and 3 words, some of it quantised."""
    keys, _ = written.llama(1)
    sizes = {"embedding_length": 32, "attention.head_count": 2, "attention.head_count_kv": 1,
             "feed_forward_length": 64}  # fmt: skip
    shapes = {
        "attn_norm": [32], "attn_q": [32, 32], "attn_k": [32, 16], "attn_v": [32, 16],
        "attn_output": [32, 32], "ffn_norm": [32], "ffn_gate": [32, 64], "ffn_up": [32, 64],
        "ffn_down": [64, 32],
    }  # fmt: skip
    tensors: dict[str, Any] = {"token_embd.weight": [[32, 3], 8], "output_norm.weight": [[32], 0]}
    for name, shape in shapes.items():
        tensors[f"blk.0.{name}.weight"] = [shape, 0 if len(shape) == 1 else 8]
    return {"keys": keys | {f"llama.{k}": v for k, v in sizes.items()}, "tensors": tensors}


def to_gguf(document: Any, _: random.Random | None = None) -> bytes:
    """Keys and tensors ``{name: [shape, number of the type]}`` as a file with tensors of zeros."""
    parts = document if isinstance(document, dict) else {}
    keys, tensors = parts.get("keys"), parts.get("tensors")
    known = {kind[0]: kind for kind in (written.F32, written.F16, written.Q8_0, written.Q4_K)}
    shaped = {}
    for name, each in (tensors if isinstance(tensors, dict) else {}).items():
        shape, number = (*each, 0, 0)[:2] if isinstance(each, list) else ([1], 0)
        numbers = shape if isinstance(shape, list) else [shape]
        number = number if isinstance(number, int) else 0
        kind = known.get(number, (number % 2**32, 1, 1))
        shaped[_text(name)] = (tuple(n % 2**64 for n in numbers if isinstance(n, int)), kind)
    told = {_text(k): _value(v) for k, v in (keys if isinstance(keys, dict) else {}).items()}
    try:
        head, n_bytes = written.header(told, shaped)
    except struct.error:  # an offset beyond 64 bits
        flat = {n: ((sum(shape) % 2**40,), kind) for n, (shape, kind) in shaped.items()}
        head, n_bytes = written.header(told, flat)
    return head + bytes(-len(head) % 32) + bytes(min(n_bytes, MAX_ZEROS))


def _text(value: Any) -> str:
    return str(value).encode(errors="replace").decode()


def _value(value: Any) -> Any:
    """What the writer takes; anything else as text."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
        return [_text(v) for v in value]
    try:
        written.typed(value)
    except (struct.error, TypeError, IndexError, OverflowError, AttributeError, KeyError):
        return ascii(value)[:1000]
    return value
