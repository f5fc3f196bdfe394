"""The networks that are timed, and the compiled programs that train them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

import gxd_jax as gxd
from benchmarks import convnet, learners, methods, resnet

Kind = Literal["dense", "convolutional", "transformer", "resnet-18"]

_POOL = 64
"""Batches in the pool."""
OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(STEP_SIZES["sgd"]),
    "adam": lambda: optax.adam(STEP_SIZES["adam"]),
}
STEP_SIZES = {"sgd": 0.01, "adam": 0.001}
# Of ResNet-18, as in [N].
_MOMENTUM = 0.9
_WEIGHT_DECAY = 5e-4


class Case(NamedTuple):
    """A network and how it is trained.

    Attributes:
        sizes: Layer sizes, input and output included; of convolutional networks the shape of an image and the outputs;
            of the transformer's block tokens, width, hidden units and outputs.
        batch: Examples per step.
        seeds: Networks trained side by side.
        steps: Steps of one timing.
        replacement_rate: Replacement rate of the resetting methods.
        kind: What the network is.
        maturity_threshold: Updates before a unit may be replaced, where it is not what the settings say.
    """

    sizes: tuple[int, ...]
    batch: int
    seeds: int
    steps: int
    replacement_rate: float
    kind: Kind = "dense"
    maturity_threshold: int | None = None


CASES: dict[str, Case] = {
    "20-5-1": Case((20, 5, 1), 1, 100, 20_000, 1e-3),
    "784-100x3-10": Case((784, 100, 100, 100, 10), 1, 16, 400, 1e-4),
    "784-256x2-10": Case((784, 256, 256, 10), 32, 8, 100, 1e-4),
    "784-2000x3-10": Case((784, 2000, 2000, 2000, 10), 1, 1, 50, 1e-4),
    "conv-32x32": Case((32, 32, 3, 10), 100, 1, 5, 1e-4, kind="convolutional", maturity_threshold=1),
    "transformer-mlp": Case((64, 256, 1024, 10), 8, 1, 10, 1e-4, kind="transformer", maturity_threshold=1),
    "resnet-18": Case((32, 32, 3, 100), 90, 1, 1, 1e-4, kind="resnet-18", maturity_threshold=1),
}


class Setup(NamedTuple):
    """How a program is built.

    Attributes:
        optimizer: A name of `OPTIMIZERS`.
        activation: A name of `learners.ACTIVATIONS`; ResNet-18 has its own.
        maturity_threshold: Updates before a unit may be replaced.
    """

    optimizer: str
    activation: str
    maturity_threshold: int


class Program(NamedTuple):
    """A method compiled for a case.

    Attributes:
        run: state -> (state, mean loss).
        state: The state before the first step.
        compile_seconds: Time of compilation.
        peak_bytes: The most memory that the program takes at once, as XLA plans it: with its state, without constants
            such as the pool of batches.
        units: Hidden units that the method may replace, of all seeds.
        parameters: Numbers in the parameters, of all seeds.
        state_bytes: Bytes of the optimizer's state, the method's included.
    """

    run: Callable[[Any], tuple[Any, jax.Array]]
    state: Any
    compile_seconds: float
    peak_bytes: int
    units: int
    parameters: int
    state_bytes: int


class Learner(NamedTuple):
    """The functions of one seed, and its units.

    Attributes:
        start: Seed -> state.
        learn: State -> (state after the steps of one timing, mean loss).
        training: State -> what of it is the training state.
        units: The hidden layers.
    """

    start: Callable[[jax.Array], Any]
    learn: Callable[[Any], tuple[Any, jax.Array]]
    training: Callable[[Any], gxd.training.TrainState]
    units: list[gxd.UnitLayer]


def compile_program(name: str, case: Case, setup: Setup) -> Program:
    """Builds a method's states for all seeds and compiles its steps."""
    make = resnet_learner if case.kind == "resnet-18" else learner_of
    learner = make(methods.METHODS[name], case, setup)
    several = case.seeds > 1
    state = jax.jit(jax.vmap(learner.start))(jnp.arange(case.seeds)) if several else jax.jit(learner.start)(0)
    begin = time.perf_counter()
    learn = jax.vmap(learner.learn) if several else learner.learn
    compiled = jax.jit(learn, donate_argnums=0).lower(state).compile()
    seconds = time.perf_counter() - begin
    memory = compiled.memory_analysis()
    training = learner.training(state)
    return Program(
        run=compiled,
        state=state,
        compile_seconds=seconds,
        peak_bytes=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes,
        units=case.seeds * sum(layer.size for layer in learner.units),
        parameters=sum(leaf.size for leaf in jax.tree.leaves(training.params)),
        state_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(training.opt_state)),
    )


