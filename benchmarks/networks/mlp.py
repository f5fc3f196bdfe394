"""Stacks of fully connected layers, with norms and dropout where asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

import gxd_jax as gxd
from benchmarks.networks.layers import ACTIVATIONS, NORMALIZATIONS, OUTPUT, Network, dense, draw_layers, drop

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray


def make(
    sizes: Sequence[int],
    activation: str,
    *,
    normalization: str = "none",
    norm_first: bool = True,
    dropout: float = 0.0,
) -> Network:
    """Returns a network; with two sizes it is linear and has no units.

    Args:
        sizes: Layer sizes, input and output included.
        activation: A name of `ACTIVATIONS`.
        normalization: A name of `NORMALIZATIONS`.
        norm_first: Whether it comes before the activation, not after.
        dropout: Share of the hidden units that are left out where the network is given a key.
    """
    init_params = functools.partial(init, sizes=sizes, activation=activation, normalization=normalization)
    apply = make_apply(sizes, activation, normalization=normalization, norm_first=norm_first, dropout=dropout)
    return Network(init_params, apply, units_of(init_params, apply, sizes, normalization))


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


def units_of(init: Callable, apply: Callable, sizes: Sequence[int], normalization: str) -> list[gxd.UnitLayer]:
    """Returns the hidden layers. With a norm, whose parameters belong to the units too, the wiring is found."""
    names = hidden_names(sizes)
    if not names:
        return []
    if normalization == "none":
        return gxd.sequential_units(jax.eval_shape(init, jax.random.key(0)), [*names, OUTPUT])
    return gxd.find_units(apply, init(jax.random.key(0)), jnp.zeros((2, sizes[0])))
