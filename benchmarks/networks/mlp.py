"""The networks of the experiments, as plain functions: their initial weights and their outputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import gxd_jax as gxd

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray

_LEAK = 0.01
"""Slope of a leaky ReLU below zero, as in PyTorch."""


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

OUTPUT = "output"
_EPSILON = 1e-5
"""Added to a variance before its root, as in PyTorch."""


def _standardised(x: jax.Array, axis: int) -> jax.Array:
    return (x - x.mean(axis, keepdims=True)) * jax.lax.rsqrt(x.var(axis, keepdims=True) + _EPSILON)


NORMALIZATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "none": lambda x: x,
    "layer": functools.partial(_standardised, axis=-1),
    "batch": functools.partial(_standardised, axis=0),
}
"""What happens to the inputs of a hidden layer's activation, before a scale and a bias. Batch norm has no running
statistics: an experiment that tests on whole batches needs none."""


def hidden_names(sizes: Sequence[int]) -> list[str]:
    """Returns the names of the hidden layers of a network of these layer sizes, input and output included."""
    return [f"hidden_{i}" for i in range(1, len(sizes) - 1)]


def init(
    key: PRNGKeyArray,
    sizes: Sequence[int],
    activation: str,
    *,
    normalization: str = "none",
    gain: float | None = None,
) -> dict[str, Any]:
    """Draws initial parameters: Kaiming-uniform kernels with the activation's gain (output layer 1), biases 0.

    Args:
        key: Random key.
        sizes: Layer sizes, input and output included.
        activation: A name of `ACTIVATIONS`.
        normalization: A name of `NORMALIZATIONS`; its layers have a scale of 1 and a bias of 0.
        gain: Gain of the hidden layers; None: the activation's.
    """
    names = [*hidden_names(sizes), OUTPUT]
    shapes = dict(zip(names, zip(sizes[:-1], sizes[1:], strict=True), strict=True))
    params = draw_layers(key, shapes, ACTIVATIONS[activation].gain if gain is None else gain, linear=(OUTPUT,))
    if normalization == "none":
        return params
    norms = {
        name: {"scale": jnp.ones(size), "bias": jnp.zeros(size)}
        for name, size in zip(hidden_names(sizes), sizes[1:-1], strict=True)
    }
    return params | {_norm_name(name): norm for name, norm in norms.items()}


def _norm_name(layer: str) -> str:
    return f"{layer}_norm"


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


def make_apply(
    sizes: Sequence[int],
    activation: str,
    *,
    normalization: str = "none",
    norm_first: bool = True,
    dropout: float = 0.0,
    scope: str = "",
) -> Callable[..., jax.Array]:
    """Returns the function of parameters, inputs [B, inputs] and a key that gives the outputs [B, outputs].

    Args:
        sizes: Layer sizes, input and output included.
        activation: A name of `ACTIVATIONS`.
        normalization: A name of `NORMALIZATIONS`.
        norm_first: Whether it comes before the activation, not after.
        dropout: Share of the hidden units that are left out where the function is given a key.
        scope: What the names of the layers' taps begin with, where there are several networks.
    """
    function = ACTIVATIONS[activation].function

    def normalize(params: dict[str, Any], name: str, x: jax.Array) -> jax.Array:
        if normalization == "none":
            return x
        norm = params[_norm_name(name)]
        return NORMALIZATIONS[normalization](x) * norm["scale"] + norm["bias"]

    def apply(params: dict[str, Any], x: jax.Array, dropout_key: PRNGKeyArray | None = None) -> jax.Array:
        for number, name in enumerate(hidden_names(sizes)):
            x = dense(params[name], x)
            x = function(normalize(params, name, x)) if norm_first else normalize(params, name, function(x))
            if dropout and dropout_key is not None:
                x = drop(x, dropout, jax.random.fold_in(dropout_key, number))
            x = gxd.tap(f"{scope}{name}", x)
        return dense(params[OUTPUT], x)

    return apply


def drop(x: jax.Array, rate: float, key: PRNGKeyArray) -> jax.Array:
    """Leaves out a share of the values and scales the others up (Srivastava et al., 2014)."""
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def dense(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """A fully connected layer."""
    return x @ layer["kernel"] + layer["bias"]


def make_observe(
    apply: Callable, loss: Callable, sizes: Sequence[int], *, readout: str | None
) -> tuple[Callable, list[gxd.UnitLayer]]:
    """Returns the function that observes a batch, and the hidden layers.

    Args:
        apply: From `make_apply`.
        loss: (outputs, targets) -> scalar.
        sizes: Layer sizes; with two of them the network is linear and has nothing to observe but loss and gradients.
        readout: As in `gxd_jax.observe`.
    """
    names = hidden_names(sizes)
    if not names:
        return _without_units(apply, loss), []
    params = jax.eval_shape(lambda key: init(key, sizes, next(iter(ACTIVATIONS))), jax.random.key(0))
    units = gxd.sequential_units(params, [*names, OUTPUT])
    return gxd.observe(apply, loss, units, readout=readout), units


def _without_units(apply: Callable, loss: Callable) -> Callable:
    """What `gxd_jax.observe` gives, for a network without hidden layers."""

    def observe(params: dict[str, Any], x: jax.Array, y: jax.Array, *, key: PRNGKeyArray | None = None) -> tuple:
        del key
        value, gradients = jax.value_and_grad(lambda params: loss(apply(params, x), y))(params)
        return value, gradients, gxd.Observation({})

    return observe


def squared_error(outputs: Float[Array, "B K"], targets: Float[Array, "B K"]) -> Float[Array, ""]:
    """Mean squared error, without a half."""
    return ((outputs - targets) ** 2).mean()


def cross_entropy(logits: Float[Array, "B K"], labels: Int[Array, " B"]) -> Float[Array, ""]:
    """Mean softmax cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
