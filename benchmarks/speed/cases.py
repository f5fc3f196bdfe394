"""The networks that are timed, their optimizers, and the data that all methods see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import optax

from benchmarks.networks import convnet, mlp, transformer
from benchmarks.networks.layers import Network

Kind = Literal["dense", "convolutional", "transformer", "resnet-18"]

POOL = 64
"""Batches in the pool."""
OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(STEP_SIZES["sgd"]),
    "adam": lambda: optax.adam(STEP_SIZES["adam"]),
}
STEP_SIZES = {"sgd": 0.01, "adam": 0.001}


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


class NetworkKind(NamedTuple):
    """A kind of network that is a function of its parameters.

    Attributes:
        make: (sizes, activation) -> network.
        dimensions: How many of the sizes, from the first on, are the shape of an example.
    """

    make: Callable[[tuple[int, ...], str], Network]
    dimensions: int


KINDS: dict[str, NetworkKind] = {
    "dense": NetworkKind(mlp.make, 1),
    "convolutional": NetworkKind(lambda sizes, activation: convnet.make(sizes[:-1], activation, outputs=sizes[-1]), 3),
    "transformer": NetworkKind(lambda sizes, activation: transformer.make(*sizes, activation), 2),
}


def pool_of(case: Case) -> tuple[jax.Array, jax.Array]:
    """Returns the inputs [N, B, ...] and targets [N, B, ...] that all methods see in turn.

    A network of one output predicts a number, others a class.
    """
    outputs, shape = case.sizes[-1], case.sizes[: KINDS[case.kind].dimensions]
    input_key, target_key = jax.random.split(jax.random.key(0))
    inputs = jax.random.normal(input_key, (POOL, case.batch, *shape))
    targets = _draw_numbers if outputs == 1 else draw_labels
    return inputs, targets(target_key, (POOL, case.batch), outputs)


def _draw_numbers(key: jax.Array, shape: tuple[int, int], outputs: int) -> jax.Array:
    return jax.random.normal(key, (*shape, outputs))


def draw_labels(key: jax.Array, shape: tuple[int, ...], outputs: int) -> jax.Array:
    return jax.random.randint(key, shape, 0, outputs)
