"""Entry point: join the workers, measure, write, and end all of them with one exit code."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

from lrkv_plan.calibration.tensor_parallel.arguments import Options, parse
from lrkv_plan.calibration.tensor_parallel.group import Group, joined, place_from
from lrkv_plan.errors import CalibrationError, PlanError

# torchrun stops all workers once one has failed: the others leave worker 0 time to say why, and
# keep their exit code when torchrun ends them meanwhile.
FIRST_SPEAKS_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of this worker; only worker 0 prints."""
    is_first = os.environ.get("RANK", "0") == "0"
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        with joined(place_from(os.environ), options.device) as group:
            summary = run(group, options)
    except PlanError as error:
        if is_first:
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()
        else:
            let_first_speak(error.exit_code)
        return error.exit_code
    if is_first:
        sys.stdout.write(summary)
    return 0


def let_first_speak(exit_code: int) -> None:
    """Wait a moment; end with this exit code if torchrun stops this worker meanwhile."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(exit_code))
    time.sleep(FIRST_SPEAKS_S)


def run(group: Group, options: Options) -> str:
    """The report's text, once everything is on disk.

    Raises
    ------
    PlanError
        On all workers alike; ``CalibrationError`` also where results or bytes are wrong, or the fit
        was refused, after the report was written.
    """
    from lrkv_plan.calibration.tensor_parallel.measure import (
        check_output,
        measure,
        progress_of,
        to_markdown,
        write,
    )

    group.first_does(lambda: check_output(options, group.device))
    found = measure(group, options, progress_of(options, group.index))
    report = group.first_does(lambda: write(group, found, options))

    def verdict() -> str:
        assert report is not None
        problems = [*report.failures, *filter(None, [report.refused])]
        if problems:
            raise CalibrationError(f"{'; '.join(problems)} (see {options.output})")
        return to_markdown(report)

    return group.first_does(verdict) or ""


if __name__ == "__main__":
    sys.exit(main())
