"""chain: the contract of optax.chain, and an optimizer that hears about resets."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from tests.networks import batches, dense_params, dense_units, mlp, one_hidden_layer, squared_loss

OBSERVATION = gxd.Observation({"l1": jnp.array([[3.0, 1.0, 2.0]])})
REPLACED = np.array([False, True, False])


def replace_lowest(units, rate=0.34, **settings):
    return gxd.continual_backprop(units, utility="activation", maturity_threshold=0, replacement_rate=rate, **settings)


def two_updates(tx, params, observation=OBSERVATION):
    """Gradients of 1 twice; unit 1 of 3 is replaced in both updates. Returns the state after each."""
    grads = jax.tree.map(jnp.ones_like, params)
    state, states = tx.init(params), []
    update = jax.jit(tx.update)
    for _ in range(2):
        updates, state = update(grads, state, params, observation=observation)
        params = optax.apply_updates(params, updates)
        states.append(state)
    return states


def assert_kept_except_unit_1(moment, kept, cleared=0.0):
    """A moment holds `kept` everywhere but at unit 1's incoming, own and outgoing entries."""
    np.testing.assert_allclose(moment["l1"]["kernel"], np.tile(np.where(REPLACED, cleared, kept), (3, 1)), rtol=1e-6)
    np.testing.assert_allclose(moment["l1"]["bias"], np.where(REPLACED, cleared, kept), rtol=1e-6)
    np.testing.assert_allclose(moment["l2"]["kernel"], np.tile(np.where(REPLACED, cleared, kept), (2, 1)).T, rtol=1e-6)
    np.testing.assert_allclose(moment["l2"]["bias"], [kept, kept], rtol=1e-6)  # compensated, but its moment stays


def test_the_state_is_laid_out_as_optax_chain_s():
    params, units = one_hidden_layer(3)
    members = (optax.clip(1.0), optax.adam(1e-3), replace_lowest(units))
    ours, theirs = gxd.chain(*members).init(params), optax.chain(*members).init(params)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    chex.assert_trees_all_equal(ours, theirs)


def test_without_a_resetting_member_it_is_optax_chain():
    params, _ = one_hidden_layer(3)
    members = (optax.clip_by_global_norm(0.1), optax.adam(1e-2), optax.scale(0.5))
    grads = jax.tree.map(lambda leaf: leaf**2, params)
    results = []
    for chain in (gxd.chain, optax.chain):
        tx = chain(*members)
        results.append(tx.update(grads, tx.init(params), params))
    chex.assert_trees_all_equal(*results)


def test_adam_s_moments_are_cleared_at_the_replaced_unit_only():
    params, units = one_hidden_layer(3)
    first, second = two_updates(gxd.chain(optax.adam(1e-3, b1=0.5, b2=0.75), replace_lowest(units)), params)
    moments = first[0][0]
    assert_kept_except_unit_1(moments.mu, 0.5)
    assert_kept_except_unit_1(moments.nu, 0.25)
    moments = second[0][0]
    assert_kept_except_unit_1(moments.mu, 0.75)
    assert_kept_except_unit_1(moments.nu, 0.4375)
    assert moments.count == 2


def test_momentum_starts_again_from_nothing():
    params, units = one_hidden_layer(3)
    _, second = two_updates(gxd.chain(optax.sgd(0.1, momentum=0.5), replace_lowest(units)), params)
    assert_kept_except_unit_1(second[0][0].trace, 1.5)


def test_adagrad_s_sums_go_back_to_what_init_gives():
    params, units = one_hidden_layer(3)
    _, second = two_updates(
        gxd.chain(optax.adagrad(0.1, initial_accumulator_value=0.25), replace_lowest(units)), params
    )
    assert_kept_except_unit_1(second[0][0].sum_of_squares, 2.25, cleared=0.25)


def test_every_member_before_is_cleared_and_optax_chain_clears_none():
    params, units = one_hidden_layer(3)
    members = (optax.trace(0.5), optax.ema(0.5, debias=False), replace_lowest(units))
    _, second = two_updates(gxd.chain(*members), params)
    assert_kept_except_unit_1(second[0].trace, 1.5)
    assert_kept_except_unit_1(second[1].ema, 1.0)  # .5 (.5 * 1 + 1.5)
    _, second = two_updates(optax.chain(*members), params)
    assert jnp.all(second[0].trace["l1"]["kernel"] == 1.5)
    assert gxd.reset_info(second).totals["l1"] == 2


