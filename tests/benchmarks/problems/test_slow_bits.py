"""The stream of slowly-changing regression and its target network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.problems import slow_bits


def test_threshold_unit_by_hand():
    # A unit with all weights +1 has threshold 21 * 0.7 = 14.7: with the constant, 14 ones on its inputs switch it on,
    # 13 do not. One with k negative weights has threshold 14.7 - k.
    kernel = jnp.ones((21, 2)).at[:3, 1].set(-1.0)
    target = slow_bits.Target(kernel, 21 * 0.7 - (kernel < 0).sum(0), jnp.array([1.0, -1.0]))
    x = jnp.zeros((4, 20))
    x = x.at[0, :14].set(1.0)  # unit 0: 15 > 14.7; unit 1: -3 + 11 + 1 = 9, not above 11.7
    x = x.at[1, :13].set(1.0)  # unit 0: 14; unit 1: 8
    x = x.at[2, 3:14].set(1.0)  # unit 0: 12; unit 1: 12 > 11.7
    x = x.at[3, 3:].set(1.0)  # both: 18
    np.testing.assert_array_equal(slow_bits.target_output(target, x)[:, 0], [1.0, 0.0, -1.0, 0.0])


def test_drawn_target():
    target = slow_bits.draw_target(jax.random.key(0))
    assert target.kernel.shape == (21, 100)
    assert set(np.unique(target.kernel)) == set(np.unique(target.outgoing)) == {-1.0, 1.0}
    np.testing.assert_allclose(target.threshold, 14.7 - (np.asarray(target.kernel) == -1).sum(0), rtol=1e-6)


@pytest.mark.parametrize("flip", ["one", "all"])
def test_block_equals_single_examples(flip):
    stream = slow_bits.Stream(flip, flip_every=16)
    state = one_by_one = stream.init(jax.random.key(3))
    sample, sample_block = jax.jit(stream.sample), jax.jit(stream.sample_block, static_argnums=1)
    for _ in range(6):
        state, (xs, ys) = sample_block(state, 8)
        for x, y in zip(xs, ys, strict=True):
            one_by_one, (single_x, single_y) = sample(one_by_one)
            np.testing.assert_array_equal(single_x[0], x)
            np.testing.assert_array_equal(single_y[0], y)


def test_one_slow_bit_flips_at_each_change():
    stream = slow_bits.Stream("one", flip_every=8)
    draw = jax.jit(lambda state: jax.lax.scan(lambda s, _: stream.sample_block(s, 8), state, length=300))
    _, (xs, ys) = draw(stream.init(jax.random.key(1)))
    slow = np.asarray(xs)[:, :, :15]
    assert (slow == slow[:, :1]).all(), "slow bits are constant between changes"
    flips = slow[1:, 0] != slow[:-1, 0]
    assert (flips.sum(1) == 1).all()
    # 299 flips over 15 bits: 19.9 each, standard deviation 4.3.
    assert (np.abs(flips.sum(0) - 299 / 15) < 4.5 * 4.3).all()
    assert ((xs == 0) | (xs == 1)).all()
    assert len(np.unique(ys)) > 3


def test_flips_come_every_ten_thousand_examples():
    stream = slow_bits.Stream()
    draw = jax.jit(lambda state: jax.lax.scan(lambda s, _: stream.sample_block(s, 1000), state, length=30))
    _, (xs, _) = draw(stream.init(jax.random.key(5)))
    slow = np.asarray(xs).reshape(30_000, 20)[:, :15]
    changed = np.flatnonzero((slow[1:] != slow[:-1]).any(1)) + 1
    np.testing.assert_array_equal(changed, [10_000, 20_000])


def test_all_slow_bits_are_drawn_anew():
    stream = slow_bits.Stream("all", flip_every=8)
    draw = jax.jit(lambda state: jax.lax.scan(lambda s, _: stream.sample_block(s, 8), state, length=300))
    _, (xs, _) = draw(stream.init(jax.random.key(1)))
    changed = np.asarray(xs)[1:, 0, :15] != np.asarray(xs)[:-1, 0, :15]
    # 299 x 15 fair coins: mean 1/2, standard deviation 0.0075.
    assert abs(changed.mean() - 0.5) < 4.5 * 0.0075


def test_coins_are_fair_and_independent():
    stream = slow_bits.Stream()
    _, (xs, _) = jax.jit(stream.sample_block, static_argnums=1)(stream.init(jax.random.key(2)), 10_000)
    coins = np.asarray(xs)[:, 15:]
    # Standard deviation of a mean of 10,000 coins: 0.005; of a correlation: 0.01.
    assert (np.abs(coins.mean(0) - 0.5) < 0.0225).all()
    correlations = np.corrcoef(np.concatenate([coins[:-1], coins[1:]], 1).T)
    assert np.abs(correlations[~np.eye(10, dtype=bool)]).max() < 0.05
