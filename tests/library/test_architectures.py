"""Training with resets on the networks that people train: what a replacement leaves behind, entry by entry."""

import functools

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from gxd_jax import ParamAxis
from gxd_jax.trees import leaves_by_path
from tests.library.architectures import ARCHITECTURES, Architecture, at, layer, linen, normal

TRAINED = (
    "dense conv_pool_flatten conv_flatten_nchw conv_1d transposed_conv layer_norm_before rms_norm group_norm "
    "batch_norm residual_mlp resnet two_heads swiglu transformer gru nnx haiku"
).split()
# In evaluation mode nobody trains, and Equinox has its own test.
MORE = sorted(set(ARCHITECTURES) - {*TRAINED, "batch_norm_evaluated", "equinox"})
UNTAPPED = ("attention/query", "block/up")
# The programs run twice: most of the time is compilation.
quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)
FLAX = tuple(map(int, flax.__version__.split(".")[:2]))
SGD = optax.sgd(0.05, momentum=0.9)
ADAM = gxd.adam(0.01)  # counts per weight, so that its whole state has places for the entries


def outputs_of(architecture: Architecture):
    """The model as a function (params, inputs) -> outputs."""
    select = architecture.outputs or (lambda everything: everything)
    return lambda params, inputs: select(architecture.apply(params, *inputs))


def squares(outputs, targets):
    """Mean over the batch of the summed squares of all outputs."""
    del targets
    return sum(jnp.square(leaf - 1).reshape(len(leaf), -1).sum(1).mean() for leaf in jax.tree.leaves(outputs))


def train(architecture, units, optimizer, steps=2, readout="loss", **hyperparameters):
    """Trains for some steps; returns the last one: states before and after, and what the optimizer alone gives.

    The references are the means of the last batch (decay 0), as features and sensitivities are.
    """
    hyperparameters = {"replacement_rate": 0.5, "maturity_threshold": steps - 1, "decay": 0.0, **hyperparameters}
    tx = gxd.chain(optimizer, gxd.continual_backprop(units, **hyperparameters))
    observe = gxd.observe(outputs_of(architecture), squares, units, readout=readout)

    @quick_jit
    def step(params, state, inputs, key):
        _, grads, observation = observe(params, inputs, None, key=key)
        alone, alone_state = optimizer.update(grads, state[0], params)
        updates, new_state = tx.update(grads, state, params, observation=observation)
        plain = optax.apply_updates(params, alone), alone_state
        return optax.apply_updates(params, updates), new_state, plain, observation

    params, state = architecture.params, quick_jit(tx.init)(architecture.params)
    for number in range(steps):
        params, state, plain, observation = step(params, state, architecture.inputs, jax.random.key(number))
    return params, state, plain, observation


def entries(param_axis, numbers, shape):
    """Which entries of a parameter belong to some units, written out with loops."""
    mask = np.zeros(shape, bool)
    for number in numbers:
        for position in [number] if param_axis.index is None else param_axis.index[number]:
            place = [slice(None)] * len(shape)
            place[param_axis.axis] = position
            mask[tuple(place)] = True
    return mask


class Expected:
    """The entries that a replacement touches, by parameter, and by role; zeros win over values, values over draws."""

    def __init__(self, units, replaced, shapes):
        self.zero = {path: np.zeros(shape, bool) for path, shape in shapes.items()}
        self.drawn = {path: np.zeros(shape, bool) for path, shape in shapes.items()}
        self.value = {path: np.full(shape, np.nan) for path, shape in shapes.items()}
        for unit_layer in units:
            numbers = np.flatnonzero(replaced[unit_layer.name])
            for axis in unit_layer.outgoing:
                self.zero[axis.path] |= entries(axis, numbers, shapes[axis.path])
            for axis in unit_layer.incoming:
                self.drawn[axis.path] |= entries(axis, numbers, shapes[axis.path])
            for axis, value in unit_layer.own:
                self.value[axis.path][entries(axis, numbers, shapes[axis.path])] = value
        for path, zero in self.zero.items():
            self.drawn[path] &= ~zero
        self.touched = {path: self.zero[path] | self.drawn[path] | ~np.isnan(self.value[path]) for path in shapes}


