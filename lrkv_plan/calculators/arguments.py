"""What public functions are given, checked at the door: one line that names the argument.

Counts are checked by ``calculators.exact``; here are the other kinds, and counts that become
floats because a time is computed from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from lrkv_plan.calculators.exact import as_count, is_array
from lrkv_plan.errors import UsageError, shown
from lrkv_plan.units import INT64_MAX

if TYPE_CHECKING:
    from lrkv_plan.calculators.kernel_time import Number

T = TypeVar("T")


def check_is(name: str, value: object, kind: type[T], where: str = "") -> T:
    """``value``, which must be of that class; ``where`` says what gives one.

    Raises
    ------
    UsageError
        If it is not.

    Examples
    --------
    >>> check_is("kv_dtype", "bf16", str)
    'bf16'
    """
    if isinstance(value, kind):
        return value
    wanted = "text" if kind is str else kind.__name__
    raise UsageError(
        f"{name} {shown(value)}: must be {wanted}" + (f", as {where} gives it" if where else "")
    )


def check_model(name: str, value: object) -> None:
    """Refuse what is not a model (``UsageError``)."""
    from lrkv_plan.specs.model import ModelSpec

    check_is(name, value, ModelSpec, "load_model")


def one_count(name: str, value: Any, minimum: int = 1) -> int:
    """``value`` as one whole number, at least ``minimum``; arrays are refused (``UsageError``)."""
    if is_array(value) and value.shape != ():
        raise UsageError(f"{name}: must be one number, not an array")
    count = as_count(name, value, minimum)
    if not isinstance(count, int):
        raise UsageError(f"{name} {shown(value)}: must be one number")
    return count


def as_amounts(name: str, value: Any, minimum: int = 0) -> Number:
    """A count, or an array of counts, as floats: products of int64 arrays would wrap.

    Raises
    ------
    UsageError
        If it is not whole, is below ``minimum`` or exceeds int64.

    Examples
    --------
    >>> as_amounts("context_tokens", 1000.0), as_amounts("context_tokens", 8192)
    (1000.0, 8192.0)
    """
    if not is_array(value) or value.shape == ():
        counts: Any = as_count(name, value, minimum)
        return float(counts) if isinstance(counts, int) else counts.astype(float)
    import numpy as np

    if value.dtype.kind not in "iuf":
        raise UsageError(f"{name}: an array of {value.dtype} is not whole numbers")
    amounts: Any = value.astype(np.float64)
    if amounts.size and not (
        float(amounts.min()) >= minimum and float(amounts.max()) <= INT64_MAX
        and bool((np.floor(amounts) == amounts).all())
    ):  # fmt: skip
        raise UsageError(f"{name}: elements must be whole numbers from {minimum} to 2**63 - 1")
    return amounts  # type: ignore[no-any-return]
