"""The networks of the experiments, as plain functions: their initial weights and their outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

import gxd_jax as gxd

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

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
}

OUTPUT = "output"


def hidden_names(sizes: Sequence[int]) -> list[str]:
    """Returns the names of the hidden layers of a network of these layer sizes, input and output included."""
    return [f"hidden_{i}" for i in range(1, len(sizes) - 1)]


def init(key: PRNGKeyArray, sizes: Sequence[int], activation: str) -> dict[str, Any]:
    """Draws initial parameters: Kaiming-uniform kernels with the activation's gain (output layer 1), biases 0.

    Args:
        key: Random key.
        sizes: Layer sizes, input and output included.
        activation: A name of `ACTIVATIONS`.
    """
    names = [*hidden_names(sizes), OUTPUT]
    gains = [ACTIVATIONS[activation].gain] * (len(names) - 1) + [1.0]
    keys = jax.random.split(key, len(names))
    return {
        name: {"kernel": kaiming_uniform(keys[i], (sizes[i], sizes[i + 1]), gains[i]), "bias": jnp.zeros(sizes[i + 1])}
        for i, name in enumerate(names)
    }


def kaiming_uniform(key: PRNGKeyArray, shape: tuple[int, int], gain: float) -> Float[Array, "inputs units"]:
    """Draws from U(-b, b) with b = gain sqrt(3 / inputs) (He et al., 2015)."""
    bound = gain * math.sqrt(3 / shape[0])
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def make_apply(sizes: Sequence[int], activation: str) -> Callable[[dict[str, Any], jax.Array], jax.Array]:
    """Returns the function of parameters and inputs [B, inputs] that gives the outputs [B, outputs]."""
    function = ACTIVATIONS[activation].function

    def apply(params: dict[str, Any], x: jax.Array) -> jax.Array:
        for name in hidden_names(sizes):
            x = gxd.tap(name, function(_dense(params[name], x)))
        return _dense(params[OUTPUT], x)

    return apply


def _dense(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
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
