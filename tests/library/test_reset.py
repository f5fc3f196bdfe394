"""What a replacement does to parameters: fresh draws, reset values, zeros, compensation, and nothing elsewhere."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from tests.networks import constant_features, dense_params, dense_units, feed, one_hidden_layer, zeros_like

HALF = jax.nn.initializers.constant(0.5)


def update_once(tx, params, updates=None, **features):
    """One update with the features given by layer; returns updates, new parameters and what was reset."""
    updates = zeros_like(params) if updates is None else updates
    observation = gxd.Observation({name: jnp.asarray(value) for name, value in features.items()})

    @jax.jit
    def once(params, updates, observation):
        updates, state = tx.update(updates, tx.init(params), params, observation=observation)
        return updates, optax.apply_updates(params, updates), gxd.reset_info(state)

    return once(params, updates, observation)


def replace_lowest(units, **settings):
    """Replaces in its first update the share `replacement_rate` of units of lowest mean absolute feature."""
    return gxd.continual_backprop(units, utility="activation", maturity_threshold=0, **settings)


def draws_of(size, inputs, number, **settings):
    """The fresh incoming weights [inputs, number] of as many units of a layer."""
    params, units = one_hidden_layer(size, inputs=inputs)
    tx = replace_lowest(units, replacement_rate=min(1.0, (number + 0.5) / size), **settings)
    _, after, info = update_once(tx, params, l1=np.arange(size, dtype=np.float32)[None])
    assert info.counts["l1"] == number
    return np.array(after["l1"]["kernel"])[:, :number]


# --- Where a replacement writes -------------------------------------------------------------------------------------


def test_one_replacement_entry_by_entry():
    params, units = one_hidden_layer(3)
    step = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.125), params)
    tx = replace_lowest(units, replacement_rate=0.34, kernel_init=HALF)
    features = np.array([[3.0, 1.0, 2.0], [3.0, 3.0, 8.0]], np.float32)  # means 3, 2, 5
    updates, after, info = update_once(tx, params, step, l1=features)

    np.testing.assert_array_equal(info.replaced["l1"], [False, True, False])
    stepped = optax.apply_updates(params, step)
    np.testing.assert_allclose(after["l1"]["kernel"][:, 1], 0.5, rtol=1e-6)
    assert after["l1"]["bias"][1] == 0.0
    np.testing.assert_array_equal(after["l2"]["kernel"][1], 0.0)
    np.testing.assert_allclose(after["l2"]["bias"], stepped["l2"]["bias"] + 2.0 * stepped["l2"]["kernel"][1], rtol=1e-6)
    for unit in (0, 2):
        np.testing.assert_array_equal(updates["l1"]["kernel"][:, unit], step["l1"]["kernel"][:, unit])
        np.testing.assert_array_equal(updates["l1"]["bias"][unit], step["l1"]["bias"][unit])
        np.testing.assert_array_equal(updates["l2"]["kernel"][unit], step["l2"]["kernel"][unit])


def test_without_compensation_the_consumer_s_bias_is_the_optimizer_s():
    params, units = one_hidden_layer(3)
    tx = replace_lowest(units, replacement_rate=1.0, compensate=False)
    updates, _, _ = update_once(tx, params, l1=np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(updates["l2"]["bias"], [0.0, 0.0])


def test_compensation_keeps_the_consumer_s_mean_input():
    params, units = one_hidden_layer(6)
    rng = np.random.default_rng(0)
    features = np.float32(rng.normal(size=(50, 6)) + 1.0)
    _, after, info = update_once(replace_lowest(units, replacement_rate=0.5), params, l1=features)
    assert info.counts["l1"] == 3
    before = features @ params["l2"]["kernel"] + params["l2"]["bias"]
    reset = features @ after["l2"]["kernel"] + after["l2"]["bias"]
    np.testing.assert_allclose(reset.mean(axis=0), before.mean(axis=0), rtol=1e-5)
    assert np.abs(reset - before).max() > 0.1


def test_compensation_uses_the_running_mean_not_the_batch_s():
    params, units = one_hidden_layer(1)
    tx = gxd.continual_backprop(units, replacement_rate=1.0, maturity_threshold=1, decay=0.5, utility="activation")
    features = gxd.Observation({"l1": jnp.array([[[1.0]], [[4.0]]])})
    history, _, _ = feed(tx, params, features)
    # The corrected mean is (.25 * 1 + .5 * 4) / .75 = 3.
    expected = params["l2"]["bias"] + 3.0 * params["l2"]["kernel"][0]
    np.testing.assert_allclose(history["l2"]["bias"][1], expected, rtol=1e-5)


def test_two_adjacent_layers_replace_units_in_the_same_step():
    """Unit 1 of l1 and unit 0 of l2 go: the entry between them is zero, and the replaced consumer keeps bias 0."""
    params = dense_params([3, 3, 2, 2])
    tx = replace_lowest(dense_units(params), replacement_rate=0.5, kernel_init=HALF)
    _, after, info = update_once(
        tx, params, l1=np.array([[3.0, 1.0, 4.0]], np.float32), l2=np.array([[1.0, 2.0]], np.float32)
    )
    np.testing.assert_array_equal(info.replaced["l1"], [False, True, False])
    np.testing.assert_array_equal(info.replaced["l2"], [True, False])
    np.testing.assert_allclose(after["l1"]["kernel"][:, 1], 0.5, rtol=1e-6)
    np.testing.assert_array_equal(after["l2"]["kernel"][1], [0.0, 0.0])
    np.testing.assert_allclose(after["l2"]["kernel"][[0, 2], 0], 0.5, rtol=1e-6)
    np.testing.assert_array_equal(after["l2"]["kernel"][[0, 2], 1], params["l2"]["kernel"][[0, 2], 1])
    assert after["l1"]["bias"][1] == 0.0
    assert after["l2"]["bias"][0] == 0.0
    # The consumer that stays takes the mean 1.0 of the replaced unit.
    np.testing.assert_allclose(
        after["l2"]["bias"][1], params["l2"]["bias"][1] + 1.0 * params["l2"]["kernel"][1, 1], rtol=1e-6
    )
    np.testing.assert_array_equal(after["l3"]["kernel"][0], [0.0, 0.0])
    np.testing.assert_allclose(after["l3"]["bias"], params["l3"]["bias"] + 1.0 * params["l3"]["kernel"][0], rtol=1e-6)


def test_rate_0_changes_no_bit():
    params, units = one_hidden_layer(5)
    step = jax.tree.map(lambda leaf: leaf * 0.1, params)
    updates, _, _ = update_once(
        replace_lowest(units, replacement_rate=0.0), params, step, l1=np.ones((2, 5), np.float32)
    )
    chex.assert_trees_all_equal(updates, step)


def test_values_elsewhere_that_are_not_finite_stay_where_they_are():
    params, units = one_hidden_layer(3)
    kernel = params["l1"]["kernel"].at[0, 0].set(jnp.nan).at[2, 2].set(jnp.inf)
    outgoing = params["l2"]["kernel"].at[2, 1].set(-jnp.inf)
    params = {"l1": {**params["l1"], "kernel": kernel}, "l2": {**params["l2"], "kernel": outgoing}}
    tx = replace_lowest(units, replacement_rate=0.34, kernel_init=HALF)
    updates, after, _ = update_once(tx, params, l1=np.array([[3.0, 1.0, 2.0]], np.float32))
    np.testing.assert_allclose(after["l1"]["kernel"][:, 1], 0.5, rtol=1e-6)
    for unit in (0, 2):
        np.testing.assert_array_equal(updates["l1"]["kernel"][:, unit], 0.0)
        np.testing.assert_array_equal(after["l1"]["kernel"][:, unit], kernel[:, unit])
        np.testing.assert_array_equal(after["l2"]["kernel"][unit], outgoing[unit])
    assert np.all(np.isfinite(after["l2"]["bias"]))


def test_a_gradient_that_is_not_finite_is_discarded_at_replaced_units():
    params, units = one_hidden_layer(3)
    step = zeros_like(params)
    step["l1"]["kernel"] = step["l1"]["kernel"].at[:, 1].set(jnp.nan)
    tx = replace_lowest(units, replacement_rate=0.34, kernel_init=HALF)
    _, after, _ = update_once(tx, params, step, l1=np.array([[3.0, 1.0, 2.0]], np.float32))
    np.testing.assert_allclose(after["l1"]["kernel"][:, 1], 0.5, rtol=1e-6)


def test_apply_updates_heals_replaced_units_that_are_not_finite():
    params, units = one_hidden_layer(3)
    broken = {**params, "l1": {**params["l1"], "kernel": params["l1"]["kernel"].at[0, 1].set(jnp.nan)}}
    broken["l1"]["bias"] = broken["l1"]["bias"].at[0].set(jnp.nan)
    tx = replace_lowest(units, replacement_rate=0.34, kernel_init=HALF)
    observation = gxd.Observation({"l1": jnp.array([[3.0, 1.0, 2.0]])})
    updates, state = jax.jit(tx.update)(zeros_like(broken), tx.init(params), broken, observation=observation)
    healed = gxd.apply_updates(broken, updates, state, units)
    np.testing.assert_allclose(healed["l1"]["kernel"][:, 1], 0.5, rtol=1e-6)
    assert np.isnan(healed["l1"]["bias"][0])  # not a replaced unit's
    np.testing.assert_array_equal(healed["l2"]["kernel"], optax.apply_updates(broken, updates)["l2"]["kernel"])
    sound = optax.apply_updates(params, updates)
    np.testing.assert_array_equal(
        gxd.apply_updates(params, updates, state, units)["l1"]["kernel"], sound["l1"]["kernel"]
    )


# --- Wiring that is not one kernel after the other --------------------------------------------------------------------


def test_a_flattened_map_is_reset_over_all_its_positions():
    """Three units at two positions, flattened NHWC, feed a dense layer of 6 inputs."""
    params = dense_params([4, 3, 2])
    params["l2"]["kernel"] = jnp.float32(np.random.default_rng(1).normal(size=(6, 2)))
    hidden = gxd.UnitLayer(
        name="l1",
        size=3,
        incoming=(gxd.ParamAxis(("l1", "kernel"), 1),),
        own=((gxd.ParamAxis(("l1", "bias"), 0), 0.0),),
        outgoing=(gxd.ParamAxis(("l2", "kernel"), 0, gxd.flatten_index(2, 3, order="NHWC")),),
        outgoing_bias=(("l2", "bias"),),
    )
    features = np.array([[[3.0, 1.0, 2.0], [3.0, 2.0, 2.0]], [[3.0, 0.0, 2.0], [3.0, 1.0, 2.0]]], np.float32)
    _, after, info = update_once(replace_lowest([hidden], replacement_rate=0.34), params, l1=features)
    np.testing.assert_array_equal(info.replaced["l1"], [False, True, False])
    np.testing.assert_allclose(info.utilities["l1"][jnp.array([0, 2])], [3.0, 2.0], rtol=1e-6)
    np.testing.assert_array_equal(after["l2"]["kernel"][jnp.array([1, 4])], np.zeros((2, 2)))
    np.testing.assert_array_equal(
        after["l2"]["kernel"][jnp.array([0, 2, 3, 5])], params["l2"]["kernel"][jnp.array([0, 2, 3, 5])]
    )
    both_rows = params["l2"]["kernel"][1] + params["l2"]["kernel"][4]
    np.testing.assert_allclose(after["l2"]["bias"], params["l2"]["bias"] + 1.0 * both_rows, rtol=1e-5)


def test_several_consumers_and_own_parameters_are_all_reset():
    params = {
        "l1": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3), "scale": jnp.full(3, 7.0)},
        "policy": {"kernel": jnp.arange(6.0).reshape(3, 2), "bias": jnp.zeros(2)},
        "value": {"kernel": -jnp.ones((3, 1)) * jnp.array([[1.0], [2.0], [3.0]])},
    }
    hidden = gxd.UnitLayer(
        name="l1",
        size=3,
        incoming=(gxd.ParamAxis(("l1", "kernel"), 1),),
        own=((gxd.ParamAxis(("l1", "bias"), 0), 0.0), (gxd.ParamAxis(("l1", "scale"), 0), 1.0)),
        outgoing=(gxd.ParamAxis(("policy", "kernel"), 0), gxd.ParamAxis(("value", "kernel"), 0)),
        outgoing_bias=(("policy", "bias"), None),
    )
    tx = gxd.continual_backprop(
        [hidden], utility="contribution", maturity_threshold=0, replacement_rate=0.34, kernel_init=HALF
    )
    _, after, info = update_once(tx, params, l1=np.array([[2.0, 1.0, 1.0]], np.float32))
    # Contributions: 2 (1 + 1), 1 (5 + 2), 1 (9 + 3).
    np.testing.assert_array_equal(info.replaced["l1"], [True, False, False])
    np.testing.assert_allclose(info.utilities["l1"][1:], [7.0, 12.0], rtol=1e-6)
    np.testing.assert_allclose(after["l1"]["kernel"], [[0.5, 1, 1], [0.5, 1, 1]], rtol=1e-6)
    np.testing.assert_array_equal(after["l1"]["bias"], [0.0, 1.0, 1.0])
    np.testing.assert_array_equal(after["l1"]["scale"], [1.0, 7.0, 7.0])
    np.testing.assert_array_equal(after["policy"]["kernel"], [[0, 0], [2, 3], [4, 5]])
    np.testing.assert_allclose(after["policy"]["bias"], [0.0, 2.0], rtol=1e-6)
    np.testing.assert_array_equal(after["value"]["kernel"], [[0], [-2], [-3]])


def test_several_incoming_kernels_share_one_magnitude():
    params = {
        "left": jnp.full((1, 2), 3.0),
        "right": jnp.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]),
        "out": jnp.ones((2, 1)),
    }
    hidden = gxd.UnitLayer(
        name="h",
        size=2,
        incoming=(gxd.ParamAxis(("left",), 1), gxd.ParamAxis(("right",), 1)),
        own=(),
        outgoing=(gxd.ParamAxis(("out",), 0),),
        outgoing_bias=(None,),
    )
    tx = gxd.continual_backprop(
        [hidden], utility="adaptation", maturity_threshold=0, replacement_rate=0.5, kernel_init=HALF
    )
    _, after, info = update_once(tx, params, h=np.ones((1, 2), np.float32))
    # Mean absolute incoming weights: (3 + 1 + 1 + 1) / 4 and 3 / 4.
    np.testing.assert_array_equal(info.replaced["h"], [True, False])
    np.testing.assert_allclose(info.utilities["h"][1], 4 / 3, rtol=1e-6)
    np.testing.assert_allclose(after["left"], [[0.5, 3.0]], rtol=1e-6)
    np.testing.assert_allclose(after["right"], [[0.5, 0.0]] * 3, rtol=1e-6)


# --- Fresh draws ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 10, 100])
def test_he_uniform_standard_deviation_is_that_of_the_whole_kernel_however_many_are_replaced(number):
    draws = draws_of(100, 784, number, kernel_init=jax.nn.initializers.he_uniform())
    # 784 or more uniform numbers: their standard deviation is known to 1.6 %.
    np.testing.assert_allclose(draws.std(), np.sqrt(2 / 784), rtol=0.06)
    assert 0.98 * np.sqrt(6 / 784) < np.abs(draws).max() <= np.sqrt(6 / 784) * (1 + 1e-5)
    assert abs(draws.mean()) < 4 * np.sqrt(2 / 784 / draws.size)


@pytest.mark.parametrize("number", [1, 50])
def test_initializers_of_both_fans_see_the_whole_kernel(number):
    draws = draws_of(50, 300, number, kernel_init=jax.nn.initializers.glorot_uniform())
    bound = np.sqrt(6 / 350)
    assert 0.97 * bound < np.abs(draws).max() <= bound * (1 + 1e-5)


@pytest.mark.parametrize("number", [1, 3, 6])
def test_orthogonal_kernels_are_drawn_whole(number):
    draws = draws_of(6, 8, number, kernel_init=jax.nn.initializers.orthogonal())
    np.testing.assert_allclose(draws.T @ draws, np.eye(number), atol=1e-5)
    if number == 6:
        assert np.abs(draws).max() < 0.999


def by_place(key, shape, dtype=jnp.float32):
    return jnp.broadcast_to(10.0 * jnp.arange(shape[1]), shape).astype(dtype)


def one_kernel(key, shape, dtype=jnp.float32):
    """What `by_place` gives for the whole kernel, whatever shape is asked for: reset to a given kernel."""
    return by_place(key, (8, 6), dtype)


@pytest.mark.parametrize("kernel_init", [by_place, one_kernel])
@pytest.mark.parametrize("number", [3, 6])
def test_an_initializer_that_depends_on_a_unit_s_place_is_drawn_whole(kernel_init, number):
    params, units = one_hidden_layer(6, inputs=8)
    tx = replace_lowest(units, replacement_rate=number / 6, kernel_init=kernel_init)
    _, after, info = update_once(tx, params, l1=np.array([[9.0, 1.0, 8.0, 2.0, 7.0, 3.0]], np.float32))
    replaced = np.flatnonzero(info.replaced["l1"])
    assert replaced.tolist() == ([1, 3, 5] if number == 3 else [0, 1, 2, 3, 4, 5])
    np.testing.assert_allclose(
        np.array(after["l1"]["kernel"])[:, replaced], [10.0 * replaced] * 8, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("number", [1, 80])
def test_the_default_standard_deviation_is_that_of_the_initial_kernel(number):
    params, units = one_hidden_layer(80, inputs=400)
    initial_std = np.std(params["l1"]["kernel"])
    tx = replace_lowest(units, replacement_rate=min(1.0, (number + 0.5) / 80))
    state = tx.init(params)
    grown = jax.tree.map(lambda leaf: 5 * leaf, params)
    observation = gxd.Observation({"l1": jnp.arange(80.0)[None]})
    updates, _ = jax.jit(tx.update)(zeros_like(grown), state, grown, observation=observation)
    draws = np.array(optax.apply_updates(grown, updates)["l1"]["kernel"])[:, :number]
    # 400 or more normal numbers: their standard deviation is known to 3.5 %.
    np.testing.assert_allclose(draws.std(), initial_std, rtol=0.1)
    assert abs(draws.mean()) < 4 * initial_std / np.sqrt(draws.size)
    assert len(np.unique(draws)) > 0.99 * draws.size


def test_initializers_by_layer():
    params = dense_params([3, 4, 4, 2])
    tx = replace_lowest(dense_units(params), replacement_rate=1.0, kernel_init={"l1": HALF})
    features = np.ones((1, 4), np.float32)
    _, after, _ = update_once(tx, params, l1=features, l2=features)
    np.testing.assert_allclose(after["l1"]["kernel"], np.full((3, 4), 0.5), rtol=1e-6)
    # Every unit of l1 went too: all that l2 reads is zero.
    np.testing.assert_array_equal(after["l2"]["kernel"], np.zeros((4, 4)))


def test_draws_differ_by_layer_by_update_and_by_key():
    """Two layers of the same shape, all of whose units are replaced in every update."""
    params = {name: jnp.ones((4, 4)) for name in ("a", "b", "a_out", "b_out")}
    units = [
        gxd.UnitLayer(name, 4, (gxd.ParamAxis((name,), 1),), (), (gxd.ParamAxis((f"{name}_out",), 0),), (None,))
        for name in ("a", "b")
    ]
    observations = constant_features(2, a=np.ones(4), b=np.ones(4))

    def kernels(key):
        tx = replace_lowest(units, replacement_rate=1.0, kernel_init=jax.nn.initializers.he_normal(), key=key)
        history, _, _ = feed(tx, params, observations)
        return [np.array(history[name][update]) for name in ("a", "b") for update in (0, 1)]

    drawn = kernels(0) + kernels(1)
    for number, kernel in enumerate(drawn):
        assert len(np.unique(kernel)) == 16
        for other in drawn[:number]:
            assert not np.any(kernel == other)
    for kernel, again in zip(kernels(0), drawn, strict=False):
        np.testing.assert_array_equal(kernel, again)


# --- Parameters of less than 32 bits --------------------------------------------------------------------------------


def test_bfloat16_parameters_are_reset_exactly_and_stay_bfloat16():
    params, units = one_hidden_layer(3)
    params = jax.tree.map(lambda leaf: (100 * leaf).astype(jnp.bfloat16), params)
    step = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.5), params)
    tx = replace_lowest(units, replacement_rate=0.34, kernel_init=jax.nn.initializers.constant(0.3))
    updates, after, info = update_once(tx, params, step, l1=jnp.array([[3.0, 1.0, 2.0]], jnp.bfloat16))
    assert {leaf.dtype for leaf in jax.tree.leaves(after)} == {jnp.dtype(jnp.bfloat16)}
    np.testing.assert_array_equal(after["l1"]["kernel"][:, 1], jnp.bfloat16(0.3))  # not lost beside weights of 100
    assert after["l1"]["bias"][1] == 0
    np.testing.assert_array_equal(after["l2"]["kernel"][1], jnp.zeros(2, jnp.bfloat16))
    stepped = optax.apply_updates(params, step)
    for unit in (0, 2):
        np.testing.assert_array_equal(after["l1"]["kernel"][:, unit], stepped["l1"]["kernel"][:, unit])
    expected = np.float32(params["l2"]["bias"]) + 0.5 + np.float32(params["l2"]["kernel"][1]) + 0.5
    np.testing.assert_allclose(np.float32(after["l2"]["bias"]), expected, rtol=1e-2)
    assert info.utilities["l1"].dtype == jnp.float32
