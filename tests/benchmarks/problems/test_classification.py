"""What the problems on images share: every method of the table on a network, and the output layer that starts anew."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import methods
from benchmarks.networks import mlp
from benchmarks.problems import classification, permuted_mnist

SETTINGS = permuted_mnist.PROBLEM.fill_in(permuted_mnist.Settings(scale="smoke"))
SIZES = (8, 6, 5, 3)


def test_head_starts_from_zeros_with_fresh_moments():
    network, labels = mlp.make(SIZES, "relu"), {"optimizer": "momentum", "step_size": 0.1}
    learner = classification.make_image_learner(network, methods.METHODS["backprop"], {}, SETTINGS, labels)
    state = learner.start(*jax.random.split(jax.random.key(0), 3))
    state, _ = learner.step(state, (jnp.ones((4, 8)), None), jnp.arange(4) % 3)
    reset = classification.reset_head(learner, state)
    kept = classification.reset_head(learner, state, moments=False)
    for after in (reset, kept):
        assert not any(leaf.any() for leaf in jax.tree.leaves(after.params["output"]))
        np.testing.assert_array_equal(after.params["hidden_1"]["kernel"], state.params["hidden_1"]["kernel"])
    moments = [optax.tree.get(s.opt_state, "trace") for s in (state, reset, kept)]
    assert moments[0]["output"]["kernel"].any() and not moments[1]["output"]["kernel"].any()
    np.testing.assert_array_equal(moments[1]["hidden_1"]["kernel"], moments[0]["hidden_1"]["kernel"])
    np.testing.assert_array_equal(moments[2]["output"]["kernel"], moments[0]["output"]["kernel"])


@pytest.mark.parametrize("name", classification.METHODS)
def test_every_row_of_the_table_can_learn(name):
    method = methods.METHODS[name]
    setting = next(methods.settings_of(method, SETTINGS))
    network = mlp.make(SIZES, "relu", normalization=method.normalization, dropout=setting.get("dropout", 0.0))
    labels = {"optimizer": "adam", "step_size": 0.01}
    learner = classification.make_image_learner(network, method, setting, SETTINGS, labels)
    state = jax.eval_shape(lambda key: learner.start(*jax.random.split(key, 3)), jax.random.key(0))
    inputs = jax.ShapeDtypeStruct((4, 8), jnp.float32), jax.eval_shape(lambda: jax.random.key(0))
    after, (loss, logits) = jax.eval_shape(learner.step, state, inputs, jax.ShapeDtypeStruct((4,), jnp.int32))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), state
    )
    assert loss.shape == ()
    assert logits.shape == (4, 3)
    found = jax.eval_shape(
        lambda state, x: classification.diagnose(network, method, "relu", state, x), state, inputs[0]
    )
    assert set(found) == set(classification.DIAGNOSTICS)
    assert all(value.shape == () for value in found.values())
