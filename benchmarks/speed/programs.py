"""The compiled programs that are timed: a method on a network, all seeds at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import gxd_jax as gxd
from benchmarks import methods
from benchmarks.learner import Learner, cross_entropy, make_learner, squared_error
from benchmarks.networks import resnet
from benchmarks.networks.layers import Network
from benchmarks.speed.cases import KINDS, OPTIMIZERS, POOL, STEP_SIZES, Case, draw_labels, pool_of

# Of ResNet-18, as in [N].
_MOMENTUM = 0.9
_WEIGHT_DECAY = 5e-4


class Setup(NamedTuple):
    """How a program is built.

    Attributes:
        optimizer: A name of `OPTIMIZERS`.
        activation: A name of `networks.layers.ACTIVATIONS`; ResNet-18 has its own.
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


class Timed(NamedTuple):
    """What is timed: functions of one seed, and its units.

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
    make = timed_resnet if case.kind == "resnet-18" else timed_network
    timed = make(methods.METHODS[name], case, setup)
    several = case.seeds > 1
    state = jax.jit(jax.vmap(timed.start))(jnp.arange(case.seeds)) if several else jax.jit(timed.start)(0)
    begin = time.perf_counter()
    learn = jax.vmap(timed.learn) if several else timed.learn
    compiled = jax.jit(learn, donate_argnums=0).lower(state).compile()
    seconds = time.perf_counter() - begin
    memory = compiled.memory_analysis()
    training = timed.training(state)
    return Program(
        run=compiled,
        state=state,
        compile_seconds=seconds,
        peak_bytes=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes,
        units=case.seeds * sum(layer.size for layer in timed.units),
        parameters=sum(leaf.size for leaf in jax.tree.leaves(training.params)),
        state_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(training.opt_state)),
    )


def timed_network(method: methods.Method, case: Case, setup: Setup) -> Timed:
    """Returns what is timed of a network that is a function of its parameters."""
    network = KINDS[case.kind].make(case.sizes, setup.activation)
    loss = squared_error if case.sizes[-1] == 1 else cross_entropy
    learner = _learner(network, loss, method, case, setup, OPTIMIZERS[setup.optimizer]())
    pool = pool_of(case)

    def start(seed: jax.Array) -> gxd.training.TrainState:
        return learner.start(*jax.random.split(jax.random.key(seed), 3))

    def sample(place: jax.Array) -> tuple[jax.Array, Any]:
        return place + 1, jax.tree.map(lambda values: values[place % POOL], pool)

    def learn(training: gxd.training.TrainState) -> tuple[gxd.training.TrainState, jax.Array]:
        training, _, losses = gxd.training.train_task(learner.step, training, sample, jnp.int32(0), case.steps)
        return training, losses.mean()

    return Timed(start, learn, lambda training: training, network.units)


class Images(NamedTuple):
    """A run of ResNet-18: its training state, batch norm's statistics, and the one batch that it sees."""

    training: gxd.training.TrainState
    statistics: Any
    batch: tuple[jax.Array, jax.Array]


def timed_resnet(method: methods.Method, case: Case, setup: Setup) -> Timed:
    """Returns what is timed of ResNet-18, on random images: one step.

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
    network_of_both = Network(lambda key: fresh["params"], lambda params, inputs: apply(params, *inputs), units)
    learner = _learner(network_of_both, cross_entropy, method, case, setup, optimizer, has_aux=True)

    def start(seed: jax.Array) -> Images:
        image_key, label_key, step_key = jax.random.split(jax.random.key(seed), 3)
        batch = jax.random.normal(image_key, (case.batch, *image)), draw_labels(label_key, (case.batch,), outputs)
        return Images(learner.start(None, 0, step_key), fresh["batch_stats"], batch)

    def learn(run: Images) -> tuple[Images, jax.Array]:
        images, labels = run.batch
        training, (loss, statistics) = learner.step(run.training, (images, run.statistics), labels)
        if method.resets:
            replaced = gxd.reset_info(training.opt_state).replaced
            statistics = gxd.reset_collection(statistics, fresh["batch_stats"], units, replaced)
        return Images(training, statistics, run.batch), loss

    return Timed(start, learn, lambda run: run.training, units)


def _learner(
    network: Network,
    loss: Callable,
    method: methods.Method,
    case: Case,
    setup: Setup,
    optimizer: optax.GradientTransformation,
    *,
    has_aux: bool = False,
) -> Learner:
    hyperparameters = methods.Hyperparameters(
        replacement_rate=(case.replacement_rate,), maturity_threshold=setup.maturity_threshold
    )
    setting = next(methods.settings_of(method, hyperparameters))
    return make_learner(network, loss, method, setting, hyperparameters, optimizer, has_aux=has_aux)
