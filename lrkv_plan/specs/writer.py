"""A ModelSpec as YAML that ``load_model`` reads back to an equal spec.

Defaults are left out, small mappings stand on one line, and ``layer_order`` on one line too.
"""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from lrkv_plan.specs.attention import AttentionSpec
from lrkv_plan.specs.model import LayerGroup, ModelSpec

# Filled in by the attention families from their other fields.
_DERIVED = ("n_kv_heads", "v_head_dim")
_ENDLESS = 10**9  # columns: one-line values are never folded


class _OneLine(dict[str, Any]):
    """A mapping that is written in flow style."""


class _OneLineList(list[int]):
    """A list that is written in flow style."""


class _Dumper(yaml.SafeDumper):
    """Block style outside, flow style for the two classes above, list items indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        """Indent list items under their key, which PyYAML leaves flush."""
        super().increase_indent(flow, False)


_Dumper.add_representer(
    _OneLine, lambda d, v: d.represent_mapping("tag:yaml.org,2002:map", v, flow_style=True)
)
_Dumper.add_representer(
    _OneLineList, lambda d, v: d.represent_sequence("tag:yaml.org,2002:seq", v, flow_style=True)
)


def model_to_yaml(model: ModelSpec) -> str:
    """The text of a model file.

    Examples
    --------
    >>> from lrkv_plan.specs.loader import load_model
    >>> model_to_yaml(load_model("lrkv-paper-2.5b")).splitlines()[-3]
    '    attention: {family: mha, n_heads: 18, head_dim: 128}'
    """
    data = _stated(model)
    data["source"] = [_stated(source) for source in model.source]
    if model.norms is not None:
        data["norms"] = _one_line(model.norms)
    data["layers"] = [_group(group) for group in model.layers]
    if model.layer_order is not None:
        data["layer_order"] = _OneLineList(model.layer_order)
    for key in ("uncounted_parts", "remarks"):
        if key in data:
            data[key] = list(data[key])
    return yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, width=_ENDLESS, allow_unicode=True,
    )  # fmt: skip


def _stated(spec: BaseModel) -> dict[str, Any]:
    """Fields that differ from their default, in the order of the class."""
    dumped = spec.model_dump(exclude_defaults=True)
    return {name: dumped[name] for name in type(spec).model_fields if name in dumped}


def _one_line(spec: BaseModel) -> _OneLine:
    return _OneLine(_stated(spec))


def _group(group: LayerGroup) -> dict[str, Any]:
    data = _stated(group)
    if group.attention is not None:
        data["attention"] = _attention(group.attention)
    for key, tensors in (("state", group.state), ("index", group.index)):
        if tensors:
            data[key] = [_one_line(tensor) for tensor in tensors]
    if group.feed_forward is not None:
        kind = group.feed_forward.kind
        data["feed_forward"] = _OneLine({"kind": kind, **_stated(group.feed_forward)})
    return data


def _attention(spec: AttentionSpec) -> _OneLine:
    """The family and what it does not fill in by itself; flags last."""
    data = {"family": spec.family, **_stated(spec)}
    for key in _DERIVED:
        shorter = {name: value for name, value in data.items() if name != key}
        if key in data and _reads_as(spec, shorter):
            data = shorter
    return _OneLine(sorted(data.items(), key=lambda item: isinstance(item[1], bool)))


def _reads_as(spec: AttentionSpec, data: dict[str, Any]) -> bool:
    try:
        return type(spec).model_validate(data) == spec
    except ValidationError:
        return False
