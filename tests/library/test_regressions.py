"""Each of these went wrong once."""

import dataclasses
import os
import subprocess
import sys

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from tests.networks import dense_params, dense_units, feed, mlp, one_hidden_layer, squared_loss, zeros_like

X64 = """
import jax, jax.numpy as jnp, numpy as np, optax, gxd_jax as gxd
params = {"l1": {"kernel": jnp.ones((3, 6), jnp.float32)}, "l2": {"kernel": jnp.ones((6, 2), jnp.float32)}}
units = gxd.sequential_units(params, ["l1", "l2"])
settings = dict(utility="weight", replacement_rate=0.5, maturity_threshold=0)
for tx in (
    gxd.continual_backprop(units, decay=np.float64(0.9), **settings),
    optax.inject_hyperparams(gxd.continual_backprop)(units, **settings),
):
    state = tx.init(params)
    step = jax.jit(tx.update)
    for _ in range(3):
        updates, state = step(params, state, params, observation=gxd.Observation({"l1": jnp.ones((2, 6), jnp.float32)}))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(updates)} == {"float32"}
    assert gxd.reset_info(state).totals["l1"] == 9
for tx in (gxd.methods.spectral_regularization(1e-3), gxd.methods.utility_gated_noise(1e-3)):
    for dtype in (jnp.float32, jnp.float64):  # what a loop carries keeps its types
        given = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        state = tx.init(given)
        _, after = jax.jit(tx.update)(given, state, given)
        assert [leaf.dtype for leaf in jax.tree.leaves(after)] == [leaf.dtype for leaf in jax.tree.leaves(state)]
"""


def test_64_bit_mode_keeps_the_dtypes_of_float32_parameters():
    subprocess.run(
        [sys.executable, "-W", "error", "-c", X64], check=True, env={"JAX_ENABLE_X64": "1", **_environment()}
    )


def _environment():

    return {**os.environ, "JAX_PLATFORMS": "cpu"}


def test_a_state_may_be_continued_at_another_rate():
    params, units = one_hidden_layer(10)
    observation = gxd.Observation({"l1": jnp.arange(20.0).reshape(2, 10)})
    grads = zeros_like(params)

    def transform(**changes):
        return gxd.continual_backprop(units, utility="activation", maturity_threshold=0, **changes)

    tx = transform(replacement_rate=0.191)
    state = tx.init(params)
    for _ in range(7):
        _, state = tx.update(grads, state, params, observation=observation)
    assert gxd.reset_info(state).totals["l1"] == 13  # 13.37 are due
    _, state = transform(replacement_rate=0.263).update(grads, state, params, observation=observation)
    assert gxd.reset_info(state).counts["l1"] == 3  # .37 + 2.63


def test_what_is_replaced_by_chance_does_not_spend_an_old_debt():
    params, units = one_hidden_layer(10)
    observation = gxd.Observation({"l1": jnp.ones((1, 10))})
    tx = gxd.continual_backprop(units, utility="activation", replacement_rate=0.09, maturity_threshold=0)
    _, state = tx.update(zeros_like(params), tx.init(params), params, observation=observation)
    tx = gxd.continual_backprop(
        units, utility="activation", replacement_rate=0.01, maturity_threshold=0, accumulate=False
    )
    step = jax.jit(tx.update)
    for _ in range(30):
        _, state = step(zeros_like(params), state, params, observation=observation)
    assert 0 <= gxd.reset_info(state).totals["l1"] <= 9


def test_a_chain_inside_a_chain_tells_the_outer_members_too():
    params = dense_params([3, 4, 2])
    units = dense_units(params)
    resets = gxd.continual_backprop(units, utility="activation", replacement_rate=1.0, maturity_threshold=0)
    tx = gxd.chain(optax.trace(0.9), gxd.chain(optax.scale(-0.1), resets))
    grads = jax.tree.map(jnp.ones_like, params)
    _, state = jax.jit(tx.update)(grads, tx.init(params), params, observation=gxd.Observation({"l1": jnp.ones((1, 4))}))
    trace = state[0].trace
    assert not np.any(trace["l1"]["kernel"]) and not np.any(trace["l2"]["kernel"])
    np.testing.assert_array_equal(trace["l2"]["bias"], 1.0)


