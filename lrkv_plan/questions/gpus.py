"""GPUs as people write them: ``h100-sxm``, a file, so many of one kind, ``8xh100-sxm``.

A plus joins kinds of GPU whose pipeline stages share one model: ``1xrtx-5090+1xrtx-4090``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan import words
from lrkv_plan.errors import ArgumentError, SpecError, shown
from lrkv_plan.files import as_path
from lrkv_plan.loader import find_hardware, load_gpu

if TYPE_CHECKING:
    from lrkv_plan.specs.hardware import HardwareProfile

Gpu: TypeAlias = "str | Path | Mapping[str, Any] | HardwareProfile"
_COUNTED = re.compile(r"(\d{1,12})\s*[xX\N{MULTIPLICATION SIGN}]\s*(\S.*)", re.ASCII)


def counted_gpu(
    gpu: Gpu, *, spec_dir: str | Path | None = None
) -> tuple[int | None, HardwareProfile]:
    """How many of which GPU; None where no number stands before the name.

    A name, alias or file that begins with digits and an x is that one: it is looked for first.

    Raises
    ------
    ArgumentError
        If the number is 0, or a plus joins several kinds.
    SpecError
        If there is no such GPU.
    """
    match = _COUNTED.fullmatch(gpu.strip()) if isinstance(gpu, str) else None
    if joined_gpus(gpu, spec_dir=spec_dir):
        raise ArgumentError(
            "gpu",
            f" {shown(gpu)}: a plus joins GPUs of one deployment, which `capacity` answers for; "
            "name one kind, or several with a comma",
        )
    if match is None:
        return None, load_gpu(gpu, spec_dir=spec_dir)
    try:
        return None, find_hardware(match.string, spec_dir=spec_dir, has_hints=False)[0]
    except SpecError:
        if os.path.lexists(as_path(str(gpu))):
            raise  # a file of that name that is no profile
    if not int(match[1]):
        raise ArgumentError("gpu", f" {shown(gpu)}: write how many, such as 8x{match[2]}")
    return int(match[1]), load_gpu(match[2], spec_dir=spec_dir)


def joined_gpus(
    gpu: Gpu, *, spec_dir: str | Path | None = None
) -> tuple[tuple[int, HardwareProfile], ...]:
    """Numbers and kinds of GPUs that a plus joins, as written; none without a plus.

    A file with a plus in its name is that one, and so is a name of which no part has a number.

    Raises
    ------
    ArgumentError
        If a part is empty or its number 0.
    SpecError
        If there is no such GPU.
    """
    if not isinstance(gpu, str) or "+" not in gpu or os.path.lexists(as_path(gpu)):
        return ()
    parts = [part.strip() for part in gpu.split("+")]
    counted = [_COUNTED.fullmatch(part) for part in parts]
    if not any(counted):
        with contextlib.suppress(SpecError):
            load_gpu(gpu, spec_dir=spec_dir)
            return ()
    if not all(parts) or len(parts) > words.MAX_VALUES:
        raise ArgumentError("gpu", f" {shown(gpu)}: write GPUs with a plus between, 1xa+2xb")
    if any(match is not None and not int(match[1]) for match in counted):
        raise ArgumentError("gpu", f" {shown(gpu)}: write how many of each, such as 1xa+2xb")
    return tuple(
        (1, load_gpu(part, spec_dir=spec_dir))
        if match is None
        else (int(match[1]), load_gpu(match[2], spec_dir=spec_dir))
        for part, match in zip(parts, counted, strict=True)
    )


def one_gpu(gpu: Gpu, *, spec_dir: str | Path | None = None) -> HardwareProfile:
    """The GPU of a question about one replica.

    Raises
    ------
    ArgumentError
        If there are several of it.
    SpecError
        If there is no such GPU.
    """
    n_gpus, profile = counted_gpu(gpu, spec_dir=spec_dir)
    if n_gpus is not None and n_gpus > 1:
        name = without_count(gpu, spec_dir=spec_dir)
        raise ArgumentError(
            "gpu",
            f" {shown(gpu)}: this question is about one replica; write --gpu {name} --tp-size "
            f"{n_gpus} for {n_gpus} GPUs that share the model",
        )
    return profile


def without_count(gpu: Gpu, *, spec_dir: str | Path | None = None) -> str:
    """The GPU as text without its number; the profile's name where it was no text."""
    if not isinstance(gpu, str | Path):
        return load_gpu(gpu).name
    match = _COUNTED.fullmatch(str(gpu).strip())
    if match is None or counted_gpu(gpu, spec_dir=spec_dir)[0] is None:
        return str(gpu)
    return match[2]


def gpus_in_all(
    gpu: Gpu | None,
    n_gpus: int | float | str | None,
    *,
    spec_dir: str | Path | None = None,
    joined: tuple[tuple[int, HardwareProfile], ...] = (),
) -> tuple[int | None, HardwareProfile | None]:
    """How many GPUs, of ``gpu`` or of ``n_gpus``, and which; of several kinds the first.

    Parameters
    ----------
    joined : what a plus in ``gpu`` joins, where it may.

    Raises
    ------
    ArgumentError
        If both say how many, or a plus joins kinds that may not be joined.
    SpecError
        If there is no such GPU.
    """
    stated = words.optional(words.count, "n_gpus", n_gpus)
    if gpu is None:
        return stated, None
    if joined:
        counted: int | None = sum(count for count, _ in joined)
        profile = joined[0][1]
    else:
        counted, profile = counted_gpu(gpu, spec_dir=spec_dir)
    if counted is None:
        return stated, profile
    if stated is not None:
        raise ArgumentError(
            "n_gpus", f" {stated}: --gpu {gpu} says how many already; leave one of them out"
        )
    return counted, profile
