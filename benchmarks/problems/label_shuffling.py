"""Label shuffling (Zhang et al. 2017, Lyle et al. 2023, Kumar et al. 2023): the same images, new labels in every task.

A network memorises random labels of a fixed set of images, for some epochs; then all labels are drawn anew. There is
nothing to transfer from task to task, so that only plasticity counts: the accuracy of the predictions made before the
network learns from a batch, over the whole task (average online task accuracy).

References:
    Zhang et al., "Understanding deep learning requires rethinking generalization", ICLR 2017; Lyle et al.,
    "Understanding plasticity in neural networks", ICML 2023; Kumar et al., "Maintaining plasticity in continual
    learning via regenerative regularization", arXiv 2308.11958.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

import gxd_jax as gxd
from benchmarks import methods
from benchmarks.experiment import Experiment, Run, TaskCarry
from benchmarks.learner import accuracy
from benchmarks.networks import mlp
from benchmarks.networks.layers import scale_bytes
from benchmarks.problem import Problem
from benchmarks.problems import classification
from benchmarks.problems.classification import ImageOptions
from benchmarks.showing.markdown import Column, CurvesTable, first_and_last

if TYPE_CHECKING:
    from jaxtyping import Array, Int, PRNGKeyArray, UInt8, UInt32

_NAME = "label-shuffling"

_DEFAULT_METHODS = (
    "backprop",
    "l2",
    "shrink_and_perturb",
    "l2_init",
    "layer_norm",
    "cbp_contribution",
    "cbp_adaptation",
    "cbp_random",
    "gxd",
    "gxd_adaptation",
)


@dataclasses.dataclass(frozen=True)
class Settings(ImageOptions):
    """Label shuffling: how well random labels of the same images are memorised, task after task."""

    method: tuple[Literal[classification.METHODS], ...] = _DEFAULT_METHODS  # type: ignore[valid-type]
    """Methods to compare."""
    width: int | None = None
    """Units of a hidden layer."""
    layers: int = 3
    """Hidden layers."""
    examples: int | None = None
    """Images, a multiple of the batch, drawn from the seed."""
    epochs: int | None = None
    """Passes over the images in a task."""


_ONE_SETTING = {"l2": (1e-3,), "perturb_l2": (1e-4,), "noise_std": (1e-3,), "replacement_rate": (1e-3,)}
_SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        "seeds": 2,
        "activation": ("relu",),
        "optimizer": ("adam",),
        "step_size": (0.002,),
        "width": 32,
        "batch": 16,
        "examples": 160,
        "epochs": 10,
        "tasks": 4,
        "tasks_per_chunk": 2,
        "probe": 160,
        **_ONE_SETTING,
    },
    "default": {
        "seeds": 10,
        "activation": ("relu", "tanh"),
        "optimizer": ("adam",),
        "step_size": (0.002,),
        "width": 64,
        "batch": 16,
        "examples": 480,
        "epochs": 20,
        "tasks": 20,
        "tasks_per_chunk": 4,
        "probe": 480,
        **_ONE_SETTING,
    },
    "paper": {  # Kumar et al.
        "seeds": 10,
        "activation": ("relu",),
        "optimizer": ("adam", "sgd"),
        "step_size": (1e-2, 1e-3),
        "width": 100,
        "batch": 16,
        "examples": 1200,
        "epochs": 400,
        "tasks": 50,
        "tasks_per_chunk": 1,
        "probe": 1200,
        "l2": (1e-2, 1e-3, 1e-4, 1e-5),
        "perturb_l2": (1e-4,),
        "noise_std": (1e-3, 1e-4),
        "replacement_rate": (1e-3, 1e-4, 1e-5),
    },
}


def make_experiment(settings: Settings) -> Experiment:
    """Returns the experiment that the settings, with every value filled in, describe.

    Raises:
        ValueError: If the settings do not fit together.
        RefusedError: If the images cannot be had.
    """
    classification.check_tasks(settings)
    images = classification.load(settings)
    there = len(images.labels)
    if not 0 < settings.examples <= there or settings.examples % settings.batch:
        raise ValueError(
            f"examples must be a multiple of the batch of {settings.batch} and at most the {there} images, "
            f"got {settings.examples}"
        )
    if settings.probe > settings.examples:
        raise ValueError(f"probe must be at most the {settings.examples} images, got {settings.probe}")
    run_of = functools.partial(make_run, settings, pixels=images.images[0].size, classes=images.classes)
    return classification.make_experiment(_NAME, settings, images, images.images.reshape(there, -1), run_of)


class Task(NamedTuple):
    """A task.

    Attributes:
        labels: A label for each of the images [N].
        order: Indices of images, epoch after epoch [epochs N].
        dropout_key: Key of what is left out while it is learned.
    """

    labels: Int[Array, " N"]
    order: Int[Array, " steps"]
    dropout_key: PRNGKeyArray


def draw_images(key: UInt32[Array, " words"], there: int, examples: int) -> Int[Array, " N"]:
    """Draws which of the images there are a run's, the same in all of its tasks, from the stream's key."""
    return jax.random.permutation(jax.random.wrap_key_data(key), there)[:examples]


def draw_task(key: UInt32[Array, " words"], number: Int[Array, ""], classes: int, examples: int, epochs: int) -> Task:
    """Draws a task from the stream's key.

    Args:
        key: The stream's key.
        number: Number of the task.
        classes: Classes, which are drawn uniformly.
        examples: Images N.
        epochs: Passes over the images.
    """
    task_key = jax.random.fold_in(jax.random.wrap_key_data(key), number)
    label_key, order_key, dropout_key = jax.random.split(task_key, 3)
    order = jax.vmap(lambda key: jax.random.permutation(key, examples))(jax.random.split(order_key, epochs))
    return Task(jax.random.randint(label_key, (examples,), 0, classes), order.reshape(-1), dropout_key)


def make_run(
    settings: Settings,
    labels: classification.Labels,
    method: methods.Method,
    setting: methods.Setting,
    *,
    pixels: int,
    classes: int,
) -> Run:
    """Returns the run of one method.

    Args:
        settings: Settings with every value filled in.
        labels: The run's labels, with its activation, optimizer and step size.
        method: The method.
        setting: Values of the method's own hyper-parameters.
        pixels: Inputs of the network.
        classes: Outputs of the network.
    """
    sizes = (pixels, *[settings.width] * settings.layers, classes)
    activation = labels["activation"]
    network = mlp.make(sizes, activation, normalization=method.normalization, dropout=setting.get("dropout", 0.0))
    learner = classification.make_image_learner(network, method, setting, settings, labels)
    step = classification.make_online_step(network, learner, setting)

    def learn_task(
        carry: TaskCarry, images: UInt8[Array, "there D"]
    ) -> tuple[gxd.training.TrainState, dict[str, Array]]:
        inputs = scale_bytes(images[draw_images(carry.key, len(images), settings.examples)])
        task = draw_task(carry.key, carry.task, classes, settings.examples, settings.epochs)

        def next_batch(place: Int[Array, ""]) -> tuple[Int[Array, ""], tuple[Any, Array]]:
            indices = jax.lax.dynamic_slice_in_dim(task.order, place * settings.batch, settings.batch)
            return place + 1, ((inputs[indices], jax.random.fold_in(task.dropout_key, place)), task.labels[indices])

        state = classification.reset_head(learner, carry.training) if method.resets_head else carry.training
        found = classification.diagnose(network, method, activation, state, inputs[: settings.probe])
        steps = len(task.order) // settings.batch
        state, _, accuracies = gxd.training.train_task(step, state, next_batch, jnp.int32(0), steps)
        memorised = accuracy(classification.logits_of(network, state.params, inputs), task.labels)
        return state, {"accuracy": accuracies.mean(), "memorised": memorised} | found

    return classification.make_run(settings, labels, learner, learn_task)


PROBLEM = Problem(
    _NAME,
    Settings,
    _SCALES,
    make_experiment,
    classification.VIEW._replace(diagnostics=("memorised", *classification.DIAGNOSTICS)),
    {
        "main": CurvesTable(
            (
                *first_and_last("tenth"),
                Column("dead_end", "dead", ".2f", error=False),
                Column("effective_rank_end", "rank", ".1f", error=False),
            )
        )
    },
)
