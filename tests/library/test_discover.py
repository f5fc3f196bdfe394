"""find_units gives the wiring that a person would write, or refuses; verify_units finds what is wrong with a wiring."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gxd_jax as gxd
from gxd_jax import ParamAxis
from tests.library.architectures import ARCHITECTURES, Architecture, at, linen, normal


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request):
    return ARCHITECTURES[request.param]()


def find(architecture: Architecture, **options):
    return gxd.find_units(
        architecture.apply, architecture.params, *architecture.inputs, outputs=architecture.outputs, **options
    )


def verify(architecture: Architecture, units):
    return gxd.verify_units(
        architecture.apply, architecture.params, units, *architecture.inputs, outputs=architecture.outputs
    )


def axis_key(axis):
    return axis.path, axis.axis, None if axis.index is None else np.asarray(axis.index).tolist()


def comparable(layer):
    """A layer as plain data, without the order in which parameters are listed."""
    biases = [
        (axis_key(axis), axis_key(bias) if isinstance(bias, ParamAxis) else bias)
        for axis, bias in zip(layer.outgoing, layer.outgoing_bias, strict=True)
    ]
    own = [(axis_key(axis), value) for axis, value in layer.own]
    by_text = {"key": repr}
    return {
        "name": layer.name,
        "size": layer.size,
        "incoming": sorted(map(axis_key, layer.incoming), **by_text),
        "own": sorted(own, **by_text),
        "outgoing": sorted(biases, **by_text),
        "feature": layer.feature,
    }


def left_out_reasons(units):
    return {("/".join(map(str, entry.parameter)), entry.axis): entry.reason for entry in units.left_out}


def test_find_units_gives_the_wiring_that_a_person_would_write(architecture):
    units = find(architecture)
    assert [comparable(layer) for layer in units] == [comparable(layer) for layer in architecture.units]
    assert units.coupled == set(architecture.coupled)
    reasons = left_out_reasons(units)
    for place, reason in architecture.left_out.items():
        assert reason in reasons[place]


def test_verify_units_agrees_with_the_wiring(architecture):
    report = verify(architecture, architecture.units)
    assert report.ok, str(report)
    assert set(report.coupled) == set(architecture.coupled)
    unseen = [note for note in report.notes if "features not checked" in note]
    assert (not unseen) == architecture.silent, str(report)


# --- Planted mistakes: each takes the wiring and returns a layer that is wrong, or None where it cannot be planted ----


def transposed_incoming(units, shapes):
    for layer in units:
        for number, axis in enumerate(layer.incoming):
            shape = shapes[axis.path]
            other = len(shape) - 1 - axis.axis if len(shape) == 2 else 2
            if len(shape) >= 2 and other != axis.axis and shape[other] == shape[axis.axis]:
                wrong = list(layer.incoming)
                wrong[number] = axis._replace(axis=other)
                return layer._replace(incoming=tuple(wrong))
    return None


def transposed_outgoing(units, shapes):
    for layer in units:
        axis = layer.outgoing[0]
        shape = shapes[axis.path]
        other = len(shape) - 1 if len(shape) > 2 else 1 - axis.axis
        if other != axis.axis and shape[other] == shape[axis.axis]:
            outgoing = (axis._replace(axis=other), *layer.outgoing[1:])
            return layer._replace(outgoing=outgoing, outgoing_bias=(None,) * len(outgoing))
    return None


def forgotten_consumer(units, shapes):
    for layer in units:
        if len(layer.outgoing) > 1:
            return layer._replace(outgoing=layer.outgoing[:-1], outgoing_bias=layer.outgoing_bias[:-1])
    return None


def forgotten_producer(units, shapes):
    for layer in units:
        if len(layer.incoming) > 1:
            return layer._replace(incoming=layer.incoming[:-1])
    return None


def next_layer(units, shapes):
    """Off by one: the outgoing weights of the next layer."""
    for layer, following in zip(units[:-1], units[1:], strict=True):
        if layer.size == following.size:
            return layer._replace(outgoing=following.outgoing, outgoing_bias=following.outgoing_bias)
    return None


def other_flatten_order(units, shapes):
    for layer in units:
        axis = layer.outgoing[0]
        if axis.index is not None and np.shape(axis.index)[1] > 1:
            positions = np.sort(np.ravel(axis.index)).reshape(layer.size, -1)
            if np.array_equal(positions, axis.index):
                positions = positions.reshape(-1, layer.size).T
            return layer._replace(outgoing=(axis._replace(index=positions), *layer.outgoing[1:]))
    return None


def shifted_positions(units, shapes):
    """Unit u is taken for unit u + 1 by its consumer."""
    layer = units[0]
    axis = layer.outgoing[0]
    index = np.arange(layer.size)[:, None] if axis.index is None else axis.index
    return layer._replace(outgoing=(axis._replace(index=np.roll(index, 1, axis=0)), *layer.outgoing[1:]))


MISTAKES = [
    transposed_incoming,
    transposed_outgoing,
    forgotten_consumer,
    forgotten_producer,
    next_layer,
    other_flatten_order,
    shifted_positions,
]


def test_verify_units_finds_planted_mistakes(architecture):
    shapes = {path: leaf.shape for path, leaf in gxd.trees.leaves_by_path(architecture.params).items()}
    planted = {mistake.__name__: mistake(architecture.units, shapes) for mistake in MISTAKES}
    planted = {name: layer for name, layer in planted.items() if layer is not None}
    assert planted
    for name, layer in planted.items():
        try:
            report = verify(architecture, [layer])
        except ValueError as error:  # found without running anything
            assert f"layer {layer.name!r}" in str(error)
            continue
        assert not report.ok, name
        assert all(f"layer {layer.name!r}" in problem for problem in report.problems), str(report)


# --- What the report says -------------------------------------------------------------------------------------------


def report_of(name, change):
    """Verifies an architecture with its first layer changed."""
    architecture = ARCHITECTURES[name]()
    return verify(architecture, [change(architecture.units[0])])


def test_the_report_names_the_forgotten_consumer():
    report = report_of(
        "two_heads", lambda trunk: trunk._replace(outgoing=trunk.outgoing[:1], outgoing_bias=trunk.outgoing_bias[:1])
    )
    (problem,) = report.problems
    assert problem == (
        "layer 'trunk': with its outgoing slices actor/kernel[0] zeroed, drawing trunk/kernel[1], trunk/bias[0] anew "
        "still changes the outputs (outgoing critic/kernel[0] is missing)"
    )
    assert str(report) == "the wiring is wrong:\n" + problem


def test_the_report_names_the_transposed_axis():
    report = report_of("dense_without_bias", lambda layer: layer._replace(incoming=(at("Dense_0/kernel", 0),)))
    assert "drawing Dense_0/kernel[0] anew still changes the outputs" in report.problems[0]
    assert "incoming Dense_0/kernel[0] should be axis 1" in report.problems[0]


def test_the_report_names_a_kernel_that_does_not_read_the_units():
    def add_another_consumer(layer):
        return layer._replace(
            outgoing=(*layer.outgoing, at("Dense_2/kernel", 0)), outgoing_bias=(*layer.outgoing_bias, None)
        )

    report = report_of("dense", add_another_consumer)
    assert any("outgoing Dense_2/kernel[0] does not read these units" in problem for problem in report.problems)


def test_the_report_names_missing_own_parameters_and_producers():
    report = report_of("swiglu", lambda layer: layer._replace(incoming=layer.incoming[:1], own=layer.own[:1]))
    (problem,) = report.problems
    assert "incoming up/kernel[1] is missing" in problem
    assert "own up/bias[0] is missing" in problem


def test_a_missing_producer_is_seen_by_silence_where_the_program_cannot_be_read():
    """`lax.cond` hides the model from `find_units`; the interventions still see it."""
    params = {"a": normal(3, 4), "b": normal(3, 4, seed=1), "out": normal(4, 2, seed=2)}

    def apply(params, x):
        def net(params):
            return jnp.tanh(x @ params["a"] + x @ params["b"])

        h = gxd.tap("h", jax.lax.cond(True, net, net, params))
        return h @ params["out"]

    right = gxd.UnitLayer("h", 4, (at("a", 1), at("b", 1)), (), (at("out", 0),), (None,))
    x = normal(6, 3)
    assert gxd.find_units(apply, params, x) == []
    assert gxd.verify_units(apply, params, [right], x).ok
    report = gxd.verify_units(apply, params, [right._replace(incoming=right.incoming[:1])], x)
    assert "an incoming kernel is missing" in report.problems[0]


@pytest.mark.parametrize("place", ["before the activation", "at another layer"])
def test_taps_at_the_wrong_place_are_found(place):
    params = {"a": normal(4, 4), "b": normal(4, 4, seed=1), "c": normal(4, 2, seed=2)}

    def apply(params, x):
        h = x @ params["a"]
        if place == "before the activation":
            h = gxd.tap("h", h)
        h = jnp.tanh(jax.nn.relu(h) @ params["b"])
        if place == "at another layer":
            h = gxd.tap("h", h)
        return h @ params["c"]

    layer = gxd.UnitLayer("a", 4, (at("a", 1),), (), (at("b", 0),), (None,), feature="h")
    report = gxd.verify_units(apply, params, [layer], normal(6, 4))
    assert "its features are not the values that its outgoing weights read" in report.problems[0]


def test_a_wrong_wiring_of_a_coupled_layer_is_not_excused_as_coupled():
    architecture = ARCHITECTURES["layer_norm_before"]()
    layer = shifted_positions(architecture.units, {})
    report = verify(architecture, [layer])
    assert report.coupled == []
    assert "the units have other positions there" in report.problems[0]


# --- What is refused, and why ---------------------------------------------------------------------------------------


def refused(apply, params, *inputs, **options):
    """Returns the reasons of a model in which no unit is found."""
    units = gxd.find_units(apply, params, *inputs, **options)
    assert units == []
    return left_out_reasons(units)


def test_a_single_recurrent_step_is_refused():
    """Its units also go into a state that leaves the function; nothing in the program shows who reads it."""
    params = {"in": normal(3, 4), "recurrent": normal(4, 4, seed=1), "out": normal(4, 2, seed=2)}

    def step(params, x, state):
        state = jnp.tanh(x @ params["in"] + state @ params["recurrent"])
        return state @ params["out"], state

    inputs = normal(5, 3), normal(5, 4)
    reasons = refused(step, params, *inputs, outputs=lambda both: both[0])
    assert reasons["in", 1] == reasons["recurrent", 1]
    assert "state is read but never written: tie it to its output" in reasons["in", 1]
    assert "axis of an output" in refused(step, params, *inputs)["in", 1]

    def over_time(params, xs):
        def body(state, x):
            output, state = step(params, x, state)
            return state, output

        return jax.lax.scan(body, jnp.zeros((5, 4)), xs)[1]

    (layer,) = gxd.find_units(over_time, params, normal(6, 5, 3))
    assert set(layer.incoming) == {at("in", 1), at("recurrent", 1)}
    assert set(layer.outgoing) == {at("recurrent", 0), at("out", 0)}


def test_a_gru_cell_s_state_is_an_input():
    cell = nn.GRUCell(4)
    x, state = normal(3, 2), normal(3, 4)
    params = cell.init(jax.random.key(0), state, x)
    reasons = refused(lambda params, x, state: cell.apply(params, state, x)[1].sum(-1), params, x, state)
    assert "axis of an input" in reasons["params/ir/kernel", 1]


def test_scanned_layers_are_refused():
    params = {"first": normal(3, 4), "stack": normal(5, 4, 4), "last": normal(4, 2)}

    def apply(params, x):
        h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), jnp.tanh(x @ params["first"]), params["stack"])
        return h @ params["last"]

    reasons = refused(apply, params, normal(6, 3))
    assert "leading layer axis" in reasons["first", 1]
    assert "leading layer axis" in reasons["last", 0]


def test_an_ensemble_in_one_kernel_is_refused():
    params = {"a": normal(3, 5, 4), "b": normal(3, 4, 2)}

    def apply(params, x):
        return jax.vmap(lambda params: jnp.tanh(x @ params["a"]) @ params["b"])(params)

    assert "has a batch axis (ensembled)" in refused(apply, params, normal(6, 5))["a", 2]


def test_tied_weights_are_refused():
    params = {"w": normal(3, 4)}
    reasons = refused(lambda params, x: jnp.tanh(x @ params["w"]) @ params["w"].T, params, normal(6, 3))
    assert "both feeds and reads the unit (tied weights)" in reasons["w", 1]


def test_reparametrised_outgoing_weights_are_refused():
    params = {"a": normal(3, 4), "b": normal(4, 4, seed=1), "c": normal(4, 2, seed=2)}

    def normalised(apply_to):
        def apply(params, x):
            w = {name: w / jnp.linalg.norm(w, axis=0) if name == apply_to else w for name, w in params.items()}
            return jnp.tanh(jnp.tanh(x @ w["a"]) @ w["b"]) @ w["c"]

        return apply

    units = gxd.find_units(normalised("b"), params, normal(6, 3))
    assert [layer.name for layer in units] == ["b"]  # its own columns may be normalised, those that read it may not
    assert "is transformed before use (reparametrised)" in left_out_reasons(units)["a", 1]
    # A mask on the weights keeps zeros zero.
    masked = gxd.find_units(lambda p, x: jnp.tanh(x @ p["a"]) @ (p["b"] * np.eye(4)) @ p["c"], params, normal(6, 3))
    assert [layer.name for layer in masked] == ["a"]
    assert "reparametrised" in refused(lambda p, x: jnp.tanh(x @ p["a"]) @ (1 + p["c"]), params, normal(6, 3))["a", 1]


def test_linear_layers_are_left_out_unless_asked_for():
    params = {"a": normal(3, 4), "b": normal(4, 2)}

    def apply(params, x):
        return x @ params["a"] @ params["b"]

    assert "nothing non-linear" in refused(apply, params, normal(6, 3))["a", 1]
    (layer,) = gxd.find_units(apply, params, normal(6, 3), linear=True)
    assert layer.name == "a"


def test_what_is_not_understood_is_refused_with_its_name():
    params = {"a": normal(3, 4), "b": normal(4, 4), "c": normal(4, 2)}

    def strange(operation):
        return lambda params, x: jnp.tanh(operation(jnp.tanh(x @ params["a"])) @ params["b"]) @ params["c"]

    for operation, name in [
        (jnp.fft.rfft, "fft"),
        (lambda h: jax.lax.while_loop(lambda h: h.sum() < 0, lambda h: h + 1, h), "while"),
        (lambda h: jax.lax.cond(h.sum() > 0, jnp.sin, jnp.cos, h), "cond"),
    ]:
        apply = strange(lambda h, operation=operation: jnp.real(operation(h)) @ jnp.ones((operation(h).shape[-1], 4)))
        units = gxd.find_units(apply, params, normal(6, 3))
        assert [layer.name for layer in units] == ["b"]
        assert name in left_out_reasons(units)["a", 1]


def test_units_that_reach_the_outputs_by_a_reduction_are_refused():
    params = {"a": normal(3, 4), "b": normal(4, 2)}

    def apply(params, x):
        h = jnp.tanh(x @ params["a"])
        return h @ params["b"], jnp.abs(h).mean()

    assert "through a reduction" in refused(apply, params, normal(6, 3))["a", 1]
    (layer,) = gxd.find_units(apply, params, normal(6, 3), outputs=lambda both: both[0])
    assert layer.name == "a"


def test_layers_indexed_from_one_kernel_are_refused():
    params = {"first": normal(3, 4), "stack": normal(2, 4, 4), "last": normal(4, 2)}

    def apply(params, x):
        h = jnp.tanh(x @ params["first"])
        for number in range(2):
            h = jnp.tanh(h @ params["stack"][number])
        return h @ params["last"]

    assert "leading layer axis" in refused(apply, params, normal(6, 3))["first", 1]


def test_custom_derivatives_and_inner_jits_are_descended_into():
    @jax.custom_vjp
    def straight_through(h):
        return jnp.sign(h)

    straight_through.defvjp(lambda h: (jnp.sign(h), None), lambda _, g: (g,))
    params = {"a": {"w": normal(3, 4), "b": jnp.zeros(4)}, "b": {"w": normal(4, 2)}}

    @jax.jit
    def apply(params, x):
        return straight_through(x @ params["a"]["w"] + params["a"]["b"]) @ params["b"]["w"]

    (layer,) = gxd.find_units(apply, params, normal(6, 3))
    assert comparable(layer) == comparable(gxd.sequential_units(params, ["a", "b"])[0]._replace(feature="a"))


def test_a_unit_keeps_its_label_when_its_axes_are_split_transposed_and_merged():
    """[4] -> [2, 2] -> transposed -> [4] exchanges units 1 and 2."""
    params = {"a": normal(3, 4), "b": normal(4, 4, seed=1), "c": normal(4, 2, seed=2)}

    def moved(h):
        return h.reshape(-1, 2, 2).transpose(0, 2, 1).reshape(-1, 4)

    def apply(params, x):
        h = jnp.tanh(moved(jnp.tanh(x @ params["a"])) @ params["b"])
        return (h * moved(h)) @ params["c"]  # ties units of this layer to each other

    x = normal(6, 3)
    units = gxd.find_units(apply, params, x)
    (reading,) = units[0].outgoing
    assert reading.index.tolist() == [[0], [2], [1], [3]]
    assert len(units) == 2
    assert gxd.verify_units(apply, params, units, x).ok


def test_two_outputs_of_a_kernel_that_is_read_twice_keep_their_biases():
    """A bias that is added to one of two copies of a product is not the bias of the product."""
    params = {"a": normal(3, 4), "b": normal(4, 4), "bias": jnp.zeros(4), "c": normal(4, 2)}

    def apply(params, x, both):
        h = jnp.tanh(x @ params["a"]) @ params["b"]
        h = jnp.tanh(h + params["bias"]) * (jnp.sin(h) if both else 1)
        return h @ params["c"]

    def bias(both):
        first, *_ = gxd.find_units(lambda params, x: apply(params, x, both), params, normal(6, 3))
        return first.outgoing_bias

    assert bias(both=False) == (("bias",),)
    assert bias(both=True) == (None,)


def test_units_of_one_entry_are_found():
    params = {"a": {"w": normal(3, 1), "b": jnp.zeros(1)}, "b": {"w": normal(1, 2), "b": jnp.zeros(2)}}

    def apply(params, x):
        return jnp.tanh(x @ params["a"]["w"] + params["a"]["b"]) @ params["b"]["w"] + params["b"]["b"]

    (layer,) = gxd.find_units(apply, params, normal(6, 3))
    assert comparable(layer) == comparable(gxd.sequential_units(params, ["a", "b"])[0]._replace(feature="a"))


def test_fused_biases_with_different_initial_values_are_reset_column_by_column():
    """A gate's bias starts at 1, the value's at 0, in one array."""
    params = {"w": normal(3, 8), "b": jnp.repeat(jnp.float32([0.0, 1.0]), 4), "out": normal(4, 2)}

    def apply(params, x):
        value, gate = jnp.split(x @ params["w"] + params["b"], 2, axis=-1)
        return (jnp.tanh(value) * jax.nn.sigmoid(gate)) @ params["out"]

    (layer,) = gxd.find_units(apply, params, normal(6, 3))
    own = [(axis_key(axis), value) for axis, value in layer.own]
    assert own == [((("b",), 0, [[0], [1], [2], [3]]), 0.0), ((("b",), 0, [[4], [5], [6], [7]]), 1.0)]


def test_parameters_that_apply_does_not_use_are_an_error():
    params = {"a": normal(3, 4)}
    with pytest.raises(ValueError, match="no parameter is used"):
        gxd.find_units(lambda _, x: x @ params["a"], params, normal(6, 3))
    with pytest.raises(TypeError, match="must be an array with its initial values"):
        gxd.find_units(lambda p, x: x @ p["a"], jax.eval_shape(lambda: params), normal(6, 3))
    with pytest.raises(TypeError, match="apply must be a function"):
        gxd.find_units(None, params, normal(6, 3))


def test_describe_shows_layers_and_what_was_left_out():
    architecture = linen(
        lambda x: nn.Dense(2)(nn.LayerNorm()(nn.relu(nn.Conv(4, (3, 3))(x)).reshape(x.shape[0], -1))),
        normal(3, 2, 2, 1),
        [],
    )
    units = find(architecture)
    # fmt: off
    assert gxd.describe(units).splitlines() == [
        "layer   units  incoming          own = reset value             outgoing               outgoing bias  features"
        "          coupled",
        "Conv_0  4      Conv_0/kernel[3]  Conv_0/bias[0] = 0            Dense_0/kernel[0] x 4  Dense_0/bias   "
        "input of Dense_0  by a norm",
        "                                 LayerNorm_0/scale[0] x 4 = 1",
        "                                 LayerNorm_0/bias[0] x 4 = 0",
        "",
        "left out:",
        "Conv_0/kernel[2]   is an axis of an input: inputs are not hidden units",
        "Dense_0/kernel[1]  is an axis of an output: select the real outputs (outputs=) or pass it as state",
    ]
    # fmt: on
    assert gxd.describe(list(units)).splitlines()[1].endswith("?")  # a plain list does not say
