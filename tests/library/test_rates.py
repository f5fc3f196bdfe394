"""Counting replacements: a rate as a multiple of 2^-64, rounded up, against exact fractions."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gxd_jax.resets import selection

UNIT = Fraction(1, 2**64)
RNG = np.random.default_rng(0)
RATES = [0.0, 1.0, 1 / 3, 1e-3, 0.5, 0.7, 1 - 2.0**-24, 2.0**-40, 1e-18, 1e-30, *10 ** RNG.uniform(-20, 0, 50)]


def exact(rate):
    return int(rate.whole) + Fraction(int(rate.high), 2**32) + Fraction(int(rate.low), 2**64)


def raised(value):
    """A float raised by half a unit in its last place, rounded up to a multiple of 2^-64, at most 1."""
    half = Fraction(float(np.spacing(value))) / 2 if value else 0
    return min(-(-(Fraction(float(value)) + half) // UNIT) * UNIT, 1)


@pytest.mark.parametrize("rate", RATES)
def test_a_rate_is_rounded_up(rate):
    assert exact(selection.as_rate(rate)) == raised(rate)


def test_a_traced_rate_is_rounded_up_as_float32():
    traced = jax.jit(jax.vmap(selection.as_rate))(jnp.float32(RATES))
    for i, rate in enumerate(np.float32(RATES)):
        assert exact(jax.tree.map(lambda words, i=i: words[i], traced)) == raised(rate), rate


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("share", "size", "updates"),
    [
        (Fraction(1, 3), 3, 40),
        (Fraction(1, 7), 7, 40),
        (Fraction(2, 6), 6, 40),
        (Fraction(1, 1000), 100, 60),
        (Fraction(1, 500), 1, 1100),
        (Fraction(3, 10), 100_000, 40),  # more units than half a word counts
    ],
)
def test_replacements_come_on_time(share, size, updates, traced):
    eligible = jnp.ones(size, bool)

    @jax.jit
    def counts(given):
        rate = selection.as_rate(given if traced else float(share))

        def update(accumulator, _):
            count, accumulator = selection.accumulate(accumulator, rate, eligible)
            return accumulator, count

        return jax.lax.scan(update, selection.empty_accumulator(), length=updates)[1]

    found = np.cumsum(counts(jnp.float32(float(share))))
    expected = [int(share * size * update) for update in range(1, updates + 1)]
    # Half a unit in the last place of float32 is 3e-8 of the rate.
    np.testing.assert_allclose(found, expected, atol=int(traced and size > 1000))