def test_both_sides_of_two_adjacent_replacements_are_cleared():
    params = dense_params([3, 3, 2, 2])
    observation = gxd.Observation({"l1": jnp.array([[3.0, 1.0, 4.0]]), "l2": jnp.array([[1.0, 2.0]])})
    tx = gxd.chain(optax.trace(0.5), replace_lowest(dense_units(params), rate=0.5))
    first, _ = two_updates(tx, params, observation)
    trace = first[0].trace
    np.testing.assert_array_equal(trace["l1"]["kernel"], [[1, 0, 1]] * 3)
    np.testing.assert_array_equal(trace["l2"]["kernel"], [[0, 1], [0, 0], [0, 1]])
    np.testing.assert_array_equal(trace["l2"]["bias"], [0, 1])
    np.testing.assert_array_equal(trace["l3"]["kernel"], [[0, 0], [1, 1]])
    np.testing.assert_array_equal(trace["l3"]["bias"], [1, 1])


@pytest.mark.parametrize(
    "later", [optax.scale(0.5), optax.sgd(0.1), optax.clip(1e-6), optax.add_decayed_weights(0.1)],
    ids=["scale", "sgd", "clip", "weight decay"],
)  # fmt: skip
def test_a_later_member_that_changes_the_updates_is_refused(later):
    params, units = one_hidden_layer(3)
    with pytest.raises(ValueError, match="after the resetting member"):
        two_updates(gxd.chain(optax.sgd(0.1), replace_lowest(units), later), params)


def test_a_later_member_that_leaves_the_updates_alone_is_allowed():
    params, units = one_hidden_layer(3)
    watched = gxd.chain(optax.trace(0.5), replace_lowest(units), optax.identity())
    _, second = two_updates(watched, params)
    assert_kept_except_unit_1(second[0].trace, 1.5)


def test_a_resetting_member_with_injected_hyperparameters_still_reports_its_resets():
    params, units = one_hidden_layer(3)
    injected = optax.inject_hyperparams(gxd.continual_backprop)(
        units, utility="activation", maturity_threshold=0, replacement_rate=0.34
    )
    _, second = two_updates(gxd.chain(optax.trace(0.5), injected), params)
    assert gxd.reset_info(second).totals["l1"] == 2
    assert_kept_except_unit_1(second[0].trace, 1.5)


def test_a_resetting_member_inside_apply_if_finite_still_reports_its_resets():
    params, units = one_hidden_layer(3)
    wrapped = optax.apply_if_finite(replace_lowest(units), max_consecutive_errors=3)
    _, second = two_updates(gxd.chain(optax.trace(0.5), wrapped), params)
    assert_kept_except_unit_1(second[0].trace, 1.5)


def test_several_resetting_members_give_one_merged_report_and_all_clear():
    params = dense_params([3, 3, 2, 2])
    first, second = dense_units(params)
    observation = gxd.Observation({"l1": jnp.array([[3.0, 1.0, 4.0]]), "l2": jnp.array([[1.0, 2.0]])})
    tx = gxd.chain(optax.trace(0.5), replace_lowest([first], rate=0.34), replace_lowest([second], rate=0.5))
    _, state = two_updates(tx, params, observation)
    info = gxd.reset_info(state)
    np.testing.assert_array_equal(info.replaced["l1"], [False, True, False])
    np.testing.assert_array_equal(info.replaced["l2"], [True, False])
    assert {name: int(total) for name, total in info.totals.items()} == {"l1": 2, "l2": 2}
    np.testing.assert_array_equal(state[0].trace["l2"]["kernel"], [[0, 1.5], [0, 0], [0, 1.5]])
    np.testing.assert_array_equal(state[0].trace["l3"]["kernel"], [[0, 0], [1.5, 1.5]])


def test_other_extra_arguments_reach_the_members_that_want_them_and_are_ignored_by_the_others():
    params, units = one_hidden_layer(3)
    tx = gxd.chain(optax.contrib.reduce_on_plateau(patience=1), optax.sgd(0.1), replace_lowest(units))
    grads = jax.tree.map(jnp.ones_like, params)
    updates, state = jax.jit(tx.update)(
        grads, tx.init(params), params, observation=OBSERVATION, value=1.0, unheard_of=None
    )
    np.testing.assert_allclose(updates["l1"]["kernel"][:, 0], -0.1, rtol=1e-6)
    assert gxd.reset_info(state).counts["l1"] == 1


