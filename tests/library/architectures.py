"""Networks that people train, each with the wiring that a person would write for it.

`ARCHITECTURES` maps a name to a function that builds an `Architecture`; other libraries are imported inside.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gxd_jax as gxd
from gxd_jax import ParamAxis, UnitLayer


class Architecture(NamedTuple):
    """A model, its inputs, and what `find_units` should say.

    Attributes:
        apply: (params, *inputs) -> outputs.
        params: Initial parameters.
        inputs: Example inputs.
        units: The wiring by hand.
        coupled: Names of the layers that a norm couples.
        left_out: (path of a parameter, axis) -> part of the reason why it carries no units, for some of them.
        outputs: As in `find_units`.
        silent: Whether features of every layer are captured.
    """

    apply: Callable[..., Any]
    params: Any
    inputs: tuple
    units: list[UnitLayer]
    coupled: tuple[str, ...] = ()
    left_out: dict[tuple[str, int], str] = {}
    outputs: Callable[[Any], Any] | None = None
    silent: bool = True


def normal(*shape, seed=0):
    return jnp.float32(np.random.default_rng(seed).normal(size=shape))


def at(path, axis, index=None):
    """`at("Dense_0/kernel", 1)` is ParamAxis(("Dense_0", "kernel"), 1); numbers in the path are positions."""
    keys = tuple(int(key) if key.isdigit() else key for key in path.split("/"))
    return ParamAxis(keys, axis, None if index is None else np.asarray(index))


def layer(name, size, incoming, own, outgoing, biases, feature=None):
    """A `UnitLayer`; `own` lists parameter axes, or pairs of one and its reset value (0 for a bias, 1 for a scale)."""

    def reset(axis):
        if isinstance(axis, tuple) and not isinstance(axis, ParamAxis):
            return axis
        return axis, 1.0 if axis.path[-1] in ("scale", "weight_scale") else 0.0

    biases = [tuple(bias.split("/")) if isinstance(bias, str) else bias for bias in biases]
    return UnitLayer(name, size, tuple(incoming), tuple(map(reset, own)), tuple(outgoing), tuple(biases), feature)


def initial(net, *inputs):
    """Variables of a Flax module like those of its `init`, which takes longer to compile than the tests run."""

    def fill(key_path, shape):
        if len(shape.shape) < 2 or key_path[-1].key == "bias":  # attention has a bias for each head
            return jnp.full(shape.shape, float(key_path[-1].key in ("scale", "var")))
        return normal(*shape.shape) / np.sqrt(np.prod(shape.shape[:-1]))

    shapes = jax.eval_shape(lambda key: net.init(key, *inputs), jax.random.key(0))
    return jax.tree_util.tree_map_with_path(fill, shapes)


def stack(*names, order="NHWC"):
    """Builds the units of a stack from its parameters."""
    return lambda params: gxd.sequential_units(params, list(names), order=order)


def linen(build, x, units, **kwargs):
    """An architecture of a Flax linen module given as a function of one compact call."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, *inputs):
            return build(*inputs)

    inputs = x if isinstance(x, tuple) else (x,)
    net = Net()
    params = initial(net, *inputs)["params"]
    units = units(params) if callable(units) else units

    def apply(params, *inputs):
        return net.apply({"params": params}, *inputs)

    return Architecture(apply, params, inputs, units, **kwargs)


def dense():
    def build(x):
        x = nn.relu(nn.Dense(5)(x))
        x = jnp.tanh(nn.Dense(5)(x))
        x = nn.gelu(nn.Dense(5)(x))
        return nn.Dense(2)(x)

    units = stack("Dense_0", "Dense_1", "Dense_2", "Dense_3")
    left_out = {("Dense_0/kernel", 0): "axis of an input", ("Dense_3/kernel", 1): "axis of an output"}
    return linen(build, normal(6, 4), units, left_out=left_out)


