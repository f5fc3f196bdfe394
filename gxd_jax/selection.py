"""Who is replaced: how many units are owed, and which ones have the lowest utility."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

# What is owed is counted in decimal digits, exactly: LIMBS groups of four digits, the first worth 10^-4, so that a rate
# of 1e-3 with 100 units pays on update 10 and not on 11, after 10^8 updates too. A product of a group and a number of
# units has to fit 32 bits.
LIMBS = 4
_BASE = 10_000
LARGEST_LAYER = 400_000
_FINITE_MAX = jnp.finfo(jnp.float32).max


def rate_digits(rate: Any) -> tuple[Array, Array]:
    """Splits a replacement rate into its whole part (0 or 1) and groups of four decimal digits.

    A concrete rate is the decimal number that the user wrote, to 16 decimals; a traced one is rounded to the digits
    that its dtype carries (6 for float32), which gives that number back.

    Args:
        rate: Replacement rate in [0, 1].

    Returns:
        uint32 whole part and uint32 [LIMBS].
    """
    if isinstance(rate, jax.core.Tracer):
        return _traced_digits(rate)
    scaled = int(Decimal(str(np.asarray(rate)[()])).scaleb(4 * LIMBS).to_integral_value())
    whole, fraction = divmod(scaled, _BASE**LIMBS)
    groups = [fraction // _BASE ** (LIMBS - 1 - i) % _BASE for i in range(LIMBS)]
    return jnp.uint32(whole), jnp.array(groups, jnp.uint32)


def _traced_digits(rate: Array) -> tuple[Array, Array]:
    precision = int(jnp.finfo(rate.dtype).precision) if jnp.issubdtype(rate.dtype, jnp.floating) else 6
    precision = min(precision, 6)
    rate = jnp.clip(rate.astype(jnp.float32), 0.0, 1.0)
    powers = jnp.asarray(10.0 ** np.arange(4 * LIMBS + 1), jnp.float32)
    # The number of decimals that leaves `precision` significant digits.
    magnitude = jnp.floor(jnp.log10(jnp.maximum(rate, 1e-30))).astype(jnp.int32)
    decimals = jnp.clip(precision - 1 - magnitude, 0, 4 * LIMBS)
    digits = jnp.round(rate * powers[decimals]).astype(jnp.uint32)
    # rate = digits * 10^-decimals; group i holds its decimals 4i+1 .. 4i+4.
    shift = 4 * jnp.arange(LIMBS + 1) - decimals
    small_powers = jnp.asarray(10 ** np.arange(10), jnp.uint32)
    right = digits // small_powers[jnp.clip(-shift, 0, 9)] * (shift > -10)
    left = right % _BASE * small_powers[jnp.clip(shift, 0, 4)]
    groups = jnp.where(shift > 3, 0, left % _BASE).astype(jnp.uint32)
    return groups[0], groups[1:]


def most_owed(rate: Any, size: int) -> int:
    """Returns the largest number of units that can be owed at once in a layer of `size` units."""
    if isinstance(rate, jax.core.Tracer):
        return size
    return math.ceil(Decimal(str(np.asarray(rate)[()])) * size)


def owe(
    debt: UInt32[Array, " LIMBS"], digits: tuple[Array, Array], eligible: Int[Array, ""]
) -> tuple[Int[Array, ""], UInt32[Array, " LIMBS"]]:
    """Adds rate x eligible units to what is owed and takes the whole part out (SEMANTICS 5; [N], Algorithm 1).

    Args:
        debt: Fraction of a unit carried over from earlier updates, in groups of four decimal digits.
        digits: From `rate_digits`.
        eligible: Number of eligible units.

    Returns:
        Units owed now, at most `eligible`, int32; and the fraction left over.
    """
    whole, groups = digits
    eligible = eligible.astype(jnp.uint32)
    rest, carry = [], jnp.uint32(0)
    for i in reversed(range(LIMBS)):
        total = debt[i] + eligible * groups[i] + carry
        carry, digit = total // _BASE, total % _BASE
        rest.append(digit)
    return (carry + whole * eligible).astype(jnp.int32), jnp.stack(rest[::-1])


def owe_by_chance(
    debt: UInt32[Array, " LIMBS"], digits: tuple[Array, Array], eligible: Int[Array, ""], key: PRNGKeyArray
) -> tuple[Int[Array, ""], UInt32[Array, " LIMBS"]]:
    """Rounds rate x eligible units up or down by chance, so that the mean is right and nothing is carried.

    Returns:
        Units owed now, at most `eligible`, int32; and the debt as it was, 0.
    """
    count, rest = owe(jnp.zeros_like(debt), digits, eligible)
    fraction = (rest / _BASE ** (1.0 + jnp.arange(LIMBS))).sum()
    return count + jax.random.bernoulli(key, fraction).astype(jnp.int32), debt


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
