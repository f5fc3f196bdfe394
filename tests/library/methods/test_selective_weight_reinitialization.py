"""Selective weight reinitialization, by hand: which weights, how many, and what goes with them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from gxd_jax.methods import selective_weight_reinitialization
from tests.networks import zeros_like

PARAMS = {"w": jnp.array([[0.5, -0.1, 2.0], [-3.0, 0.2, 0.4]]), "b": jnp.array([0.01, 0.0, 1.0])}
GRADS = {"w": jnp.array([[0.2, 10.0, 0.02], [1.0, 1.0, -1.0]]), "b": jnp.ones(3)}


def test_the_least_useful_weights_are_drawn_anew_with_their_moments_for_every_seed():
    """Sizes of w dL/dw are [.1, 1, .04; 3, .2, .4]: two of six every other step, [0, 2] and [0, 0]; by size, others."""

    def run(seed):
        tx = gxd.chain(optax.sgd(0.0, momentum=0.5), selective_weight_reinitialization(rate=1 / 3, period=2, key=seed))
        params, state = PARAMS, tx.init(PARAMS)
        seen = []
        for _ in range(2):
            updates, state = tx.update(GRADS, state, params)
            params = optax.apply_updates(params, updates)
            seen.append((params, state[0][0].trace, gxd.reset_info(state)))
        return seen

    (first, _, before), (params, trace, info) = jax.jit(jax.vmap(run))(jnp.arange(2))
    least = np.array([[True, False, True], [False, False, False]])
    np.testing.assert_array_equal(before.totals["w"], [0, 0])
    for seed in range(2):
        jax.tree.map(lambda leaf, old, seed=seed: np.testing.assert_array_equal(leaf[seed], old), first, PARAMS)
        np.testing.assert_array_equal(info.replaced["w"][seed], least.ravel())
        np.testing.assert_array_equal(params["w"][seed][~least], PARAMS["w"][~least])
        assert (params["w"][seed][least] != PARAMS["w"][least]).all()
        np.testing.assert_allclose(trace["w"][seed], np.where(least, 0.0, 1.5 * GRADS["w"]), rtol=1e-6)
        np.testing.assert_array_equal(params["b"][seed], PARAMS["b"])
        np.testing.assert_array_equal(trace["b"][seed], [1.5] * 3)
        np.testing.assert_array_equal(info.ages["w"][seed], np.where(least, 0, 2).ravel())
        np.testing.assert_allclose(info.utilities["w"][seed], [0, 1, 0, 3, 0.2, 0.4], rtol=1e-6)
    np.testing.assert_array_equal(info.counts["w"], [2, 2])
    assert (params["w"][0][least] != params["w"][1][least]).all()


def test_draws_have_the_kernel_s_initial_moments_and_counts_the_right_mean():
    """By magnitude, at a rate of 1 % of 150 weights: 1 or 2 of them, whatever the optimizer did; then all of 10,000."""
    params = {"k": jnp.arange(150.0).reshape(10, 15), "large": jnp.tile(jnp.array([1.0, -3.0]), (5000, 1))}
    tx = selective_weight_reinitialization([("k",)], utility="magnitude", rate=0.01, period=1)
    zeros = zeros_like(params)

    def count(state, _):
        _, state = tx.update(zeros, state, params)
        return state, gxd.reset_info(state).replaced["k"]

    _, replaced = jax.jit(lambda: jax.lax.scan(count, tx.init(params), length=400))()
    assert replaced[:, 0].all() and not replaced[:, 2:].any()
    np.testing.assert_allclose(replaced.sum(1).mean(), 1.5, atol=0.1)
    whole = selective_weight_reinitialization([("large",)], utility="magnitude", rate=1, period=1)
    updates, _ = jax.jit(lambda: whole.update(zeros, whole.init(params), params))()
    fresh = params["large"] + updates["large"]
    np.testing.assert_allclose([fresh.mean(), fresh.std()], [-1.0, 2.0], atol=0.07)
    np.testing.assert_array_equal(updates["k"], zeros["k"])


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"utility": "size"}, ValueError, r"unknown utility 'size'.*\['gradient', 'magnitude'\]"),
        ({"rate": 1.5}, ValueError, r"rate must lie in \[0, 1\], got 1.5"),
        ({"period": 0}, ValueError, "period must be 1 or more, got 0"),
        ({"kernels": [("v",)]}, ValueError, r"no kernels \[\('v',\)\]"),
        ({}, ValueError, "'gradient' needs the gradient"),
    ],
)
def test_bad_input(settings, error, message):
    with pytest.raises(error, match=message):
        tx = selective_weight_reinitialization(**settings)
        jax.eval_shape(lambda: tx.update(GRADS, tx.init(PARAMS), PARAMS))