class Network(NamedTuple):
    """A network and its task.

    Attributes:
        init: key -> parameters.
        apply: (parameters, inputs [B, ...]) -> outputs [B, K].
        units: Its hidden layers.
        shape: Shape of an example.
        outputs: Number of outputs K; a network of one predicts a number, others a class.
    """

    init: Callable[[jax.Array], Any]
    apply: Callable[[Any, jax.Array], jax.Array]
    units: list[gxd.UnitLayer]
    shape: tuple[int, ...]
    outputs: int


def _dense(sizes: tuple[int, ...], activation: str) -> Network:
    def init(key: jax.Array) -> Any:
        return learners.init(key, sizes, activation)

    apply = learners.make_apply(sizes, activation)
    shapes = jax.eval_shape(init, jax.random.key(0))
    names = [*learners.hidden_names(sizes), learners.OUTPUT]
    return Network(init, apply, gxd.sequential_units(shapes, names), sizes[:1], sizes[-1])


def _convolutional(sizes: tuple[int, ...], activation: str) -> Network:
    *image, outputs = sizes

    def init(key: jax.Array) -> Any:
        return convnet.init(key, tuple(image), activation, outputs=outputs)

    apply = convnet.make_apply(activation)
    units = convnet.hidden_layers(jax.eval_shape(init, jax.random.key(0)))
    return Network(init, apply, units, tuple(image), outputs)


def _transformer(sizes: tuple[int, ...], activation: str) -> Network:
    """The block that follows attention in a transformer, on tokens; the outputs read the mean token."""
    tokens, width, hidden, outputs = sizes
    function, gain = learners.ACTIVATIONS[activation]
    shapes = {"up": ((width, hidden), gain), "down": ((hidden, width), 1.0), learners.OUTPUT: ((width, outputs), 1.0)}

    def init(key: jax.Array) -> Any:
        keys = jax.random.split(key, len(shapes))
        return {
            name: {"kernel": learners.kaiming_uniform(key, shape, gain), "bias": jnp.zeros(shape[1])}
            for key, (name, (shape, gain)) in zip(keys, shapes.items(), strict=True)
        }

    def apply(params: Any, x: jax.Array) -> jax.Array:
        h = function(learners.dense(params["up"], learners.NORMALIZATIONS["layer"](x)))
        stream = x + learners.dense(params["down"], gxd.tap("up", h))
        return learners.dense(params[learners.OUTPUT], stream.mean(1))

    units = gxd.find_units(apply, init(jax.random.key(0)), jnp.zeros((2, tokens, width)))
    return Network(init, apply, units, (tokens, width), outputs)


NETWORKS: dict[str, Callable[[tuple[int, ...], str], Network]] = {
    "dense": _dense,
    "convolutional": _convolutional,
    "transformer": _transformer,
}


def pool_of(case: Case, shape: tuple[int, ...], outputs: int) -> tuple[jax.Array, jax.Array]:
    """Returns the inputs [N, B, ...] and targets [N, B, ...] that all methods see in turn."""
    input_key, target_key = jax.random.split(jax.random.key(0))
    inputs = jax.random.normal(input_key, (_POOL, case.batch, *shape))
    targets = _numbers if outputs == 1 else _labels
    return inputs, targets(target_key, (_POOL, case.batch), outputs)


