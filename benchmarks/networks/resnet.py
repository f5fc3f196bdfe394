"""ResNet-18 for 32x32 images (He et al., 2016), as in [N]: 3x3 stem with stride 1, no max pool, batch norm."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import flax.linen as nn

if TYPE_CHECKING:
    from jaxtyping import Array, Float

_kaiming_normal = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
_conv = functools.partial(nn.Conv, use_bias=False, kernel_init=_kaiming_normal)


class Block(nn.Module):
    """Two convolutions beside a shortcut, which is a 1x1 convolution where the shape changes.

    Attributes:
        channels: Number of channels.
        stride: Stride of the first convolution.
    """

    channels: int
    stride: int

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"], train: bool) -> Float[Array, "B h w D"]:
        """Returns the block's outputs; batch norm uses the batch's statistics where `train` is true."""
        norm = functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, epsilon=1e-5)
        h = nn.relu(norm()(_conv(self.channels, (3, 3), self.stride, padding=1)(x)))
        h = norm()(_conv(self.channels, (3, 3), padding=1)(h))
        if x.shape != h.shape:
            x = norm(name="shortcut_norm")(_conv(self.channels, (1, 1), self.stride, name="shortcut")(x))
        return nn.relu(x + h)


class ResNet18(nn.Module):
    """The network.

    Attributes:
        outputs: Number of outputs K.
        channels: Channels of the four stages.
    """

    outputs: int
    channels: Sequence[int] = (64, 128, 256, 512)

    @nn.compact
    def __call__(self, x: Float[Array, "B 32 32 3"], train: bool) -> Float[Array, "B K"]:
        """Returns the logits; batch norm uses the batch's statistics where `train` is true."""
        x = _conv(self.channels[0], (3, 3), padding=1, name="stem")(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=1e-5, name="stem_norm")(x))
        for stage, channels in enumerate(self.channels):
            for number in range(2):
                x = Block(channels, 2 if stage and not number else 1, name=f"block_{stage}_{number}")(x, train)
        return nn.Dense(self.outputs, name="head")(x.mean((1, 2)))
