"""How many units of a layer are replaced now, and which: those of lowest utility."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

_WORD_BITS = 32
_HALF_BITS = 16
_HALF = 1 << _HALF_BITS
_FRACTION_BITS = 2 * _WORD_BITS
_FLOAT32_MANTISSA_BITS = 23
_FLOAT32_EXPONENT_BIAS = 127
_FINITE_MAX = jnp.finfo(jnp.float32).max


class Rate(NamedTuple):
    """A replacement rate in [0, 1] in binary fixed point: whole + high / 2^32 + low / 2^64.

    Replacements are counted in integers, so that a rate of 1e-3 with 100 units replaces one at every tenth update, also
    after 10^8 of them; a sum of floats would drift.

    Attributes:
        whole: 1 for a rate of 1, else 0, uint32.
        high: uint32.
        low: uint32.
    """

    whole: Any
    high: Any
    low: Any


def as_rate(rate: Any) -> Rate:
    """Turns a replacement rate into fixed point, rounded up.

    A float stands for every number that rounds to it, so it is first raised by half a unit in its last place: 1/3 with
    three units then replaces one at every update, and not 0.9999... of one. A JAX array (traced or not, as from
    `optax.inject_hyperparams`) is read as float32.

    Args:
        rate: A number in [0, 1] or a scalar JAX array.
    """
    if isinstance(rate, jax.Array):
        return _traced_rate(rate)
    exact = Fraction(rate.item() if isinstance(rate, (np.ndarray, np.generic)) else rate)
    if exact and isinstance(rate, (float, np.floating, np.ndarray)):
        exact += Fraction(float(np.spacing(rate))) / 2
    scaled = min(math.ceil(exact * 2**_FRACTION_BITS), 2**_FRACTION_BITS)
    words = (scaled >> _FRACTION_BITS, scaled >> _WORD_BITS & 0xFFFFFFFF, scaled & 0xFFFFFFFF)
    return Rate(*(np.uint32(word) for word in words))


def _traced_rate(rate: Array) -> Rate:
    """Reads a float32 as fixed point: mantissa x 2^shift in units of 2^-64, raised by half a unit in its last place."""
    rate = jnp.clip(rate.astype(jnp.float32), 0.0, 1.0)
    bits = jax.lax.bitcast_convert_type(rate, jnp.uint32)
    exponent = (bits >> _FLOAT32_MANTISSA_BITS).astype(jnp.int32)
    mantissa = (bits & (1 << _FLOAT32_MANTISSA_BITS) - 1) | (1 << _FLOAT32_MANTISSA_BITS)
    mantissa = 2 * mantissa + 1
    shift = exponent - _FLOAT32_EXPONENT_BIAS - _FLOAT32_MANTISSA_BITS - 1 + _FRACTION_BITS
    shift = jnp.maximum(shift, -31)  # the mantissa has 25 bits: anything smaller is rounded up to one unit too
    below = jnp.maximum(-shift, 0).astype(jnp.uint32)  # bits below 2^-64, rounded up
    mantissa = mantissa + ((jnp.uint32(1) << below) - 1)
    places = _HALF_BITS * np.arange(3, -1, -1) - shift  # bits to drop before each half word; negative: to add
    right = jnp.where(places < 32, mantissa >> jnp.clip(places, 0, 31).astype(jnp.uint32), 0)
    left = jnp.where(places > -_HALF_BITS, mantissa << jnp.clip(-places, 0, _HALF_BITS).astype(jnp.uint32), 0)
    halves = jnp.where(places >= 0, right, left) & (_HALF - 1)
    is_fraction = (rate > 0) & (rate < 1)
    halves = jnp.where(is_fraction, halves, 0).astype(jnp.uint32)
    high, low = halves[0] << _HALF_BITS | halves[1], halves[2] << _HALF_BITS | halves[3]
    return Rate((rate == 1).astype(jnp.uint32), high, low)


def most_replaced(rate: Any, size: int) -> int:
    """Returns the largest number of a layer's units that can be replaced at one update: ceil(rate x size)."""
    return size if isinstance(rate, jax.Array) else math.ceil(Fraction(str(rate)) * size)


class Accumulator(NamedTuple):
    """A fraction of a unit, carried from update to update: high / 2^32 + low / 2^64.

    Attributes:
        high: uint32.
        low: uint32.
    """

    high: UInt32[Array, ""]
    low: UInt32[Array, ""]


