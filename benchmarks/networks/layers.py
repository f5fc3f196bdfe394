"""What the networks are made of: activations with their gains, norms, initial weights, dense layers, dropout."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

import gxd_jax as gxd

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray, UInt8

OUTPUT = "output"
"""Name of the output layer of every network."""
_LEAK = 0.01
"""Slope of a leaky ReLU below zero, as in PyTorch."""
_EPSILON = 1e-5
"""Added to a variance before its root, as in PyTorch."""
_BRIGHTEST = 255


class Network(NamedTuple):
    """A network.

    Attributes:
        init: Key -> initial parameters.
        apply: (parameters, inputs) -> outputs; networks with dropout take its key, or None, as a third argument.
        units: Its hidden layers, in order; a linear network has none.
    """

    init: Callable[[PRNGKeyArray], Any]
    apply: Callable[..., Any]
    units: Sequence[gxd.UnitLayer]


class Activation(NamedTuple):
    """An activation and the gain that its layer's initial weights have ([N], Methods)."""

    function: Callable[[jax.Array], jax.Array]
    gain: float


ACTIVATIONS: dict[str, Activation] = {
    "sigmoid": Activation(jax.nn.sigmoid, 1.0),
    "tanh": Activation(jnp.tanh, 5 / 3),
    "elu": Activation(jax.nn.elu, math.sqrt(2)),
    "leaky_relu": Activation(lambda x: jax.nn.leaky_relu(x, _LEAK), math.sqrt(2 / (1 + _LEAK**2))),
    "relu": Activation(jax.nn.relu, math.sqrt(2)),
    "swish": Activation(jax.nn.swish, math.sqrt(2)),
    "gelu": Activation(jax.nn.gelu, math.sqrt(2)),
}


def _standardised(x: jax.Array, axis: int) -> jax.Array:
    return (x - x.mean(axis, keepdims=True)) * jax.lax.rsqrt(x.var(axis, keepdims=True) + _EPSILON)


NORMALIZATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "none": lambda x: x,
    "layer": functools.partial(_standardised, axis=-1),
    "batch": functools.partial(_standardised, axis=0),
}
"""What happens to the inputs of a hidden layer's activation, before a scale and a bias. Batch norm has no running
statistics: an experiment that tests on whole batches needs none."""


def scale_bytes(images: UInt8[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Scales bytes to [0, 1]."""
    return images.astype(jnp.float32) / _BRIGHTEST


def draw_layers(
    key: PRNGKeyArray, shapes: dict[str, tuple[int, ...]], gain: float, *, linear: Sequence[str]
) -> dict[str, Any]:
    """Draws layers: Kaiming-uniform kernels, biases 0.

    Args:
        key: Random key.
        shapes: Layer -> shape of its kernel; the last axis is that of the units.
        gain: Gain of the layers with an activation.
        linear: Layers without one, whose gain is 1.
    """
    return {
        name: {
            "kernel": kaiming_uniform(layer_key, shape, 1.0 if name in linear else gain),
            "bias": jnp.zeros(shape[-1]),
        }
        for layer_key, (name, shape) in zip(jax.random.split(key, len(shapes)), shapes.items(), strict=True)
    }


def kaiming_uniform(key: PRNGKeyArray, shape: tuple[int, ...], gain: float) -> Float[Array, "*inputs units"]:
    """Draws from U(-b, b) with b = gain sqrt(3 / inputs) (He et al., 2015); the last axis is that of the units."""
    bound = gain * math.sqrt(3 / math.prod(shape[:-1]))
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def dense(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """A fully connected layer."""
    return x @ layer["kernel"] + layer["bias"]


def drop(x: jax.Array, rate: float, key: PRNGKeyArray) -> jax.Array:
    """Leaves out a share of the values and scales the others up (Srivastava et al., 2014)."""
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)
