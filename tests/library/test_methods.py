"""The other remedies, against hand-worked values."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd


def test_shrink_and_perturb_shrinks_the_stepped_parameters():
    tx = optax.chain(optax.sgd(0.5), gxd.methods.shrink_and_perturb(0.1, 0.0))
    params = {"w": jnp.array([[1.0, -2.0]]), "b": jnp.array([4.0])}
    grads = {"w": jnp.array([[2.0, 0.0]]), "b": jnp.array([-2.0])}
    updates, _ = tx.update(grads, tx.init(params), params)
    params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(params["w"], [[0.0, -1.8]], atol=1e-7)
    np.testing.assert_allclose(params["b"], [4.5], atol=1e-6)


def test_shrink_and_perturb_noise_has_its_standard_deviation_and_differs_by_step_leaf_and_key():
    params = {"a": jnp.zeros((100, 100)), "b": jnp.zeros((100, 100))}

    def draw(key, steps):
        tx = gxd.methods.shrink_and_perturb(0.0, 0.02, key=key)
        state = tx.init(params)
        for _ in range(steps):
            updates, state = tx.update(params, state, params)
        return updates

    first = draw(0, 1)
    np.testing.assert_allclose(first["a"].std(), 0.02, rtol=0.03)
    np.testing.assert_allclose(first["a"].mean(), 0.0, atol=1e-3)
    for other in (first["b"], draw(0, 2)["a"], draw(1, 1)["a"]):
        assert abs(np.corrcoef(first["a"].ravel(), other.ravel())[0, 1]) < 0.05
    np.testing.assert_array_equal(first["a"], draw(jax.random.key(0), 1)["a"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.5, 0.0), r"shrink must lie in \[0, 1\], got 1.5"),
        ((0.1, -1.0), r"noise_std must lie in \[0, inf\), got -1.0"),
    ],
)
def test_shrink_and_perturb_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        gxd.methods.shrink_and_perturb(*arguments)


def test_shrink_and_perturb_needs_parameters():
    tx = gxd.methods.shrink_and_perturb(0.1, 0.0)
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))
