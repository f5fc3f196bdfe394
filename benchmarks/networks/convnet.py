"""The convolutional network of continual ImageNet ([N], Methods), as plain functions.

Convolutions are written as products of image patches and kernels. Under `vmap` every seed has kernels of its own, and
a product with a batch axis is far faster than a grouped convolution; on CPU XLA also runs convolutions inside a loop
tens of times slower than outside of one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

import gxd_jax as gxd
from benchmarks.networks.layers import ACTIVATIONS, OUTPUT, Network, dense, draw_layers, drop, scale_bytes

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray, UInt8

SIZE = 32
"""Height and width that an image must have at least for these layers."""


class Layers(NamedTuple):
    """The hidden layers.

    Attributes:
        convolutions: Layer -> window and channels; each is followed by a 2x2 max pool.
        dense: Layer -> units.
    """

    convolutions: dict[str, tuple[int, int]]
    dense: dict[str, int]


LAYERS = Layers({"conv_1": (5, 32), "conv_2": (3, 64), "conv_3": (3, 128)}, {"dense_1": 128, "dense_2": 128})
"""Those of [N]."""
_CENTRE = 0.5
"""Inputs lie in [-0.5, 0.5]."""


def as_inputs(images: UInt8[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Scales bytes to [-0.5, 0.5]."""
    return scale_bytes(images) - _CENTRE


def make(
    shape: tuple[int, ...], activation: str, *, outputs: int, layers: Layers = LAYERS, dropout: float = 0.0
) -> Network:
    """Returns the network; the arguments are those of `init` and `make_apply`."""
    init_params = functools.partial(init, shape=shape, activation=activation, outputs=outputs, layers=layers)
    apply = make_apply(activation, layers=layers, dropout=dropout)
    return Network(init_params, apply, hidden_layers(jax.eval_shape(init_params, jax.random.key(0)), layers))


def init(
    key: PRNGKeyArray, shape: tuple[int, ...], activation: str, *, outputs: int, layers: Layers = LAYERS
) -> dict[str, Any]:
    """Draws initial parameters: Kaiming-uniform kernels with the activation's gain (output layer 1), biases 0.

    Args:
        key: Random key.
        shape: Height, width and channels of the images.
        activation: A name of `ACTIVATIONS`.
        outputs: Number of outputs.
        layers: The hidden layers.
    """
    height, width, channels = shape
    kernels: dict[str, tuple[int, ...]] = {}
    for name, (window, units) in layers.convolutions.items():
        kernels[name] = (window, window, channels, units)
        height, width, channels = (height - window + 1) // 2, (width - window + 1) // 2, units
    inputs = height * width * channels
    for name, units in (layers.dense | {OUTPUT: outputs}).items():
        kernels[name], inputs = (inputs, units), units
    return draw_layers(key, kernels, ACTIVATIONS[activation].gain, linear=(OUTPUT,))


def make_apply(activation: str, *, layers: Layers = LAYERS, dropout: float = 0.0) -> Callable[..., jax.Array]:
    """Returns the function of parameters, images [B, H, W, channels] and a key that gives the logits [B, outputs].

    Args:
        activation: A name of `ACTIVATIONS`.
        layers: The hidden layers.
        dropout: Share of the units of dense hidden layers that are left out where the function is given a key.
    """
    function = ACTIVATIONS[activation].function

    def apply(params: dict[str, Any], x: jax.Array, dropout_key: PRNGKeyArray | None = None) -> jax.Array:
        for name in layers.convolutions:
            x = gxd.tap(name, _max_pool(function(_convolve(params[name], x))))
        x = x.reshape(x.shape[0], -1)
        for number, name in enumerate(layers.dense):
            x = function(dense(params[name], x))
            if dropout and dropout_key is not None:
                x = drop(x, dropout, jax.random.fold_in(dropout_key, number))
            x = gxd.tap(name, x)
        return dense(params[OUTPUT], x)

    return apply


def hidden_layers(params: dict[str, Any], layers: Layers = LAYERS) -> list[gxd.UnitLayer]:
    """Returns the wiring of the hidden layers: channels of the convolutions, and units of the dense layers."""
    return gxd.sequential_units(params, [*layers.convolutions, *layers.dense, OUTPUT])


def _convolve(layer: dict[str, jax.Array], x: Float[Array, "B H W c"]) -> Float[Array, "B h w C"]:
    window, _, channels, units = layer["kernel"].shape
    height, width = x.shape[1] - window + 1, x.shape[2] - window + 1
    shifted = [x[:, i : i + height, j : j + width] for i in range(window) for j in range(window)]
    patches = jnp.concatenate(shifted, axis=-1)
    return patches @ layer["kernel"].reshape(math.prod((window, window, channels)), units) + layer["bias"]


def _max_pool(x: Float[Array, "B H W C"]) -> Float[Array, "B h w C"]:
    """2x2 maxima; an odd last row or column is left out."""
    batch, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))
