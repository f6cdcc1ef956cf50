"""Tables of measured layer operations: which operation a file holds, and its rows as columns.

A table is known by its columns. Common to all: gpu, latency_us, and engine where engines differ;
README of the tables' source gives the rest. Times are microseconds per call on one GPU.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lrkv_plan.calibration.samples import LATENCIES_US, MAX_ROWS, table_text
from lrkv_plan.errors import CalibrationError, shown

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class LayerTable:
    """A kind of table: its operation, columns of words, columns of numbers, and what it lacks."""

    operation: str
    words: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that it must have."""
        return ("gpu", *self.words, *self.numbers, "latency_us")


LAYER_TABLES = (
    LayerTable(operation="matrices", words=("engine", "gemm_dtype"), numbers=("m", "n", "k")),
    LayerTable(
        operation="experts", words=("engine", "moe_dtype", "distribution"),
        numbers=("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size",
                 "moe_ep_size"),
    ),
    LayerTable(
        operation="products", words=("engine", "bmm_dtype", "op"),
        numbers=("num_heads", "num_tokens"),
    ),
    LayerTable(
        operation="mla_layer", words=("engine", "attention_kernel", "kv_dtype", "gemm_dtype"),
        numbers=("num_heads", "batch", "kv_len"), lacks=("indexer",),
    ),
    LayerTable(
        operation="recurrent", words=("engine", "kernel"),
        numbers=("d_conv", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim", "batch"),
    ),
    LayerTable(
        operation="mamba2", words=("engine", "kernel"),
        numbers=("d_conv", "d_state", "nheads", "head_dim", "n_groups", "batch"),
    ),
    LayerTable(
        operation="exchanges", words=("engine", "implementation", "op"),
        numbers=("hidden_size", "num_tokens", "topk", "num_experts"),
    ),
    LayerTable(
        operation="collectives", words=("library", "op", "dtype"),
        numbers=("num_gpus", "message_bytes"),
    ),
    LayerTable(
        operation="small_kernels", words=("source", "model", "op", "mode"),
        numbers=("tp", "tokens"),
    ),
)  # fmt: skip
FORMAT_OF = {"w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8"}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One file's rows, and which operation they are of."""

    path: Path
    table: LayerTable
    rows: pd.DataFrame


def table_files(path: Path) -> list[Path]:
    """The table, or those of a folder by name.

    Raises
    ------
    CalibrationError
        If a folder holds none.
    """
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.iterdir() if p.name.endswith((".csv", ".csv.gz")))
    if not found:
        raise CalibrationError(f"{path}: holds no .csv or .csv.gz file")
    return found


def known_table(columns: list[str]) -> LayerTable | None:
    """The kind of table that has those columns, if any."""
    for table in LAYER_TABLES:
        if set(table.columns) <= set(columns) and not set(table.lacks) & set(columns):
            return table
    return None


def read_layer_table(path: Path) -> Measured | None:
    """The rows of a table of layer operations; None where its columns are of no known kind.

    Raises
    ------
    CalibrationError
        If the file cannot be read, is no table, has too many rows, or a cell is no number.
    """
    import pandas as pd

    text = table_text(path)
    try:
        frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    except pd.errors.ParserError as error:
        raise CalibrationError(f"{path}: is no CSV table: {str(error).strip()}") from None
    except pd.errors.EmptyDataError:
        raise CalibrationError(f"{path}: is empty") from None
    table = known_table(list(frame.columns))
    if table is None:
        return None
    if len(frame) > MAX_ROWS:
        raise CalibrationError(f"{path}: holds more than {MAX_ROWS:,} rows; give a part")
    for name in (*table.numbers, "latency_us"):
        frame[name] = _numbers(path, name, frame[name])
    for name in ("weights_cold", "ranks", "node_num", "sms"):
        if name in frame:
            frame[name] = pd.to_numeric(frame[name], errors="coerce")
    return Measured(path=path, table=table, rows=frame)


def _numbers(path: Path, name: str, cells: pd.Series[str]) -> pd.Series[float]:
    """A column as numbers within what a cell may hold."""
    import pandas as pd

    low, high = LATENCIES_US if name == "latency_us" else (1, 1e12)
    values = pd.to_numeric(cells, errors="coerce")
    bad = ~((values >= low) & (values <= high))
    if bad.any():
        row = int(bad.to_numpy().argmax())
        raise CalibrationError(
            f"{path}: row {row + 1}: {name} {shown(cells.iloc[row])}: must be a number from "
            f"{low:g} to {high:g}"
        )
    return values.astype(float)


def nearest_table(path: Path) -> str:
    """The kind of table that a file lacks fewest columns of, and these; for one line of error."""
    header = table_text(path).partition("\n")[0].strip()
    columns = {name.strip() for name in header.split(",")}
    lacking = {
        table.operation: [name for name in table.columns if name not in columns]
        for table in LAYER_TABLES
    }
    nearest = min(lacking, key=lambda operation: len(lacking[operation]))
    return f"nearest to {nearest}, but lacks the columns {', '.join(lacking[nearest])}"