def dense_without_bias():
    def build(x):
        for _ in range(2):
            x = nn.silu(nn.Dense(5, use_bias=False)(x))
        return nn.Dense(2, use_bias=False)(x)

    return linen(build, normal(6, 5), stack("Dense_0", "Dense_1", "Dense_2"))


def conv_pool_flatten():
    def build(x):
        x = nn.max_pool(nn.relu(nn.Conv(4, (3, 3))(x)), (2, 2), (2, 2))
        x = nn.avg_pool(nn.relu(nn.Conv(4, (3, 3))(x)), (2, 2), (2, 2))
        x = nn.relu(nn.Dense(6)(x.reshape(x.shape[0], -1)))
        return nn.Dense(3)(x)

    return linen(build, normal(4, 8, 8, 2), stack("Conv_0", "Conv_1", "Dense_0", "Dense_1"))


def conv_flatten_nchw():
    def build(x):
        x = nn.relu(nn.Conv(4, (3, 3))(x.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)
        return nn.Dense(3)(x.reshape(x.shape[0], -1))

    return linen(build, normal(4, 2, 3, 3), stack("Conv_0", "Dense_0", order="NCHW"))


def conv_1d():
    def build(x):
        x = nn.relu(nn.Conv(4, (3,), padding="VALID")(x))
        x = nn.relu(nn.Conv(4, (3,), strides=2)(x))
        return nn.Dense(3)(x.reshape(x.shape[0], -1))

    return linen(build, normal(4, 10, 2), stack("Conv_0", "Conv_1", "Dense_0"))


def conv_3d():
    def build(x):
        x = nn.relu(nn.Conv(4, (3, 3, 3))(x))
        x = nn.relu(nn.Conv(4, (1, 2, 2))(x))
        return nn.Dense(3)(x.mean((1, 2, 3)))

    return linen(build, normal(2, 3, 4, 4, 2), stack("Conv_0", "Conv_1", "Dense_0"))


def global_pooling():
    def build(x):
        x = nn.relu(nn.Conv(4, (3, 3))(x)).mean((1, 2))
        return nn.Dense(3)(x)

    return linen(build, normal(4, 5, 5, 2), stack("Conv_0", "Dense_0"))


def transposed_conv():
    def build(x):
        x = nn.relu(nn.ConvTranspose(4, (3, 3), strides=(2, 2))(x))
        x = nn.relu(nn.ConvTranspose(4, (3, 3))(x))
        return nn.Conv(1, (3, 3))(x)

    return linen(build, normal(2, 3, 3, 4), stack("ConvTranspose_0", "ConvTranspose_1", "Conv_0"))


def _normed(norm, before):
    """Two hidden layers with a norm before or after the activation."""

    def build(x):
        for _ in range(2):
            x = nn.Dense(6)(x)
            x = nn.relu(norm()(x)) if before else norm()(nn.relu(x))
        return nn.Dense(2)(x)

    return build


def _normed_units(norm, parameters):
    def units(params):
        plain = gxd.sequential_units(params, ["Dense_0", "Dense_1", "Dense_2"])
        values = {"scale": 1.0, "bias": 0.0}
        return [
            hidden._replace(own=(*hidden.own, *((at(f"{norm}_{i}/{name}", 0), values[name]) for name in parameters)))
            for i, hidden in enumerate(plain)
        ]

    return units


def layer_norm(before):
    units = _normed_units("LayerNorm", ("scale", "bias"))
    return linen(_normed(nn.LayerNorm, before), normal(6, 4), units, coupled=("Dense_0", "Dense_1"))


def rms_norm():
    units = _normed_units("RMSNorm", ("scale",))
    return linen(_normed(nn.RMSNorm, True), normal(6, 4), units, coupled=("Dense_0", "Dense_1"))


def group_norm():
    units = _normed_units("GroupNorm", ("scale", "bias"))
    norm = functools.partial(nn.GroupNorm, num_groups=2)
    return linen(_normed(norm, True), normal(6, 4), units, coupled=("Dense_0", "Dense_1"))


class BatchNormed(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        for _ in range(2):
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(4, (3, 3), use_bias=False)(x)))
        return nn.Dense(2)(x.mean((1, 2)))


