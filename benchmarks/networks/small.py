"""Small networks of many kinds, for studies of single units: dense ones, with norms, with residuals, convolutional."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

import gxd_jax as gxd
from benchmarks.networks import convnet, mlp
from benchmarks.networks.layers import ACTIVATIONS, OUTPUT, Network, dense, draw_layers

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

WIDTH = 64
_LAYERS = 3
_CONVOLUTIONAL = convnet.Layers({"conv_1": (5, 8), "conv_2": (3, 16), "conv_3": (3, 16)}, {"dense_1": 32})
_BLOCKS = ("block_1", "block_2", "block_3")
_STEM = "stem"
_SMALLEST = 24
"""Height and width that an image must have at least for the convolutions."""


class Kind(NamedTuple):
    """What a network is made of.

    Attributes:
        activation: A name of `ACTIVATIONS`.
        norm: Where the hidden layers have a layer norm: "before" or "after" the activation, or "none".
        body: "dense", "residual" or "convolutional".
    """

    activation: str
    norm: str = "none"
    body: str = "dense"


KINDS: dict[str, Kind] = {
    **{name: Kind(name) for name in ("relu", "leaky_relu", "tanh", "sigmoid", "gelu", "swish", "elu")},
    "relu_norm_before": Kind("relu", norm="before"),
    "relu_norm_after": Kind("relu", norm="after"),
    "gelu_norm_before": Kind("gelu", norm="before"),
    "gelu_norm_after": Kind("gelu", norm="after"),
    "residual_gelu": Kind("gelu", body="residual"),
    "convolutional_relu": Kind("relu", body="convolutional"),
}


def make(kind: Kind, image: tuple[int, ...], classes: int) -> Network:
    """Returns a network for images [B, H, W, channels] that are given flat, [B, D].

    Args:
        kind: What it is made of.
        image: Height, width and channels.
        classes: Outputs.
    """
    if kind.body == "convolutional":
        return _convolutional(kind, image, classes)
    pixels = image[0] * image[1] * image[2]
    if kind.body == "residual":
        init = functools.partial(_init_residual, pixels=pixels, activation=kind.activation, classes=classes)
        apply = functools.partial(_apply_residual, activation=kind.activation)
        return Network(init, apply, gxd.find_units(apply, init(jax.random.key(0)), jnp.zeros((2, pixels))))
    norm = "none" if kind.norm == "none" else "layer"
    sizes = (pixels, *[WIDTH] * _LAYERS, classes)
    return mlp.make(sizes, kind.activation, normalization=norm, norm_first=kind.norm == "before")


def _convolutional(kind: Kind, image: tuple[int, ...], classes: int) -> Network:
    """The shape of continual ImageNet's network with fewer channels; small images are enlarged."""
    height, width, channels = image
    factor = -(-_SMALLEST // min(height, width))
    shape = (height * factor, width * factor, channels)
    network = convnet.make(shape, kind.activation, outputs=classes, layers=_CONVOLUTIONAL)

    def of_flat(params: Any, x: jax.Array) -> jax.Array:
        return network.apply(params, x.reshape(-1, *image).repeat(factor, axis=1).repeat(factor, axis=2))

    return network._replace(apply=of_flat)


def _init_residual(key: PRNGKeyArray, pixels: int, activation: str, classes: int) -> dict[str, Any]:
    """Kaiming-uniform kernels, biases 0; the second layer of a block has a gain of 1, as it has no activation."""
    shapes = {_STEM: (pixels, WIDTH), OUTPUT: (WIDTH, classes)}
    for block in _BLOCKS:
        shapes |= {block: (WIDTH, WIDTH), _second(block): (WIDTH, WIDTH)}
    linear = (_STEM, OUTPUT, *map(_second, _BLOCKS))
    return draw_layers(key, shapes, ACTIVATIONS[activation].gain, linear=linear)


def _apply_residual(params: dict[str, Any], x: jax.Array, activation: str) -> jax.Array:
    """A stem, and blocks of two layers whose outputs are added to the stream; the blocks' hidden units are units."""
    function = ACTIVATIONS[activation].function
    stream = dense(params[_STEM], x)
    for block in _BLOCKS:
        hidden = gxd.tap(block, function(dense(params[block], stream)))
        stream = stream + dense(params[_second(block)], hidden)
    return dense(params[OUTPUT], stream)


def _second(block: str) -> str:
    return f"{block}_out"