def test_a_chain_for_each_label_inside_a_chain():
    params = {"a": dense_params([3, 4, 2]), "c": dense_params([3, 5, 1])}
    chains = {}
    for label, optimizer in (("a", optax.adam(0.1)), ("c", optax.sgd(0.1, momentum=0.9))):
        units = [
            layer._replace(
                name=label,
                incoming=tuple(axis._replace(path=(label, *axis.path)) for axis in layer.incoming),
                own=tuple((axis._replace(path=(label, *axis.path)), value) for axis, value in layer.own),
                outgoing=tuple(axis._replace(path=(label, *axis.path)) for axis in layer.outgoing),
                outgoing_bias=tuple((label, *path) for path in layer.outgoing_bias),
            )
            for layer in dense_units(params[label])
        ]
        resets = gxd.continual_backprop(units, utility="activation", replacement_rate=1.0, maturity_threshold=0)
        chains[label] = gxd.chain(optimizer, resets)
    labels = {label: jax.tree.map(lambda _, label=label: label, params[label]) for label in params}
    tx = gxd.chain(optax.clip_by_global_norm(1.0), optax.transforms.partition(chains, labels))
    observation = gxd.Observation({"a": jnp.ones((1, 4)), "c": jnp.ones((1, 5))})
    grads = jax.tree.map(jnp.ones_like, params)
    updates, state = jax.jit(tx.update)(grads, tx.init(params), params, observation=observation)
    after = optax.apply_updates(params, updates)
    assert not np.any(after["a"]["l2"]["kernel"]) and not np.any(after["c"]["l2"]["kernel"])
    assert {name: int(count) for name, count in gxd.reset_info(state).counts.items()} == {"a": 4, "c": 5}


def test_a_bad_outgoing_weight_of_a_replaced_unit_is_healed_and_not_spread():
    params, units = one_hidden_layer(4)
    params["l2"]["kernel"] = params["l2"]["kernel"].at[1, 0].set(jnp.nan)
    tx = gxd.continual_backprop(units, utility="activation", replacement_rate=0.25, maturity_threshold=0)
    observation = gxd.Observation({"l1": jnp.array([[1.0, 0.1, 1.0, 1.0]])})
    updates, state = tx.update(zeros_like(params), tx.init(params), params, observation=observation)
    after = gxd.apply_updates(params, updates, state, units)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    np.testing.assert_array_equal(after["l2"]["kernel"][1], 0.0)


def test_a_unit_without_incoming_weights_and_with_a_constant_output_is_worth_nothing():
    record = gxd.UnitRecord(
        features=jnp.ones((3, 2)),
        sensitivities=None,
        readout=None,
        reference=jnp.array([1.0, 0.5]),
        incoming_magnitude=jnp.zeros(2),
        outgoing_magnitude=jnp.ones(2),
        key=None,
    )
    assert gxd.utilities.adaptable_contribution(record).tolist() == [0.0, np.inf]


def test_an_infinite_utility_protects_a_unit_but_not_for_ever():
    params, units = one_hidden_layer(2)

    def utility(record):
        return jnp.where(record.features[0] > 1e30, jnp.inf, record.features[0])

    tx = gxd.continual_backprop(units, utility=utility, replacement_rate=0.0, maturity_threshold=0, decay=0.5)
    features = jnp.full((141, 1, 2), jnp.array([2.0, 3.0])).at[0, 0, 0].set(1e35)
    _, infos, _ = feed(tx, params, gxd.Observation({"l1": features}))
    assert infos.utilities["l1"][0, 0] > 1e38
    np.testing.assert_allclose(infos.utilities["l1"][-1], [2.0, 3.0], rtol=1e-3)


def test_moments_of_all_parameters_in_one_array_are_refused():
    params, units = one_hidden_layer(3)
    tx = gxd.chain(optax.flatten(optax.adam(0.1)), gxd.continual_backprop(units, utility="activation"))
    with pytest.raises(ValueError, match="for all parameters at once"):
        tx.update(zeros_like(params), tx.init(params), params, observation=gxd.Observation({"l1": jnp.ones((1, 3))}))