def batch_norm():
    """Training mode; the new statistics are state, not an output."""
    net, x = BatchNormed(), normal(4, 5, 5, 2)
    variables = initial(net, x, True)

    def apply(params, x, stats):
        return net.apply({"params": params, "batch_stats": stats}, x, True, mutable="batch_stats")

    units = [
        layer(
            f"Conv_{i}",
            4,
            [at(f"Conv_{i}/kernel", 3)],
            [at(f"BatchNorm_{i}/scale", 0), at(f"BatchNorm_{i}/bias", 0)],
            [at(*consumer)],
            [bias],
        )
        for i, consumer, bias in ((0, ("Conv_1/kernel", 2), None), (1, ("Dense_0/kernel", 0), "Dense_0/bias"))
    ]
    return Architecture(apply, variables["params"], (x, variables["batch_stats"]), units, outputs=lambda both: both[0])


def batch_norm_evaluated():
    """Evaluation mode, with the whole variables as parameters: the statistics are own parameters of the units."""
    net, x = BatchNormed(), normal(4, 5, 5, 2)
    variables = initial(net, x, True)
    units = [
        layer(
            f"Conv_{i}",
            4,
            [at(f"params/Conv_{i}/kernel", 3)],
            [
                at(f"params/BatchNorm_{i}/scale", 0),
                at(f"params/BatchNorm_{i}/bias", 0),
                at(f"batch_stats/BatchNorm_{i}/mean", 0),
                (at(f"batch_stats/BatchNorm_{i}/var", 0), 1.0),
            ],
            [at(*consumer)],
            [bias],
        )
        for i, consumer, bias in (
            (0, ("params/Conv_1/kernel", 2), None),
            (1, ("params/Dense_0/kernel", 0), "params/Dense_0/bias"),
        )
    ]
    return Architecture(lambda variables, x: net.apply(variables, x, False), variables, (x,), units)


def residual_mlp():
    """Pre-activation blocks: the stream has three producers and three consumers."""

    def build(x):
        x = nn.Dense(4, name="embed")(x)
        for i in range(2):
            h = nn.relu(nn.Dense(4, name=f"up_{i}")(nn.relu(x)))
            x = x + nn.Dense(4, name=f"down_{i}")(h)
        return nn.Dense(2, name="head")(nn.relu(x))

    stream = layer(
        "embed",
        4,
        [at("embed/kernel", 1), at("down_0/kernel", 1), at("down_1/kernel", 1)],
        [at("embed/bias", 0), at("down_0/bias", 0), at("down_1/bias", 0)],
        [at("up_0/kernel", 0), at("up_1/kernel", 0), at("head/kernel", 0)],
        ["up_0/bias", "up_1/bias", "head/bias"],
    )
    blocks = [
        layer(
            f"up_{i}",
            4,
            [at(f"up_{i}/kernel", 1)],
            [at(f"up_{i}/bias", 0)],
            [at(f"down_{i}/kernel", 0)],
            [f"down_{i}/bias"],
        )
        for i in range(2)
    ]
    return linen(build, normal(6, 3), [stream, *blocks])


