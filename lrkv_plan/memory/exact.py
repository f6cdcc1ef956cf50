"""Exact counts: arguments checked, products and sums that never round, for numbers and arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from lrkv_plan.errors import UsageError, shown
from lrkv_plan.units import INT64_MAX

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    IntArray: TypeAlias = npt.NDArray[np.int64]
    Count: TypeAlias = int | IntArray
    Exact: TypeAlias = int | Fraction | IntArray
    Number: TypeAlias = float | npt.NDArray[np.float64]

EXACT_FLOAT = 2**53  # beyond it a float stands for several whole numbers


def is_array(value: object) -> bool:
    """Whether ``value`` is a numpy array (without importing numpy)."""
    return hasattr(value, "dtype") and hasattr(value, "shape")


def as_count(name: str, value: Any, minimum: int = 1) -> Count:
    """``value`` as an integer or an int64 array, every element at least ``minimum``.

    A float that is whole and exact (up to 2**53) counts as the number it is.

    Raises
    ------
    UsageError
        If it is not whole, is below ``minimum`` or exceeds int64.
    """
    if (is_array(value) and value.shape != ()) or isinstance(value, list | tuple):
        return _as_array(name, value, minimum)
    if is_array(value):
        value = value.item()  # a numpy scalar
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT_FLOAT:
        value = int(value)
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise UsageError(f"{name} {shown(value)}: must be a whole number")
    if not minimum <= number <= INT64_MAX:
        raise UsageError(f"{name} {shown(number)}: must be from {minimum} to 2**63 - 1")
    return number


def _as_array(name: str, value: Any, minimum: int) -> IntArray:
    import numpy as np

    try:
        array = np.asarray(value)
    except ValueError:
        raise UsageError(f"{name} {shown(value)}: rows of unequal length are no array") from None
    if array.dtype.kind == "f" and (abs(array) <= EXACT_FLOAT).all() and (array % 1 == 0).all():
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise UsageError(f"{name}: an array of {array.dtype} is not whole numbers")
    if array.size and (int(array.min()) < minimum or int(array.max()) > INT64_MAX):
        raise UsageError(f"{name}: elements must be from {minimum} to 2**63 - 1")
    return array.astype(np.int64)


def largest(value: Exact) -> int | Fraction:
    """The largest element, as a Python number."""
    if isinstance(value, int | Fraction):
        return value
    return int(value.max()) if value.size else 0


def exact_product(scale: int | Fraction, *counts: Count) -> Exact:
    """``scale`` times all ``counts``, exact.

    Without arrays the result is an int, or a Fraction when it is not whole. With arrays it is an
    int64 array; a product that is not whole everywhere is refused, since int64 cannot hold it.

    Raises
    ------
    UsageError
        If the product would overflow int64, or an array of it would not be whole.
    """
    fraction = Fraction(scale)
    bound: int | Fraction = fraction.numerator
    for count in counts:
        bound *= largest(count)
    if bound > INT64_MAX:
        raise UsageError(f"the product {float(bound):.3g} would overflow int64 (2**63 - 1)")
    product: Any = fraction.numerator
    for count in counts:
        product = product * count
    if not is_array(product):
        return simplest(Fraction(product, fraction.denominator))
    if (product % fraction.denominator).any():
        raise UsageError(
            f"not a whole number of bytes everywhere (steps of 1/{fraction.denominator}): "
            "pass one number instead of an array"
        )
    quotient: Exact = product // fraction.denominator
    return quotient


def exact_sum(*parts: Exact) -> Exact:
    """The sum of exact values, refused beyond int64 (``UsageError``)."""
    bound = sum(largest(part) for part in parts)
    exact_product(bound)
    total: Any = 0
    for part in parts:
        total = total + part
    result: Exact = total
    return result


def over_each(name: str, values: Any, of_one: Callable[[int], int | Fraction]) -> Exact:
    """``of_one`` of a count, or of each distinct element of an array, as an array.

    Raises
    ------
    UsageError
        If an element is not a positive whole number, or a result is not whole.
    """
    counts = as_count(name, values, minimum=0)
    if isinstance(counts, int):
        return of_one(counts)
    import numpy as np

    distinct, places = np.unique(counts, return_inverse=True)
    results = [exact_product(of_one(int(count))) for count in distinct]
    if any(isinstance(result, Fraction) for result in results):
        raise UsageError(f"{name}: not a whole number of bytes everywhere; pass one number")
    table: IntArray = np.array(results, dtype=np.int64)[places].reshape(counts.shape)
    return table


def simplest(value: int | Fraction) -> int | Fraction:
    """An int where the value is whole, else the Fraction."""
    return int(value) if Fraction(value).denominator == 1 else value


def minimum(value: Count, limit: int | None) -> Count:
    """The smaller of a count and a limit, elementwise; no limit leaves the count."""
    if limit is None:
        return value
    if isinstance(value, int):
        return min(value, limit)
    return value.clip(max=limit)


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


def ceil_div(value: Any, divisor: int) -> Any:
    """ceil(value / divisor) for an int or an int64 array."""
    return -(-value // divisor)


def smaller(one: Any, other: Any) -> Any:
    """The smaller of two numbers, elementwise where one is an array."""
    if is_array(one) or is_array(other):
        import numpy as np

        return np.minimum(one, other)
    return min(one, other)


def larger(one: Any, other: Any) -> Any:
    """The larger of two numbers, elementwise where one is an array."""
    if is_array(one) or is_array(other):
        import numpy as np

        return np.maximum(one, other)
    return max(one, other)
