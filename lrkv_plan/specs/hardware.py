"""An accelerator: memory, bandwidth, peaks, links, fitted constants, and their sources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator

from lrkv_plan.attention.registry import kernel_of
from lrkv_plan.errors import SpecError, did_you_mean, shown
from lrkv_plan.schema import (
    NO_SOURCE,
    ByteCount,
    BytesPerSecond,
    Flag,
    FlopsPerSecond,
    Frozen,
    Name,
    ReadOn,
    Remark,
    Source,
    Url,
)
from lrkv_plan.specs.fitted import Efficiency, FittedEntry, PointCount, Seconds
from lrkv_plan.specs.layer_constants import (
    ExchangeConstants,
    ExpertConstants,
    MatrixConstants,
    ProductConstants,
    RecurrentConstants,
    WholeStep,
)
from lrkv_plan.specs.model import Sources


def _known_kernel(name: str) -> str:
    try:
        return kernel_of(name).name
    except SpecError as error:
        raise ValueError(str(error).removeprefix(f"kernel {shown(name)} ")) from None


KernelName = Annotated[str, AfterValidator(_known_kernel)]
MAX_QUERY_HEADS = 65_536
QueryHeads = Annotated[int, Field(strict=True, ge=1, le=MAX_QUERY_HEADS)]


class KernelConstants(FittedEntry):
    """One kernel path on one GPU for one storage format of the cache.

    ``t0_s`` is the fixed time of a call, ``beta`` the reached share of ``mem_bandwidth``, ``phi``
    that of the dense ``peak``. ``query_heads_per_kv_head`` (inclusive) and ``head_dims`` narrow
    an entry to the shapes that its engine serves with one compiled kernel; None means all.
    """

    kernel: KernelName
    kv_dtype: Name
    form: Literal["base", "per_work_unit", "no_split", "sum", "sum_per_work_unit"]
    regime: Literal["cold", "l2_hot"] = "cold"
    preferred: Flag = False
    t0_s: Seconds
    beta: Efficiency
    phi: Efficiency
    peak: Name = "bf16"
    work_unit_s: Annotated[float, Field(gt=0, le=1)] | None = None
    full_work_units: Annotated[float, Field(gt=0, le=1e9)] | None = None
    query_heads_per_kv_head: tuple[QueryHeads, QueryHeads] | None = None
    head_dims: tuple[PointCount, ...] | None = None
    borrowed_from: Name | None = None

    @model_validator(mode="after")
    def _has_the_constants_of_its_form(self) -> KernelConstants:
        needed = {
            "per_work_unit": "work_unit_s", "sum_per_work_unit": "work_unit_s",
            "no_split": "full_work_units",
        }.get(self.form)  # fmt: skip
        for name in ("work_unit_s", "full_work_units"):
            if (getattr(self, name) is not None) != (name == needed):
                verb = "needs" if name == needed else "has no"
                raise ValueError(f"form {self.form!r} {verb} {name}")
        return self

    def covers_query_heads(self, query_heads_per_kv_head: int) -> bool:
        """Whether the entry is meant for that many query heads per cached head."""
        low, high = self.query_heads_per_kv_head or (1, MAX_QUERY_HEADS)
        return low <= query_heads_per_kv_head <= high

    def covers_head_dim(self, head_dim: int) -> bool:
        """Whether the entry is meant for that head width."""
        return self.head_dims is None or head_dim in self.head_dims


class AllReduceConstants(FittedEntry):
    """All-reduce among ``n_gpus`` GPUs of one kind, fitted up to ``max_message_bytes``.

    ``two_shot_s`` is the extra fixed time of the path that sends less (None: one path only).
    """

    n_gpus: Annotated[int, Field(strict=True, ge=2, le=65_536)]
    t0_s: Seconds
    link_efficiency: Efficiency
    two_shot_s: Annotated[float, Field(gt=0, le=1)] | None = None
    max_message_bytes: ByteCount


PEAK_NAMES = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int4", "fp4")


class Network(Frozen):
    """What joins domains of GPUs; bandwidth is per direction and per GPU."""

    name: Name
    bandwidth_bytes_per_s: BytesPerSecond


class HostLink(Frozen):
    """What joins a GPU to its host's memory; bandwidth is per direction and per GPU."""

    name: Name
    bandwidth_bytes_per_s: BytesPerSecond


