"""The wiring of a stack of dense layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict

import gxd_jax as gxd
from tests.networks import constant_features, dense_params, feed, one_hidden_layer


def test_sequential_units_say_where_every_unit_sits():
    params = dense_params([6, 5, 4, 3])
    first, second = gxd.sequential_units(params, ["l1", "l2", "l3"])

    assert (first.name, first.size) == ("l1", 5)
    assert first.incoming == (gxd.ParamAxis(("l1", "kernel"), 1),)
    assert first.own == ((gxd.ParamAxis(("l1", "bias"), 0), 0.0),)
    assert first.outgoing == (gxd.ParamAxis(("l2", "kernel"), 0),)
    assert first.outgoing_bias == (("l2", "bias"),)
    assert first.feature is None

    assert (second.name, second.size) == ("l2", 4)
    assert second.incoming == (gxd.ParamAxis(("l2", "kernel"), 1),)
    assert second.outgoing == (gxd.ParamAxis(("l3", "kernel"), 0),)
    assert second.outgoing_bias == (("l3", "bias"),)


def test_layers_come_in_the_given_order_not_in_the_dictionary_s():
    names = [f"Dense_{i}" for i in range(12)]
    sizes = [3 + i for i in range(13)]
    params = {name: {"kernel": jnp.ones((sizes[i], sizes[i + 1]))} for i, name in enumerate(names)}
    sorted_by_jax = jax.tree.map(lambda leaf: leaf, params)

    units = gxd.sequential_units(sorted_by_jax, names)

    assert [layer.name for layer in units] == names[:-1]
    assert [layer.size for layer in units] == sizes[1:-1]
    assert units[1].outgoing[0].path == ("Dense_2", "kernel")
    assert units[9].outgoing[0].path == ("Dense_10", "kernel")


def test_flax_numbers_inside_out_code_backwards():
    class Backwards(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.relu(nn.Dense(5)(x)))

    params = Backwards().init(jax.random.key(0), jnp.ones((1, 3)))["params"]
    (hidden,) = gxd.sequential_units(params, ["Dense_1", "Dense_0"])
    assert (hidden.name, hidden.size, hidden.outgoing[0].path) == ("Dense_1", 5, ("Dense_0", "kernel"))
    with pytest.raises(ValueError, match="order of the data"):
        gxd.sequential_units(params, ["Dense_0", "Dense_1"])


def test_parameters_of_any_names_and_without_biases():
    params = {"net": {"a": {"w": jnp.ones((3, 4)), "b": jnp.ones(4)}, "z": {"w": jnp.ones((4, 2))}}}
    (hidden,) = gxd.sequential_units(params, [("net", "a"), ("net", "z")])
    assert hidden.incoming[0].path == ("net", "a", "w")
    assert hidden.own[0][0].path == ("net", "a", "b")
    assert hidden.outgoing[0].path == ("net", "z", "w")
    assert hidden.outgoing_bias == (None,)

    (without_bias,) = gxd.sequential_units({"a": {"w": jnp.ones((3, 4))}, "z": {"w": jnp.ones((4, 2))}}, ["a", "z"])
    assert without_bias.own == ()


def test_a_frozen_dict_and_whole_flax_variables_are_wired_alike():
    params = dense_params([3, 4, 2])
    assert gxd.sequential_units(FrozenDict(params), ["l1", "l2"]) == gxd.sequential_units(params, ["l1", "l2"])
    (hidden,) = gxd.sequential_units({"params": params}, ["l1", "l2"])
    assert hidden.incoming[0].path == ("params", "l1", "kernel")


@pytest.mark.parametrize(
    ("order", "expected"), [("NHWC", [[0, 3], [1, 4], [2, 5]]), ("NCHW", [[0, 1], [2, 3], [4, 5]])]
)
def test_flatten_index_of_two_positions_and_three_units(order, expected):
    np.testing.assert_array_equal(gxd.flatten_index(2, 3, order=order), expected)


def test_kernels_stored_output_first_are_reset_along_their_own_axes():
    """A network stored [out, in] and one stored [in, out] come out as each other's transpose."""
    params, units = one_hidden_layer(4, inputs=3, outputs=2)
    transposed = {name: {"w": layer["kernel"].T, "b": layer["bias"]} for name, layer in params.items()}
    hidden = gxd.UnitLayer(
        name="l1",
        size=4,
        incoming=(gxd.ParamAxis(("l1", "w"), 0),),
        own=((gxd.ParamAxis(("l1", "b"), 0), 0.0),),
        outgoing=(gxd.ParamAxis(("l2", "w"), 1),),
        outgoing_bias=(("l2", "b"),),
    )
    settings = dict(
        utility="adaptable_contribution",
        replacement_rate=0.25,
        maturity_threshold=1,
        decay=0.5,
        kernel_init=jax.nn.initializers.constant(0.25),
    )
    observations = constant_features(6, l1=[1.0, -2.0, 0.5, 3.0])

    history, infos, _ = feed(gxd.continual_backprop(units, **settings), params, observations)
    history_t, infos_t, _ = feed(gxd.continual_backprop([hidden], **settings), transposed, observations)

    assert infos.totals["l1"][-1] == 4  # 1, .75, 1.75, 1.5 and 1.25 units due at updates 2 to 6
    np.testing.assert_array_equal(infos_t.replaced["l1"], infos.replaced["l1"])
    np.testing.assert_allclose(infos_t.utilities["l1"], infos.utilities["l1"], rtol=1e-6)
    for name in ("l1", "l2"):
        np.testing.assert_allclose(history_t[name]["w"][-1].T, history[name]["kernel"][-1], atol=1e-6)
        np.testing.assert_allclose(history_t[name]["b"][-1], history[name]["bias"][-1], atol=1e-6)
