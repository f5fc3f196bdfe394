"""What the experiments on images share: options, what is looked at before a task, runs task by task."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import gxd_jax as gxd
from benchmarks import datasets, methods
from benchmarks.experiment import Experiment, Options, Run, TaskCarry, View, config_of, devices_for, seed_numbers
from benchmarks.learner import Learner, accuracy, cross_entropy, make_learner
from benchmarks.networks.layers import ACTIVATIONS, OUTPUT, Network

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

DIAGNOSTICS = ("dead", "saturated", "effective_rank", "stable_rank", "weight_magnitude", "mean_utility")
METHODS = tuple(name for name, method in methods.METHODS.items() if method.hidden)

_CONDITIONS = ("activation", "optimizer", "step_size")
Labels = dict[str, Any]
"""The labels of a run: its method, one value for each of the conditions, and its setting."""

_MOMENTUM = 0.9
_OPTIMIZERS = methods.OPTIMIZERS | {"momentum": lambda step_size: optax.sgd(step_size, momentum=_MOMENTUM)}
_BOUNDS = {"tanh": (-1.0, 1.0), "sigmoid": (0.0, 1.0)}
"""Bounds of the activations that have two; units near one of them on every example are saturated."""

VIEW = View(
    axis="task",
    measure="accuracy",
    panels=_CONDITIONS,
    higher_is_better=True,
    diagnostics=DIAGNOSTICS,
)


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

    activation: tuple[Literal[tuple(ACTIVATIONS)], ...] | None = None  # type: ignore[valid-type]
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


# --- The learner ---------------------------------------------------------------------------------------------------


def make_image_learner(
    network: Network, method: methods.Method, setting: methods.Setting, settings: ImageOptions, labels: Labels
) -> Learner:
    """Returns what a method's row stands for; its inputs are (images, dropout key), its step returns (loss, logits).

    Args:
        network: The network.
        method: The method.
        setting: Values of the method's own hyper-parameters.
        settings: Settings with every value filled in.
        labels: Optimizer and step size, among others.
    """

    def with_logits(params: Any, inputs: tuple[jax.Array, Any]) -> tuple[jax.Array, jax.Array]:
        logits = network.apply(params, *inputs)
        return logits, logits

    return make_learner(
        network._replace(apply=with_logits),
        cross_entropy,
        method,
        setting,
        settings,
        _OPTIMIZERS[labels["optimizer"]](labels["step_size"]),
        has_aux=True,
    )


def make_online_step(network: Network, learner: Learner, setting: methods.Setting) -> gxd.training.Step:
    """Returns the learner's step with the accuracy of the predictions made before the network learns from the batch."""

    def step(state: gxd.training.TrainState, inputs: tuple[jax.Array, Any], labels: jax.Array) -> tuple[Any, jax.Array]:
        params = state.params
        state, (_, logits) = learner.step(state, inputs, labels)
        if "dropout" in setting:  # the accuracy is that of the whole network
            logits = logits_of(network, params, inputs[0])
        return state, accuracy(logits, labels)

    return step


def reset_head(learner: Learner, state: gxd.training.TrainState, *, moments: bool = True) -> gxd.training.TrainState:
    """Returns the training state with an output layer of zeros.

    Args:
        learner: The learner.
        state: Its training state.
        moments: Whether the optimizer's moments of the output layer are reset too.
    """
    fresh = state.params | {OUTPUT: jax.tree.map(jnp.zeros_like, state.params[OUTPUT])}
    if not moments:
        return state._replace(params=fresh)
    params, opt_state = gxd.methods.full_reset(state.params, state.opt_state, fresh, learner.tx, paths=[(OUTPUT,)])
    return state._replace(params=params, opt_state=opt_state)


def diagnose(
    network: Network, method: methods.Method, activation: str, state: gxd.training.TrainState, x: Float[Array, "B ..."]
) -> dict[str, Float[Array, ""]]:
    """Returns the `DIAGNOSTICS` of a network on some inputs.

    Args:
        network: The network.
        method: The method.
        activation: The network's activation.
        state: Training state.
        x: The inputs.
    """
    units, metrics = network.units, gxd.metrics
    _, features = gxd.capture(functools.partial(logits_of, network), state.params, units, x)
    total = sum(layer.size for layer in units)
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


def logits_of(network: Network, params: Any, x: jax.Array) -> jax.Array:
    """Returns a network's logits without dropout."""
    return network.apply(params, x, None)


# --- Runs, task by task --------------------------------------------------------------------------------------------


LearnTask = Callable[[TaskCarry, Any], tuple[gxd.training.TrainState, dict[str, jax.Array]]]
"""A function (carry, images) -> (training state after the carry's next task, measures of the task)."""


def make_run(settings: ImageOptions, labels: Labels, learner: Learner, learn_task: LearnTask) -> Run:
    """Returns the run of a learner that learns one task after the other, `tasks_per_chunk` in a chunk."""

    def start(seed: Int[Array, ""], data: Any) -> TaskCarry:
        del data
        stream_key, learner_key = jax.random.split(jax.random.key(seed))
        state = learner.start(*jax.random.split(learner_key, 3))
        return TaskCarry(jax.random.key_data(stream_key), jnp.int32(0), state)

    def chunk(carry: TaskCarry, data: Any) -> tuple[TaskCarry, dict[str, Array]]:
        def next_task(carry: TaskCarry, _: None) -> tuple[TaskCarry, dict[str, Array]]:
            state, measures = learn_task(carry, data)
            replaced = learner.replaced(state) - learner.replaced(carry.training)
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
        view=VIEW,
        seeds=seed_numbers(settings),
        group=settings.group,
        ends=np.arange(1, settings.tasks + 1),
        devices=devices_for(settings.seeds, settings.devices),
        points=settings.tasks_per_chunk,
        data=data,
    )