def empty_accumulator() -> Accumulator:
    """Returns an accumulator that holds nothing."""
    return Accumulator(high=jnp.zeros((), jnp.uint32), low=jnp.zeros((), jnp.uint32))


def accumulate(accumulator: Accumulator, rate: Rate, eligible: Bool[Array, " U"]) -> tuple[Int[Array, ""], Accumulator]:
    """Adds rate x eligible units to the accumulator and takes the whole part out (step 5; [N], Algorithm 1).

    Args:
        accumulator: Fraction of a unit carried from earlier updates.
        rate: From `as_rate`.
        eligible: Mask of the units that may be replaced.

    Returns:
        Number of units to replace now, int32, at most those eligible; and the fraction left over.

    References:
        [N] Dohare et al., "Loss of plasticity in deep continual learning", Nature 632 (2024).
    """
    count = eligible.sum(dtype=jnp.uint32)
    size = eligible.shape[0]
    # rate x count, the high word with what the low one carries; sums of words wrap around where they carry.
    low = rate.low * count
    high = rate.high * count + _high_product(rate.low, count, size)
    whole = rate.whole * count + _high_product(rate.high, count, size) + _carried(high < rate.high * count)
    new_low = accumulator.low + low
    with_carry = high + _carried(new_low < low)
    new_high = accumulator.high + with_carry
    whole += _carried(with_carry < high) + _carried(new_high < with_carry)
    return jnp.minimum(whole, count).astype(jnp.int32), Accumulator(new_high, new_low)


def _carried(overflows: Bool[Array, ""]) -> UInt32[Array, ""]:
    return overflows.astype(jnp.uint32)


def _high_product(word: Any, count: UInt32[Array, ""], most: int) -> UInt32[Array, ""]:
    """Returns the high word of word x count, count at most `most`."""
    upper, lower = word >> _HALF_BITS, word & (_HALF - 1)
    if most < _HALF:
        return (upper * count + (lower * count >> _HALF_BITS)) >> _HALF_BITS
    count_upper, count_lower = count >> _HALF_BITS, count & (_HALF - 1)
    middle = upper * count_lower + (lower * count_lower >> _HALF_BITS)
    other = lower * count_upper + (middle & (_HALF - 1))
    return upper * count_upper + (middle >> _HALF_BITS) + (other >> _HALF_BITS)


def round_at_random(rate: Rate, eligible: Bool[Array, " U"], key: PRNGKeyArray) -> Int[Array, ""]:
    """Rounds rate x eligible units up or down at random, so that the mean is right and nothing is carried.

    Returns:
        Number of units to replace now, int32, at most those eligible.
    """
    count, rest = accumulate(empty_accumulator(), rate, eligible)
    fraction = sum(word.astype(float) / 2.0 ** (_WORD_BITS * (i + 1)) for i, word in enumerate(rest))
    return count + jax.random.bernoulli(key, fraction).astype(jnp.int32)


def lowest(
    utility: Float[Array, " U"], eligible: Bool[Array, " U"], count: Int[Array, ""], most: int
) -> Int[Array, " most"]:
    """Returns the indices of the `count` eligible units of lowest utility, ties to the lowest index.

    Step 6 of `engine`.
    Infinite (and undefined) utilities rank as the largest.

    Args:
        utility: Utility of each unit.
        eligible: Mask of the units that may be replaced.
        count: How many to replace, at most `most` and at most the number of eligible units.
        most: Static length of the result.

    Returns:
        int32 [most]: the chosen units, padded with U.
    """
    ranked = jnp.where(jnp.isnan(utility), _FINITE_MAX, jnp.minimum(utility, _FINITE_MAX))
    ranked = jnp.where(eligible, ranked, jnp.inf)
    order = jnp.argmin(ranked)[None] if most == 1 else jnp.argsort(ranked)[:most]
    return jnp.where(jnp.arange(most) < count, order, utility.shape[0]).astype(jnp.int32)


def mask_of(indices: Int[Array, " k"], size: int) -> Bool[Array, " U"]:
    """Returns the mask of the units with these indices; padding (U) marks none."""
    return jnp.zeros(size, bool).at[indices].set(True, mode="drop")