class Link(Frozen):
    """GPU-to-GPU link; bandwidth is per direction and per GPU.

    ``n_gpus`` is how many one domain joins (8 of a server, 72 of a rack), ``beyond`` the network
    between domains; None where not stated.
    """

    name: Name
    bandwidth_bytes_per_s: BytesPerSecond
    n_gpus: Annotated[int, Field(strict=True, ge=2, le=100_000)] | None = None
    beyond: Network | None = None


class HourlyPrice(Frozen):
    """What one GPU costs for an hour, with where and when that was read."""

    usd: Annotated[float, Field(gt=0, le=10_000)]
    provider: Name | None = None
    kind: Literal["on-demand", "reserved", "spot", "own"] | None = None
    read_on: ReadOn | None = None
    url: Url | None = None
    note: Remark | None = None

    @property
    def provenance(self) -> str:
        """Provider, kind, date and address, as far as they are stated."""
        read_on = None if self.read_on is None else f"read on {self.read_on}"
        stated = [text for text in (self.provider, self.kind, read_on, self.url) if text]
        return ", ".join(stated) or NO_SOURCE


KNOWN_VENDORS = ("nvidia", "amd", "intel", "generic")


def _compared(name: str) -> str:
    """A name that rules compare: in small letters."""
    return name.lower()


def _no_near_miss(vendor: str) -> str:
    """A vendor may be any, but not one letter off those that engines' rules ask for."""
    if vendor not in KNOWN_VENDORS and get_close_matches(vendor, KNOWN_VENDORS, n=1, cutoff=0.8):
        raise ValueError(f"unknown{did_you_mean(vendor, KNOWN_VENDORS)}")
    return vendor


Compared = Annotated[Name, AfterValidator(_compared)]
Vendor = Annotated[Compared, AfterValidator(_no_near_miss)]


class HardwareProfile(Frozen):
    """One accelerator. Peaks are dense; memory is nominal unless ``mem_visible_bytes``."""

    name: Name
    title: Name
    aliases: tuple[Name, ...] = ()
    vendor: Vendor
    generation: Compared
    takes_after: tuple[Name, ...] = ()  # GPUs that lend constants first
    mem_capacity_bytes: ByteCount
    mem_visible_bytes: ByteCount | None = None
    mem_bandwidth_bytes_per_s: BytesPerSecond
    peak_flops_per_s: Annotated[dict[str, FlopsPerSecond], Field(min_length=1)]
    n_sm: Annotated[int, Field(strict=True, ge=1, le=100_000)] | None = None
    l2_bytes: ByteCount | None = None
    link: Link | None = None
    host_link: HostLink | None = None
    unified_memory: Flag = False  # the host's memory is the GPU's
    hourly_price: HourlyPrice | None = None
    board_power_w: Annotated[float, Field(gt=0, le=100_000)] | None = None
    source: Sources = ()  # shipped files name theirs
    kernels: tuple[KernelConstants, ...] = ()
    allreduce: tuple[AllReduceConstants, ...] = ()
    matrices: tuple[MatrixConstants, ...] = ()
    experts: tuple[ExpertConstants, ...] = ()
    products: tuple[ProductConstants, ...] = ()
    exchanges: tuple[ExchangeConstants, ...] = ()
    recurrent: tuple[RecurrentConstants, ...] = ()
    whole_step: WholeStep | None = None

    @property
    def matmul_peak(self) -> str:
        """Name of the peak that matrix products in 16 bit run at; wider formats where none is."""
        wide = ("bf16", "fp16", "tf32", "fp32")
        return next((name for name in wide if name in self.peak_flops_per_s), "fp16")

    @field_validator("peak_flops_per_s")
    @classmethod
    def _known_peaks(cls, peaks: dict[str, float]) -> dict[str, float]:
        for name in peaks:
            if name not in PEAK_NAMES:
                hint = did_you_mean(name, PEAK_NAMES)
                raise ValueError(f"{name!r} is unknown{hint}; known: {', '.join(PEAK_NAMES)}")
        return peaks