def expected_shares(units, replaced, observation, stepped):
    """What the biases of consumers take up: outgoing entries x mean features, summed over the replaced units."""
    shares = {}
    for unit_layer in units:
        features = np.asarray(observation.features[unit_layer.name], np.float64)
        means = features.reshape(-1, unit_layer.size).mean(0)
        for axis, bias in zip(unit_layer.outgoing, unit_layer.outgoing_bias, strict=True):
            if bias is None:
                continue
            kernel = np.asarray(stepped[axis.path], np.float64)
            # A bias lies along the other axis of a matrix, along the last one of a larger kernel.
            path, out_axis = (bias.path, bias.axis) if isinstance(bias, ParamAxis) else (bias, kernel.ndim - 1)
            if out_axis == axis.axis:
                out_axis = 0
            for number in np.flatnonzero(replaced[unit_layer.name]):
                mine = np.where(entries(axis, [number], kernel.shape), kernel, 0)
                share = mine.sum(tuple(i for i in range(kernel.ndim) if i != out_axis)) * means[number]
                shares[path] = shares.get(path, 0) + share
    return shares


@pytest.mark.parametrize("name", [*TRAINED, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_a_replacement_leaves_exactly_what_it_should(name):
    architecture = ARCHITECTURES[name]()
    units = [layer for layer in architecture.units if layer.name not in UNTAPPED]
    optimizer = ADAM if len(name) % 2 else SGD
    params, state, (plain, plain_slots), observation = train(architecture, units, optimizer)
    replaced = {name: np.asarray(mask) for name, mask in gxd.reset_info(state).replaced.items()}
    assert all(mask.sum() == len(mask) // 2 for mask in replaced.values())

    after, stepped = leaves_by_path(params), leaves_by_path(plain)
    first = leaves_by_path(architecture.params)
    expected = Expected(units, replaced, {path: leaf.shape for path, leaf in stepped.items()})
    shares = expected_shares(units, replaced, observation, stepped)
    for path, leaf in after.items():
        leaf, without = np.asarray(leaf), np.asarray(stepped[path])
        assert (leaf[expected.zero[path]] == 0).all(), path
        own = ~np.isnan(expected.value[path]) & ~expected.zero[path]
        np.testing.assert_allclose(leaf[own], expected.value[path][own], atol=1e-6, err_msg=str(path))
        drawn = leaf[expected.drawn[path]]
        assert (drawn != without[expected.drawn[path]]).all(), path
        if drawn.size > 20:
            assert 0.6 < drawn.std() / np.std(first[path]) < 1.6, path
        rest = ~expected.touched[path]
        if path in shares:
            np.testing.assert_allclose((leaf - without)[rest], shares[path][rest], rtol=1e-4, atol=1e-5)
        else:
            # XLA may fuse the addition of the two updates differently.
            np.testing.assert_allclose(leaf[rest], without[rest], rtol=1e-6, atol=1e-8, err_msg=str(path))

    if name not in ("dense_without_bias", "depthwise", "embedding"):  # those have no biases or dead units
        assert max(np.abs(share).max() for share in shares.values()) > 1e-3

    fresh = leaves_by_path(optimizer.init(architecture.params))
    alone = leaves_by_path(plain_slots)
    slots = 0
    for path, leaf in leaves_by_path(state[0]).items():
        parameter = next((path[start:] for start in range(len(path)) if path[start:] in after), None)
        touched = np.zeros(leaf.shape, bool) if parameter is None else expected.touched[parameter]
        np.testing.assert_array_equal(leaf[touched], fresh[path][touched], err_msg=str(path))
        np.testing.assert_array_equal(leaf[~touched], alone[path][~touched], err_msg=str(path))
        slots += parameter is not None and bool(np.any(alone[path][touched] != fresh[path][touched]))
    assert slots


# --- What a reset keeps ---------------------------------------------------------------------------------------------


def flat_consumer(order):
    def consume(kernel, h):
        h = h if order == "NHWC" else jnp.moveaxis(h, -1, 1)
        return h.reshape(len(h), -1) @ kernel

    return (3, 3), (9 * 4, 5), ParamAxis(("out",), 0, gxd.flatten_index(9, 4, order)), consume


def conv_consumer(padding):
    def consume(kernel, h):
        return jax.lax.conv_general_dilated(h, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    return (3, 3), (2, 2, 4, 5), at("out", 2), consume


@pytest.mark.parametrize(
    "consumer",
    [((), (4, 5), at("out", 0), lambda kernel, h: h @ kernel)]
    + [flat_consumer("NHWC"), flat_consumer("NCHW"), conv_consumer("VALID")],
    ids=["dense", "flatten NHWC", "flatten NCHW", "VALID convolution"],
)
def test_compensation_keeps_the_mean_input_of_consumers(consumer):
    """Where every position has the same mean, which is what one reference a unit can stand for."""
    positions, shape, axis, consume = consumer
    hidden = layer("hidden", 4, [at("in", 1)], [], [axis], ["bias"])
    params = {"in": normal(3, 4), "out": normal(*shape, seed=1), "bias": normal(5, seed=2)}
    features = normal(8, *positions, 4, seed=3)
    features += normal(4, seed=4) - features.mean(0)
    tx = gxd.continual_backprop([hidden], utility="weight", replacement_rate=0.5, maturity_threshold=0)
    state = tx.init(params)
    none = jax.tree.map(jnp.zeros_like, params)
    updates, state = tx.update(none, state, params, observation=gxd.Observation({"hidden": features}))
    assert gxd.reset_info(state).counts["hidden"] == 2
    after = optax.apply_updates(params, updates)

    def mean_input(params):
        inputs = consume(params["out"], features) + params["bias"]
        return inputs.reshape(-1, 5).mean(0)

    assert np.abs(after["bias"] - params["bias"]).max() > 0.1
    np.testing.assert_allclose(mean_input(after), mean_input(params), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["dense", "conv_flatten_nchw", "two_heads"])
def test_gxd_is_the_real_reset_cost_of_units_that_feed_linear_outputs(name):
    """To float precision, with exact sensitivities."""
    architecture = ARCHITECTURES[name]()
    last = architecture.units[-1]
    apply = outputs_of(architecture)
    units = [last]
    _, state, _, _ = train(architecture, units, optax.sgd(0.0), 1, "logits_exact", replacement_rate=0.0)
    costs = quick_jit(lambda params: gxd.metrics.reset_cost(apply, params, units, architecture.inputs))
    costs = costs(architecture.params)[last.name]
    assert costs.min() > 0
    np.testing.assert_allclose(gxd.reset_info(state).utilities[last.name], costs, rtol=2e-5)


def test_consumers_that_read_different_values_are_observed_side_by_side():
    """A stream is read at two depths: both readings count, and a reset moves both to the one mean."""

    def build(x):
        x = nn.Dense(4, name="embed")(x)
        h = nn.Dense(4, name="inner")(nn.relu(x))
        x = x + nn.Dense(4, name="outer")(h)
        return nn.Dense(2, name="head")(nn.relu(x)) + h.sum(-1, keepdims=True)

    stream = layer(
        "embed",
        4,
        [at("embed/kernel", 1), at("outer/kernel", 1)],
        [at("embed/bias", 0), at("outer/bias", 0)],
        [at("inner/kernel", 0), at("head/kernel", 0)],
        ["inner/bias", "head/bias"],
    )
    architecture = linen(build, normal(6, 3), [stream])
    (found,) = gxd.find_units(architecture.apply, architecture.params, *architecture.inputs)
    assert found.feature is None
    assert "input of inner" in gxd.describe([found])
    assert "input of head" in gxd.describe([found])

    observe = gxd.observe(outputs_of(architecture), squares, [stream], readout="logits_exact")
    _, _, observation = jax.jit(observe)(architecture.params, architecture.inputs, None)
    features, sensitivities = observation.features["embed"], observation.sensitivities["embed"]
    assert features.shape == (6, 2, 4)
    params = architecture.params
    first = architecture.inputs[0] @ params["embed"]["kernel"] + params["embed"]["bias"]
    np.testing.assert_allclose(features[:, 0], nn.relu(first), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        sensitivities[:, :, 1], np.tile(params["head"]["kernel"].T[:, None], (1, 6, 1)), rtol=1e-5, atol=1e-6
    )

    # What happens to first order when both readings of unit 1 go a little of the way to the mean of both.
    reference = features.mean((0, 1))[1]
    predicted = (sensitivities * (reference - features))[..., 1].sum(-1).T

    def moved(amount):
        def toward(h):
            return h.at[:, 1].add(amount * (reference - h[:, 1]))

        dense = {name: lambda x, name=name: x @ params[name]["kernel"] + params[name]["bias"] for name in params}
        x = dense["embed"](architecture.inputs[0])
        inner = dense["inner"](toward(nn.relu(x)))
        return dense["head"](toward(nn.relu(x + dense["outer"](inner)))) + inner.sum(-1, keepdims=True)

    _, change = jax.jvp(moved, (0.0,), (1.0,))
    np.testing.assert_allclose(change, predicted, rtol=1e-4, atol=1e-5)


def test_a_map_and_its_mean_may_be_read():
    def build(x):
        x = nn.relu(nn.Conv(4, (3, 3), name="conv")(x))
        return nn.Conv(2, (1, 1), name="map")(x), nn.Dense(3, name="mean")(x.mean((1, 2)))

    architecture = linen(build, normal(3, 4, 4, 2), [])
    units = gxd.find_units(architecture.apply, architecture.params, *architecture.inputs)
    _, features = gxd.capture(outputs_of(architecture), architecture.params, units, architecture.inputs)
    assert features["conv"].shape == (3, 17, 4)
    np.testing.assert_allclose(features["conv"][:, :16].mean(1), features["conv"][:, 16], rtol=1e-5, atol=1e-6)


def test_consumers_with_different_batch_axes_must_be_tapped():
    def build(x):
        x = nn.relu(nn.Dense(4, name="trunk")(x))
        return nn.Dense(2, name="one")(x), nn.Dense(2, name="two")(x.reshape(-1, 4)).reshape(3, -1)

    architecture = linen(build, normal(3, 5, 2), [])
    units = gxd.find_units(architecture.apply, architecture.params, *architecture.inputs)
    assert units.untapped == {"trunk"}
    assert "needs gxd_jax.tap('trunk', ...)" in gxd.describe(units)
    untapped = units[0]._replace(feature=None)
    with pytest.raises(ValueError, match=r"layer 'trunk'.*different batch axes.*gxd_jax\.tap"):
        gxd.capture(outputs_of(architecture), architecture.params, [untapped], architecture.inputs)


def test_replaced_units_get_their_running_statistics_back():
    """Batch norm: the statistics live in a collection of their own, which the same masks reset."""
    architecture = ARCHITECTURES["batch_norm"]()
    x, initial = architecture.inputs
    units = architecture.units
    tx = gxd.chain(SGD, gxd.continual_backprop(units, replacement_rate=0.25, maturity_threshold=0))

    def apply(params, inputs):
        outputs, changed = architecture.apply(params, *inputs)
        return outputs, changed["batch_stats"]

    observe = gxd.observe(apply, squares, units, readout="loss", has_aux=True)

    @quick_jit
    def step(params, opt_state, statistics):
        (_, statistics), grads, observation = observe(params, (x, statistics), None)
        updates, opt_state = tx.update(grads, opt_state, params, observation=observation)
        replaced = gxd.reset_info(opt_state).replaced
        new = gxd.reset_collection(statistics, initial, units, replaced)
        return optax.apply_updates(params, updates), opt_state, new, statistics, replaced

    params = architecture.params
    _, _, new, before, replaced = step(params, tx.init(params), initial)
    for number in range(2):
        mask = np.asarray(replaced[f"Conv_{number}"])
        assert mask.sum() == 1
        for name, value in (("mean", 0.0), ("var", 1.0)):
            was, now = (np.asarray(tree[f"BatchNorm_{number}"][name]) for tree in (before, new))
            assert (was != value).all()
            np.testing.assert_array_equal(now, np.where(mask, value, was))


# --- What cannot be done is refused ---------------------------------------------------------------------------------


def test_layers_under_a_lifted_scan_are_refused():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return nn.relu(nn.Dense(4, name="dense")(x)), None

    def build(x):
        x = nn.relu(nn.Dense(4, name="first")(x))
        blocks = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
        x, _ = blocks(name="blocks")(x, None)
        return nn.Dense(2, name="last")(x)

    architecture = linen(build, normal(6, 3), [])
    units = gxd.find_units(architecture.apply, architecture.params, *architecture.inputs)
    assert units == []
    reasons = {(*entry.parameter, entry.axis): entry.reason for entry in units.left_out}
    assert "leading layer axis" in reasons["blocks", "dense", "kernel", 2]
    assert "leading layer axis" in reasons["first", "kernel", 1]
    # Written by hand all the same, such a layer has no features.
    first = layer("first", 4, [at("first/kernel", 1)], [], [at("blocks/dense/kernel", 1)], [None])
    with pytest.raises(ValueError, match=r"'blocks', 'dense'.*inside an inner transformation"):
        gxd.capture(outputs_of(architecture), architecture.params, [first], architecture.inputs)


def test_layers_inside_a_rematerialised_block_must_be_observed_outside():
    """Its inner layers are found, but nothing can be taken out of it; the layers that it feeds work."""
    architecture = ARCHITECTURES["remat"]()
    units = gxd.find_units(architecture.apply, architecture.params, *architecture.inputs)
    assert units.untapped == {"block/up"}
    with pytest.raises(ValueError, match="layer 'block/up' has no features"):
        gxd.capture(outputs_of(architecture), architecture.params, units, architecture.inputs)
    inside = units[0]._replace(feature=None)
    with pytest.raises(ValueError, match="inside an inner transformation"):
        gxd.capture(outputs_of(architecture), architecture.params, [inside], architecture.inputs)


def test_units_read_by_a_grouped_convolution_are_refused():
    architecture = ARCHITECTURES["grouped_conv"]()
    units = gxd.find_units(architecture.apply, architecture.params, *architecture.inputs)
    assert [layer.name for layer in units] == ["grouped"]
    (reason,) = [entry.reason for entry in units.left_out if entry.parameter == ("first", "kernel") and entry.axis == 3]
    assert "read by a grouped convolution" in reason


# --- Worked examples, one for each library --------------------------------------------------------------------------


def follows(losses, totals):
    """What every worked example ends with: it learned, and units were replaced."""
    total = sum(int(count) for count in totals.values())
    assert losses[-1] < losses[0] / 2
    assert total > 0


X, Y = normal(16, 3, seed=8), jnp.tanh(normal(16, 2, seed=9))
RESETS = {"replacement_rate": 0.01, "maturity_threshold": 5}
STEPS = 60


def train_example(observe, tx, params):
    """The common loop of the worked examples; returns the last state."""
    step = jax.jit(gxd.training.make_train_step(observe, tx))
    state, losses = gxd.training.init(params, tx, 0), []
    for _ in range(STEPS):
        state, loss = step(state, X, Y)
        losses.append(loss)
    follows(losses, gxd.reset_info(state.opt_state).totals)
    return state


def mean_squares(outputs, targets):
    return jnp.mean((outputs - targets) ** 2)


def test_worked_example_linen():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Dense(16)(x))
            return nn.Dense(2)(x)

    network = Network()
    params = network.init(jax.random.key(0), X)
    units = gxd.find_units(network.apply, params, X)  # the model stays as it is
    assert gxd.verify_units(network.apply, params, units, X).ok
    observe = gxd.observe(network.apply, mean_squares, units)
    tx = gxd.chain(optax.adam(1e-2), gxd.continual_backprop(units, **RESETS))

    @jax.jit
    def step(params, opt_state, key):
        loss, grads, observation = observe(params, X, Y, key=key)
        updates, opt_state = tx.update(grads, opt_state, params, observation=observation)
        return optax.apply_updates(params, updates), opt_state, loss

    opt_state, losses = tx.init(params), []
    for number in range(STEPS):
        params, opt_state, loss = step(params, opt_state, jax.random.key(number))
        losses.append(loss)
    follows(losses, gxd.reset_info(opt_state).totals)


def test_worked_example_plain_functions():
    def apply(params, x):
        h = gxd.tap("hidden", jax.nn.relu(x @ params["w1"] + params["b1"]))
        return h @ params["w2"] + params["b2"]

    params = {"w1": normal(3, 16), "b1": jnp.zeros(16), "w2": normal(16, 2) / 4, "b2": jnp.zeros(2)}
    units = gxd.find_units(apply, params, X)
    assert [(layer.name, layer.feature) for layer in units] == [("w1", "hidden")]
    observe = gxd.observe(apply, mean_squares, units)
    tx = gxd.chain(optax.adam(1e-2), gxd.continual_backprop(units, **RESETS))
    train_example(observe, tx, params)


def nnx_network():
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.hidden = nnx.Linear(3, 16, rngs=rngs)
            self.output = nnx.Linear(16, 2, rngs=rngs)

        def __call__(self, x):
            return self.output(gxd.tap("hidden", nnx.relu(self.hidden(x))))

    return Network(nnx.Rngs(0))


def test_worked_example_nnx():
    """With `nnx.split` and `nnx.merge`: the parameters are a tree like any other."""
    from flax import nnx

    graph, params, rest = nnx.split(nnx_network(), nnx.Param, ...)

    def apply(params, x):
        return nnx.merge(graph, params, rest)(x)

    units = gxd.find_units(apply, params, X)
    observe = gxd.observe(apply, mean_squares, units)
    tx = gxd.chain(optax.adam(1e-2), gxd.continual_backprop(units, **RESETS))
    state = train_example(observe, tx, params)
    network = nnx.merge(graph, state.params, rest)
    np.testing.assert_allclose(network(X), apply(state.params, X), rtol=1e-5, atol=1e-6)


def test_worked_example_nnx_optimizer():
    from flax import nnx

    network = nnx_network()
    graph, params, rest = nnx.split(network, nnx.Param, ...)

    def apply(params, x):
        return nnx.merge(graph, params, rest)(x)

    units = gxd.find_units(apply, params, X)
    observe = gxd.observe(apply, mean_squares, units)
    tx = gxd.chain(optax.adam(1e-2), gxd.continual_backprop(units, **RESETS))
    optimizer = nnx.Optimizer(network, tx, wrt=nnx.Param)

    @nnx.jit
    def step(network, optimizer, key):
        loss, grads, observation = observe(nnx.state(network, nnx.Param), X, Y, key=key)
        given = (network, grads) if FLAX >= (0, 11) else (grads,)  # before 0.11 the optimizer held the network
        optimizer.update(*given, observation=observation)
        return loss

    losses = [step(network, optimizer, jax.random.key(number)) for number in range(STEPS)]
    if FLAX >= (0, 11):
        opt_state = nnx.as_pure(optimizer.opt_state)
    else:
        variables = (nnx.Variable, nnx.VariableState)
        opt_state = jax.tree.map(
            lambda node: node.value, optimizer.opt_state, is_leaf=lambda node: isinstance(node, variables)
        )
    follows(losses, gxd.reset_info(opt_state).totals)


def test_worked_example_equinox():
    eqx = pytest.importorskip("equinox")

    class Network(eqx.Module):
        hidden: eqx.nn.Linear
        output: eqx.nn.Linear

        def __init__(self, key):
            first, second = jax.random.split(key)
            self.hidden, self.output = eqx.nn.Linear(3, 16, key=first), eqx.nn.Linear(16, 2, key=second)

        def __call__(self, x):  # of a batch: a tap inside vmap cannot be observed
            h = gxd.tap("hidden", jax.nn.relu(jax.vmap(self.hidden)(x)))
            return jax.vmap(self.output)(h)

    params, static = eqx.partition(Network(jax.random.key(0)), eqx.is_array)

    def apply(params, x):
        return eqx.combine(params, static)(x)

    units = gxd.find_units(apply, params, X)
    assert units.untapped == set()
    observe = gxd.observe(apply, mean_squares, units)
    tx = gxd.chain(optax.adam(1e-2), gxd.continual_backprop(units, **RESETS))
    train_example(observe, tx, params)


def test_worked_example_haiku():
    hk = pytest.importorskip("haiku")

    def network(x):
        h = gxd.tap("hidden", jax.nn.relu(hk.Linear(16, name="hidden")(x)))
        return hk.Linear(2, name="output")(h)

    network = hk.without_apply_rng(hk.transform(network))
    params = network.init(jax.random.key(0), X)
    units = gxd.find_units(network.apply, params, X)
    observe = gxd.observe(network.apply, mean_squares, units)
    tx = gxd.chain(optax.adam(1e-2), gxd.continual_backprop(units, **RESETS))
    train_example(observe, tx, params)
