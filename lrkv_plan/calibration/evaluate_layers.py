"""How far predicted times of layer operations are from measured tables, group by group.

Either with the constants that profiles ship (of the engine's own table where it has one), or
refitted with whole shapes left out (which needs scipy). A whole MLA layer is the sum of its parts.
Rows that nothing predicts are counted, never dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan.calibration.layer_samples import (
    MAX_TOKENS,
    LayerSamples,
    ProfileOf,
    SmallKernelSamples,
    samples_of_table,
    small_kernel_samples,
)
from lrkv_plan.calibration.layer_tables import (
    FORMAT_OF,
    Measured,
    nearest_table,
    read_layer_table,
    table_files,
)
from lrkv_plan.errors import CalibrationError, SpecError, UsageError, shown
from lrkv_plan.latency.kernel import KernelModel, kernel_model, kernel_time
from lrkv_plan.latency.matrix import matrix_model, matrix_time
from lrkv_plan.latency.products import product_model, product_time
from lrkv_plan.latency.small_kernels import small_kernel_time
from lrkv_plan.latency.stand_ins import SAME_KERNELS, stand_in

if TYPE_CHECKING:
    import pandas as pd

    from lrkv_plan.calibration.layer_samples import FloatArray
    from lrkv_plan.specs.hardware import HardwareProfile


@dataclass(frozen=True, kw_only=True)
class LayerError:
    """Errors |predicted / measured - 1| of one group; None where nothing could be predicted.

    ``in_band`` is the share of rows inside the 90 % band of their prediction (None where refitted),
    ``error_bound`` the median error that groups of the kind are held to, if any.
    """

    operation: str
    gpu: str
    engine: str
    format: str
    part: str
    n: int
    median_error: float | None
    p90_error: float | None
    predicted_over_measured: float | None
    in_band: float | None
    error_bound: float | None
    basis: str
    note: str = ""


# Median errors that parts of tables are held to, on shapes that were not fitted.
BOUNDS = {
    **{("matrices", name, "cold"): 0.06 for name in ("bf16", "fp8", "fp8_block", "nvfp4")},
    **{
        ("experts", name, "cold"): 0.09 for name in ("bf16", "fp8", "fp8_block", "nvfp4", "int4_wo")
    },
}
LAYER_BOUND = 0.05  # of a whole MLA layer of TensorRT-LLM from 2k tokens
LONG_CONTEXT = 2048


def evaluate_layers(
    path: Path,
    profile_of: ProfileOf,
    *,
    relatives: Sequence[HardwareProfile] = (),
    held_out: bool = False,
) -> tuple[list[LayerError], list[str]]:
    """Errors by operation, GPU, engine, format and part, and the files that hold no known table.

    Parameters
    ----------
    path : a table, or a folder of them; ``layer_tables`` says which columns make one.
    profile_of : the hardware profile of a GPU name; raises ``SpecError`` for an unknown one.
    held_out : refit with whole shapes (models of experts) left out, instead of shipped constants.

    Raises
    ------
    CalibrationError
        If no table is known, a cell is no number, or scipy is missing for ``held_out``.
    """
    if held_out:
        _require_scipy()
    found: list[LayerError] = []
    unknown: list[str] = []
    for file in table_files(path):
        measured = read_layer_table(file)
        if measured is None:
            unknown.append(file.name)
            continue
        found += _of_table(measured, profile_of, relatives, held_out)
    if not found:
        files = table_files(path)
        nearest = nearest_table(files[0]) if len(files) == 1 else "none of its files is one"
        raise CalibrationError(f"{path}: no known table of layer operations; {nearest}")
    return found, unknown


def _require_scipy() -> None:
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise CalibrationError(
            f"--held-out refits and needs scipy ({error}): pip install 'lrkv-plan[calibrate]'"
        ) from None


def _of_table(
    measured: Measured, profile_of: ProfileOf, relatives: Sequence[HardwareProfile], held_out: bool
) -> Iterator[LayerError]:
    for samples in samples_of_table(measured, profile_of, relatives):
        yield from _of_samples(samples, profile_of, relatives, held_out)
    for kind in small_kernel_samples(measured):
        yield from _of_small_kernels(kind, held_out)
    if measured.table.operation == "mla_layer":
        yield from _of_layers(measured.rows, profile_of, relatives)


def _of_samples(
    samples: LayerSamples, profile_of: ProfileOf, relatives: Sequence[HardwareProfile],
    held_out: bool,
) -> Iterator[LayerError]:  # fmt: skip
    import numpy as np

    named = {
        "operation": samples.operation, "gpu": samples.gpu, "engine": samples.engine,
        "format": samples.format,
    }  # fmt: skip
    band = None
    try:
        if held_out:
            from lrkv_plan.calibration.layer_fit import fit_layer

            fit = fit_layer(samples)
            if fit is None:
                raise UsageError("too few rows to fit, or an unknown format")
            ratio, basis, notes = np.exp(-fit.left_out), f"{samples.held_out_by} left out", []
        else:
            model = samples.shipped(relatives)
            predicted = samples.predict(model, np.ones(len(samples.time_s), dtype=bool))
            ratio, basis, band = predicted / samples.time_s, model.basis, model.band90
            notes = [*model.notes]
        notes += _stands_in(samples, profile_of)
    except (SpecError, UsageError) as error:
        yield _unpredicted(named, len(samples.time_s), str(error))
        return
    for part in dict.fromkeys(samples.part):
        rows = samples.part == part
        bound = BOUNDS.get((samples.operation, samples.format, part))
        yield _group(
            named, str(part), ratio[rows], basis=basis, band=band, bound=bound,
            note="; ".join(notes),
        )  # fmt: skip


def _stands_in(samples: LayerSamples, profile_of: ProfileOf) -> list[str]:
    """A sentence where a step takes another engine's constants than those judged here."""
    generation = profile_of(samples.gpu).generation
    instead = stand_in(samples.operation, samples.engine, samples.format, generation)
    if instead is None:
        return []
    whose = instead.take_engine or samples.engine
    return [f"a step takes {whose}'s {instead.take_format or samples.format}: {instead.reason}"]