def resnet():
    """A small ResNet-18: basic blocks, a stage with a projected shortcut, global pooling."""

    def norm(x, name):
        scale_shape = (1, 1, 1, x.shape[-1])
        return (x - x.mean((0, 1, 2))) / jnp.sqrt(x.var((0, 1, 2)) + 1e-5) * Affine(name=name)(scale_shape)

    class Affine(nn.Module):
        @nn.compact
        def __call__(self, shape):
            return self.param("scale", nn.initializers.ones, (shape[-1],))

    def block(x, features, stride, name):
        h = nn.relu(norm(nn.Conv(features, (3, 3), stride, use_bias=False, name=f"{name}_a")(x), f"{name}_na"))
        h = norm(nn.Conv(features, (3, 3), use_bias=False, name=f"{name}_b")(h), f"{name}_nb")
        if stride != 1:
            x = norm(nn.Conv(features, (1, 1), stride, use_bias=False, name=f"{name}_s")(x), f"{name}_ns")
        return nn.relu(x + h)

    def build(x):
        x = nn.relu(norm(nn.Conv(3, (3, 3), use_bias=False, name="stem")(x), "stem_n"))
        x = block(x, 3, 1, "one")
        x = block(x, 4, 2, "two")
        x = block(x, 4, 1, "three")
        return nn.Dense(2, name="head")(x.mean((1, 2)))

    def inside(name, size):
        return layer(
            f"{name}_a",
            size,
            [at(f"{name}_a/kernel", 3)],
            [at(f"{name}_na/scale", 0)],
            [at(f"{name}_b/kernel", 2)],
            [None],
        )

    first = layer(
        "stem",
        3,
        [at("stem/kernel", 3), at("one_b/kernel", 3)],
        [at("stem_n/scale", 0), at("one_nb/scale", 0)],
        [at("one_a/kernel", 2), at("two_a/kernel", 2), at("two_s/kernel", 2)],
        [None, None, None],
    )
    second = layer(
        "two_b",
        4,
        [at("two_b/kernel", 3), at("two_s/kernel", 3), at("three_b/kernel", 3)],
        [at("two_nb/scale", 0), at("two_ns/scale", 0), at("three_nb/scale", 0)],
        [at("three_a/kernel", 2), at("head/kernel", 0)],
        [None, "head/bias"],
    )
    units = [first, inside("one", 3), inside("two", 4), second, inside("three", 4)]
    return linen(build, normal(4, 6, 6, 2), units)


def two_heads():
    def build(x):
        x = nn.tanh(nn.Dense(4, name="trunk")(x))
        return nn.Dense(4, name="actor")(x), nn.Dense(1, name="critic")(x)

    trunk = layer(
        "trunk",
        4,
        [at("trunk/kernel", 1)],
        [at("trunk/bias", 0)],
        [at("actor/kernel", 0), at("critic/kernel", 0)],
        ["actor/bias", "critic/bias"],
    )
    return linen(build, normal(6, 4), [trunk])


def dueling():
    def build(x):
        x = nn.relu(nn.Dense(4, name="trunk")(x))
        value = nn.Dense(1, name="value_out")(nn.relu(nn.Dense(4, name="value")(x)))
        advantage = nn.Dense(3, name="advantage_out")(nn.relu(nn.Dense(4, name="advantage")(x)))
        return value + advantage - advantage.mean(-1, keepdims=True)

    trunk = layer(
        "trunk",
        4,
        [at("trunk/kernel", 1)],
        [at("trunk/bias", 0)],
        [at("value/kernel", 0), at("advantage/kernel", 0)],
        ["value/bias", "advantage/bias"],
    )
    branches = [
        layer(
            name,
            4,
            [at(f"{name}/kernel", 1)],
            [at(f"{name}/bias", 0)],
            [at(f"{name}_out/kernel", 0)],
            [f"{name}_out/bias"],
        )
        for name in ("value", "advantage")
    ]
    return linen(build, normal(6, 4), [trunk, *branches])


def swiglu():
    def build(x):
        x = nn.silu(nn.Dense(4, name="gate")(x)) * nn.Dense(4, name="up")(x)
        return nn.Dense(4, name="down")(x)

    gated = layer(
        "gate",
        4,
        [at("gate/kernel", 1), at("up/kernel", 1)],
        [at("gate/bias", 0), at("up/bias", 0)],
        [at("down/kernel", 0)],
        ["down/bias"],
    )
    return linen(build, normal(6, 4), [gated])


def fused_glu():
    def build(x):
        x = nn.glu(nn.Dense(8, name="both")(x))
        return nn.Dense(3, name="down")(x)

    index = [[u, 4 + u] for u in range(4)]
    gated = layer(
        "both", 4, [at("both/kernel", 1, index)], [at("both/bias", 0, index)], [at("down/kernel", 0)], ["down/bias"]
    )
    return linen(build, normal(6, 4), [gated])


