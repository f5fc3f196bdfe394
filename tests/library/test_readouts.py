"""Which output change a sensitivity speaks about."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from tests.networks import batches, dense_params, dense_units, mlp, numpy_layers, squared_loss
from tests.reference import network

KEYS = jax.random.split(jax.random.key(7), 4000)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@pytest.fixture(scope="module")
def problem():
    """A tanh network 6-5-4-3, 3 examples, and its features and outputs by the reference."""
    params = dense_params([6, 5, 4, 3], seed=3)
    x = batches(1, 3, 6, 3)[0][0]
    labels = jnp.array([0, 1, 1])
    layers = numpy_layers(params)
    features, outputs = network.forward(layers, x, "tanh")
    return params, dense_units(params), x, labels, layers, features, outputs


def observed(problem, readout, key=None):
    params, units, x, labels, *_ = problem
    observe = jax.jit(gxd.observe(mlp(jnp.tanh), cross_entropy, units, readout=readout))
    _, _, observation = observe(params, x, labels, key=key)
    return observation.sensitivities


def over_keys(problem, readout):
    """Sensitivities [keys, B, U] of one batch for many keys."""
    params, units, x, labels, *_ = problem
    observe = gxd.observe(mlp(jnp.tanh), cross_entropy, units, readout=readout)
    return jax.jit(jax.vmap(lambda key: observe(params, x, labels, key=key)[2].sensitivities))(KEYS)


def pullbacks(problem, cotangents):
    _, _, _, _, layers, features, _ = problem
    return network.sensitivities(layers, features, cotangents, "tanh")


def all_pullbacks(problem):
    """The reference's dz_k/dh for every output k: a list of arrays [K, B, U]."""
    outputs = problem[-1]
    per_output = [pullbacks(problem, np.tile(np.eye(3)[k], (len(outputs), 1))) for k in range(3)]
    return [np.stack(layer) for layer in zip(*per_output, strict=True)]


def test_logits_is_unbiased_for_the_norm_of_the_output_change(problem):
    """mean |v.a| = sqrt(2/pi) |a|_2 for v ~ N(0, I), and the scale sqrt(pi/2) takes the factor away."""
    sampled = over_keys(problem, "logits")
    for name, exact in zip(("l1", "l2"), all_pullbacks(problem), strict=True):
        values = np.abs(np.float64(sampled[name]))  # the change for a shift of 1
        error = values.std(axis=0) / np.sqrt(len(KEYS))
        norm = np.linalg.norm(exact, axis=0)
        np.testing.assert_array_less(np.abs(values.mean(axis=0) - norm), 4 * error)
        np.testing.assert_allclose(values.mean(axis=0), norm, rtol=0.06)


