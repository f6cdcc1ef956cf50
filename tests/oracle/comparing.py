"""Turning a plain description into the product's model, and counting the comparisons made."""

from __future__ import annotations

from collections import Counter
from typing import Any

import lrkv_plan.attention.registry  # noqa: F401  (registers the families)
from lrkv_plan.specs.model import ModelSpec
from tests.conftest import SOURCE

COMPARED: Counter[str] = Counter()


def spec_of(plain: dict[str, Any]) -> ModelSpec:
    """The product's model of a plain description."""
    return ModelSpec.model_validate({"name": "drawn", "source": SOURCE, **plain})


def agree(subject: str, ours: Any, oracle: Any, *about: Any) -> None:
    """Exact equality, counted by subject; ``about`` is shown where it fails."""
    COMPARED[subject] += 1
    assert ours == oracle, (subject, ours, oracle, *about)
