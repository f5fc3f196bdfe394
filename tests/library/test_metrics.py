"""Metrics: hand-worked values; the reset cost against resetting by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from gxd_jax import metrics

SPECTRUM = jnp.diag(jnp.array([10.0, 1.0, 0.1]))


def test_ranks_of_a_known_spectrum():
    np.testing.assert_allclose(metrics.effective_rank(SPECTRUM), 1.4237, atol=5e-5)
    np.testing.assert_allclose(metrics.stable_rank(SPECTRUM), 1.0101, atol=5e-5)
    assert metrics.approximate_rank(SPECTRUM) == 2
    assert metrics.approximate_rank(SPECTRUM, power=2) == 1
    assert metrics.approximate_rank(SPECTRUM, threshold=0.9999) == 3


@pytest.mark.parametrize("size", [1, 4])
def test_ranks_of_the_identity(size):
    identity = jnp.eye(size)
    np.testing.assert_allclose(metrics.effective_rank(identity), size, rtol=1e-5)
    np.testing.assert_allclose(metrics.stable_rank(identity), size, rtol=1e-5)
    assert metrics.approximate_rank(identity) == size


def test_ranks_of_a_zero_matrix_are_zero():
    zero = jnp.zeros((3, 2))
    assert [float(f(zero)) for f in (metrics.effective_rank, metrics.stable_rank, metrics.approximate_rank)] == [
        0,
        0,
        0,
    ]


def test_ranks_of_a_diverged_network_are_not_zero():
    diverged = jnp.ones((3, 2)).at[0, 0].set(jnp.nan)
    assert np.isnan(metrics.effective_rank(diverged))
    assert np.isnan(metrics.stable_rank(diverged))


def test_ranks_want_a_matrix():
    with pytest.raises(ValueError, match=r"matrix of features \[B, U\], got shape \(2, 3, 4\)"):
        metrics.stable_rank(jnp.ones((2, 3, 4)))


def test_dead_units_are_exactly_zero_everywhere():
    features = jnp.zeros((2, 3, 3)).at[1, 2, 1].set(1e-30).at[0, 0, 2].set(-1.0)
    assert metrics.dead_units(features).tolist() == [True, False, False]


def test_saturated_units_are_near_a_bound_on_every_example():
    features = jnp.array([[0.97, -0.99, 0.2], [-0.96, -1.0, 1.0]])
    assert metrics.saturated_units(features).tolist() == [True, True, False]
    assert metrics.saturated_units(jnp.array([[0.01, 0.5]]), lower=0.0).tolist() == [True, False]


def test_low_activity_units_fire_on_less_than_one_percent():
    features = jnp.zeros((200, 3)).at[0, 0].set(1.0).at[:2, 1].set(1.0).at[:3, 2].set(1.0)
    assert metrics.low_activity_units(features).tolist() == [True, False, False]


def test_dormant_units():
    assert metrics.dormant_units(jnp.ones((5, 4)), 0.3).tolist() == [False] * 4
    assert metrics.dormant_units(jnp.zeros((5, 4)), 0.0).tolist() == [True] * 4
    # Mean absolute outputs 1, 2, 9 with mean 4: scores .25, .5, 2.25; a unit at its own mean is dormant too.
    features = jnp.array([[1.0, -2.0, 9.0], [-1.0, 2.0, -9.0]])
    assert metrics.dormant_units(features, 0.25).tolist() == [True, False, False]
    assert metrics.dormant_units(features, 0.5).tolist() == [True, True, False]


def test_mean_weight_magnitude_counts_kernels_only():
    params = {"a": {"kernel": jnp.array([[1.0, -3.0]]), "bias": jnp.array([100.0])}, "b": jnp.full((2, 2), 2.0)}
    np.testing.assert_allclose(metrics.mean_weight_magnitude(params), (4 + 8) / 6)
    with pytest.raises(ValueError, match="no kernel"):
        metrics.mean_weight_magnitude({"bias": jnp.ones(3)})


@pytest.mark.parametrize(
    ("activation", "drives", "saturated"),
    [
        (jnp.tanh, [1.0, -1.7, 2.0, -40.0], [0, 0, 1, 1]),  # tanh 1.83 = 1 / 1.05
        (jax.nn.sigmoid, [1.0, 3.0, -4.0, 40.0], [0, 0, 1, 1]),
        (jax.nn.softplus, [5.0, 1.0, -1.0, -5.0], [0, 0, 0, 1]),
        (jax.nn.relu, [3.0, 1e-3, -1.0, -40.0], [0, 0, 0, 0]),
        (jax.nn.standardize, [3.0, 2.0, -1.0, -7.0], [0, 0, 0, 0]),  # a norm over the units does not hide the gain
    ],
)
def test_saturation_by_intervention(activation, drives, saturated):
    params = {"hidden": {"w": jnp.array([drives])}, "output": {"w": jnp.ones((4, 1))}}
    units = gxd.sequential_units(params, ["hidden", "output"])

    def network(params, x):
        return gxd.tap("hidden", activation(x @ params["hidden"]["w"])) @ params["output"]["w"]

    shares = metrics.saturated_share(network, params, units, jnp.array([[1.0], [0.0]]))
    np.testing.assert_allclose(shares["hidden"], np.array(saturated) / 2)  # without any drive nothing is saturated


def test_gradient_indicators():
    gradients = {"a": jnp.array([[3.0, 0.0]], jnp.bfloat16), "b": jnp.array([0.0, 4.0, 12.0])}
    np.testing.assert_allclose(metrics.gradient_norm(gradients), 13)
    np.testing.assert_allclose(metrics.nonzero_gradients(gradients), 3 / 5)
    assert metrics.gradient_norm(gradients).dtype == jnp.float32


def quadratic(hessian):
    def loss(params):
        w = jnp.concatenate([params["a"], params["b"]])
        return 0.5 * w @ jnp.array(hessian) @ w + w.sum()

    return loss, {"a": jnp.array([1.0]), "b": jnp.array([-2.0])}


def test_trace_of_a_known_hessian():
    # v.Hv of signs v is 2 + 3 + 2 or 2 + 3 - 2; without entries off the diagonal every sample is exact.
    loss, params = quadratic([[2.0, 1.0], [1.0, 3.0]])
    sample = jax.vmap(lambda key: metrics.hessian_trace(loss, params, samples=1, key=key))
    assert set(sample(jax.random.split(jax.random.key(0), 20)).tolist()) == {3.0, 7.0}
    np.testing.assert_allclose(metrics.hessian_trace(loss, params, samples=2000), 5, atol=4 * 2 / np.sqrt(2000))
    diagonal, _ = quadratic([[2.0, 0.0], [0.0, -3.0]])
    np.testing.assert_allclose(metrics.hessian_trace(diagonal, params, samples=1), -1)
    with pytest.raises(ValueError, match="samples must be 1 or more, got 0"):
        metrics.hessian_trace(loss, params, samples=0)


@pytest.mark.parametrize(
    ("hessian", "expected"),
    [([[2.0, 1.0], [1.0, 3.0]], (5 + 5**0.5) / 2), ([[1.0, 0.0], [0.0, -4.0]], -4.0), ([[0.0, 0.0], [0.0, 0.0]], 0.0)],
)
def test_top_eigenvalue_of_a_known_hessian(hessian, expected):
    loss, params = quadratic(hessian)
    np.testing.assert_allclose(metrics.top_eigenvalue(loss, params), expected, rtol=1e-5)


def test_error_reduction():
    before, after = jnp.array([4.0, 2.0, 1.0, 0.0]), jnp.array([1.0, 3.0, 0.0, 0.0])
    np.testing.assert_allclose(metrics.error_reduction(before, after), [0.75, 0, 1, 1])


def test_plasticity_on_a_quadratic():
    # SGD with step size 0.5 halves the first weight, 2, at each step: losses 2.5, 1, 0.625.
    def loss(w):
        return 0.5 * w[0] ** 2 + 0.5

    w = jnp.array([2.0, 1.0])
    np.testing.assert_allclose(metrics.plasticity(loss, w, optax.sgd(0.5)), 1 - 1.0 / 2.5)
    np.testing.assert_allclose(metrics.plasticity(loss, w, optax.sgd(0.5), steps=2), 1 - 0.625 / 2.5)
    # With momentum 0.9 and a trace of (2, 0) from before: w = (2, 1) - 0.5 (2 + 1.8, 0) = (0.1, 1).
    tx = optax.sgd(0.5, momentum=0.9)
    state = jax.tree.map(lambda leaf: jnp.array([2.0, 0.0]), tx.init(w))
    np.testing.assert_allclose(metrics.plasticity(loss, w, tx, opt_state=state), 1 - 0.505 / 2.5, rtol=1e-6)
    with pytest.raises(ValueError, match="steps must be 1 or more, got 0"):
        metrics.plasticity(loss, w, tx, steps=0)


def two_layers(key=0):
    keys = jax.random.split(jax.random.key(key), 6)
    shapes = {"one": (6, 5), "two": (5, 4), "out": (4, 3)}
    params = {
        name: {"kernel": jax.random.normal(keys[2 * i], shape), "bias": jax.random.normal(keys[2 * i + 1], shape[1:])}
        for i, (name, shape) in enumerate(shapes.items())
    }
    return params, gxd.sequential_units(params, list(shapes))


def apply(params, x):
    for name in ("one", "two"):
        x = gxd.tap(name, jnp.tanh(x @ params[name]["kernel"] + params[name]["bias"]))
    return x @ params["out"]["kernel"] + params["out"]["bias"]


X = jax.random.normal(jax.random.key(7), (30, 6))


def reset_by_hand(params, numbers, compensate):
    """Resets units of the second layer."""
    _, features = gxd.capture(apply, params, two_layers()[1], X)
    kernel, bias = np.array(params["out"]["kernel"]), np.array(params["out"]["bias"])
    for number in numbers:
        bias = bias + compensate * np.asarray(features["two"]).mean(0)[number] * kernel[number]
        kernel[number] = 0
    return {**params, "out": {"kernel": kernel, "bias": bias}}


@pytest.mark.parametrize("compensate", [True, False])
def test_reset_cost_equals_resetting_by_hand(compensate):
    params, units = two_layers()
    sets = {"two": jnp.array([[0, 4], [1, 3]])}  # 4 is nobody
    costs = metrics.reset_cost(apply, params, units, X, sets=sets, compensate=compensate, chunk=1)
    before = apply(params, X)
    for cost, numbers in zip(costs["two"], [(0,), (1, 3)], strict=True):
        after = apply(reset_by_hand(params, numbers, compensate), X)
        np.testing.assert_allclose(cost, np.linalg.norm(after - before, axis=1).mean(), rtol=1e-5)


def test_reset_cost_of_the_outputs_alone():
    params, units = two_layers()
    cost = metrics.reset_cost(apply, params, units, X, sets={"one": jnp.array([[1]])}, redraw=False)["one"][0]
    _, features = gxd.capture(apply, params, units, X)
    (layer,) = [layer for layer in units if layer.name == "one"]
    leaves = gxd.trees.leaves_by_path(params)
    (kernel,), (bias,) = (axis.path for axis in layer.outgoing), layer.outgoing_bias
    taken = {
        kernel: leaves[kernel].at[1].set(0.0),
        bias: leaves[bias] + features["one"][:, 1].mean() * leaves[kernel][1],
    }
    after = apply(gxd.trees.replace_leaves(params, taken), X)
    np.testing.assert_allclose(cost, np.linalg.norm(after - apply(params, X), axis=1).mean(), rtol=1e-5)


def test_reset_cost_as_kl():
    params, units = two_layers()
    cost = metrics.reset_cost(apply, params, units, X, sets={"two": jnp.array([[2]])}, distance="kl")["two"][0]
    p = np.asarray(jax.nn.softmax(apply(params, X)))
    q = np.asarray(jax.nn.softmax(apply(reset_by_hand(params, [2], True), X)))
    np.testing.assert_allclose(cost, (p * np.log(p / q)).sum(1).mean(), rtol=1e-4)


def test_gxd_equals_the_reset_cost_of_units_that_feed_the_outputs():
    params, units = two_layers()
    observe = gxd.observe(apply, lambda outputs, y: ((outputs - y) ** 2).mean(), units, readout="logits_exact")
    _, _, observation = observe(params, X, jnp.zeros((30, 3)))
    record = gxd.UnitRecord(
        features=observation.features["two"],
        sensitivities=observation.sensitivities["two"],
        readout=observation.readout,
        reference=observation.features["two"].mean(0),
        incoming_magnitude=jnp.ones(4),
        outgoing_magnitude=jnp.ones(4),
        key=jax.random.key(0),
    )
    costs = metrics.reset_cost(apply, params, units, X)
    np.testing.assert_allclose(gxd.utilities.gxd(record), costs["two"], rtol=1e-5)
    assert costs["one"].shape == (5,)


def test_reset_cost_refuses_what_it_does_not_know():
    params, units = two_layers()
    with pytest.raises(ValueError, match=r"unknown distance 'cosine': allowed are \['kl', 'norm2'\]"):
        metrics.reset_cost(apply, params, units, X, distance="cosine")
    with pytest.raises(ValueError, match=r"sets names the layers \['three'\]"):
        metrics.reset_cost(apply, params, units, X, sets={"three": jnp.array([[0]])})
