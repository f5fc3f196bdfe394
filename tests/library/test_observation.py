"""Loss, gradients, features and sensitivities of one batch."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from tests.networks import batches, dense_params, dense_units, mlp, numpy_layers, one_hidden_layer, squared_loss
from tests.reference import network

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}


class Net(nn.Module):
    """6-5-4-3, with a different activation after each hidden layer."""

    @nn.compact
    def __call__(self, x):
        h = nn.relu(nn.Dense(5)(x))
        h = jnp.tanh(nn.Dense(4)(h))
        return nn.Dense(3)(h)


@pytest.fixture(scope="module")
def problem():
    """Parameters of a 6-5-4-3 network, its units, and one batch of 8 examples."""
    params = dense_params([6, 5, 4, 3])
    x, y = batches(1, 8, 6, 3)
    return params, dense_units(params), x[0], y[0]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("mode", ["plain", "jitted"])
def test_everything_agrees_with_the_derivatives_written_out(problem, activation, mode):
    params, units, x, y = problem
    observe = gxd.observe(mlp(ACTIVATIONS[activation]), squared_loss, units, readout="loss")
    observe = jax.jit(observe) if mode == "jitted" else observe
    loss, grads, observation = observe(params, x, y)

    layers = numpy_layers(params)
    features, outputs = network.forward(layers, x, activation)
    cotangents = network.squared_loss_cotangents(outputs, y)
    expected_grads = network.parameter_gradients(layers, x, features, cotangents, activation)
    expected_sensitivities = network.sensitivities(layers, features, len(x) * cotangents, activation)

    np.testing.assert_allclose(loss, network.squared_loss(outputs, y), rtol=1e-5)
    assert observation.readout == "loss"
    for number, (kernel, bias) in enumerate(expected_grads, start=1):
        np.testing.assert_allclose(grads[f"l{number}"]["kernel"], kernel, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(grads[f"l{number}"]["bias"], bias, rtol=1e-4, atol=1e-6)
    assert set(observation.features) == set(observation.sensitivities) == {"l1", "l2"}
    for number in (1, 2):
        name = f"l{number}"
        np.testing.assert_allclose(observation.features[name], features[number - 1], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            observation.sensitivities[name], expected_sensitivities[number - 1], rtol=1e-4, atol=1e-6
        )


def test_loss_and_gradients_are_those_of_value_and_grad(problem):
    params, units, x, y = problem
    apply = mlp(jnp.tanh)
    expected_loss, expected = jax.jit(jax.value_and_grad(lambda params: squared_loss(apply(params, x), y)))(params)
    for readout in ("logits", None):
        loss, grads, _ = jax.jit(gxd.observe(apply, squared_loss, units, readout=readout))(params, x, y, key=0)
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
        chex.assert_trees_all_close(grads, expected, rtol=1e-5, atol=1e-7)


def test_without_a_readout_there_are_no_sensitivities(problem):
    params, units, x, y = problem
    _, _, observation = gxd.observe(mlp(jnp.tanh), squared_loss, units, readout=None)(params, x, y)
    assert observation.sensitivities is None
    assert observation.readout is None
    assert observation.features["l1"].shape == (8, 5)


def test_flax_features_are_the_inputs_of_the_consumers_without_changing_the_model(problem):
    _, _, x, y = problem
    params = Net().init(jax.random.key(1), x)["params"]
    units = gxd.sequential_units(params, ["Dense_0", "Dense_1", "Dense_2"])

    def apply(params, x):
        return Net().apply({"params": params}, x)

    loss, grads, observation = jax.jit(gxd.observe(apply, squared_loss, units, readout="loss"))(params, x, y)

    def tapped_apply(params, x):
        h = gxd.tap("Dense_0", jax.nn.relu(x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]))
        h = gxd.tap("Dense_1", jnp.tanh(h @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]))
        return h @ params["Dense_2"]["kernel"] + params["Dense_2"]["bias"]

    expected = jax.jit(gxd.observe(tapped_apply, squared_loss, units, readout="loss"))(params, x, y)
    jax.tree.map(
        lambda value, wanted: np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6),
        (loss, grads, observation),
        expected,
    )
    first = jax.nn.relu(x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
    np.testing.assert_allclose(observation.features["Dense_0"], first, rtol=1e-5, atol=1e-6)


def test_a_unit_with_two_flax_consumers_answers_for_both():
    class TwoHeads(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = jnp.tanh(nn.Dense(4, name="trunk")(x))
            return {"policy": nn.Dense(2, name="policy")(h), "value": nn.Dense(1, name="value")(h)}

    x, y = batches(1, 6, 3, 3)
    x, y = x[0], y[0]
    params = TwoHeads().init(jax.random.key(0), x)["params"]
    trunk = gxd.UnitLayer(
        name="trunk",
        size=4,
        incoming=(gxd.ParamAxis(("trunk", "kernel"), 1),),
        own=((gxd.ParamAxis(("trunk", "bias"), 0), 0.0),),
        outgoing=(gxd.ParamAxis(("policy", "kernel"), 0), gxd.ParamAxis(("value", "kernel"), 0)),
        outgoing_bias=(("policy", "bias"), ("value", "bias")),
    )

    def apply(params, x):
        return TwoHeads().apply({"params": params}, x)

    def loss(outputs, y):
        return jnp.mean((outputs["policy"] - y[:, :2]) ** 2) + jnp.mean((outputs["value"] - y[:, 2:]) ** 2)

    _, _, observation = jax.jit(gxd.observe(apply, loss, [trunk], readout="loss"))(params, x, y)
    outputs = apply(params, x)
    policy = 2 / 2 * (outputs["policy"] - y[:, :2]) @ params["policy"]["kernel"].T
    value = 2 * (outputs["value"] - y[:, 2:]) @ params["value"]["kernel"].T
    np.testing.assert_allclose(observation.sensitivities["trunk"], policy + value, rtol=1e-4, atol=1e-6)

    _, _, exact = jax.jit(gxd.observe(apply, loss, [trunk], readout="logits_exact"))(params, x, y)
    kernels = np.concatenate([params["policy"]["kernel"], params["value"]["kernel"]], axis=1)
    np.testing.assert_allclose(
        np.linalg.norm(exact.sensitivities["trunk"], axis=0),
        np.tile(np.linalg.norm(kernels, axis=1), (6, 1)),
        rtol=1e-5,
    )


def test_tap_is_the_identity_outside_observe():
    h = jnp.array([[1.0, -2.0]])
    np.testing.assert_array_equal(gxd.tap("anything", h), h)
    np.testing.assert_array_equal(jax.jit(lambda h: gxd.tap("anything", h))(h), h)


def test_a_layer_may_read_a_tap_of_another_name(problem):
    params, _, x, y = problem
    hidden = gxd.sequential_units({name: params[name] for name in ("l1", "l2")}, ["l1", "l2"])[0]

    def apply(params, x):
        h = gxd.tap("first activations", jnp.tanh(x @ params["l1"]["kernel"] + params["l1"]["bias"]))
        return h @ params["l2"]["kernel"]

    observe = gxd.observe(apply, lambda z, y: jnp.mean(z**2), [hidden._replace(feature="first activations")])
    _, _, observation = observe(params, x, y, key=0)
    np.testing.assert_allclose(
        observation.features["l1"], jnp.tanh(x @ params["l1"]["kernel"] + params["l1"]["bias"]), rtol=1e-6
    )


def test_has_aux_brings_the_model_s_other_results_through(problem):
    params, units, x, y = problem
    plain = mlp(jnp.tanh)

    def apply(params, x):
        return plain(params, x), {"mean input": x.mean()}

    (loss, aux), grads, observation = gxd.observe(apply, squared_loss, units, has_aux=True)(params, x, y, key=0)
    expected_loss, expected_grads, expected = gxd.observe(plain, squared_loss, units)(params, x, y, key=0)
    np.testing.assert_allclose(aux["mean input"], x.mean(), rtol=1e-6)
    chex.assert_trees_all_equal((loss, grads, observation), (expected_loss, expected_grads, expected))


def _count_dots(function, *args):
    """Matrix products in the compiled program."""
    text = jax.jit(function).lower(*args).compile().as_text()
    return sum(" dot(" in line for line in text.splitlines())


@pytest.mark.parametrize("readout", [None, "loss", "logits"])
def test_one_forward_pass_and_no_second_weight_gradients(readout):
    """A 3-layer network: 3 products forward, 3 weight gradients and 2 pullbacks; `logits` adds 2 pullbacks, no more.

    Products are counted in the optimized program at sizes where XLA keeps every one of them. The loss's sensitivities
    are cotangents that the gradients need anyway.
    """
    params = dense_params([64, 64, 64, 64])
    x, y = batches(1, 64, 64, 64)
    observe = gxd.observe(mlp(jnp.tanh), squared_loss, dense_units(params), readout=readout)
    count = _count_dots(lambda params, x, y: observe(params, x, y, key=0), params, x[0], y[0])
    assert count == 8 + (2 if readout == "logits" else 0)


def test_a_tap_inside_a_scan_names_the_site():
    params, units = one_hidden_layer(4)

    def apply(params, x):
        def body(carry, row):
            return carry, gxd.tap("l1", jnp.tanh(row @ params["l1"]["kernel"]))

        _, h = jax.lax.scan(body, 0.0, x)
        return h @ params["l2"]["kernel"]

    with pytest.raises(ValueError, match="l1"):
        gxd.observe(apply, squared_loss, units)(params, jnp.ones((5, 3)), jnp.ones((5, 2)), key=0)


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint], ids=["jit", "remat"])
def test_a_tap_inside_an_inner_program_names_the_site(wrap):
    params, units = one_hidden_layer(4)

    @wrap
    def trunk(params, x):
        return gxd.tap("l1", jnp.tanh(x @ params["l1"]["kernel"]))

    def apply(params, x):
        return trunk(params, x) @ params["l2"]["kernel"]

    with pytest.raises(ValueError, match="l1"):
        gxd.observe(apply, squared_loss, units)(params, jnp.ones((5, 3)), jnp.ones((5, 2)), key=0)


def test_a_tap_skipped_by_the_cache_of_an_inner_jit_is_missed_aloud():
    params, units = one_hidden_layer(4)

    @jax.jit
    def apply(params, x):
        return gxd.tap("l1", jnp.tanh(x @ params["l1"]["kernel"])) @ params["l2"]["kernel"]

    apply(params, jnp.ones((5, 3)))  # traced without the observer: later calls skip the tap
    with pytest.raises(ValueError, match="l1"):
        gxd.observe(apply, squared_loss, units)(params, jnp.ones((5, 3)), jnp.ones((5, 2)), key=0)


def test_an_observed_batch_may_be_scanned_and_vmapped_from_outside(problem):
    params, units, x, y = problem
    observe = gxd.observe(mlp(jnp.tanh), squared_loss, units, readout="loss")
    alone = jax.jit(observe)(params, x, y)

    many = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
    both = jax.jit(jax.vmap(observe, in_axes=(0, None, None)))(many, x, y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b[0], a, rtol=1e-5, atol=1e-6), alone, both)

    def body(carry, batch):
        return carry, observe(params, *batch)

    _, scanned = jax.lax.scan(body, 0, (x[None], y[None]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b[0], a, rtol=1e-5, atol=1e-6), alone, scanned)


def test_observations_are_trees_with_a_static_readout(problem):
    params, units, x, y = problem
    _, _, observation = gxd.observe(mlp(jnp.tanh), squared_loss, units, readout="loss")(params, x, y)
    leaves, structure = jax.tree.flatten(observation)
    assert len(leaves) == 4
    assert jax.tree.unflatten(structure, leaves).readout == "loss"
    assert optax.tree_utils.tree_zeros_like(observation).readout == "loss"


def test_outputs_without_a_batch_axis_are_left_to_the_loss():
    """A policy of mean [B, A] and log standard deviation [A]: the readout is of the mean, the loss is of both."""
    params = dense_params([3, 4, 2])
    units = dense_units(params)
    network = mlp(jnp.tanh)
    x, y = jax.random.normal(jax.random.key(0), (5, 3)), jnp.zeros((5, 2))

    def policy(both, x):
        return network(both["network"], x), both["log_std"]

    def loss(outputs, y):
        mean, log_std = outputs
        return jnp.mean(((mean - y) / jnp.exp(log_std)) ** 2 + log_std)

    def at(axis):
        return axis._replace(path=("network", *axis.path))

    both = {"network": params, "log_std": jnp.zeros(2)}
    wired = [
        layer._replace(
            incoming=tuple(map(at, layer.incoming)),
            own=tuple((at(axis), value) for axis, value in layer.own),
            outgoing=tuple(map(at, layer.outgoing)),
            outgoing_bias=tuple(("network", *bias) for bias in layer.outgoing_bias),
        )
        for layer in units
    ]
    observe = gxd.observe(policy, loss, wired, readout="logits_exact", outputs=lambda outputs: outputs[0])
    value, gradients, observation = observe(both, x, y)
    plain = gxd.observe(network, lambda mean, y: loss((mean, jnp.zeros(2)), y), units, readout="logits_exact")
    np.testing.assert_allclose(value, plain(params, x, y)[0], rtol=1e-6)
    np.testing.assert_allclose(
        observation.sensitivities["l1"], plain(params, x, y)[2].sensitivities["l1"], rtol=1e-6, atol=1e-7
    )
    expected = jax.grad(lambda both: loss(policy(both, x), y))(both)
    chex.assert_trees_all_close(gradients, expected, rtol=1e-5, atol=1e-7)
    assert gxd.check_up(policy, both, wired, x)["l1"].dead.shape == (4,)
    with pytest.raises(ValueError, match="select outputs that have a batch axis by outputs="):
        gxd.observe(policy, loss, wired)(both, x, y, key=0)
