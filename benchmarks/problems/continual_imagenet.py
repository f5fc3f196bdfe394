"""Continual ImageNet ([N], Methods): a long sequence of two-class tasks for one convolutional network.

Every task takes two classes, drawn at random, and trains for some epochs on their images; the output layer starts from
zeros with each task. What counts is the accuracy on test images of the two classes at the end of the task. Tasks are
made from the seed inside the compiled program; the images lie on the device once.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import gxd_jax as gxd
from benchmarks import methods
from benchmarks.datasets import Images
from benchmarks.experiment import Experiment, Run, TaskCarry
from benchmarks.learner import accuracy
from benchmarks.networks import convnet
from benchmarks.problem import Problem
from benchmarks.problems import classification
from benchmarks.problems.classification import ImageOptions
from benchmarks.showing.markdown import Column, CurvesTable, first_and_last

if TYPE_CHECKING:
    from jaxtyping import Array, Int, PRNGKeyArray, UInt8

_NAME = "continual-imagenet"

_METHODS = tuple(
    name for name in classification.METHODS if name != "head_reset" and methods.METHODS[name].normalization == "none"
)
_DEFAULT_METHODS = ("backprop", "l2", "shrink_and_perturb", "cbp_contribution", "gxd", "gxd_adaptation")


@dataclasses.dataclass(frozen=True)
class Settings(ImageOptions):
    """Continual ImageNet: test accuracy on a sequence of two-class tasks, with a convolutional network."""

    method: tuple[Literal[_METHODS], ...] | None = None  # type: ignore[valid-type]
    """Methods to compare."""
    epochs: int | None = None
    """Passes over the training images of a task."""
    train_images: int | None = None
    """Training images of a class, at most as many as every class has."""
    test_images: int | None = None
    """Test images of a class, at most as many as every class has."""
    maturity_threshold: int | None = None
    """Updates before continual backprop may replace a unit."""
    reset_head_moments: bool = True
    """Whether the optimizer's moments of the output layer are reset with it."""


_STEP_SIZE_OF_DIGITS = (0.02,)
"""Of the default scale: digits are brighter than photographs, and at .04 every seed diverges."""
_ONE_SETTING = {
    "l2": (1e-3,),
    "perturb_l2": (1e-5,),
    "noise_std": (1e-4,),
    "replacement_rate": (1e-3,),
    "maturity_threshold": 100,
}
_ALL = {"method": _DEFAULT_METHODS, "activation": ("relu",), "optimizer": ("momentum",)}
_SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        **_ALL,
        "method": ("backprop", "cbp_contribution", "gxd"),  # compiling them is what takes the time
        "seeds": 2,
        "step_size": (0.01,),
        "batch": 10,
        "tasks": 4,
        "tasks_per_chunk": 2,
        "probe": 20,
        "epochs": 2,
        "train_images": 10,
        "test_images": 10,
        **_ONE_SETTING,
        # Of its 16 steps some shall replace units.
        "replacement_rate": (1e-2,),
        "maturity_threshold": 4,
    },
    "default": {
        **_ALL,
        "seeds": 10,
        "step_size": lambda given: _STEP_SIZE_OF_DIGITS if given.tfds is None else (0.04,),
        "batch": 10,
        "tasks": 40,
        "tasks_per_chunk": 8,
        "probe": 60,
        "epochs": 8,
        "train_images": 30,
        "test_images": 30,
        **_ONE_SETTING,
    },
    "paper": {
        **_ALL,
        "seeds": 30,
        "step_size": (0.01, 0.001, 0.0001),
        "batch": 100,
        "tasks": 5000,
        "tasks_per_chunk": 10,
        "probe": 1000,
        "epochs": 250,
        "train_images": 600,
        "test_images": 100,
        "l2": (0.03, 3e-6),
        "perturb_l2": (1e-5,),
        "noise_std": (1e-5,),
        "replacement_rate": (3e-4,),
        "maturity_threshold": 100,
    },
}


class Classes(NamedTuple):
    """The images by their classes, uint8 [C, N, H, W, channels] and [C, M, H, W, channels]."""

    train: UInt8[Array, "C N H W c"]
    test: UInt8[Array, "C M H W c"]


def make_experiment(settings: Settings) -> Experiment:
    """Returns the experiment that the settings, with every value filled in, describe.

    Raises:
        ValueError: If the settings do not fit together.
        RefusedError: If the images cannot be had.
    """
    classification.check_tasks(settings)
    images = classification.load(settings)
    classes = by_class(images, settings.train_images, settings.test_images)
    of_task = 2 * settings.train_images
    if of_task % settings.batch:
        raise ValueError(f"batch must divide the {of_task} training images of a task, got {settings.batch}")
    if settings.probe > of_task:
        raise ValueError(f"probe must be at most the {of_task} training images of a task, got {settings.probe}")
    run_of = functools.partial(make_run, settings, shape=classes.train.shape[2:])
    return classification.make_experiment(_NAME, settings, images, classes, run_of)


