"""Shared models: the paper's backbone and small ones written out in full."""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from hypothesis import settings

import lrkv_plan
from lrkv_plan.specs.model import ModelSpec
from tests.drawing import drawn

# The same cases on every run; HYPOTHESIS_SEARCH=1 draws new ones. No deadline: other processes
# may take the time.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=drawn(100))
settings.register_profile("search", deadline=None)
settings.load_profile("search" if os.environ.get("HYPOTHESIS_SEARCH") else "repeatable")

SOURCE = {"citation": "made up for a test", "read_on": "2026-11-30"}


def make_model(attention: dict[str, Any], **changes: Any) -> ModelSpec:
    """A model of ``n_layers`` (default 1) equal layers with that attention."""
    import lrkv_plan.attention.registry  # noqa: F401  (registers the families)

    group = {"count": changes.pop("n_layers", 1), "attention": attention}
    group |= {k: changes.pop(k) for k in list(changes) if k in ("window_tokens", "window_kind")}
    return ModelSpec.model_validate(
        {"name": "toy", "source": SOURCE, "model_dim": 256, "layers": [group], **changes}
    )


def only_notes(stderr: str) -> bool:
    """Whether a command said nothing on stderr but the notes of its table."""
    return all(line.startswith("note: ") for line in stderr.splitlines())


def one_error(stderr: str) -> str:
    """The error's line; below it stand at most two indented lines of advice."""
    first, *advice = stderr.splitlines()
    assert first.startswith("error: ")
    assert len(advice) <= 2
    assert all(line.startswith("  ") and line.isprintable() for line in advice)
    assert stderr.endswith("\n")
    return first


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """Building all commands takes longer than most of them run, and nothing changes them."""
    import typer.testing

    built = functools.cache(typer.testing._get_command)
    with mock.patch.object(typer.testing, "_get_command", built):
        yield


@pytest.fixture(scope="session")
def paper() -> ModelSpec:
    """18 layers, 18 heads of 128, width 2304, as the LRKV paper's Table 5 states."""
    model: ModelSpec = lrkv_plan.load_model("lrkv-paper-2.5b")
    return model


HOSTILE = "<script>alert(1)</script>"
ENDINGS = (
    "</script></style></svg>--><img src=x onerror=alert(2)>\"'><b>|`*_[x](javascript:alert(3))"
)


@pytest.fixture(scope="session")
def hostile_spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file whose every text tries to become markup."""
    path = tmp_path_factory.mktemp("hostile") / "m.yaml"
    source = {
        "citation": ENDINGS, "note": HOSTILE, "read_on": "2026-11-30",
        "url": "https://example.invalid/'\"><script>alert(4)</script>",
    }  # fmt: skip
    group = {
        "count": 2,
        "attention": {"family": "mha", "n_heads": 4, "head_dim": 64},
        "feed_forward": {"kind": "dense", "hidden_dim": 512, "gated": True},
    }
    model = {
        "name": HOSTILE, "source": source, "model_dim": 256, "max_context_tokens": 4096,
        "vocab_size": 1000, "weight_dtype": "bf16", "tied_embeddings": True,
        "norms": {"per_mixer": 1, "per_feed_forward": 1}, "layers": [group],
        "remarks": [ENDINGS, HOSTILE],
    }  # fmt: skip
    path.write_text(yaml.safe_dump(model))
    return path


@pytest.fixture(scope="session")
def hostile_report(hostile_spec: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of that model's report."""
    return written_report(tmp_path_factory.mktemp("r") / "hostile", str(hostile_spec), "h100-sxm")


@pytest.fixture(scope="session")
def whole_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the reference report on a real model."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "llama-3.1-8b-on-h200"
    # The first process that wants it writes it, the others wait and read it.
    with (shared / "report.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return folder if folder.exists() else written_report(folder, "llama-3.1-8b", "h200")


def written_report(folder: Path, model: str, gpu: str) -> Path:
    """``lrkv-plan report`` run into a folder."""
    from typer.testing import CliRunner

    from lrkv_plan.cli.app import app

    result = CliRunner().invoke(app, ["report", model, "--gpu", gpu, "-o", str(folder)])
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    return folder
