"""The networks: initial weights, norms, dropout, convolutions, and the wiring of their units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gxd_jax as gxd
from benchmarks.networks import convnet, layers, mlp, small


def test_initial_weights():
    params = mlp.init(jax.random.key(0), (20, 5000, 1), "tanh")
    hidden = np.asarray(params["hidden_1"]["kernel"])
    bound = 5 / 3 * np.sqrt(3 / 20)
    assert np.abs(hidden).max() <= bound
    np.testing.assert_allclose(hidden.std(), bound / np.sqrt(3), rtol=0.01)
    assert np.abs(params["output"]["kernel"]).max() <= np.sqrt(3 / 5000)
    assert not params["hidden_1"]["bias"].any()
    assert not params["output"]["bias"].any()


def test_network_equals_real_convolutions():
    params = convnet.init(jax.random.key(0), (32, 32, 3), "relu", outputs=2)
    images = jax.random.normal(jax.random.key(1), (2, 32, 32, 3))
    x = images
    for name in ("conv_1", "conv_2", "conv_3"):
        kernel, bias = params[name]["kernel"], params[name]["bias"]
        dimensions = ("NHWC", "HWIO", "NHWC")
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=dimensions) + bias)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(2, -1)
    for name in ("dense_1", "dense_2"):
        x = jax.nn.relu(x @ params[name]["kernel"] + params[name]["bias"])
    expected = x @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(convnet.make_apply("relu")(params, images), expected, rtol=1e-4, atol=1e-5)
    assert [layer.size for layer in convnet.hidden_layers(params)] == [32, 64, 128, 128, 128]


@pytest.mark.parametrize("normalization", ["layer", "batch"])
def test_norms_by_hand(normalization):
    params = mlp.init(jax.random.key(0), (4, 3, 2), "tanh", normalization=normalization)
    params["hidden_1_norm"]["scale"] *= 2
    x = np.asarray(jax.random.normal(jax.random.key(1), (5, 4)))
    drive = x @ params["hidden_1"]["kernel"]
    axis = {"layer": 1, "batch": 0}[normalization]
    drive = (drive - drive.mean(axis, keepdims=True)) / np.sqrt(drive.var(axis, keepdims=True) + 1e-5)
    expected = np.tanh(2 * drive) @ params["output"]["kernel"]
    outputs = mlp.make_apply((4, 3, 2), "tanh", normalization=normalization)(params, x)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_dropout_leaves_out_a_share_and_keeps_the_mean():
    dropped = layers.drop(jnp.ones((100, 100)), 0.25, jax.random.key(0))
    assert set(np.unique(dropped).round(4)) == {0.0, np.float32(4 / 3).round(4)}
    assert abs(float((dropped == 0).mean()) - 0.25) < 0.02
    apply, params = (
        mlp.make_apply((4, 3, 2), "tanh", dropout=0.5),
        mlp.init(jax.random.key(0), (4, 3, 2), "tanh"),
    )
    plain = mlp.make_apply((4, 3, 2), "tanh")(params, jnp.ones((2, 4)))
    np.testing.assert_array_equal(apply(params, jnp.ones((2, 4))), plain)
    assert not np.array_equal(apply(params, jnp.ones((2, 4)), jax.random.key(1)), plain)


@pytest.mark.parametrize("name", small.KINDS)
def test_networks_and_their_wiring(name):
    network = small.make(small.KINDS[name], (8, 8, 1), 10)
    params, x = network.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (5, 64))
    assert network.apply(params, x).shape == (5, 10)
    _, features = gxd.capture(network.apply, params, network.units, x)
    assert {layer.name: layer.size for layer in network.units} == {k: v.shape[-1] for k, v in features.items()}
    if name in ("relu_norm_after", "gelu_norm_after"):
        last = features[network.units[-1].name]
        np.testing.assert_allclose(last.mean(-1), 0, atol=1e-5)  # what the consumer reads is normalised
    if name in ("tanh", "residual_gelu"):
        assert gxd.verify_units(network.apply, params, network.units, x).ok
