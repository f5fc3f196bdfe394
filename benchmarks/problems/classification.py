"""What the experiments on images share: options, the learner that a method's row stands for, runs task by task."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import gxd_jax as gxd
from benchmarks import datasets, learners, methods
from benchmarks.experiment import Experiment, Options, Run, TaskCarry, config_of, devices_for, seed_numbers

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

DIAGNOSTICS = ("dead", "saturated", "effective_rank", "stable_rank", "weight_magnitude", "mean_utility")
METHODS = tuple(name for name, method in methods.METHODS.items() if method.hidden)

_CONDITIONS = ("activation", "optimizer", "step_size")
Labels = dict[str, Any]
"""The labels of a run: its method, one value for each of the conditions, and its setting."""

_MOMENTUM = 0.9
_OPTIMIZERS = methods.OPTIMIZERS | {"momentum": lambda step_size: optax.sgd(step_size, momentum=_MOMENTUM)}
_BOUNDS = {"tanh": (-1.0, 1.0), "sigmoid": (0.0, 1.0)}
"""Bounds of the activations that have two; units near one of them on every example are saturated."""
_BRIGHTEST = 255


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """Which images."""

    tfds: str | None = None
    """Image-classification set of tensorflow-datasets, name[/config][:version]; by default scikit-learn's digits."""
    data_dir: Path | None = None
    """Folder of the sets of tensorflow-datasets; by default its own choice."""


@dataclasses.dataclass(frozen=True)
class ImageOptions(DataOptions, methods.Hyperparameters, Options):
    """Options of every experiment on images."""

    activation: tuple[Literal[tuple(learners.ACTIVATIONS)], ...] | None = None  # type: ignore[valid-type]
    """Activations of the network."""
    optimizer: tuple[Literal[tuple(_OPTIMIZERS)], ...] | None = None  # type: ignore[valid-type]
    """Optimizers underneath the methods; momentum is SGD with momentum 0.9."""
    step_size: tuple[float, ...] | None = None
    """Step sizes of the optimizers."""
    batch: int | None = None
    """Examples of a step."""
    tasks: int | None = None
    """Tasks of a run."""
    tasks_per_chunk: int | None = None
    """Tasks that are computed between two checkpoints, a divisor of the tasks."""
    probe: int | None = None
    """Examples of a new task on which the network is looked at before it learns the task."""
    group: int | None = None
    """Seeds that a device computes together; by default all."""


def load(settings: DataOptions) -> datasets.Images:
    """Reads the images that the settings name."""
    return datasets.load(settings.tfds, settings.data_dir, Console())


def check_tasks(settings: ImageOptions) -> None:
    """Checks what the settings say about tasks.

    Raises:
        ValueError: If they do not fit together.
    """
    if settings.tasks % settings.tasks_per_chunk:
        raise ValueError(
            f"tasks must be a multiple of tasks_per_chunk, got {settings.tasks} and {settings.tasks_per_chunk}"
        )
    for name in settings.method:
        if methods.METHODS[name].normalization == "batch" and settings.batch < 2:
            raise ValueError(f"{name} needs a batch of 2 or more, got {settings.batch}")