def concatenated():
    """Two branches side by side, and a CReLU."""

    def build(x):
        x = jnp.concatenate([nn.relu(nn.Dense(3, name="a")(x)), nn.tanh(nn.Dense(2, name="b")(x))], -1)
        x = nn.Dense(4, name="c")(x)
        x = nn.relu(jnp.concatenate([x, -x], -1))
        return nn.Dense(3, name="d")(x)

    a = layer("a", 3, [at("a/kernel", 1)], [at("a/bias", 0)], [at("c/kernel", 0, [[0], [1], [2]])], ["c/bias"])
    b = layer("b", 2, [at("b/kernel", 1)], [at("b/bias", 0)], [at("c/kernel", 0, [[3], [4]])], ["c/bias"])
    index = [[u, 4 + u] for u in range(4)]
    c = layer("c", 4, [at("c/kernel", 1)], [at("c/bias", 0)], [at("d/kernel", 0, index)], ["d/bias"])
    return linen(build, normal(6, 4), [a, b, c])


def transformer():
    """A block without a residual stream around it, so that its MLP and its heads are the units."""

    def build(x):
        a = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=4, name="attention")(nn.LayerNorm(name="n1")(x))
        x = x + a
        h = nn.gelu(nn.Dense(5, name="up")(nn.LayerNorm(name="n2")(x)))
        return x + nn.Dense(4, name="down")(h)

    heads = layer(
        "attention/query",
        2,
        [at(f"attention/{part}/kernel", 1) for part in ("query", "key", "value")],
        [at(f"attention/{part}/bias", 0) for part in ("query", "key", "value")],
        [at("attention/out/kernel", 0)],
        ["attention/out/bias"],
        feature="attention/query",
    )
    mlp = layer("up", 5, [at("up/kernel", 1)], [at("up/bias", 0)], [at("down/kernel", 0)], ["down/bias"])
    left_out = {
        ("attention/key/kernel", 2): "through a reduction",
        ("attention/value/kernel", 2): "overlaps layer 'attention/query'",
        ("up/kernel", 0): "axis of an input",
    }
    return linen(build, normal(3, 3, 4), [heads, mlp], left_out=left_out, silent=False)


def depthwise():
    def build(x):
        x = nn.relu(nn.Conv(4, (1, 1), name="expand")(x))
        x = nn.relu(nn.Conv(4, (3, 3), feature_group_count=4, name="depthwise")(x))
        return nn.Conv(2, (1, 1), name="project")(x)

    channels = layer(
        "expand",
        4,
        [at("expand/kernel", 3), at("depthwise/kernel", 3)],
        [at("expand/bias", 0), at("depthwise/bias", 0)],
        [at("project/kernel", 2)],
        ["project/bias"],
    )
    return linen(build, normal(2, 4, 4, 2), [channels])


def grouped_conv():
    """A grouped convolution cannot read single units; its outputs are units."""

    def build(x):
        x = nn.relu(nn.Conv(4, (3, 3), name="first")(x))
        x = nn.relu(nn.Conv(6, (3, 3), feature_group_count=2, name="grouped")(x))
        return nn.Conv(2, (1, 1), name="last")(x)

    grouped = layer(
        "grouped", 6, [at("grouped/kernel", 3)], [at("grouped/bias", 0)], [at("last/kernel", 2)], ["last/bias"]
    )
    return linen(build, normal(2, 4, 4, 2), [grouped], left_out={("first/kernel", 3): "read by a grouped convolution"})


def gru():
    """Over time: the recurrent kernels feed and read the units, along different axes."""

    def build(x):
        x = gxd.tap("cell/ir", nn.RNN(nn.GRUCell(4, name="cell"))(x))
        return nn.Dense(2, name="head")(x)

    gates = ("r", "z", "n")
    units = layer(
        "cell/ir",
        4,
        [at(f"cell/{side}{gate}/kernel", 1) for gate in gates for side in "ih"],
        [at(f"cell/i{gate}/bias", 0) for gate in gates] + [at("cell/hn/bias", 0)],
        [at(f"cell/h{gate}/kernel", 0) for gate in gates] + [at("head/kernel", 0)],
        ["cell/ir/bias", "cell/iz/bias", "cell/hn/bias", "head/bias"],
        feature="cell/ir",
    )
    return linen(build, normal(3, 4, 4), [units])