def test_the_state_keeps_structure_shapes_and_dtypes():
    params, units = one_hidden_layer(3)
    tx = gxd.chain(optax.adam(1e-3), replace_lowest(units, rate=1.0))
    before, after = tx.init(params), two_updates(tx, params)[-1]
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert (jnp.shape(old), jnp.asarray(old).dtype) == (jnp.shape(new), jnp.asarray(new).dtype)


def test_reset_info_reads_the_stacked_states_of_vmapped_seeds():
    params, units = one_hidden_layer(3)

    def one_seed(seed):
        tx = gxd.chain(optax.sgd(0.1), replace_lowest(units, key=seed))
        grads = jax.tree.map(jnp.ones_like, params)
        return tx.update(grads, tx.init(params), params, observation=OBSERVATION)

    updates, state = jax.jit(jax.vmap(one_seed))(jnp.arange(4))
    info = gxd.reset_info(state)
    np.testing.assert_array_equal(info.replaced["l1"], np.tile(REPLACED, (4, 1)))
    np.testing.assert_array_equal(info.counts["l1"], [1, 1, 1, 1])
    np.testing.assert_allclose(info.mature_fraction["l1"], np.full(4, 2 / 3), rtol=1e-6)  # the newborn is not
    assert len(np.unique(updates["l1"]["kernel"][:, 0, 1])) == 4


def test_moments_are_changed_in_place():
    """A step with resets copies no more kernels than a step without: XLA may write a moment over the old one."""
    params = dense_params((64, 128, 128, 3))
    units = dense_units(params)
    xs, ys = batches(3, 1, 64, 3)
    observe = gxd.observe(mlp(jnp.tanh), squared_loss, units, readout="loss")

    def copies(*resets):
        tx = optax.with_extra_args_support(gxd.chain(optax.adam(1e-3), *resets))

        def step(carry, batch):
            params, state = carry
            _, gradients, observation = observe(params, *batch)
            updates, state = tx.update(gradients, state, params, observation=observation)
            return (optax.apply_updates(params, updates), state), None

        def run(carry):
            return jax.lax.scan(step, carry, (xs, ys))[0]

        program = jax.jit(run, donate_argnums=0).lower((params, tx.init(params))).compile().as_text()
        return len(re.findall(r"= f32\[(?:64|128),128\]\S* copy\(", program))

    plain = copies()
    assert copies(gxd.continual_backprop(units, replacement_rate=1e-3)) <= plain + 1  # one is of a parameter


def test_init_may_close_over_what_is_mapped():
    params = dense_params((6, 16, 3))
    units = dense_units(params)
    xs, ys = batches(12, 8, 6, 3)
    observe = gxd.observe(mlp(jnp.tanh), squared_loss, units, readout="logits_exact")

    def train(rate, start):
        def init(params):
            return jax.tree.map(lambda leaf: jnp.full_like(leaf, start), params)

        def update(updates, state, params=None):
            del params
            state = jax.tree.map(lambda update, trace: rate * update + 0.9 * trace, updates, state)
            return state, state

        momentum = optax.GradientTransformation(init, update)
        scale = optax.inject_hyperparams(optax.scale)(step_size=-rate)
        resets = gxd.continual_backprop(units, replacement_rate=0.1, maturity_threshold=2)
        tx = gxd.chain(momentum, scale, resets)

        def step(carry, batch):
            trained, state = carry
            _, gradients, observation = observe(trained, *batch)
            updates, state = tx.update(gradients, state, trained, observation=observation)
            return (optax.apply_updates(trained, updates), state), None

        return jax.lax.scan(step, (params, tx.init(params)), (xs, ys))[0]

    rates, starts = jnp.array([0.01, 0.1]), jnp.array([0.0, 0.5])
    mapped = jax.jit(jax.vmap(train))(rates, starts)
    assert gxd.reset_info(mapped[1]).totals["l1"].min() > 5
    alone = jax.jit(train)
    for i in range(2):
        one = alone(rates[i], starts[i])
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-4, atol=1e-5), mapped, one)