def as_inputs(images: UInt8[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Scales bytes to [0, 1]."""
    return images.astype(jnp.float32) / _BRIGHTEST


class Network(NamedTuple):
    """A network.

    Attributes:
        init: Key -> initial parameters.
        apply: (parameters, inputs, dropout key or None) -> logits.
        units: Its hidden layers, in order.
    """

    init: Callable[[PRNGKeyArray], dict[str, Any]]
    apply: Callable[..., jax.Array]
    units: Sequence[gxd.UnitLayer]


class Learner(NamedTuple):
    """A method on a network.

    Attributes:
        start: Key -> training state.
        step: (training state, (inputs, dropout key), labels) -> (training state, (loss, logits)).
        logits: (parameters, inputs) -> logits, without dropout.
        diagnose: (training state, inputs) -> the `DIAGNOSTICS`.
        reset_head: Training state -> training state with an output layer of zeros; by default with fresh moments.
        replaced: Training state -> units replaced since the start.
    """

    start: Callable[[PRNGKeyArray], gxd.training.TrainState]
    step: Callable[..., Any]
    logits: Callable[[Any, jax.Array], jax.Array]
    diagnose: Callable[[gxd.training.TrainState, jax.Array], dict[str, jax.Array]]
    reset_head: Callable[..., gxd.training.TrainState]
    replaced: Callable[[gxd.training.TrainState], jax.Array]


def make_learner(
    network: Network,
    method: methods.Method,
    setting: methods.Setting,
    settings: ImageOptions,
    labels: Labels,
) -> Learner:
    """Returns what a method's row stands for on a network.

    Args:
        network: The network.
        method: The method.
        setting: Values of the method's own hyper-parameters.
        settings: Settings with every value filled in.
        labels: Activation of the network, optimizer and step size, among others.
    """
    units, activation = network.units, labels["activation"]
    base = _OPTIMIZERS[labels["optimizer"]](labels["step_size"])

    def transform(key: PRNGKeyArray | int) -> optax.GradientTransformation:
        return method.build(methods.Ingredients(base, units, setting, settings, key))

    def with_logits(params: Any, inputs: tuple[jax.Array, Any]) -> tuple[jax.Array, jax.Array]:
        logits = network.apply(params, *inputs)
        return logits, logits

    tx = transform(0)  # the keys of a seed are in its state
    observe = gxd.observe(with_logits, learners.cross_entropy, units, readout=method.readout, has_aux=True)

    def start(key: PRNGKeyArray) -> gxd.training.TrainState:
        params_key, method_key, step_key = jax.random.split(key, 3)
        return gxd.training.init(network.init(params_key), transform(method_key), step_key)

    def logits(params: Any, x: jax.Array) -> jax.Array:
        return network.apply(params, x, None)

    def reset_head(state: gxd.training.TrainState, *, moments: bool = True) -> gxd.training.TrainState:
        fresh = state.params | {learners.OUTPUT: jax.tree.map(jnp.zeros_like, state.params[learners.OUTPUT])}
        if not moments:
            return state._replace(params=fresh)
        paths = [(learners.OUTPUT,)]
        params, opt_state = gxd.methods.full_reset(state.params, state.opt_state, fresh, tx, paths=paths)
        return state._replace(params=params, opt_state=opt_state)

    def diagnose(state: gxd.training.TrainState, x: jax.Array) -> dict[str, jax.Array]:
        _, features = gxd.capture(logits, state.params, units, x)
        metrics, total = gxd.metrics, sum(layer.size for layer in units)
        dead = sum(metrics.dead_units(features[layer.name]).sum() for layer in units)
        saturated, last = jnp.int32(0), features[units[-1].name]
        if activation in _BOUNDS:
            lower, upper = _BOUNDS[activation]
            saturated = sum(
                metrics.saturated_units(features[layer.name], lower=lower, upper=upper).sum() for layer in units
            )
        utility = jnp.float32(jnp.nan)
        if method.resets:
            utility = jnp.concatenate(list(gxd.reset_info(state.opt_state).utilities.values())).mean()
            utility = jnp.where(jnp.isfinite(utility), utility, jnp.nan)  # 1 / 0 of a unit without weights
        return {
            "dead": dead / total,
            "saturated": saturated / total,
            "effective_rank": metrics.effective_rank(last),
            "stable_rank": metrics.stable_rank(last),
            "weight_magnitude": metrics.mean_weight_magnitude(state.params),
            "mean_utility": utility,
        }

    def replaced(state: gxd.training.TrainState) -> Int[Array, ""]:
        return method.total_replaced(state.opt_state)

    return Learner(start, gxd.training.make_train_step(observe, tx), logits, diagnose, reset_head, replaced)


def accuracy(logits: Float[Array, "B K"], labels: Int[Array, " B"]) -> Float[Array, ""]:
    """Share of the examples whose largest logit is that of their class."""
    return (logits.argmax(-1) == labels).mean()


# --- Runs, task by task --------------------------------------------------------------------------------------------


LearnTask = Callable[[TaskCarry, Any], tuple[gxd.training.TrainState, dict[str, jax.Array]]]
"""A function (carry, images) -> (training state after the carry's next task, measures of the task)."""


def make_run(settings: ImageOptions, labels: Labels, learner: Learner, learn_task: LearnTask) -> Run:
    """Returns the run of a learner that learns one task after the other, `tasks_per_chunk` in a chunk."""

    def start(seed: Int[Array, ""], data: Any) -> TaskCarry:
        del data
        stream_key, learner_key = jax.random.split(jax.random.key(seed))
        return TaskCarry(jax.random.key_data(stream_key), jnp.int32(0), learner.start(learner_key))

    def chunk(carry: TaskCarry, data: Any) -> tuple[TaskCarry, dict[str, Array]]:
        def next_task(carry: TaskCarry, _: None) -> tuple[TaskCarry, dict[str, Array]]:
            state, measures = learn_task(carry, data)
            replaced = learner.replaced(state) - learner.replaced(carry.learner)
            return TaskCarry(carry.key, carry.task + 1, state), measures | {"replaced": replaced}

        return jax.lax.scan(next_task, carry, length=settings.tasks_per_chunk)

    return Run(labels, start, chunk)


def make_experiment(
    problem: str,
    settings: ImageOptions,
    images: datasets.Images,
    data: Any,
    run_of: Callable[[Labels, methods.Method, methods.Setting], Run],
) -> Experiment:
    """Returns the experiment of every method under every combination of activation, optimizer and step size.

    Args:
        problem: Name of the problem.
        settings: Settings with every value filled in.
        images: The images, for the configuration.
        data: The images as the runs read them.
        run_of: (labels, method, setting) -> run.
    """
    runs = []
    for condition in itertools.product(settings.activation, settings.optimizer, settings.step_size):
        for name in settings.method:
            method = methods.METHODS[name]
            for setting in methods.settings_of(method, settings):
                labels = {"method": name, **dict(zip(_CONDITIONS, condition, strict=True))}
                runs.append(run_of(labels | {"setting": methods.shown(setting)}, method, setting))
    return Experiment(
        problem=problem,
        config=config_of(problem, settings) | {"data": {"name": images.name, "digest": images.digest}},
        runs=runs,
        seeds=seed_numbers(settings),
        group=settings.group,
        axis="task",
        ends=np.arange(1, settings.tasks + 1),
        measure="accuracy",
        totals=("replaced",),
        panels=_CONDITIONS,
        devices=devices_for(settings.seeds, settings.devices),
        higher_is_better=True,
        diagnostics=DIAGNOSTICS,
        points=settings.tasks_per_chunk,
        data=data,
    )
