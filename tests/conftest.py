"""Shared models: the paper's backbone and small ones written out in full."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

import lrkv_plan
from lrkv_plan.specs.model import ModelSpec

# The same cases on every run; HYPOTHESIS_SEARCH=1 draws new ones.
settings.register_profile("repeatable", derandomize=True)
if not os.environ.get("HYPOTHESIS_SEARCH"):
    settings.load_profile("repeatable")

SOURCE = {"citation": "made up for a test", "read_on": "2026-11-30"}


def make_model(attention: dict[str, Any], **changes: Any) -> ModelSpec:
    """A model of ``n_layers`` (default 1) equal layers with that attention."""
    import lrkv_plan.attention.families  # noqa: F401  (registers the families)

    group = {"count": changes.pop("n_layers", 1), "attention": attention}
    group |= {k: changes.pop(k) for k in list(changes) if k in ("window_tokens", "window_kind")}
    return ModelSpec.model_validate(
        {"name": "toy", "source": SOURCE, "model_dim": 256, "layers": [group], **changes}
    )


@pytest.fixture(scope="session")
def paper() -> ModelSpec:
    """18 layers, 18 heads of 128, width 2304, as the LRKV paper's Table 5 states."""
    model: ModelSpec = lrkv_plan.load_model("lrkv-paper-2.5b")
    return model