def _unpredicted(named: dict[str, str], n: int, note: str) -> LayerError:
    return LayerError(
        **named, part="all", n=n, median_error=None, p90_error=None,
        predicted_over_measured=None, in_band=None, error_bound=None, basis="not predicted",
        note=note,
    )  # fmt: skip


def _group(
    named: dict[str, str], part: str, ratio: FloatArray, *, basis: str,
    band: tuple[float, float] | None = None, bound: float | None = None, note: str = "",
) -> LayerError:  # fmt: skip
    import numpy as np

    kept = ratio[np.isfinite(ratio)]
    if not len(kept):
        return LayerError(
            **named, part=part, n=len(ratio), median_error=None, p90_error=None,
            predicted_over_measured=None, in_band=None, error_bound=bound, basis=basis,
            note=note or "too few shapes to judge",
        )  # fmt: skip
    errors = np.abs(kept - 1)
    inside = None
    if band is not None:
        inside = float(((kept * band[0] <= 1) & (kept * band[1] >= 1)).mean())
    return LayerError(
        **named, part=part, n=len(ratio), median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)), predicted_over_measured=float(np.median(kept)),
        in_band=inside, error_bound=bound, basis=basis, note=note,
    )  # fmt: skip


def _of_small_kernels(kind: SmallKernelSamples, held_out: bool) -> Iterator[LayerError]:
    import numpy as np

    if held_out:
        ratio, basis, band = np.exp(-kind.fit().left_out), "models left out", None
    else:
        call = small_kernel_time(kind.kind, kind.tokens, kind.width)
        ratio, basis = call.time_s / kind.time_s, "measured"
        band = call.model.band90
    for gpu in np.unique(kind.gpu):
        named = {
            "operation": "small_kernels", "gpu": str(gpu), "engine": "vllm", "format": kind.kind,
        }  # fmt: skip
        yield _group(named, "fused", ratio[kind.gpu == gpu], basis=basis, band=band)


# DeepSeek-V3, whose layer the table times: widths of its matrices.
MODEL_DIM = 7168
QUERY_LATENT = 1536
LATENT, ROPE, HEAD, VALUE = 512, 64, 128, 128


