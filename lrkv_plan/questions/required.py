"""What scripts require of an answer: sequences and tokens held, and the most a token may take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lrkv_plan import words
from lrkv_plan.report.screen import significant

if TYPE_CHECKING:
    from lrkv_plan.serving.answers import Answer
    from lrkv_plan.serving.capacity import CapacityRow
    from lrkv_plan.serving.load import Admission
    from lrkv_plan.serving.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Required:
    """Least sequences and tokens of a row, and the most that its token may take. None: any."""

    sequences: int | None = None
    tokens: int | None = None
    tpot_s: float | None = None

    @classmethod
    def of(
        cls,
        sequences: int | float | str | None,
        tokens: int | float | str | None,
        tpot_ms: int | float | str | None,
    ) -> Required:
        """From ``require_sequences``, ``require_tokens`` and ``require_tpot_ms``.

        Raises
        ------
        UsageError
            If one cannot be read.
        """
        milliseconds = words.optional(words.number, "require_tpot_ms", tpot_ms)
        return cls(
            sequences=words.optional(words.count, "require_sequences", sequences),
            tokens=words.optional(words.count, "require_tokens", tokens),
            tpot_s=None if milliseconds is None else milliseconds / 1e3,
        )

    def unmet_of(self, answers: Iterable[Answer]) -> str | None:
        """What the first row that falls short misses, or None."""
        several = list(answers)
        gpus = {one.deployment.gpu_name for one in several}
        models = {one.model and one.model.name for one in several}
        for one in several:
            settings, gpu = one.deployment.settings, one.deployment.gpu_name
            where = f"{one.attention} at {settings.context_tokens:,} tokens"
            if len(models) > 1 and one.model is not None:
                where = f"{one.model.name}, {where}"
            on = f" on {gpu}," if len(gpus) > 1 and gpu is not None else ""
            where += f"{on or ' on'} tp_size {one.deployment.parallel.tp_size}"
            for missed in self._missed(one.row, one.admitted):
                hint = f"; try {', '.join(one.to_try)}" if one.to_try else ""
                why = f" ({one.refused})" if one.refused else ""
                return f"{where}: {missed}{why}{hint}"
        return None

    def unmet_of_plan(self, plan: Plan) -> str | None:
        """What the own design, or a design that was asked for, misses first; None if nothing."""
        asked = [row for row in plan.rows if row.role == "as asked"]
        for row in asked or plan.rows[:1]:
            where = (
                f"{row.attention} at {plan.context_tokens:,} tokens on tp_size "
                f"{plan.parallel.tp_size}"
            )
            for missed in self._missed(row.capacity, row.load):
                return f"{where}: {missed}"
        return None

    def _missed(self, row: CapacityRow | None, load: Admission | None) -> Iterator[str]:
        held = {
            "sequences": (self.sequences, row.total_sequences if row else 0),
            "tokens": (self.tokens, row.total_tokens if row else 0),
        }
        for what, (least, found) in held.items():
            if least is not None and found < least:
                yield f"{found:,} {what} fit, {least:,} are required"
        if self.tpot_s is None:
            return
        most = f"{significant(1e3 * self.tpot_s)} ms are required"
        if load is None:
            yield f"no load that a token's time could be of, {most}"
        elif load.tpot_s > self.tpot_s:
            yield f"{significant(1e3 * load.tpot_s, 4)} ms a token, {most}"