def lstm():
    def build(x):
        x = gxd.tap("cell/ii", nn.RNN(nn.LSTMCell(4, name="cell"))(x))
        return nn.Dense(2, name="head")(x)

    gates = ("i", "f", "g", "o")
    units = layer(
        "cell/ii",
        4,
        [at(f"cell/{side}{gate}/kernel", 1) for gate in gates for side in "ih"],
        [at(f"cell/h{gate}/bias", 0) for gate in gates],
        [at(f"cell/h{gate}/kernel", 0) for gate in gates] + [at("head/kernel", 0)],
        [*(f"cell/h{gate}/bias" for gate in gates), "head/bias"],
        feature="cell/ii",
    )
    return linen(build, normal(3, 4, 4), [units])


def embedding():
    """The table is looked up by the data: re-drawn; dropout on the way changes nothing."""

    def build(tokens):
        x = nn.relu(nn.Embed(7, 4, name="table")(tokens).mean(1))
        x = nn.Dropout(0.5, deterministic=False, rng_collection="params")(x)
        x = nn.relu(nn.Dense(4, name="first")(x))
        return nn.Dense(2, name="last")(x)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            return build(tokens)

    tokens = jnp.arange(18).reshape(6, 3) % 7
    net = Net()
    params = initial(net, tokens)["params"]
    units = [
        layer("table", 4, [at("table/embedding", 1)], [], [at("first/kernel", 0)], ["first/bias"]),
        layer("first", 4, [at("first/kernel", 1)], [at("first/bias", 0)], [at("last/kernel", 0)], ["last/bias"]),
    ]

    def apply(params, tokens):
        return net.apply({"params": params}, tokens, rngs={"params": jax.random.key(1)})

    return Architecture(apply, params, (tokens,), units)