def _of_layers(
    rows: pd.DataFrame, profile_of: ProfileOf, relatives: Sequence[HardwareProfile]
) -> Iterator[LayerError]:
    """Whole MLA layers as the sum of matrices, absorptions and attention."""
    keys = ["gpu", "engine", "attention_kernel", "kv_dtype", "gemm_dtype"]
    rows = rows[rows["batch"] <= MAX_TOKENS]
    for key, group in rows.groupby(keys, sort=True):
        gpu, engine, kernel, kv_dtype, dtype = (str(word) for word in key)
        name = FORMAT_OF.get(dtype, dtype)
        named = {
            "operation": "mla_layer", "gpu": gpu, "engine": SAME_KERNELS.get(engine, engine),
            "format": f"{name}, {kv_dtype} cache, {kernel}",
        }  # fmt: skip
        try:
            predicted, basis, note = _layer_times(
                group, profile_of(gpu), (engine, kernel, kv_dtype, name), relatives
            )
        except (SpecError, UsageError) as error:
            yield _unpredicted(named, len(group), str(error))
            continue
        ratio = predicted / (group["latency_us"].to_numpy(dtype=float) * 1e-6)
        is_long = (group["kv_len"] >= LONG_CONTEXT).to_numpy()
        for part, chosen in (("from 2k tokens", is_long), ("below 2k tokens", ~is_long)):
            bound = LAYER_BOUND if engine == "trtllm" and part == "from 2k tokens" else None
            if chosen.any():
                yield _group(named, part, ratio[chosen], basis=basis, bound=bound, note=note)


def _layer_times(
    group: pd.DataFrame, hardware: HardwareProfile, told: tuple[str, str, str, str],
    relatives: Sequence[HardwareProfile],
) -> tuple[FloatArray, str, str]:  # fmt: skip
    """Seconds of every row, what they rest on, and notes."""
    import numpy as np

    from lrkv_plan.calibration.samples import BYTES_PER_SCALAR

    engine, kernel, kv_dtype, name = told
    if kv_dtype not in BYTES_PER_SCALAR:
        known = ", ".join(BYTES_PER_SCALAR)
        raise UsageError(f"kv_dtype {shown(kv_dtype)}: known are {known}")
    runs = SAME_KERNELS.get(engine, engine)
    matrices = matrix_model(hardware, runs, name, relatives, own_table=True)
    products = product_model(hardware, runs, "bf16", relatives)
    heads, m = (group[c].to_numpy(dtype=float) for c in ("num_heads", "batch"))
    shapes: tuple[tuple[Any, Any], ...] = (
        (QUERY_LATENT + LATENT + ROPE, MODEL_DIM),
        (heads * (HEAD + ROPE), QUERY_LATENT),
        (MODEL_DIM, heads * VALUE),
    )
    total: Any = 2 * product_time(products, m, heads).time_s
    for n, k in shapes:
        total = total + matrix_time(matrices, m, n, k).time_s
    notes: dict[str, None] = dict.fromkeys((*matrices.notes, *products.notes))
    bases = {matrices.basis, products.basis}
    for count in np.unique(heads):
        attention, note = _attention(hardware, engine, kernel, kv_dtype, int(count), relatives)
        chosen = heads == count
        total[chosen] += _attention_time(attention, group[chosen], int(count), kv_dtype)
        bases.add(attention.basis)
        notes[note] = None
    return total, ", ".join(sorted(bases)), "; ".join(filter(None, notes))


def _attention(
    hardware: HardwareProfile, engine: str, kernel: str, kv_dtype: str, heads: int,
    relatives: Sequence[HardwareProfile],
) -> tuple[KernelModel, str]:  # fmt: skip
    """The layer's own attention backend, else the preferred one with a note."""
    backend = f"{engine}/{kernel}"
    shape: Any = {"query_heads_per_kv_head": heads}
    try:
        return kernel_model(hardware, "mla_absorbed", kv_dtype, backend=backend, **shape), ""
    except UsageError:
        model = kernel_model(hardware, "mla_absorbed", kv_dtype, relatives=relatives, **shape)
        return model, f"no constants of {backend}: those of {model.backend or model.basis} are used"


def _attention_time(
    model: KernelModel, group: pd.DataFrame, heads: int, kv_dtype: str
) -> FloatArray:
    from lrkv_plan.attention.families.latent import mla_absorbed_work
    from lrkv_plan.calibration.samples import BYTES_PER_SCALAR

    work = mla_absorbed_work(
        group["batch"].to_numpy(dtype=float), group["kv_len"].to_numpy(dtype=float), n_heads=heads,
        latent_dim=LATENT, rope_dim=ROPE, bytes_per_scalar=BYTES_PER_SCALAR[kv_dtype],
    )  # fmt: skip
    return kernel_time(model, *work).time_s  # type: ignore[return-value]
