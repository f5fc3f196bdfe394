"""Online permuted MNIST ([N], Methods): every task permutes the pixels in another way, and each image is seen once.

A network classifies a stream of images; after some thousands of them the pixels are permuted in another way, without a
signal. What counts is the online accuracy: whether an image is classified correctly before the network learns from it.
Tasks are made from the seed inside the compiled program; the images lie on the device once.
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
from benchmarks.networks import mlp
from benchmarks.networks.layers import NORMALIZATIONS, scale_bytes
from benchmarks.problem import Problem
from benchmarks.problems import classification
from benchmarks.problems.classification import ImageOptions
from benchmarks.showing.markdown import Column, CurvesTable, first_and_last

if TYPE_CHECKING:
    from jaxtyping import Array, Int, PRNGKeyArray, UInt8, UInt32

_NAME = "permuted-mnist"

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
    """Online permuted MNIST: accuracy on images seen once, their pixels permuted in another way in every task."""

    method: tuple[Literal[classification.METHODS], ...] = _DEFAULT_METHODS  # type: ignore[valid-type]
    """Methods to compare."""
    width: int | None = None
    """Units of a hidden layer."""
    layers: int = 3
    """Hidden layers."""
    examples: int | None = None
    """Images of a task, a multiple of the batch; by default at most all there are."""
    permutations: int | None = None
    """Different permutations, which come back in turn; by default every task has its own."""
    normalization: Literal[tuple(NORMALIZATIONS)] = "none"  # type: ignore[valid-type]
    """Normalisation of the hidden layers of the methods that have none of their own."""


_ONE_SETTING = {"l2": (1e-3,), "perturb_l2": (1e-4,), "noise_std": (1e-3,), "replacement_rate": (1e-3,)}
_SCALES: dict[str, dict[str, Any]] = {
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
        **_ONE_SETTING,
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
        **_ONE_SETTING,
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
    """Returns the experiment that the settings, with every value filled in, describe.

    Raises:
        ValueError: If the settings do not fit together.
        RefusedError: If the images cannot be had.
    """
    classification.check_tasks(settings)
    images = classification.load(settings)
    there = len(images.labels)
    if settings.examples is None:
        examples = min(_EXAMPLES[settings.scale], there) // settings.batch * settings.batch
        settings = dataclasses.replace(settings, examples=examples)
    if not 0 < settings.examples <= there or settings.examples % settings.batch:
        raise ValueError(
            f"examples must be a multiple of the batch of {settings.batch} and at most the {there} images, "
            f"got {settings.examples}"
        )
    if settings.normalization == "batch" and settings.batch < 2:
        raise ValueError(f"batch norm needs a batch of 2 or more, got {settings.batch}")
    if settings.probe > settings.examples:
        raise ValueError(f"probe must be at most the {settings.examples} images of a task, got {settings.probe}")
    run_of = functools.partial(make_run, settings, pixels=images.images[0].size, classes=images.classes)
    data = (images.images.reshape(there, -1), images.labels)
    return classification.make_experiment(_NAME, settings, images, data, run_of)


class Task(NamedTuple):
    """A task: where each input of the network comes from, and which images it sees, in this order.

    Attributes:
        permutation: Indices of pixels [D].
        order: Indices of images [E].
        dropout_key: Key of what is left out while it is learned.
    """

    permutation: Int[Array, " D"]
    order: Int[Array, " E"]
    dropout_key: PRNGKeyArray


def draw_task(
    key: UInt32[Array, " words"],
    number: Int[Array, ""],
    pixels: int,
    images: int,
    examples: int,
    permutations: int | None = None,
) -> Task:
    """Draws a task of some of the images, each at most once, from the stream's key.

    Args:
        key: The stream's key.
        number: Number of the task.
        pixels: Pixels of an image D.
        images: Images there are.
        examples: Images of a task E.
        permutations: Different permutations, which come back in turn; None: every task has its own.
    """

    def keys_of(number: Int[Array, ""]) -> PRNGKeyArray:
        return jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(key), number), 3)

    _, order_key, dropout_key = keys_of(number)
    permutation_key = keys_of(number if permutations is None else number % permutations)[0]
    # A part is found several times faster than the whole is sorted.
    if examples < images:
        order = jax.lax.top_k(jax.random.uniform(order_key, (images,)), examples)[1]
    else:
        order = jax.random.permutation(order_key, images)
    return Task(jax.random.permutation(permutation_key, pixels), order, dropout_key)


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
        pixels: Inputs of the network D.
        classes: Outputs of the network.
    """
    sizes = (pixels, *[settings.width] * settings.layers, classes)
    activation = labels["activation"]
    normalization = settings.normalization if method.normalization == "none" else method.normalization
    dropout = setting.get("dropout", 0.0)
    network = mlp.make(sizes, activation, normalization=normalization, dropout=dropout)
    learner = classification.make_image_learner(network, method, setting, settings, labels)
    step = classification.make_online_step(network, learner, setting)

    def learn_task(
        carry: TaskCarry, data: tuple[UInt8[Array, "N D"], Int[Array, " N"]]
    ) -> tuple[gxd.training.TrainState, dict[str, Array]]:
        images, labels = data
        task = draw_task(carry.key, carry.task, pixels, len(images), settings.examples, settings.permutations)

        def inputs_of(indices: Int[Array, " B"]) -> Array:
            return scale_bytes(images[indices[:, None], task.permutation])

        def next_batch(place: Int[Array, ""]) -> tuple[Int[Array, ""], tuple[Any, Array]]:
            indices = jax.lax.dynamic_slice_in_dim(task.order, place * settings.batch, settings.batch)
            inputs = inputs_of(indices), jax.random.fold_in(task.dropout_key, place)
            return place + 1, (inputs, labels[indices])

        state = classification.reset_head(learner, carry.training) if method.resets_head else carry.training
        probe = inputs_of(task.order[: settings.probe])
        found = classification.diagnose(network, method, activation, state, probe)
        steps = settings.examples // settings.batch
        state, _, accuracies = gxd.training.train_task(step, state, next_batch, jnp.int32(0), steps)
        return state, {"accuracy": accuracies.mean()} | found

    return classification.make_run(settings, labels, learner, learn_task)


_ENDS = first_and_last("tenth")
PROBLEM = Problem(
    _NAME,
    Settings,
    _SCALES,
    make_experiment,
    classification.VIEW,
    {
        "main": CurvesTable(
            (
                *_ENDS,
                Column("dead_end", "dead", ".2f", error=False),
                Column("effective_rank_end", "rank", ".1f", error=False),
            )
        ),
        "accuracy": CurvesTable(_ENDS),
        "last": CurvesTable((Column("last", "", error=False),)),
    },
)
