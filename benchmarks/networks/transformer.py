"""The block that follows attention in a transformer, on tokens; the outputs read the mean token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import gxd_jax as gxd
from benchmarks.networks.layers import ACTIVATIONS, NORMALIZATIONS, OUTPUT, Network, dense, draw_layers

_UP, _DOWN = "up", "down"


def make(tokens: int, width: int, hidden: int, outputs: int, activation: str) -> Network:
    """Returns the block, for inputs [B, tokens, width].

    Args:
        tokens: Tokens of an example.
        width: Numbers of a token.
        hidden: Hidden units, which every token has.
        outputs: Number of outputs.
        activation: A name of `layers.ACTIVATIONS`.
    """
    function, gain = ACTIVATIONS[activation]
    shapes = {_UP: (width, hidden), _DOWN: (hidden, width), OUTPUT: (width, outputs)}

    def init(key: jax.Array) -> dict[str, Any]:
        return draw_layers(key, shapes, gain, linear=(_DOWN, OUTPUT))

    def apply(params: dict[str, Any], x: jax.Array) -> jax.Array:
        h = function(dense(params[_UP], NORMALIZATIONS["layer"](x)))
        stream = x + dense(params[_DOWN], gxd.tap(_UP, h))
        return dense(params[OUTPUT], stream.mean(1))

    return Network(init, apply, gxd.find_units(apply, init(jax.random.key(0)), jnp.zeros((2, tokens, width))))