def remat():
    """Features inside `remat` cannot be captured where they are read."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4, name="down")(nn.relu(nn.Dense(4, name="up")(x)))

    def build(x):
        return nn.Dense(2, name="head")(nn.relu(nn.remat(Block)(name="block")(x)))

    units = [
        layer(
            "block/up",
            4,
            [at("block/up/kernel", 1)],
            [at("block/up/bias", 0)],
            [at("block/down/kernel", 0)],
            ["block/down/bias"],
            feature="block/up",
        ),
        layer(
            "block/down",
            4,
            [at("block/down/kernel", 1)],
            [at("block/down/bias", 0)],
            [at("head/kernel", 0)],
            ["head/bias"],
        ),
    ]
    return linen(build, normal(6, 4), units, silent=False)


def einsum():
    """Plain JAX with taps; own parameters that are no constant are re-drawn."""
    params = {
        "w1": normal(3, 4),
        "slope": jnp.full(4, 0.25),
        "shift": normal(4),
        "w2": normal(2, 4, seed=1),
        "b2": jnp.zeros(2),
    }

    def apply(params, x):
        h = jnp.einsum("bi,iu->bu", x, params["w1"]) + params["shift"]
        h = gxd.tap("hidden", jnp.where(h > 0, h, params["slope"] * h))
        return jnp.einsum("bu,ou->bo", h, params["w2"]) + params["b2"]

    hidden = layer(
        "w1", 4, [at("w1", 1), at("shift", 0)], [(at("slope", 0), 0.25)], [at("w2", 1)], [("b2",)], feature="hidden"
    )
    return Architecture(apply, params, (normal(6, 3),), [hidden])


def nnx():
    from flax import nnx as library

    class Net(library.Module):
        def __init__(self, rngs):
            self.first = library.Linear(4, 4, rngs=rngs)
            self.second = library.Linear(4, 4, rngs=rngs)
            self.norm = library.LayerNorm(4, rngs=rngs)
            self.last = library.Linear(4, 2, rngs=rngs)

        def __call__(self, x):
            x = gxd.tap("first", library.relu(self.first(x)))
            x = gxd.tap("second", library.relu(self.norm(self.second(x))))
            return self.last(x)

    graph, state = library.split(Net(library.Rngs(0)), library.Param)
    return Architecture(
        apply=lambda state, x: library.merge(graph, state)(x),
        params=state,
        inputs=(normal(6, 4),),
        units=[
            layer(
                "first",
                4,
                [at("first/kernel", 1)],
                [at("first/bias", 0)],
                [at("second/kernel", 0)],
                ["second/bias"],
                feature="first",
            ),
            layer(
                "second",
                4,
                [at("second/kernel", 1)],
                [at("second/bias", 0), (at("norm/scale", 0), 1.0), at("norm/bias", 0)],
                [at("last/kernel", 0)],
                ["last/bias"],
                feature="second",
            ),
        ],
        coupled=("second",),
    )


def equinox():
    library = pytest.importorskip("equinox")
    first, second = jax.random.split(jax.random.key(0))
    params = {
        "conv": library.nn.Conv2d(2, 4, 3, key=first),
        "head": library.nn.Linear(4 * 4, 3, key=second),
    }
    params, static = library.partition(params, library.is_array)

    def apply(params, x):
        net = library.combine(params, static)

        def one(x):
            return net["head"](jax.nn.relu(net["conv"](x)).reshape(-1))

        return jax.vmap(one)(x)

    index = gxd.flatten_index(4, 4, order="NCHW")
    conv = layer(
        "conv",
        4,
        [at("conv/weight", 0), at("conv/bias", 0)],  # Equinox draws biases at random
        [],
        [at("head/weight", 1, index)],
        ["head/bias"],
        feature="conv",
    )
    return Architecture(apply, params, (normal(4, 2, 4, 4),), [conv], silent=False)


def haiku():
    library = pytest.importorskip("haiku")

    class Net(library.Module):
        def __call__(self, x):
            x = gxd.tap("net/linear", jax.nn.relu(library.Linear(4)(x)))
            return library.Linear(2)(x)

    net = library.without_apply_rng(library.transform(lambda x: Net()(x)))
    params = net.init(jax.random.key(0), normal(6, 4))
    hidden = UnitLayer(
        "net/linear",
        4,
        (ParamAxis(("net/linear", "w"), 1),),
        ((ParamAxis(("net/linear", "b"), 0), 0.0),),
        (ParamAxis(("net/linear_1", "w"), 0),),
        (("net/linear_1", "b"),),
        feature="net/linear",
    )
    return Architecture(net.apply, params, (normal(6, 4),), [hidden])


ARCHITECTURES = {
    "dense": dense,
    "dense_without_bias": dense_without_bias,
    "conv_pool_flatten": conv_pool_flatten,
    "conv_flatten_nchw": conv_flatten_nchw,
    "conv_1d": conv_1d,
    "conv_3d": conv_3d,
    "global_pooling": global_pooling,
    "transposed_conv": transposed_conv,
    "layer_norm_before": functools.partial(layer_norm, before=True),
    "layer_norm_after": functools.partial(layer_norm, before=False),
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "batch_norm": batch_norm,
    "batch_norm_evaluated": batch_norm_evaluated,
    "residual_mlp": residual_mlp,
    "resnet": resnet,
    "two_heads": two_heads,
    "dueling": dueling,
    "swiglu": swiglu,
    "fused_glu": fused_glu,
    "concatenated": concatenated,
    "transformer": transformer,
    "depthwise": depthwise,
    "grouped_conv": grouped_conv,
    "gru": gru,
    "lstm": lstm,
    "embedding": embedding,
    "remat": remat,
    "einsum": einsum,
    "nnx": nnx,
    "equinox": equinox,
    "haiku": haiku,
}