def learner_of(method: methods.Method, case: Case, setup: Setup) -> Learner:
    """Returns the learner of a network that is a function of its parameters."""
    network = NETWORKS[case.kind](case.sizes, setup.activation)
    loss = learners.squared_error if network.outputs == 1 else learners.cross_entropy
    observe = gxd.observe(network.apply, loss, network.units, readout=method.readout)
    pool = pool_of(case, network.shape, network.outputs)

    def sample(place: jax.Array) -> tuple[jax.Array, Any]:
        return place + 1, jax.tree.map(lambda values: values[place % _POOL], pool)

    def transform(key: jax.Array | int) -> optax.GradientTransformation:
        return _build(method, OPTIMIZERS[setup.optimizer](), network.units, case, setup.maturity_threshold, key)

    def start(seed: jax.Array) -> gxd.training.TrainState:
        params_key, method_key, step_key = jax.random.split(jax.random.key(seed), 3)
        return gxd.training.init(network.init(params_key), transform(method_key), step_key)

    step = gxd.training.make_train_step(observe, transform(0))  # the keys of a seed are in its state

    def learn(training: gxd.training.TrainState) -> tuple[gxd.training.TrainState, jax.Array]:
        training, _, losses = gxd.training.train_task(step, training, sample, jnp.int32(0), case.steps)
        return training, losses.mean()

    return Learner(start, learn, lambda training: training, network.units)


class Images(NamedTuple):
    """A run of ResNet-18: its training state, batch norm's statistics, and the one batch that it sees."""

    training: gxd.training.TrainState
    statistics: Any
    batch: tuple[jax.Array, jax.Array]


def resnet_learner(method: methods.Method, case: Case, setup: Setup) -> Learner:
    """Returns the learner of ResNet-18, on random images; it takes one step.

    The wiring is found, not written. Replaced units get their running statistics back.
    """
    *image, outputs = case.sizes
    network = resnet.ResNet18(outputs)
    images = jnp.zeros((2, *image))
    fresh = jax.jit(lambda key: network.init(key, images, True))(jax.random.key(0))
    inner = OPTIMIZERS[setup.optimizer]() if setup.optimizer == "adam" else optax.sgd(STEP_SIZES["sgd"], _MOMENTUM)
    optimizer = optax.chain(optax.add_decayed_weights(_WEIGHT_DECAY), inner)

    def apply(params: Any, images: jax.Array, statistics: Any) -> tuple[jax.Array, Any]:
        variables = {"params": params, "batch_stats": statistics}
        logits, changed = network.apply(variables, images, True, mutable="batch_stats")
        return logits, changed["batch_stats"]

    units = gxd.find_units(apply, fresh["params"], images, fresh["batch_stats"], outputs=lambda results: results[0])
    tx = _build(method, optimizer, units, case, setup.maturity_threshold, 0)
    observe = gxd.observe(
        lambda params, inputs: apply(params, *inputs),
        learners.cross_entropy,
        units,
        readout=method.readout,
        has_aux=True,
    )
    step = gxd.training.make_train_step(observe, tx)

    def start(seed: jax.Array) -> Images:
        image_key, label_key, step_key = jax.random.split(jax.random.key(seed), 3)
        batch = jax.random.normal(image_key, (case.batch, *image)), _labels(label_key, (case.batch,), outputs)
        return Images(gxd.training.init(fresh["params"], tx, step_key), fresh["batch_stats"], batch)

    def learn(run: Images) -> tuple[Images, jax.Array]:
        images, labels = run.batch
        training, (loss, statistics) = step(run.training, (images, run.statistics), labels)
        if method.resets:
            replaced = gxd.reset_info(training.opt_state).replaced
            statistics = gxd.reset_collection(statistics, fresh["batch_stats"], units, replaced)
        return Images(training, statistics, run.batch), loss

    return Learner(start, learn, lambda run: run.training, units)


def _build(
    method: methods.Method,
    optimizer: optax.GradientTransformation,
    units: list[gxd.UnitLayer],
    case: Case,
    maturity_threshold: int,
    key: jax.Array | int,
) -> optax.GradientTransformation:
    hyperparameters = methods.Hyperparameters(
        replacement_rate=(case.replacement_rate,), maturity_threshold=maturity_threshold
    )
    setting = next(methods.settings_of(method, hyperparameters))
    return method.build(methods.Ingredients(optimizer, units, setting, hyperparameters, key))


def _numbers(key: jax.Array, shape: tuple[int, int], outputs: int) -> jax.Array:
    return jax.random.normal(key, (*shape, outputs))


def _labels(key: jax.Array, shape: tuple[int, ...], outputs: int) -> jax.Array:
    return jax.random.randint(key, shape, 0, outputs)
