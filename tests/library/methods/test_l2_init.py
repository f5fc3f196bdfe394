"""L2-init, by hand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd


def test_pulls_back_to_the_initial_parameters():
    tx = optax.chain(gxd.methods.l2_init(0.1), optax.sgd(0.5))
    state = tx.init({"w": jnp.array([1.0, 2.0], jnp.bfloat16), "b": jnp.array([0.0])})
    params = {"w": jnp.array([3.0, 2.0], jnp.bfloat16), "b": jnp.array([-4.0])}
    updates, after = tx.update(jax.tree.map(jnp.ones_like, params), state, params)
    np.testing.assert_allclose(np.float32(updates["w"]), [-0.6, -0.5], rtol=1e-2)
    np.testing.assert_allclose(updates["b"], [-0.5 * (1 - 0.4)])
    assert updates["w"].dtype == jnp.bfloat16
    chex.assert_trees_all_equal(after[0].initial, state[0].initial)


def test_state_is_a_copy_that_outlives_donated_parameters():
    params = jnp.array([1.0, 2.0])
    state = gxd.methods.l2_init(0.1).init(params)
    params.delete()
    assert state.initial.tolist() == [1.0, 2.0]


def test_refuses():
    with pytest.raises(ValueError, match=r"strength must lie in \[0, inf\), got -1"):
        gxd.methods.l2_init(-1.0)
    with pytest.raises(ValueError, match="l2_init needs the parameters"):
        gxd.methods.l2_init(1.0).update(jnp.ones(2), gxd.methods.l2_init(1.0).init(jnp.ones(2)))
