"""The engine's own command line of an answered layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import UsageError

if TYPE_CHECKING:
    from lrkv_plan.serving.answers import Answer
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.specs.model import ModelSpec

_HUB_ID = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+)(?:/|$)")


def launched(answer: Answer, arguments: Mapping[str, Any]) -> Answer:
    """The answer with its command line, where its layout serves anybody.

    Parameters
    ----------
    arguments : model name -> the model as it was asked for.

    Raises
    ------
    UsageError
        As ``launch_words``.
    """
    row, model = answer.row, answer.model
    if row is None or model is None or not row.max_sequences:
        return answer
    n_sequences = row.max_sequences
    if answer.admitted is not None:
        n_sequences = max(1, answer.admitted.batch_size // answer.deployment.parallel.dp_size)
    words = launch_words(answer.deployment, model, arguments.get(model.name), n_sequences)
    return replace(answer, launch=words)


def launch_words(
    deployment: Deployment, model: ModelSpec, argument: Any, n_sequences: int
) -> tuple[str, ...]:
    """The words of the engine's command line for one replica.

    Parameters
    ----------
    argument : the model as it was asked for: a folder or file is served as it is, a shipped name
        as the hub's model that its figures were read from.
    n_sequences : the most that one core decodes together.

    Raises
    ------
    UsageError
        If the engine has no command line, or no words for an option.
    """
    from lrkv_plan.serving.engine import engine_record
    from lrkv_plan.serving.launch import Launch

    record = engine_record(deployment.engine.name)
    if record.launch is None:
        raise UsageError(f"--launch: {record.name} is a rule, not a server: name an --engine")
    measured = deployment.measured
    default = record.utilisation.of(deployment.engine)
    if measured is not None:
        default = measured.budget.share
    stored = model.weight_dtype
    asked = Launch(
        engine=deployment.engine, model=_served(model, argument), name=model.name,
        settings=deployment.settings, parallel=deployment.parallel, n_sequences=n_sequences,
        utilisation=default if deployment.utilisation is None else deployment.utilisation,
        weight_dtype=None if deployment.weight_dtype == stored else deployment.weight_dtype,
        kv_memory_bytes=deployment.kv_memory_bytes,
    )  # fmt: skip
    return tuple(record.launch(asked))


def _served(model: ModelSpec, argument: Any) -> str:
    """A folder or file as given, else the hub's name in the model's source, else MODEL."""
    if isinstance(argument, str | Path) and Path(argument).exists():
        path = Path(argument)
        return str(path.parent if path.name == "config.json" else path)
    for source in model.source or ():
        found = _HUB_ID.match(source.url or "")
        if found is not None:
            return found[1]
    return "MODEL"
