"""Online permuted MNIST ([N], Methods): every task permutes the pixels anew, and each image is seen once.

A network classifies a stream of images; after some thousands of them the pixels are permuted in another way, without a
signal. What counts is the online accuracy: whether an image is classified correctly before the network learns from it.
Tasks are made from the seed inside the compiled program; the images lie on the device once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import gxd_jax as gxd
from benchmarks import classification, learners, methods
from benchmarks.classification import ImageOptions, Network
from benchmarks.experiment import Experiment, Run, config_of, devices_for, fill_in, seed_numbers

if TYPE_CHECKING:
    from jaxtyping import Array, Int, PRNGKeyArray, UInt8, UInt32

NAME = "permuted-mnist"

_DEFAULT_METHODS = (
    "backprop",
    "l2",
    "shrink_and_perturb",
    "l2_init",
    "layer_norm",
    "cbp_contribution",
    "cbp_adaptable_contribution",
    "cbp_adaptation",
    "cbp_random",
    "gxd",
    "gxd_adaptation",
)


@dataclasses.dataclass(frozen=True)
class Settings(ImageOptions):
    """Online permuted MNIST: accuracy on images seen once, their pixels permuted anew in every task."""

    method: tuple[Literal[classification.METHODS], ...] = _DEFAULT_METHODS  # type: ignore[valid-type]
    """Methods to compare."""
    width: int | None = None
    """Units of a hidden layer."""
    layers: int = 3
    """Hidden layers."""
    examples: int | None = None
    """Images of a task, a multiple of the batch; by default at most all there are."""


SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        "seeds": 2,
        "activation": ("relu",),
        "optimizer": ("adam",),
        "step_size": (0.002,),
        "width": 32,
        "batch": 16,
        "tasks": 4,
        "tasks_per_chunk": 2,
        "probe": 200,
        "l2": (1e-3,),
        "perturb_l2": (1e-4,),
        "noise_std": (1e-3,),
        "replacement_rate": (1e-3,),
    },
    "default": {
        "seeds": 10,
        "activation": ("relu", "tanh"),
        "optimizer": ("adam",),
        "step_size": (0.002,),
        "width": 64,
        "batch": 16,
        "tasks": 35,
        "tasks_per_chunk": 7,
        "probe": 500,
        "l2": (1e-3,),
        "perturb_l2": (1e-4,),
        "noise_std": (1e-3,),
        "replacement_rate": (1e-3,),
    },
    "paper": {
        "seeds": 30,
        "activation": ("relu",),
        "optimizer": ("sgd",),
        "step_size": (0.003,),
        "width": 2000,
        "batch": 1,
        "tasks": 800,
        "tasks_per_chunk": 1,
        "probe": 2000,
        "l2": (1e-3, 1e-4, 1e-5),
        "perturb_l2": (1e-4,),
        "noise_std": (1e-4, 1e-5, 1e-6),
        "replacement_rate": (1e-4, 1e-5, 1e-6),
    },
}
_EXAMPLES = {"smoke": 800, "default": 4000, "paper": 60_000}
"""Images of a task, where there are so many."""


def make_experiment(settings: Settings) -> Experiment:
    """Returns the experiment that the settings describe.

    Raises:
        ValueError: If the settings do not fit together.
        RefusedError: If the images cannot be had.
    """
    settings = fill_in(settings, SCALES)
    classification.check_tasks(settings)
    images, about = classification.load(settings)
    there = len(images.labels)
    if settings.examples is None:
        examples = min(_EXAMPLES[settings.scale], there) // settings.batch * settings.batch
        settings = dataclasses.replace(settings, examples=examples)
    if not 0 < settings.examples <= there or settings.examples % settings.batch:
        raise ValueError(
            f"examples must be a multiple of the batch of {settings.batch} and at most the {there} images, "
            f"got {settings.examples}"
        )
    if settings.probe > settings.examples:
        raise ValueError(f"probe must be at most the {settings.examples} images of a task, got {settings.probe}")
    return Experiment(
        problem=NAME,
        config=config_of(NAME, settings) | about,
        runs=list(_runs(settings, images.images[0].size, images.classes)),
        seeds=seed_numbers(settings),
        group=settings.group,
        axis="task",
        ends=np.arange(1, settings.tasks + 1),
        measure="accuracy",
        totals=("replaced",),
        panels=("activation", "optimizer", "step_size"),
        devices=devices_for(settings.seeds, settings.devices),
        higher_is_better=True,
        diagnostics=classification.DIAGNOSTICS,
        points=settings.tasks_per_chunk,
        data=(images.images.reshape(there, -1), images.labels),
    )


class Carry(NamedTuple):
    """What one seed's run carries from task to task.

    Attributes:
        key: Raw key of the stream, from which every task's permutation and order are derived.
        task: Number of the next task.
        learner: Parameters and state of the method, its keys among it.
    """

    key: UInt32[Array, " words"]
    task: Int[Array, ""]
    learner: gxd.training.TrainState


class Task(NamedTuple):
    """A task: where each input of the network comes from, and which images it sees, in this order.

    Attributes:
        permutation: Numbers of pixels [D].
        order: Numbers of images [E].
        dropout_key: Key of what is left out while it is learned.
    """

    permutation: Int[Array, " D"]
    order: Int[Array, " E"]
    dropout_key: PRNGKeyArray


def draw_task(key: UInt32[Array, " words"], number: Int[Array, ""], pixels: int, images: int, examples: int) -> Task:
    """Draws a task of some of the images, each at most once, from the stream's key."""
    task_key = jax.random.fold_in(jax.random.wrap_key_data(key), number)
    permutation_key, order_key, dropout_key = jax.random.split(task_key, 3)
    # A part is found several times faster than the whole is sorted.
    if examples < images:
        order = jax.lax.top_k(jax.random.uniform(order_key, (images,)), examples)[1]
    else:
        order = jax.random.permutation(order_key, images)
    return Task(jax.random.permutation(permutation_key, pixels), order, dropout_key)


