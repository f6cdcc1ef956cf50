"""Inspect a checkpoint's attention layers one at a time: spectra of keys and values, head maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from lrkv_plan.checkpoint.head_maps import HeadMaps, head_maps
from lrkv_plan.checkpoint.projections import AttentionLayers
from lrkv_plan.checkpoint.spectra import FitOptions, ResidualSpectrum, residual_spectrum


@dataclass(frozen=True, kw_only=True)
class LayerInspection:
    """What was found in one layer. ``n_inputs`` is what keys are read from. [scalars]"""

    layer: int
    n_inputs: int
    from_latent: bool
    key: ResidualSpectrum
    value: ResidualSpectrum
    maps: HeadMaps

    @property
    def spectra(self) -> tuple[tuple[str, ResidualSpectrum], ...]:
        """Keys, then values."""
        return (("key", self.key), ("value", self.value))


def inspect_layers(
    layers: AttentionLayers,
    chosen: Sequence[int],
    *,
    fit: bool = True,
    options: FitOptions | None = None,
    n_threads: int = 1,
    done: Callable[[int], None] = lambda _: None,
) -> list[LayerInspection]:
    """Inspect the chosen layers in order.

    Parameters
    ----------
    fit, options : as ``residual_spectrum`` takes them.
    n_threads : parts of one layer worked on side by side. The linear-algebra library's own threads
        come on top, so with several it should have one.
    done : called with the number of layers finished.

    Raises
    ------
    SpecError
        If a layer's weights cannot be read.
    """
    found = []
    with _interruptible(ThreadPoolExecutor(n_threads)) as pool:
        for layer in chosen:
            weights = layers.read(layer)
            key, value = (
                pool.submit(residual_spectrum, stack, options=options, fit=fit)
                for stack in (weights.key, weights.value)
            )
            maps = pool.submit(head_maps, weights.query, weights.key)
            found.append(
                LayerInspection(
                    layer=layer,
                    n_inputs=weights.key.shape[2],
                    from_latent=weights.from_latent,
                    key=key.result(),
                    value=value.result(),
                    maps=maps.result(),
                )
            )
            done(len(found))
    return found


@contextmanager
def _interruptible(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """A pool that is not waited for when the work is interrupted: a fit may take minutes."""
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
