"""What a family of attention designs says about itself, in the one file that it is.

A family's file ends in ``FAMILIES``: its names and spec class, the function that lays a layer out,
the kernels that its decode paths run on, and its place in a plan. Nothing else in the package names
a family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from lrkv_plan.attention.layout import AttentionLayout
from lrkv_plan.attention.spec import AttentionSpec, Backbone
from lrkv_plan.errors import SpecError, shown
from lrkv_plan.schema import explain

Builder = Callable[[Any, int], AttentionLayout]


@dataclass(frozen=True, kw_only=True)
class Calls:
    """How a table of measured calls states a kernel's work, and which calls share constants.

    ``work`` gives bytes, FLOPs and work units of batch_size, context_tokens, n_heads,
    bytes_per_scalar and its own arguments, which ``columns`` maps to the table's columns.
    An engine serves ``query_head_ranges`` (query heads per cached head) with a compiled kernel
    each, and so does it the widths of a cached row where ``by_head_dim``.
    """

    work: Callable[..., tuple[Any, Any, Any]]
    columns: Mapping[str, str]
    query_head_ranges: tuple[tuple[int, int], ...]
    by_head_dim: bool


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel that a decode path runs on, and what its time rests on where it was not measured.

    ``fallback`` is the kernel whose constants stand in then; ``assumptions`` are the sentences that
    are printed with them, and ``bandwidth_left`` the assumed range of the fallback's bandwidth that
    is reached (the prediction stands at the fallback's own). ``query_heads_per_kv_head`` is the
    shape at which the fallback is read and heads are dealt out; the layer's own when None.
    ``rebuilds`` means that its work units are the scalars that it rebuilds, not the cached heads.
    ``calls`` is how tables state its measured calls; None where there are no such tables.
    """

    name: str
    fallback: str | None = None
    assumptions: tuple[str, ...] = ()
    bandwidth_left: tuple[float, float] = (1.0, 1.0)
    query_heads_per_kv_head: int | None = None
    rebuilds: bool = False
    calls: Calls | None = None


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A design that a plan shows beside a model's own.

    ``design`` gives it on a model's backbone. With ``in_budget`` it takes the largest size that
    fits the plan's budget (of those at the alignment, with ``aligned``; at most ``most``), and is
    left out where none fits. ``role_at_zero`` is its role where that size is 0, and None then
    leaves it out.
    """

    role: str
    design: Callable[[Backbone], AttentionSpec]
    in_budget: bool = False
    aligned: bool = False
    most: Callable[[Backbone], int] | None = None
    role_at_zero: str | None = None

    def on(self, backbone: Backbone) -> AttentionSpec:
        """The design on that backbone. Raises ``SpecError`` where it cannot be had there."""
        try:
            return self.design(backbone)
        except ValidationError as error:
            raise SpecError(explain(error)) from None


@dataclass(frozen=True, kw_only=True)
class Family:
    """All that the package knows of a family.

    ``kernels`` are its own; ``runs_on`` names other families' kernels that its paths run unchanged,
    so that their measurements are its own.
    """

    names: tuple[str, ...]
    spec_class: type[AttentionSpec]
    build: Builder
    kernels: tuple[Kernel, ...] = ()
    runs_on: tuple[str, ...] = ()
    planned: tuple[Planned, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot work, in words, where it is declared."""
        for name in self.names or ("",):
            if not isinstance(name, str) or not name:
                raise SpecError(f"name {shown(name)}: a family's name must be text")
        cls = self.spec_class
        if not (isinstance(cls, type) and issubclass(cls, AttentionSpec)):
            raise SpecError(f"spec_class {shown(cls)}: must be a subclass of AttentionSpec")
        if not callable(self.build):
            raise SpecError(
                f"build {shown(self.build)}: must be a function (spec, model_dim) -> layout"
            )

    def check_kernels(self, layout: AttentionLayout) -> AttentionLayout:
        """The layout, if each of its paths runs on a kernel that the family declares.

        Raises
        ------
        SpecError
            If a path runs on another kernel: its times would be printed as measured.
        """
        declared = {kernel.name for kernel in self.kernels} | set(self.runs_on)
        for work in layout.work:
            if work.kernel not in declared:
                raise SpecError(
                    f"attention family {self.names[0]!r}: path {work.path} runs on kernel "
                    f"{work.kernel!r}, which it does not declare: give it a Kernel with a name of "
                    f"its own, or state runs_on=({work.kernel!r},) if it is that very kernel"
                )
        return layout