def test_logits_pulls_one_gaussian_per_example_back_to_every_layer(problem):
    g = observed(problem, "logits", key=5)
    _, _, _, _, layers, _, _ = problem
    # The last hidden layer sees g = W v: four equations for the three entries of v.
    v = np.linalg.lstsq(layers[2][0], np.float64(g["l2"]).T, rcond=None)[0].T
    first, second = pullbacks(problem, v)
    np.testing.assert_allclose(g["l2"], second, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(g["l1"], first, rtol=1e-3, atol=1e-5)
    assert len({tuple(row) for row in np.round(v, 4)}) == 3  # examples have their own


def test_the_gaussian_depends_on_the_key_alone(problem):
    first, again, other = (observed(problem, "logits", key=key)["l1"] for key in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert np.all(np.abs(first - other) > 1e-6)


def test_one_output_needs_no_chance(problem):
    params = dense_params([6, 5, 1], seed=3)
    x, y = batches(1, 4, 6, 1)
    observe = gxd.observe(mlp(jnp.tanh), squared_loss, dense_units(params), readout="logits")
    _, _, observation = observe(params, x[0], y[0])
    np.testing.assert_allclose(
        np.abs(observation.sensitivities["l1"]), np.abs(np.tile(params["l2"]["kernel"].T, (4, 1)))
    )


def test_logits_exact_is_every_pullback(problem):
    g = observed(problem, "logits_exact")
    first, second = all_pullbacks(problem)
    assert g["l1"].shape == (3, 3, 5)
    np.testing.assert_allclose(g["l1"], first, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(g["l2"], second, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("readout", ["predicted", "target"])
def test_predicted_and_target_follow_one_logit(problem, readout):
    _, _, _, labels, _, _, outputs = problem
    chosen = np.argmax(outputs, axis=1) if readout == "predicted" else np.asarray(labels)
    assert not np.array_equal(np.argmax(outputs, axis=1), labels)  # else the two could not be told apart
    first, second = pullbacks(problem, np.eye(3)[chosen])
    g = observed(problem, readout)
    np.testing.assert_allclose(g["l1"], first, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(g["l2"], second, rtol=1e-4, atol=1e-6)


def test_fisher_squared_is_twice_the_second_order_kl(problem):
    _, _, _, _, layers, _, outputs = problem
    sampled = over_keys(problem, "fisher")
    p = network.softmax(outputs)
    for name, exact in zip(("l1", "l2"), all_pullbacks(problem), strict=True):
        squares = np.float64(sampled[name]) ** 2
        error = squares.std(axis=0) / np.sqrt(len(KEYS))
        fisher = np.einsum("bk,kbu->bu", p, exact**2) - np.einsum("bk,kbu->bu", p, exact) ** 2
        np.testing.assert_array_less(np.abs(squares.mean(axis=0) - fisher), 4 * error)

    # That form is twice the KL divergence of a small shift of the last hidden layer's unit i.
    shift = 1e-3
    exact = all_pullbacks(problem)[1]
    for unit in range(4):
        after = network.softmax(outputs + shift * layers[2][0][unit])
        divergence = (p * np.log(p / after)).sum(axis=1)
        quadratic = (p * exact[:, :, unit].T ** 2).sum(axis=1) - (p * exact[:, :, unit].T).sum(axis=1) ** 2
        np.testing.assert_allclose(2 * divergence, quadratic * shift**2, rtol=5e-3)


def test_fisher_pulls_a_sampled_class_minus_the_probabilities_back(problem):
    _, _, _, _, layers, _, outputs = problem
    g = observed(problem, "fisher", key=2)
    cotangents = np.linalg.lstsq(layers[2][0], np.float64(g["l2"]).T, rcond=None)[0].T
    onehot = cotangents + network.softmax(outputs)
    np.testing.assert_allclose(np.sort(onehot, axis=1), np.tile([0, 0, 1], (3, 1)), atol=1e-4)


def test_loss_is_the_loss_gradient_of_each_example(problem):
    _, _, _, labels, _, _, outputs = problem
    first, second = pullbacks(problem, network.softmax(outputs) - np.eye(3)[np.asarray(labels)])
    g = observed(problem, "loss")
    np.testing.assert_allclose(g["l1"], first, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(g["l2"], second, rtol=1e-4, atol=1e-6)


def test_a_callable_readout_is_differentiated_per_example(problem):
    _, _, _, labels, _, _, outputs = problem

    def margin(outputs, y, key):
        return outputs[:, 0] ** 2 - outputs[jnp.arange(3), y]

    first, second = pullbacks(problem, 2 * outputs * np.eye(3)[0] - np.eye(3)[np.asarray(labels)])
    g = observed(problem, margin, key=0)
    np.testing.assert_allclose(g["l1"], first, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(g["l2"], second, rtol=1e-4, atol=1e-6)


def test_a_readout_of_the_user_s_own_never_passes_for_one_of_the_table(problem):
    """Its name decides nothing: the utilities take absolute values of it, and `gradient` refuses it."""
    params, units, x, labels, *_ = problem

    def fisher(outputs, y, key):
        return outputs[:, 0]

    _, _, observation = gxd.observe(mlp(jnp.tanh), cross_entropy, units, readout=fisher)(params, x, labels, key=0)
    tx = gxd.continual_backprop(units, utility="gxd", replacement_rate=0.0)
    _, state = jax.jit(tx.update)(params, tx.init(params), params, observation=observation)
    h, g = np.float64(observation.features["l2"]), np.float64(observation.sensitivities["l2"])
    expected = np.abs(g * (h - h.mean(axis=0))).mean(axis=0)
    np.testing.assert_allclose(gxd.reset_info(state).utilities["l2"], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("readout", ["logits", "fisher"])
def test_keys_of_every_kind_mean_the_same(problem, readout):
    kinds = (7, jax.random.key(7), jax.random.PRNGKey(7))
    first, *others = (observed(problem, readout, key=key)["l1"] for key in kinds)
    for other in others:
        np.testing.assert_array_equal(other, first)