_KEY = re.compile(r"^[A-Za-z_]")
_WIDTH = 98


def with_source(text: str, source: Source) -> str:
    """The profile's text with one more source after those that it has.

    Raises
    ------
    SpecError
        If its sources are no list.

    Examples
    --------
    >>> import datetime as dt
    >>> one = Source(citation="a run", read_on=dt.date(2026, 11, 30))
    >>> print(with_source("source:\\n  - {citation: a, read_on: 2026-11-29}\\n", one), end="")
    source:
      - {citation: a, read_on: 2026-11-29}
      - citation: "a run"
        read_on: 2026-11-30
    """
    lines = text.splitlines()
    start, end = _block(lines, "source")
    if start == len(lines):
        lines, end = [*lines, "source:"], end + 1
    elif not any(line.lstrip().startswith("- ") for line in lines[start + 1 : end]):
        raise SpecError("source: must be a list, one source an item, to take one more")
    stated = source.model_dump(exclude_none=True)
    item = [f"{key}: {_scalar(value)}" for key, value in stated.items()]
    added = [("  - " if index == 0 else "    ") + line for index, line in enumerate(item)]
    return "\n".join([*lines[:end], *added, *lines[end:]]) + "\n"


def _block(lines: list[str], key: str) -> tuple[int, int]:
    """Where a top-level key stands and where the next one does; the end twice if it is absent."""
    n = len(lines)
    start = next((i for i, line in enumerate(lines) if line.startswith(f"{key}:")), n)
    return start, next((i for i in range(start + 1, n) if _KEY.match(lines[i])), n)


def with_block(text: str, key: str, entries: Sequence[BaseModel], comment: str) -> str:
    """The profile's text with a list of ``entries`` under ``key``, replaced or appended.

    Examples
    --------
    >>> with_block("name: toy  # kept\\nkernels:\\n  - {old: 1}\\n", "kernels", [], "")
    'name: toy  # kept\\n'
    """
    lines = text.splitlines()
    start, end = _block(lines, key)
    before, after = lines[:start], lines[end:]
    block = [f"{key}:  # {comment}" if comment else f"{key}:"] if entries else []
    for entry in entries:
        block += _entry_lines(entry)
    return "\n".join([*before, *block, *after]) + "\n"


def _entry_lines(entry: BaseModel) -> list[str]:
    """One entry as a flow mapping, wrapped."""
    data = entry.model_dump(exclude_none=True)
    defaults = type(entry).model_fields
    shown = [f"{k}: {_scalar(v)}" for k, v in _ordered(data) if v != defaults[k].default]
    lines, current = [], "  - {"
    for number, part in enumerate(shown):
        piece = part + ("}" if number == len(shown) - 1 else ",")
        joiner = "" if current.endswith("{") else " "
        if len(current) + len(piece) + 1 > _WIDTH and current.strip():
            lines.append(current)
            current, joiner = "     ", " "
        current += joiner + piece
    return [*lines, current]


_FIRST = (
    "engine", "kind", "implementation", "format", "kernel", "n_gpus", "ranks", "nodes",
    "kv_dtype", "backend", "backend_version", "preferred", "regime", "query_heads_per_kv_head",
    "head_dims", "form", "hidden_size", "t0_s", "beta", "phi", "link_efficiency", "two_shot_s",
    "work_unit_s", "full_work_units", "peak", "tau_s_per_element", "expert_s", "hot_beta",
    "head_s", "token_scale", "token_s", "conv_t0_s", "conv_beta",
)  # fmt: skip


def _ordered(data: dict[str, Any]) -> list[tuple[str, Any]]:
    names = [n for n in _FIRST if n in data] + [n for n in data if n not in _FIRST]
    return [(n, data[n]) for n in names]


def _scalar(value: Any) -> str:
    """A value as YAML reads it back; floats with a point and a signed exponent."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.3e}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_scalar(v) for v in value) + "]"
    if isinstance(value, str) and not re.fullmatch(r"[a-z][A-Za-z0-9_/.-]*", value):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
