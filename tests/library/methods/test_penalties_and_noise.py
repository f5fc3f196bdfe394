"""Remedies that change gradients or stepped parameters, by hand and over seeds."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from gxd_jax import methods
from tests.networks import one_hidden_layer


def test_spectral_regularization_pulls_the_largest_singular_value_towards_one():
    """diag(3, 2): sigma 3, so the cost is (3^2 - 1)^2 = 64 and its slope 2 (3^2 - 1) 2 3 = 96; seeds agree."""
    params = {"k": jnp.zeros((1, 3, 2)).at[0, :2].set(jnp.diag(jnp.array([3.0, 2.0]))), "z": jnp.zeros((2, 2))}
    params["b"] = jnp.array([5.0])

    def run(seed):
        tx = methods.spectral_regularization(0.5, iterations=40, key=seed)
        return tx.update(jax.tree.map(jnp.ones_like, params), tx.init(params), params)

    updates, state = jax.jit(jax.vmap(run))(jnp.arange(3))
    expected = np.ones((1, 3, 2))
    expected[0, 0, 0] += 0.5 * 96
    np.testing.assert_allclose(updates["k"], np.tile(expected, (3, 1, 1, 1)), atol=1e-3)
    np.testing.assert_array_equal(updates["b"], np.ones((3, 1)))
    np.testing.assert_array_equal(updates["z"], np.ones((3, 2, 2)))  # no direction, and no NaN
    np.testing.assert_allclose(state.cost, 0.5 * (64 + 1), rtol=1e-5)


def test_spectral_regularization_is_the_gradient_of_its_cost_and_its_vectors_go_on():
    """Against the singular values of NumPy, with one power iteration an update and power 3."""
    kernel = np.random.default_rng(0).normal(size=(6, 5))
    left, sigma, right = np.linalg.svd(kernel)
    params = {"k": jnp.float32(kernel)}
    tx = methods.spectral_regularization(1.0, power=3)

    def step(state, _):
        updates, state = tx.update({"k": jnp.zeros((6, 5))}, state, params)
        return state, updates["k"]

    state, terms = jax.jit(lambda: jax.lax.scan(step, tx.init(params), length=80))()
    slope = 2 * (sigma[0] ** 3 - 1) * 3 * sigma[0] ** 2
    np.testing.assert_allclose(terms[-1], slope * np.outer(left[:, 0], right[0]), rtol=1e-3, atol=1e-3 * slope)
    np.testing.assert_allclose(state.cost, (sigma[0] ** 3 - 1) ** 2, rtol=1e-4)
    assert np.abs(terms[0] - terms[-1]).max() > 0.01 * slope


def test_weight_clipping_keeps_kernels_within_a_multiple_of_their_first_bound():
    """Kernel bound .5, so that kappa 2 allows [-1, 1]: the steps lead to 1.5, -2, .25, -1; 5 in another seed: to 6."""
    params = {"k": jnp.array([[0.5, -0.25], [0.0, 0.25]]), "b": jnp.zeros(2), "z": jnp.zeros((1, 2))}
    steps = {"k": jnp.array([[1.0, -1.75], [0.25, -1.25]]), "b": jnp.array([3.0, -3.0]), "z": jnp.array([[9.0, 0.0]])}
    for bounds, bias, zeros in ((None, [3, -3], [[9, 0]]), ({"k": 0.5, "b": 0.25, "z": 1.0}, [0.5, -0.5], [[2, 0]])):
        tx = optax.chain(optax.sgd(1.0), methods.weight_clipping(2.0, bounds=bounds))

        def run(scale, tx=tx):
            scaled = jax.tree.map(lambda leaf: scale * leaf, params)
            updates, _ = tx.update(jax.tree.map(jnp.negative, steps), tx.init(scaled), scaled)
            return optax.apply_updates(scaled, updates)

        after = jax.jit(jax.vmap(run))(jnp.array([1.0, 10.0]))
        np.testing.assert_array_equal(after["k"][0], [[1.0, -1.0], [0.25, -1.0]])
        np.testing.assert_array_equal(after["b"][0], bias)
        np.testing.assert_array_equal(after["z"][0], zeros)
        inside = [[6.0, -4.25], [0.25, 1.25]]
        np.testing.assert_array_equal(after["k"][1], inside if bounds is None else np.clip(inside, -1, 1))


def test_utility_gated_noise_spares_what_is_useful():
    """Utilities -g w are [4, -2] and [0], then [1, -1] and [1]; averaged with decay .5 and over the largest of all."""
    params = {"a": jnp.array([2.0, 1.0]), "b": jnp.array([-1.0])}
    first, second = ({"a": jnp.array([-2.0, 2.0]), "b": jnp.zeros(1)}, {"a": jnp.array([-0.5, 1.0]), "b": jnp.ones(1)})
    tx = methods.utility_gated_noise(0.0, decay=0.5)
    gated, state = tx.update(first, tx.init(params), params)
    sigmoid = lambda x: 1 / (1 + np.exp(-np.asarray(x)))  # noqa: E731
    np.testing.assert_allclose(gated["a"], first["a"] * (1 - sigmoid([1, -0.5])), rtol=1e-6)
    gated, state = tx.update(second, state, params)
    # Averages: a: .5 * 2 + .5 * 1 = 1.5 and -.5 - .5 = -1; b: .5. The largest is 1.5.
    np.testing.assert_allclose(state.utility["a"], [1.5, -1.0], rtol=1e-6)
    np.testing.assert_allclose(gated["a"], second["a"] * (1 - sigmoid([1, -2 / 3])), rtol=1e-6)
    np.testing.assert_allclose(gated["b"], 1 - sigmoid([1 / 3]), rtol=1e-6)


def test_utility_gated_noise_draws_for_every_seed_and_step_and_is_cleared_with_replaced_units():
    """No weight is useful (gradients of 0): the noise is halved."""
    params, units = one_hidden_layer(3)
    large = {"w": jnp.ones((100, 50))}

    def run(seed):
        tx = methods.utility_gated_noise(0.2, key=seed)
        first, state = tx.update(jax.tree.map(jnp.zeros_like, large), tx.init(large), large)
        second, _ = tx.update(jax.tree.map(jnp.zeros_like, large), state, large)
        return first["w"], second["w"]

    draws = jnp.concatenate(jax.jit(jax.vmap(run))(jnp.arange(2))).reshape(4, -1)
    np.testing.assert_allclose(draws.std(1), 0.1, rtol=0.05)
    assert np.abs(np.corrcoef(draws) - np.eye(4)).max() < 0.06

    def reset():
        tx = gxd.chain(
            methods.utility_gated_noise(0.0, decay=0.0), optax.sgd(0.1), methods.redo(units, tau=0.1, period=1)
        )
        observation = gxd.Observation({"l1": jnp.array([[1.0, 0.0, 1.0]])})
        _, state = tx.update(jax.tree.map(jnp.ones_like, params), tx.init(params), params, observation=observation)
        return state[0].utility["l1"]["kernel"]

    np.testing.assert_allclose(jax.jit(reset)(), -params["l1"]["kernel"] * np.array([1.0, 0.0, 1.0]), rtol=1e-6)


def test_plasticity_injection_changes_no_prediction_and_learns_with_the_fresh_copy_only():
    """f(x) = sum w^2 x with w = [1, 2] old and [3, 1] fresh; after learned becomes [4, 1]: old + 16 - 9."""
    apply = methods.injected(lambda params, x: (params["w"] ** 2 * x).sum())
    injection = methods.plasticity_injection({"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([3.0, 1.0])})
    x = jnp.array([1.0, 10.0])
    assert apply(injection, x) == 41.0
    gradients = jax.grad(apply)(injection, x)
    np.testing.assert_array_equal(gradients.learned["w"], [6.0, 20.0])
    np.testing.assert_array_equal(gradients.old["w"], [0.0, 0.0])
    np.testing.assert_array_equal(gradients.fresh["w"], [0.0, 0.0])
    assert apply(injection._replace(learned={"w": jnp.array([4.0, 1.0])}), x) == 48.0


def test_full_reset_of_everything_and_of_the_last_layer():
    old, fresh = (jax.tree.map(lambda leaf, v=v: jnp.full_like(leaf, v), one_hidden_layer(3)[0]) for v in (1.0, 2.0))
    tx = optax.chain(optax.trace(0.5), optax.scale_by_schedule(lambda count: 1.0))
    _, state = tx.update(old, tx.init(old), old)
    params, reset_state = methods.full_reset(old, state, fresh, tx, paths=[("l2",), ("l1", "bias")])
    np.testing.assert_array_equal(params["l1"]["kernel"], old["l1"]["kernel"])
    np.testing.assert_array_equal(params["l1"]["bias"], fresh["l1"]["bias"])
    chex.assert_trees_all_equal(params["l2"], fresh["l2"])
    trace, schedule = reset_state
    np.testing.assert_array_equal(trace.trace["l1"]["kernel"], 1.0)
    for cleared in (trace.trace["l1"]["bias"], trace.trace["l2"]["kernel"], trace.trace["l2"]["bias"]):
        np.testing.assert_array_equal(cleared, 0.0)
    assert schedule.count == 1
    params, reset_state = methods.full_reset(old, state, fresh, tx)
    chex.assert_trees_all_equal(params, fresh)
    chex.assert_trees_all_equal(reset_state, tx.init(fresh))


FEW = {"w": jnp.ones(2)}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: methods.spectral_regularization(-1.0), ValueError, r"strength must lie in \[0, inf\), got -1.0"),
        (lambda: methods.spectral_regularization(1.0, power=0), ValueError, "power must be .* got 0"),
        (lambda: methods.spectral_regularization(1.0, iterations=1.5), TypeError, "iterations must be .* got 1.5"),
        (lambda: methods.weight_clipping(0.0), ValueError, r"kappa must lie in \(0, inf\), got 0.0"),
        (lambda: methods.utility_gated_noise(-0.1), ValueError, r"noise_std must lie in \[0, inf\), got -0.1"),
        (lambda: methods.utility_gated_noise(0.1, decay=1), ValueError, r"decay must lie in \[0, 1\), got 1"),
        (lambda: methods.plasticity_injection(FEW, {"v": jnp.ones(2)}), ValueError, "structure of params"),
        (lambda: methods.plasticity_injection(FEW, {"w": jnp.ones(3)}), ValueError, r"shapes of params, \[\(2,\)\]"),
        (
            lambda: methods.full_reset(FEW, (), FEW, optax.sgd(0.1), paths=[("head",)]),
            ValueError,
            r"nothing at \('head',\)",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("tx", [methods.weight_clipping(1.0), methods.utility_gated_noise(0.1)])
def test_they_need_the_parameters(tx):
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(FEW, tx.init(FEW))
