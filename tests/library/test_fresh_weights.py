"""Fresh weights come from the distribution that each parameter was initialised from."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from gxd_jax.resets.initial_weights import initial_weights
from gxd_jax.wiring.layers import ParamAxis
from tests.networks import dense_params, zeros_like

SIZE = 64


def replaced(values, axis=0, **settings):
    """Replaces all units at once; returns what becomes of a parameter that feeds them beside their kernel.

    It is 0 everywhere by then: the state remembers how it was initialised.
    """
    params = dense_params([3, SIZE, 2]) | {"gate": jnp.asarray(values)}
    (layer,) = gxd.sequential_units(params, ["l1", "l2"])
    layer = layer._replace(incoming=(*layer.incoming, ParamAxis(("gate",), axis)))
    tx = gxd.continual_backprop(
        [layer], **{"utility": "weight", "replacement_rate": 1.0, "maturity_threshold": 0} | settings
    )

    @jax.jit
    def update(params):
        state = tx.init(params)
        trained = params | {"gate": jnp.zeros_like(params["gate"])}
        seen = gxd.Observation({"l1": jnp.ones((1, SIZE))})
        updates, state = tx.update(zeros_like(trained), state, trained, observation=seen)
        return optax.apply_updates(trained, updates)["gate"], gxd.reset_info(state).replaced["l1"]

    gate, mask = update(params)
    assert mask.all()
    return np.asarray(gate)


def test_a_mean_far_from_0_is_kept():
    """The bias of a step size near -4 (Mamba): a draw around 0 would turn a step of .018 into one of .69."""
    initial = -4 + 0.1 * np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    fresh = replaced(initial)
    assert not np.isin(fresh, initial).any()
    np.testing.assert_allclose(fresh.mean(), initial.mean(), atol=0.05)
    np.testing.assert_allclose(fresh.std(), initial.std(), rtol=0.3)


@pytest.mark.parametrize("shape", [(SIZE,), (3, SIZE)])
def test_a_constant_returns_to_its_constant(shape):
    """The noise of a NoisyNet, .1 / sqrt(fan_in) of all weights and biases, must not become 0."""
    constant = np.float32(0.1 / np.sqrt(3))
    np.testing.assert_array_equal(replaced(np.full(shape, constant), axis=-1), constant)


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(-2, 3, SIZE),
        np.geomspace(1e-3, 1e-1, SIZE),  # step sizes or widths, evenly spaced in logarithms
        np.log(np.arange(1.0, SIZE + 1)),
        np.eye(8).ravel(),  # the bias of a transformer of points
        np.tile(np.arange(16) * np.pi, 4),  # a spectrum in blocks
    ],
    ids=["linear", "geometric", "logarithms", "identity", "blocks"],
)
def test_values_that_follow_the_units_return_to_each_unit_s_own(values):
    np.testing.assert_array_equal(replaced(values.astype(np.float32)), values.astype(np.float32))


def test_values_drawn_at_random_follow_no_units():
    draws = jax.vmap(lambda key: jax.random.normal(key, (6,)))(jax.random.split(jax.random.key(0), 2000))
    place = ParamAxis(("bias",), 0)
    follows = jax.vmap(lambda values: initial_weights(place, values, 6).follows_units)(draws)
    assert follows.mean() < 0.006  # six of them ascend or descend by chance once in 360


def test_the_mean_of_a_kernel_is_sampling_noise():
    kernel = jax.random.normal(jax.random.key(0), (50, SIZE)) + 1e-4
    initial = initial_weights(ParamAxis(("kernel",), 1), kernel, SIZE)
    assert initial.mean == 0 and initial.values.size == 0 and not initial.follows_units
    np.testing.assert_allclose(initial.std, np.std(kernel), rtol=1e-5)


def test_real_and_imaginary_parts_keep_their_own_moments():
    rng = np.random.default_rng(0)
    eigenvalues = (-0.5 + 0.01 * rng.normal(size=SIZE)) + 1j * (10 + 3 * rng.normal(size=SIZE))
    initial = initial_weights(ParamAxis(("eigenvalues",), 0), jnp.complex64(eigenvalues), SIZE)
    np.testing.assert_allclose(initial.mean, eigenvalues.mean(), rtol=1e-5)
    np.testing.assert_allclose(initial.std, eigenvalues.real.std() + 1j * eigenvalues.imag.std(), rtol=1e-4)


def test_an_initializer_is_for_kernels_and_for_the_paths_that_it_names():
    initial = -4 + 0.1 * np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    fans = jax.nn.initializers.lecun_normal()
    assert abs(replaced(initial, kernel_init=fans).mean() + 4) < 0.1
    by_path = {"l1": fans, ("gate",): jax.nn.initializers.constant(7.0)}
    np.testing.assert_array_equal(replaced(initial, kernel_init=by_path), 7)
    with pytest.raises(ValueError, match=r"kernel_init names the layers \[\('gates',\)\]"):
        replaced(initial, kernel_init={("gates",): fans})
