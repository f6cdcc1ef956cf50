"""Starting several processes as one command that ends whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]


def run_group(command: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """Exit code and stderr of a command that starts processes of its own; none outlives it."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as started:  # fmt: skip
        try:
            out, errors = started.communicate(timeout=timeout_s)
            return started.returncode, out + errors
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