def _runs(settings: Settings, pixels: int, classes: int) -> Iterator[Run]:
    for condition in classification.conditions(settings):
        for name in settings.method:
            method = methods.METHODS[name]
            for setting in methods.settings_of(method, settings):
                labels = {"method": name} | condition | {"setting": methods.shown(setting)}
                yield make_run(settings, labels, method, setting, pixels, classes)


def make_run(
    settings: Settings,
    labels: dict[str, Any],
    method: methods.Method,
    setting: methods.Setting,
    pixels: int,
    classes: int,
) -> Run:
    """Returns the run of one method.

    Args:
        settings: Settings with every value filled in.
        labels: The run's labels, with its activation, optimizer and step size.
        method: The method.
        setting: Values of the method's own hyper-parameters.
        pixels: Inputs of the network D.
        classes: Outputs of the network.
    """
    sizes = (pixels, *[settings.width] * settings.layers, classes)
    condition = {name: labels[name] for name in ("activation", "optimizer", "step_size")}
    apply = learners.make_apply(
        sizes, labels["activation"], normalization=method.normalization, dropout=setting.get("dropout", 0.0)
    )
    init = functools.partial(
        learners.init, sizes=sizes, activation=labels["activation"], normalization=method.normalization
    )
    # The wiring is found, not written: with a norm it has more parameters.
    units = gxd.find_units(lambda params, x: apply(params, x), init(jax.random.key(0)), jnp.zeros((2, pixels)))
    network = Network(init, apply, units)
    learner = classification.make_learner(network, method, setting, settings, **condition)

    def start(seed: Int[Array, ""], data: tuple[UInt8[Array, "N D"], Int[Array, " N"]]) -> Carry:
        del data
        stream_key, learner_key = jax.random.split(jax.random.key(seed))
        return Carry(jax.random.key_data(stream_key), jnp.int32(0), learner.start(learner_key))

    def learn_task(carry: Carry, data: tuple[UInt8[Array, "N D"], Int[Array, " N"]]) -> tuple[Carry, dict[str, Array]]:
        images, labels = data
        task = draw_task(carry.key, carry.task, pixels, len(images), settings.examples)

        def inputs_of(numbers: Int[Array, " B"]) -> Array:
            return classification.as_inputs(images[numbers[:, None], task.permutation])

        def next_batch(place: Int[Array, ""]) -> tuple[Int[Array, ""], tuple[Any, Array]]:
            numbers = jax.lax.dynamic_slice_in_dim(task.order, place * settings.batch, settings.batch)
            inputs = inputs_of(numbers), jax.random.fold_in(task.dropout_key, place)
            return place + 1, (inputs, labels[numbers])

        def step(state: gxd.training.TrainState, inputs: Any, labels: Array) -> tuple[Any, Array]:
            params = state.params
            state, (_, logits) = learner.step(state, inputs, labels)
            if "dropout" in setting:  # the accuracy is that of the whole network
                logits = learner.logits(params, inputs[0])
            return state, classification.accuracy(logits, labels)

        state = learner.reset_head(carry.learner) if method.resets_head else carry.learner
        found = learner.diagnose(state, inputs_of(task.order[: settings.probe]))
        before, steps = learner.replaced(state), settings.examples // settings.batch
        state, _, accuracies = gxd.training.train_task(step, state, next_batch, jnp.int32(0), steps)
        measures = {"accuracy": accuracies.mean(), "replaced": learner.replaced(state) - before} | found
        return Carry(carry.key, carry.task + 1, state), measures

    def chunk(carry: Carry, data: Any) -> tuple[Carry, dict[str, Array]]:
        return jax.lax.scan(lambda carry, _: learn_task(carry, data), carry, length=settings.tasks_per_chunk)

    return Run(labels, start, chunk)
