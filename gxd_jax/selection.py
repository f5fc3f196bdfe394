"""Who is replaced: how many units are owed, and which ones have the lowest utility."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

LIMBS = 4
_BASE = 10_000  # a group of four decimal digits
LARGEST_LAYER = 400_000  # group x units has to fit 32 bits
_FINITE_MAX = jnp.finfo(jnp.float32).max


class Rate(NamedTuple):
    """A replacement rate as an exact decimal: whole + sum_i groups[i] / 10_000^(i + 1).

    What is owed is counted in the same groups of four decimal digits, so that a rate of 1e-3 with 100 units pays on
    update 10 and not on 11, after 10^8 updates too; adding floats drifts. Groups of 0 at the end are left out.
    """

    whole: Any
    groups: tuple[Any, ...]


def as_rate(rate: Any) -> Rate:
    """Turns a replacement rate in [0, 1] into an exact decimal.

    A number is taken as the decimal that the user wrote, to 16 decimals. A JAX array (traced or not, as from
    `optax.inject_hyperparams`) is rounded to the digits that its dtype carries, at most 6, which gives that decimal
    back.
    """
    if isinstance(rate, jax.Array):
        return Rate(*_decimal_groups(rate))
    scaled = round(Fraction(str(rate)) * _BASE**LIMBS)
    groups = [scaled // _BASE ** (LIMBS - 1 - i) % _BASE for i in range(LIMBS)]
    while groups and groups[-1] == 0:
        groups.pop()
    return Rate(scaled // _BASE**LIMBS, tuple(groups))


def _decimal_groups(rate: Array) -> tuple[Array, tuple[Array, ...]]:
    """Returns the whole part of a rate and its decimals in groups of four."""
    precision = min(int(jnp.finfo(rate.dtype).precision), 6) if jnp.issubdtype(rate.dtype, jnp.floating) else 6
    rate = jnp.clip(rate.astype(jnp.float32), 0.0, 1.0)
    powers = jnp.asarray(10.0 ** np.arange(4 * LIMBS + 1), jnp.float32)
    # The number of decimals that leaves `precision` significant digits.
    magnitude = jnp.floor(jnp.log10(jnp.maximum(rate, 1e-30))).astype(jnp.int32)
    decimals = jnp.clip(precision - 1 - magnitude, 0, 4 * LIMBS)
    digits = jnp.round(rate * powers[decimals]).astype(jnp.uint32)
    # rate = digits * 10^-decimals; group i holds the decimals 4i - 3 .. 4i, group 0 the whole part.
    shift = 4 * jnp.arange(LIMBS + 1) - decimals
    small_powers = jnp.asarray(10 ** np.arange(10), jnp.uint32)
    right = digits // small_powers[jnp.clip(-shift, 0, 9)] * (shift > -10)
    left = right % _BASE * small_powers[jnp.clip(shift, 0, 4)]
    groups = jnp.where(shift > 3, 0, left % _BASE).astype(jnp.uint32)
    return groups[0], tuple(groups[1:])


def most_owed(rate: Any, size: int) -> int:
    """Returns the largest number of units that can be owed at once in a layer of `size` units."""
    return size if isinstance(rate, jax.Array) else math.ceil(Fraction(str(rate)) * size)


def no_debt() -> tuple[UInt32[Array, ""], ...]:
    """Returns the state of a layer that owes nothing."""
    return tuple(jnp.zeros((), jnp.uint32) for _ in range(LIMBS))


def owe(
    debt: tuple[UInt32[Array, ""], ...], rate: Rate, eligible: Bool[Array, " U"]
) -> tuple[Int[Array, ""], tuple[UInt32[Array, ""], ...]]:
    """Adds rate x eligible units to what is owed and takes the whole part out (SEMANTICS 5; [N], Algorithm 1).

    Args:
        debt: Fraction of a unit carried over from earlier updates, in groups of four decimal digits.
        rate: From `as_rate`.
        eligible: Which units may be replaced.

    Returns:
        Number of units owed now, at most those eligible, int32; and the fraction left over.
    """
    count = eligible.sum(dtype=jnp.uint32)
    rest, carry = list(debt), jnp.uint32(0)
    for i in reversed(range(len(rate.groups))):
        total = debt[i] + count * rate.groups[i] + carry
        carry, rest[i] = total // _BASE, total % _BASE
    return (carry + rate.whole * count).astype(jnp.int32), tuple(rest)


def owe_by_chance(
    debt: tuple[UInt32[Array, ""], ...], rate: Rate, eligible: Bool[Array, " U"], key: PRNGKeyArray
) -> tuple[Int[Array, ""], tuple[UInt32[Array, ""], ...]]:
    """Rounds rate x eligible units up or down by chance, so that the mean is right and nothing is carried.

    Returns:
        Number of units owed now, at most those eligible, int32; and the debt as it was, none.
    """
    count, rest = owe(no_debt(), rate, eligible)
    fraction = sum(part / float(_BASE) ** (i + 1) for i, part in enumerate(rest))
    return count + jax.random.bernoulli(key, fraction).astype(jnp.int32), debt


def share_by_chance(rate: Any, size: int, key: PRNGKeyArray) -> Int[Array, ""]:
    """Rounds rate x size up or down by chance, so that the mean is right."""
    expected = rate * size if isinstance(rate, jax.Array) else float(Fraction(str(rate)) * size)
    whole = jnp.floor(expected)
    return (whole + jax.random.bernoulli(key, expected - whole)).astype(jnp.int32)


def lowest(
    utility: Float[Array, " U"], eligible: Bool[Array, " U"], count: Int[Array, ""], most: int
) -> Int[Array, " most"]:
    """Returns the numbers of the `count` eligible units of lowest utility, ties to the lowest number (SEMANTICS 6).

    Infinite (and undefined) utilities rank as the largest.

    Args:
        utility: Utility of each unit.
        eligible: Which units may be replaced.
        count: How many to replace, at most `most` and at most the number of eligible units.
        most: Static length of the result.

    Returns:
        int32 [most]: the chosen units, and U for places that stay empty.
    """
    ranked = jnp.where(jnp.isnan(utility), _FINITE_MAX, jnp.minimum(utility, _FINITE_MAX))
    ranked = jnp.where(eligible, ranked, jnp.inf)
    order = jnp.argmin(ranked)[None] if most == 1 else jnp.argsort(ranked)[:most]
    return jnp.where(jnp.arange(most) < count, order, utility.shape[0]).astype(jnp.int32)


def mask_of(numbers: Int[Array, " k"], size: int) -> Bool[Array, " U"]:
    """Returns the mask of the units with these numbers; places that hold U stand for nobody."""
    return jnp.zeros(size, bool).at[numbers].set(True, mode="drop")
