"""What optax's own members do and its tools expect: state structures, shapes instead of arrays, donation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from tests.networks import dense_params, dense_units, zeros_like

PARAMS = dense_params([3, 5, 2])
UNITS = dense_units(PARAMS)
METHODS = gxd.methods
KERNEL = ("l1", "kernel")
MEMBERS = {
    "continual_backprop": lambda: gxd.chain(optax.adam(1e-3), gxd.continual_backprop(UNITS, utility="weight")),
    "redo": lambda: METHODS.redo(UNITS),
    "regrama": lambda: METHODS.regrama(UNITS),
    "self_normalized_resets": lambda: METHODS.self_normalized_resets(UNITS),
    "selective_weight_reinitialization": lambda: METHODS.selective_weight_reinitialization(),
    "of one kernel": lambda: METHODS.selective_weight_reinitialization([KERNEL]),
    "shrink_and_perturb": lambda: METHODS.shrink_and_perturb(0.1, 0.1),
    "weight_clipping": lambda: METHODS.weight_clipping(2.0),
    "bounds": lambda: METHODS.weight_clipping(2.0, bounds=jax.tree.map(lambda leaf: 1.0, PARAMS)),
    "l2_init": lambda: METHODS.l2_init(0.1),
    "spectral_regularization": lambda: METHODS.spectral_regularization(0.1),
    "utility_gated_noise": lambda: METHODS.utility_gated_noise(0.1),
    "adam": lambda: gxd.adam(1e-3),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_tree_map_params_keeps_the_state(name):
    """As sharding libraries use it, to say how each parameter-like part of a state is laid out."""
    member = MEMBERS[name]()
    state = member.init(PARAMS)
    mapped = optax.tree_map_params(member, lambda leaf: leaf, state)
    assert jax.tree.structure(mapped) == jax.tree.structure(state)
    chex.assert_trees_all_equal(mapped, state)


@pytest.mark.parametrize("name", ["l2_init", "adam"])
def test_tree_map_params_finds_what_is_like_the_parameters(name):
    member = MEMBERS[name]()
    marked = optax.tree_map_params(member, lambda leaf, mark: mark, member.init(PARAMS), zeros_like(PARAMS))
    like = sum(not np.any(leaf) and np.shape(leaf) == (3, 5) for leaf in jax.tree.leaves(marked))
    assert like == {"l2_init": 1, "adam": 3}[name]


@pytest.mark.parametrize("name", MEMBERS)
def test_init_takes_shapes_instead_of_arrays(name):
    member = MEMBERS[name]()
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), PARAMS)
    of_shapes, of_arrays = member.init(shapes), member.init(PARAMS)
    assert jax.tree.map(jnp.shape, of_shapes) == jax.tree.map(jnp.shape, of_arrays)
    assert jax.tree.map(jnp.result_type, of_shapes) == jax.tree.map(jnp.result_type, of_arrays)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_state_may_be_donated_while_the_caller_keeps_what_it_gave(name):
    member = MEMBERS[name]()
    before = jax.tree.map(np.array, PARAMS)
    spent = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + leaf, state), donate_argnums=0)
    for _ in range(2):
        spent(member.init(PARAMS))
    chex.assert_trees_all_equal(PARAMS, before)


def test_results_of_pure_functions_may_be_donated_whole():
    fresh = dense_params([3, 5, 2], seed=1)
    tx = optax.sgd(0.1, momentum=0.9)
    spent = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + leaf, tree), donate_argnums=0)
    for _ in range(2):
        spent(METHODS.plasticity_injection(PARAMS, fresh))
        spent(METHODS.full_reset(PARAMS, tx.init(PARAMS), fresh, tx))
    assert np.isfinite(fresh["l1"]["kernel"]).all() and np.isfinite(PARAMS["l1"]["kernel"]).all()


def test_complex_parameters_follow_optax():
    """300 steps of rate .3 towards 3 - 1j, by the squared modulus."""

    def trained(tx):
        def step(carry, _):
            value, state = carry
            gradient = jnp.conj(jax.grad(lambda z: jnp.abs(z - (3 - 1j)) ** 2)(value))
            updates, state = tx.update(gradient, state, value)
            return (optax.apply_updates(value, updates), state), None

        start = jnp.complex64(1 + 1j)
        return jax.jit(lambda: jax.lax.scan(step, (start, tx.init(start)), length=300)[0][0])()

    np.testing.assert_allclose(trained(gxd.adam(0.3)), trained(optax.adam(0.3)), rtol=1e-6)
    np.testing.assert_allclose(trained(gxd.adam(0.3)), 3 - 1j, rtol=1e-3)


def test_complex_parameters_cannot_be_clipped():
    with pytest.raises(TypeError, match="not defined for complex parameters"):
        METHODS.weight_clipping(2.0).init({"w": jnp.ones((2, 2), jnp.complex64)})