def test_callables_that_cannot_be_hashed_are_accepted():
    @dataclasses.dataclass
    class Scaled:
        scale: float

        def __call__(self, key, shape, dtype):
            return self.scale * jnp.ones(shape, dtype)

    @dataclasses.dataclass
    class First:
        power: float

        def __call__(self, record):
            return jnp.abs(record.features).mean(0) ** self.power

    params, units = one_hidden_layer(3)
    tx = gxd.continual_backprop(
        units, utility=First(2.0), kernel_init=Scaled(7.0), replacement_rate=0.34, maturity_threshold=10**12
    )
    tx.update(zeros_like(params), tx.init(params), params, observation=gxd.Observation({"l1": jnp.ones((1, 3))}))
    tx = gxd.continual_backprop(
        units, utility=First(2.0), kernel_init=Scaled(7.0), replacement_rate=0.34, maturity_threshold=0
    )
    observation = gxd.Observation({"l1": jnp.array([[2.0, 1.0, 3.0]])})
    updates, _ = tx.update(zeros_like(params), tx.init(params), params, observation=observation)
    np.testing.assert_allclose((params["l1"]["kernel"] + updates["l1"]["kernel"])[:, 1], 7.0, rtol=1e-6)


def test_what_observe_refuses():
    params, units = one_hidden_layer(4)
    x, y = jnp.ones((2, 3)), jnp.ones((2, 2))
    apply = mlp(jnp.tanh)
    with pytest.raises(TypeError, match=r"the parameter \('steps',\) is int32"):
        gxd.observe(apply, squared_loss, units)({**params, "steps": jnp.int32(0)}, x, y, key=0)
    with pytest.raises(TypeError, match=r"the features at 'l1' are bool: cast them to float"):
        gxd.observe(mlp(lambda h: h > 0), squared_loss, units)(params, x, y, key=0)
    with pytest.raises(
        ValueError, match=r"loss must return one number, the mean over the batch; it returned shape \(2,\)"
    ):
        gxd.observe(apply, lambda outputs, y: ((outputs - y) ** 2).mean(1), units)(params, x, y, key=0)
    with pytest.raises(TypeError, match=r"must return \(outputs, aux\)"):
        gxd.observe(apply, squared_loss, units, has_aux=True)(params, x, y, key=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"incoming": gxd.ParamAxis(("l1", "kernel"), 1)},
        {"incoming": (gxd.ParamAxis(["l1", "kernel"], 1),)},
        {"incoming": (gxd.ParamAxis(("l1", "kernel"), 1.0),)},
        {"own": (gxd.ParamAxis(("l1", "bias"), 0),)},
        {"outgoing": (("l2", "kernel"),)},
    ],
)
def test_unit_layers_of_the_wrong_form(changes):
    _, (layer,) = one_hidden_layer(4)
    with pytest.raises(TypeError, match="must be a tuple of"):
        gxd.continual_backprop([layer._replace(**changes)])


def test_layers_of_a_list_are_named_by_their_places():
    params = [{"w": jnp.ones((3, 4))}, {"w": jnp.ones((4, 2))}]
    (layer,) = gxd.sequential_units(params, [0, 1])
    assert (layer.name, layer.outgoing[0].path) == ("0", (1, "w"))


class Half(nn.Module):
    """One hidden layer is tapped, the other is seen by its Flax consumer."""

    @nn.compact
    def __call__(self, x):
        x = gxd.tap("Dense_0", nn.tanh(nn.Dense(5)(x)))
        x = nn.tanh(nn.Dense(4)(x))
        return nn.Dense(2)(x)


def test_taps_and_flax_modules_in_one_model():
    x, y = jax.random.normal(jax.random.key(0), (6, 3)), jnp.zeros((6, 2))
    params = Half().init(jax.random.key(1), x)
    dense = gxd.sequential_units(params, ["Dense_0", "Dense_1", "Dense_2"])

    def tapped(params, x):
        layers = params["params"]
        for name in ("Dense_0", "Dense_1"):
            x = gxd.tap(name, jnp.tanh(x @ layers[name]["kernel"] + layers[name]["bias"]))
        return x @ layers["Dense_2"]["kernel"] + layers["Dense_2"]["bias"]

    _, _, expected = gxd.observe(tapped, squared_loss, dense, readout="logits_exact")(params, x, y)
    for units in (dense, gxd.find_units(Half().apply, params, x)):
        _, _, found = gxd.observe(Half().apply, squared_loss, units, readout="logits_exact")(params, x, y)
        chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)
        report = gxd.verify_units(Half().apply, params, units, x)
        assert report.ok and not report.notes, report


def test_rank_of_what_is_not_a_number():
    assert gxd.metrics.approximate_rank(jnp.full((3, 2), jnp.nan)) == -1