def by_class(images: Images, train: int, test: int) -> Classes:
    """Sorts the first images of every class into arrays; images that are too small for the network are enlarged.

    Raises:
        ValueError: If a class has fewer images, or there are fewer than two classes.
    """
    if images.classes < 2:
        raise ValueError(f"{images.name} needs two classes or more, it has {images.classes}")
    return Classes(
        _sorted(images.images, images.labels, images.classes, "train_images", train),
        _sorted(images.test_images, images.test_labels, images.classes, "test_images", test),
    )


def _sorted(images: np.ndarray, labels: np.ndarray, classes: int, option: str, count: int) -> np.ndarray:
    there = int(np.bincount(labels, minlength=classes).min())
    if not 1 <= count <= there:
        raise ValueError(f"{option} must lie between 1 and {there}, the images that every class has, got {count}")
    chosen = np.stack([images[np.flatnonzero(labels == number)[:count]] for number in range(classes)])
    factor = -(-convnet.SIZE // min(chosen.shape[2:4]))
    return chosen.repeat(factor, axis=2).repeat(factor, axis=3)


def draw_pair(key: PRNGKeyArray, classes: int) -> Int[Array, "2"]:
    """Draws two different classes."""
    return jax.random.permutation(key, classes)[:2]


def make_run(
    settings: Settings,
    labels: classification.Labels,
    method: methods.Method,
    setting: methods.Setting,
    *,
    shape: tuple[int, ...],
) -> Run:
    """Returns the run of one method.

    Args:
        settings: Settings with every value filled in.
        labels: The run's labels, with its activation, optimizer and step size.
        method: The method.
        setting: Values of the method's own hyper-parameters.
        shape: Height, width and channels of the images.
    """
    activation = labels["activation"]
    network = convnet.make(shape, activation, outputs=2, dropout=setting.get("dropout", 0.0))
    learner = classification.make_image_learner(network, method, setting, settings, labels)
    of_task = 2 * settings.train_images

    def learn_task(carry: TaskCarry, data: Classes) -> tuple[gxd.training.TrainState, dict[str, Array]]:
        task_key = jax.random.fold_in(jax.random.wrap_key_data(carry.key), carry.task)
        pair_key, order_key, dropout_key = jax.random.split(task_key, 3)
        pair = draw_pair(pair_key, len(data.train))
        epoch_keys = jax.vmap(lambda epoch: jax.random.fold_in(order_key, epoch))(jnp.arange(settings.epochs))
        order = jax.vmap(lambda key: jax.random.permutation(key, of_task))(epoch_keys).reshape(-1)

        def train_batch(indices: Int[Array, " B"]) -> tuple[Array, Int[Array, " B"]]:
            labels = indices // settings.train_images
            return convnet.as_inputs(data.train[pair[labels], indices % settings.train_images]), labels

        def next_batch(place: Int[Array, ""]) -> tuple[Int[Array, ""], tuple[Any, Array]]:
            indices = jax.lax.dynamic_slice_in_dim(order, place * settings.batch, settings.batch)
            inputs, labels = train_batch(indices)
            return place + 1, ((inputs, jax.random.fold_in(dropout_key, place)), labels)

        state = classification.reset_head(learner, carry.training, moments=settings.reset_head_moments)
        probe = jax.random.permutation(order_key, of_task)[: settings.probe]
        found = classification.diagnose(network, method, activation, state, train_batch(probe)[0])
        steps = len(order) // settings.batch
        state, _, _ = gxd.training.train_task(learner.step, state, next_batch, jnp.int32(0), steps)
        test = convnet.as_inputs(data.test[pair].reshape(-1, *data.test.shape[2:]))
        logits = classification.logits_of(network, state.params, test)
        return state, {"accuracy": accuracy(logits, jnp.repeat(jnp.arange(2), settings.test_images))} | found

    return classification.make_run(settings, labels, learner, learn_task)


PROBLEM = Problem(
    _NAME,
    Settings,
    _SCALES,
    make_experiment,
    classification.VIEW,
    {
        "main": CurvesTable(
            (
                *first_and_last("tenth"),
                Column("last_less_baseline", "last tenth less backprop's, by seed", "+.3f"),
                Column("dead_end", "dead units", ".2f", error=False),
                Column("effective_rank_end", "rank", ".1f", error=False),
            )
        )
    },
)
