"""Long runs: exact counts, no growth, and counters that stop at their ends."""

import fractions
import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gxd_jax as gxd
from tests.networks import dense_params, dense_units, mlp, squared_loss

RATE, THRESHOLD, SIZES, CHUNK = 1e-3, 100, (20, 5, 1), 10_000


def expected_total(steps):
    """Units replaced in a layer of five, by exact arithmetic: which of the mature units it hits makes no difference."""
    rate, owed, total = fractions.Fraction("0.001"), fractions.Fraction(0), 0
    births = [0] * SIZES[1]  # of the living units, in the order of their birth
    for step in range(1, steps + 1):
        mature = sum(step - birth > THRESHOLD for birth in births)
        owed += rate * mature
        count = min(int(owed), mature)
        owed -= count
        total += count
        births = births[count:] + [step] * count
    return total


def start():
    params = dense_params(SIZES)
    units = dense_units(params)
    observe = gxd.observe(mlp(jnp.tanh), squared_loss, units)
    tx = gxd.chain(
        gxd.adam(1e-3),
        gxd.continual_backprop(units, replacement_rate=RATE, maturity_threshold=THRESHOLD, key=0),
    )
    step = gxd.training.make_train_step(observe, tx)

    def sample(key):
        key, draw = jax.random.split(key)
        x = jax.random.normal(draw, (1, SIZES[0]))
        return key, (x, x[:, :1])

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def chunk(state, key):
        state, key, losses = gxd.training.train_task(step, state, sample, key, CHUNK)
        return state, key, losses.mean()

    return chunk, gxd.training.init(params, tx, 0), jax.random.key(1)


@pytest.mark.parametrize("chunks", [4, pytest.param(1000, marks=pytest.mark.slow)])
def test_nothing_grows_and_the_count_is_exact(chunks):
    chunk, state, key = start()
    state, key, loss = chunk(state, key)
    gc.collect()
    alive = len(jax.live_arrays())
    for _ in range(chunks - 1):
        state, key, loss = chunk(state, key)
    gc.collect()
    assert len(jax.live_arrays()) <= alive
    assert chunk._cache_size() == 1, "one executable"
    assert np.isfinite(loss)
    info = gxd.reset_info(state.opt_state)
    assert int(info.totals["l1"]) == expected_total(chunks * CHUNK)
    assert int(state.count) == chunks * CHUNK
    assert int(info.ages["l1"].max()) <= chunks * CHUNK


def test_counters_stop_at_their_ends():
    params = dense_params(SIZES)
    units = dense_units(params)
    tx = gxd.continual_backprop(units, replacement_rate=0.0)
    state, largest = tx.init(params), np.iinfo(np.int32).max
    layer = state.layers["l1"]
    old = layer._replace(statistics=layer.statistics._replace(age=jnp.full(5, largest - 1, jnp.int32)))
    state = state._replace(layers={"l1": old})
    observation = gxd.Observation({"l1": jnp.ones((1, 5))}, {"l1": jnp.ones((1, 5))}, "logits")
    for _ in range(3):
        _, state = tx.update(jax.tree.map(jnp.zeros_like, params), state, params, observation=observation)
    np.testing.assert_array_equal(gxd.reset_info(state).ages["l1"], largest)
    np.testing.assert_array_equal(gxd.reset_info(state).mature_fraction["l1"], 1.0)


@pytest.mark.parametrize(
    ("tx_of", "name"),
    [
        (lambda units: gxd.continual_backprop(units, replacement_rate=1.0, maturity_threshold=0), "l1"),
        (
            lambda units: gxd.methods.selective_weight_reinitialization(utility="magnitude", rate=0.5, period=1),
            "l1/kernel",
        ),
    ],
)
def test_totals_and_skipped_batches_stop_at_their_ends(tx_of, name):
    params = dense_params(SIZES)
    tx = tx_of(dense_units(params))
    state, largest = tx.init(params), np.iinfo(np.int32).max
    layer = state.layers[name]
    state = state._replace(
        layers={**state.layers, name: layer._replace(total=jnp.int32(largest - 3))}, skipped_batches=jnp.int32(largest)
    )
    observation = gxd.Observation({"l1": jnp.full((1, 5), jnp.nan)}, {"l1": jnp.ones((1, 5))}, "logits")
    for _ in range(3):
        # Features that are not finite are skipped; five units, or half of the weights, go all the same.
        _, state = tx.update(jax.tree.map(jnp.ones_like, params), state, params, observation=observation)
    assert int(state.layers[name].total) == largest
    assert int(state.skipped_batches) == largest
