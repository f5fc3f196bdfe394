"""Small networks of many kinds, for studies of single units: dense ones, with norms, with residuals, convolutional."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

import gxd_jax as gxd
from benchmarks import convnet, learners
from benchmarks.classification import Network

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
        activation: A name of `learners.ACTIVATIONS`.
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
    else:
        sizes, norm = (pixels, *[WIDTH] * _LAYERS, classes), "none" if kind.norm == "none" else "layer"
        init = functools.partial(learners.init, sizes=sizes, activation=kind.activation, normalization=norm)
        apply = learners.make_apply(sizes, kind.activation, normalization=norm, norm_first=kind.norm == "before")
    return Network(init, apply, gxd.find_units(apply, init(jax.random.key(0)), jnp.zeros((2, pixels))))


def _convolutional(kind: Kind, image: tuple[int, ...], classes: int) -> Network:
    """The shape of continual ImageNet's network with fewer channels; small images are enlarged."""
    height, width, channels = image
    factor = -(-_SMALLEST // min(height, width))
    shape = (height * factor, width * factor, channels)
    init = functools.partial(
        convnet.init, shape=shape, activation=kind.activation, outputs=classes, layers=_CONVOLUTIONAL
    )
    apply = convnet.make_apply(kind.activation, layers=_CONVOLUTIONAL)

    def of_flat(params: Any, x: jax.Array) -> jax.Array:
        return apply(params, x.reshape(-1, *image).repeat(factor, axis=1).repeat(factor, axis=2))

    return Network(init, of_flat, convnet.hidden_layers(jax.eval_shape(init, jax.random.key(0)), _CONVOLUTIONAL))


def _init_residual(key: PRNGKeyArray, pixels: int, activation: str, classes: int) -> dict[str, Any]:
    """Kaiming-uniform kernels, biases 0; the second layer of a block has a gain of 1, as it has no activation."""
    shapes = {_STEM: (pixels, WIDTH), learners.OUTPUT: (WIDTH, classes)}
    for block in _BLOCKS:
        shapes |= {block: (WIDTH, WIDTH), _second(block): (WIDTH, WIDTH)}
    linear = (_STEM, learners.OUTPUT, *map(_second, _BLOCKS))
    return learners.draw_layers(key, shapes, learners.ACTIVATIONS[activation].gain, linear=linear)


def _apply_residual(params: dict[str, Any], x: jax.Array, activation: str) -> jax.Array:
    """A stem, and blocks of two layers whose outputs are added to the stream; the blocks' hidden units are units."""
    function = learners.ACTIVATIONS[activation].function
    stream = learners.dense(params[_STEM], x)
    for block in _BLOCKS:
        hidden = gxd.tap(block, function(learners.dense(params[block], stream)))
        stream = stream + learners.dense(params[_second(block)], hidden)
    return learners.dense(params[learners.OUTPUT], stream)


def _second(block: str) -> str:
    return f"{block}_out"
