"""The question as it was asked, to word the next one about the same model and GPU."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.questions.gpus import without_count
from lrkv_plan.specs.model import ModelSpec

REPEATED = ("attention", "verdict", "scale")  # options that are written once per value


class Asking:
    """Writes commands about the same model and GPU; options that the other command knows are kept.

    Parameters
    ----------
    model : the argument as given; a mapping or a spec is named by ``spec``.
    given : the other arguments by name, None where not given.

    A question about one replica is asked without the number in ``8xh100-sxm``.
    """

    def __init__(self, model: Any, spec: ModelSpec, given: Mapping[str, Any]) -> None:
        self.model = str(model) if isinstance(model, str | Path) else spec.name
        self.given = dict(given)
        gpu = self.given.get("gpu")
        if gpu is not None and not isinstance(gpu, str | Path):
            several = gpu if isinstance(gpu, list | tuple) else [gpu]
            self.given["gpu"] = ",".join(
                one if isinstance(one, str) else without_count(one) for one in several
            )

    def __call__(
        self, question: str, *attention: str, without: Sequence[str] = (), **options: Any
    ) -> list[str]:
        """The words of one command.

        Parameters
        ----------
        question : the public function: ``step_time``.
        attention : designs, one option each.
        without : arguments as given that the command leaves out.
        options : arguments that it states, in place of given ones.
        """
        import lrkv_plan

        known = inspect.signature(getattr(lrkv_plan, question)).parameters
        # In the question's own order: parsers hand options over in different ones.
        kept = {
            name: self.given[name]
            for name in known
            if name in self.given and name not in (*without, "attention", "model")
        }
        gpu = kept.get("gpu")
        if gpu is not None and "n_gpus" not in known and "," not in str(gpu):
            kept["gpu"] = without_count(gpu, spec_dir=self.given.get("spec_dir"))
        told = {"attention": list(attention), **kept, **options}
        return command_words(question.replace("_", "-"), self.model, told)


def command_words(command: str, subject: str | None, keywords: Mapping[str, Any]) -> list[str]:
    """A command line whose options are the keywords of a public call, in their order.

    Parameters
    ----------
    command : as it is typed: "step-time", "plot roofline".
    subject : its argument, where it has one.
    keywords : option names with underscores; None and False are left out.

    Examples
    --------
    >>> " ".join(command_words("cache", "m.yaml", {"attention": ["mha", "mqa"], "tp_size": [1, 2]}))
    'lrkv-plan cache m.yaml --attention mha --attention mqa --tp-size 1,2'
    """
    words = ["lrkv-plan", *command.split(), *([] if subject is None else [subject])]
    for name, value in keywords.items():
        words += _option(name, value)
    return words


def _option(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if name in REPEATED and isinstance(value, list | tuple):
        return [word for one in value for word in (flag, _text(one))]
    several = value if isinstance(value, list | tuple) else [value]
    return [flag, ",".join(map(_text, several))]


def _text(value: Any) -> str:
    """A value as it is typed; a profile or a model by its name."""
    if isinstance(value, AttentionSpec):
        return value.text()
    return str(value) if isinstance(value, str | int | float | Path) else str(value.name)
