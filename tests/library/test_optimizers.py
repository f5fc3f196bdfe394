"""Adam whose bias-correction count is per weight."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from tests.networks import dense_params, one_hidden_layer


@pytest.mark.parametrize("mode", ["plain", "jitted"])
@pytest.mark.parametrize(
    "settings", [{}, {"b1": 0.5, "b2": 0.9, "eps": 1e-3, "eps_root": 1e-6}], ids=["defaults", "all settings"]
)
def test_equal_to_optax_adam_while_nothing_is_reset(mode, settings):
    params = dense_params([3, 4, 2])
    rng = np.random.default_rng(0)
    results = []
    grads = [jax.tree.map(lambda leaf: jnp.float32(rng.normal(size=leaf.shape)), params) for _ in range(20)]
    for adam in (gxd.adam, optax.adam):
        tx = adam(0.01, **settings)
        update = jax.jit(tx.update) if mode == "jitted" else tx.update
        state, trail = tx.init(params), []
        for gradient in grads:
            updates, state = update(gradient, state, params)
            trail.append(updates)
        results.append(trail)
    chex.assert_trees_all_close(*results, rtol=2e-6, atol=1e-9)


def test_scale_by_adam_is_adam_without_the_learning_rate():
    params = dense_params([3, 4, 2])
    scaled, whole = gxd.scale_by_adam(b1=0.8), gxd.adam(0.1, b1=0.8)
    raw, _ = scaled.update(params, scaled.init(params), params)
    stepped, _ = whole.update(params, whole.init(params), params)
    jax.tree.map(lambda r, s: np.testing.assert_allclose(s, -0.1 * r, rtol=1e-6), raw, stepped)


def test_a_learning_rate_schedule():
    params = {"w": jnp.ones(2)}
    tx = gxd.adam(optax.piecewise_constant_schedule(0.1, {1: 0.5}))
    state = tx.init(params)
    sizes = []
    for _ in range(3):
        updates, state = tx.update({"w": jnp.ones(2)}, state, params)
        sizes.append(float(updates["w"][0]))
    np.testing.assert_allclose(sizes, [-0.1, -0.05, -0.05], rtol=1e-4)


def test_a_newborn_weight_steps_as_if_training_began():
    """Unit 1 is replaced at update 5; gradients are +1 before and -1 after.

    With counts of its own its first step afterwards is a full learning rate, as any first step of Adam. With the shared
    count of optax.adam the moments of one step are corrected like those of six.
    """
    params, units = one_hidden_layer(3)
    b1, b2 = 0.9, 0.99
    sizes = {}
    for name, adam in (("per weight", gxd.adam), ("shared", optax.adam)):
        tx = gxd.chain(
            adam(0.1, b1=b1, b2=b2),
            gxd.continual_backprop(units, utility="activation", maturity_threshold=4, replacement_rate=0.34),
        )
        update = jax.jit(tx.update)
        observation = gxd.Observation({"l1": jnp.array([[3.0, 1.0, 2.0]])})
        state = tx.init(params)
        for sign in (1, 1, 1, 1, 1, -1):
            updates, state = update(
                jax.tree.map(lambda leaf, sign=sign: jnp.full_like(leaf, sign), params),
                state,
                params,
                observation=observation,
            )
        assert gxd.reset_info(state).totals["l1"] == 1
        sizes[name] = updates["l1"]["kernel"][0]

    shared_first = 0.1 * ((1 - b1) / (1 - b1**6)) / np.sqrt((1 - b2) / (1 - b2**6))
    m = -(1 - b1) + b1 * (1 - b1**5)
    old = -0.1 * (m / (1 - b1**6))  # the second moment's average is 1 throughout
    np.testing.assert_allclose(sizes["per weight"], [old, 0.1, old], rtol=1e-4)
    np.testing.assert_allclose(sizes["shared"], [old, shared_first, old], rtol=1e-4)


def test_bfloat16_parameters_keep_their_dtype():
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    tx = gxd.adam(0.1)
    updates, state = tx.update({"w": jnp.ones(3, jnp.bfloat16)}, tx.init(params), params)
    assert updates["w"].dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(updates["w"]), -0.1, rtol=1e-2)
    for _ in range(300):  # a bfloat16 count would stop at 256
        updates, state = tx.update({"w": jnp.ones(3, jnp.bfloat16)}, state, params)
    counts = [leaf for leaf in jax.tree.leaves(state) if jnp.shape(leaf) == (3,) and jnp.all(leaf == 301)]
    assert len(counts) == 1
