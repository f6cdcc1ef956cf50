"""Attention families by name, their layouts and kernels, and ``--attention`` text: ``gqa:6``,
``mla:512+64``, ``lrkv:55,groups=2,position=rope_expand``.

Built-in families are the files of ``lrkv_plan.attention.families``. Other packages add theirs under
the entry point group ``lrkv_plan.families``, whose values are a ``Family`` or several; those are
loaded once, when a name is asked for that no built-in family has.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, ValidationError
from pydantic_core import PydanticCustomError

from lrkv_plan.attention import families as built_in
from lrkv_plan.attention.family import Builder, Family, Kernel, Planned
from lrkv_plan.attention.layout import AttentionLayout
from lrkv_plan.attention.spec import AttentionSpec, Backbone
from lrkv_plan.errors import SpecError, did_you_mean, one_line, shown
from lrkv_plan.schema import Problem, explain, problems

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "lrkv_plan.families"
_FAMILIES: dict[str, Family] = {}
_KERNELS: dict[str, tuple[Kernel, Family]] = {}


def register(family: Family) -> None:
    """Add a family under all its names; every calculator knows it from now on.

    Raises
    ------
    SpecError
        If one of its kernels is another family's.
    """
    for kernel in family.kernels:
        owner = _KERNELS.get(kernel.name)
        if owner is not None and not set(owner[1].names) & set(family.names):
            raise SpecError(
                f"attention family {family.names[0]!r}: kernel {kernel.name!r} belongs to family "
                f"{owner[1].names[0]!r}; give it a name of its own"
            )
    _FAMILIES.update(dict.fromkeys(family.names, family))
    _KERNELS.update({kernel.name: (kernel, family) for kernel in family.kernels})
    layout_of.cache_clear()


def register_family(
    name: str,
    spec_class: type[AttentionSpec],
    build: Builder,
    *,
    kernels: Sequence[Kernel] = (),
    runs_on: Sequence[str] = (),
    planned: Sequence[Planned] = (),
) -> None:
    """Add a family; spec files, ``--attention`` and every calculator know it from now on.

    Parameters
    ----------
    kernels, runs_on, planned : as in ``lrkv_plan.attention.family.Family``.

    Raises
    ------
    SpecError
        If the name is not text, the class no ``AttentionSpec``, ``build`` cannot be called, or a
        kernel is another family's.
    """
    register(
        Family(
            names=(name,), spec_class=spec_class, build=build, kernels=tuple(kernels),
            runs_on=tuple(runs_on), planned=tuple(planned),
        )
    )  # fmt: skip


def forget(family: Family) -> None:
    """Take a family out again, with its kernels."""
    for name in family.names:
        _FAMILIES.pop(name, None)
    for kernel in family.kernels:
        _KERNELS.pop(kernel.name, None)
    layout_of.cache_clear()


@functools.cache
def load_plugins() -> None:
    """Register what installed packages offer under ``lrkv_plan.families``, once.

    Raises
    ------
    SpecError
        If one cannot be loaded or registered; the message names it.
    """

    def take(point: EntryPoint) -> None:
        for family in _offered(point):
            register(family)

    each_plugin(ENTRY_POINTS, take)


def entry_points(group: str) -> Iterable[EntryPoint]:
    """Installed entry points of that group; looking opens the metadata of every package."""
    from importlib import metadata

    return metadata.entry_points(group=group)


def each_plugin(group: str, take: Callable[[EntryPoint], None]) -> None:
    """Hand each installed entry point of that group to ``take``, by name.

    Raises
    ------
    SpecError
        If ``take`` fails in any way: one line that names the entry point.
    """
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        try:
            take(point)
        except Exception as error:
            kind = "" if isinstance(error, SpecError) else f"{type(error).__name__}: "
            raise SpecError(
                one_line(f"plugin {point.name!r} ({group}: {point.value}): {kind}{error}")
            ) from error


def _offered(point: EntryPoint) -> Iterable[Family]:
    offered = point.load()
    families = (offered,) if isinstance(offered, Family) else tuple(offered)
    for family in families:
        if not isinstance(family, Family):
            raise SpecError(f"{shown(family)} is no Family")
        taken = sorted(name for name in family.names if name in _FAMILIES)
        if taken:
            raise SpecError(f"family {taken[0]!r} is known already")
    return families


def all_families() -> tuple[Family, ...]:
    """All registered families, the built-in ones first."""
    load_plugins()
    return tuple({id(family): family for family in _FAMILIES.values()}.values())


def known_families() -> tuple[str, ...]:
    """Names of all registered families."""
    load_plugins()
    return tuple(_FAMILIES)


def is_family(name: str) -> bool:
    """Whether a family has that name; plug-ins are asked only about what may be a name."""
    if name not in _FAMILIES and name.isidentifier():
        load_plugins()
    return name in _FAMILIES


def family_of(name: object) -> Family:
    """The family of that name. Raises ``SpecError`` with the nearest known name."""
    if isinstance(name, str) and name in _FAMILIES:
        return _FAMILIES[name]
    known = known_families()
    if isinstance(name, str) and name in known:
        return _FAMILIES[name]
    hint = did_you_mean(name, known) if isinstance(name, str) else ""
    raise SpecError(f"attention family {shown(name)} is unknown{hint}; known: {', '.join(known)}")


def spec_class(family: object) -> type[AttentionSpec]:
    """The spec class of a family. Raises ``SpecError`` with the nearest known name."""
    return family_of(family).spec_class


def kernel_names() -> tuple[str, ...]:
    """Kernels of all registered families."""
    load_plugins()
    return tuple(_KERNELS)


def kernel_of(name: str) -> Kernel:
    """The kernel of that name. Raises ``SpecError`` with the nearest known name."""
    if name not in _KERNELS:
        known = kernel_names()
        if name not in known:
            hint = did_you_mean(name, known)
            raise SpecError(f"kernel {shown(name)} is unknown{hint}; known: {', '.join(known)}")
    return _KERNELS[name][0]


def _resolve(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "family" not in value:
        raise ValueError("family is missing: one of " + ", ".join(known_families()))
    try:
        return spec_class(value["family"]).model_validate(value)
    except SpecError as error:
        raise ValueError(str(error)) from None
    except ValidationError as error:
        # A nested error would lose its place: hand the inner key on as text.
        raise PydanticCustomError(
            "inner", "{inner}", {"inner": explain(error), "each": _of_written(error, value)}
        ) from None


def _of_written(error: ValidationError, value: dict[str, Any]) -> list[Problem]:
    """What is wrong with the keys that were written, not with those filled in from them."""
    found = problems(error)
    written = [p for p in found if p.kind != "wrong" or p.where.split(".")[0] in {"", *value}]
    return written or found


AnyAttention = Annotated[SerializeAsAny[AttentionSpec], BeforeValidator(_resolve)]


@lru_cache(maxsize=4096)
def layout_of(spec: AttentionSpec, model_dim: int) -> AttentionLayout:
    """The layout of one layer with that attention.

    Raises
    ------
    SpecError
        If the family is not registered, or a path runs on a kernel that it does not declare.
    """
    family = family_of(spec.family)
    return family.check_kernels(family.build(spec, model_dim))


for _module in pkgutil.iter_modules(built_in.__path__):
    for _family in importlib.import_module(f"{built_in.__name__}.{_module.name}").FAMILIES:
        register(_family)


def parse_attention(text: str, backbone: Backbone) -> AttentionSpec:
    """The design that ``text`` names, on the heads of ``backbone``.

    Raises
    ------
    SpecError
        If the family or a key is unknown, or the design does not fit the backbone.

    Examples
    --------
    >>> paper = Backbone(n_heads=18, head_dim=128, v_head_dim=128)
    >>> parse_attention("lrkv:55,groups=2", paper).label()
    'lrkv:55,n_shared_groups=2'
    """
    if not isinstance(text, str):
        raise SpecError(f"text {shown(text)}: must be a design, for example 'gqa:8'")
    if not isinstance(backbone, Backbone):
        raise SpecError(f"backbone {shown(backbone)}: must be a Backbone (heads and widths)")
    family, _, rest = text.strip().partition(":")
    head, *option_texts = family.split(",")
    if option_texts:  # "mqa,output_bias=true": options without an argument
        family, rest = head, ",".join([*option_texts, rest]) if rest else ",".join(option_texts)
    cls = spec_class(family.lower())
    try:
        return _on_backbone(cls, family.lower(), rest, backbone)
    except ValidationError as error:
        raise SpecError(f"attention {shown(text)}: {explain(error, cls)}") from None
    except SpecError as error:
        raise SpecError(f"attention {shown(text)}: {error}") from None


@functools.lru_cache(maxsize=4096)  # searches for a rank ask for the same designs again
def _on_backbone(
    cls: type[AttentionSpec], family: str, rest: str, backbone: Backbone
) -> AttentionSpec:
    """The design, frozen, so that all who ask for it may share it."""
    return cls.on_backbone(backbone, family, _fields(cls, rest))


def _fields(cls: type[AttentionSpec], rest: str) -> dict[str, Any]:
    known = {*cls.model_fields, *cls.text_aliases, *filter(None, [cls.text_argument])}
    fields: dict[str, Any] = {}
    for position, part in enumerate(filter(None, (p.strip() for p in rest.split(",")))):
        key, equals, value = part.partition("=")
        if not equals:
            if position or cls.text_argument is None:
                raise SpecError(f"{shown(part)}: options are written key=value")
            key, value = cls.text_argument, part
        key = cls.text_aliases.get(key.strip(), key.strip())
        if key not in known or key == "family":
            names = ", ".join(sorted(known - {"family", "n_heads"}))
            raise SpecError(
                f"unknown option {shown(key)}{did_you_mean(key, known)}; known: {names}"
            )
        if key in fields:
            raise SpecError(f"{key} is given twice")
        fields[key] = _value(value.strip())
    return fields


def _value(text: str) -> Any:
    if text.isascii() and text.isdecimal() and len(text) < 20:
        return int(text)
    return {"true": True, "false": False}.get(text.lower(), text)
