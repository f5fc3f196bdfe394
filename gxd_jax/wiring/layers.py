"""What a hidden unit is: on which axis of which parameter the units of a layer sit. The wiring of a network is data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gxd_jax.trees import joined
from gxd_jax.types import Path


class ParamAxis(NamedTuple):
    """Where the units of a layer sit on one axis of one parameter.

    Attributes:
        path: Keys that lead to the parameter.
        axis: The axis of the parameter along which the units lie.
        index: int [U, P]: the P positions along that axis that belong to each unit. None: position u is unit u.
    """

    path: Path
    axis: int
    index: np.ndarray | None = None


class UnitLayer(NamedTuple):
    """One layer of hidden units and every parameter entry that belongs to them.

    Attributes:
        name: The name that the layer's features carry.
        size: Number of units U.
        incoming: Kernels that feed the units; re-initialised on replacement.
        own: Parameters with one entry a unit, each with its reset value (bias 0, norm scale 1).
        outgoing: Kernels that read the units; set to 0 on replacement.
        outgoing_bias: For each outgoing kernel its layer's bias, to which a replaced unit's mean contribution is added:
            the path of a 1-D bias along the kernel's output axis (the other axis of a matrix, the last axis of a
            larger kernel), a `ParamAxis(bias path, output axis of the kernel)` where it is another axis, or None.
        feature: Name of the `tap` that holds the units' outputs. None: the tap of the layer's own name if the model
            passes one, else the input of the consumer module (Flax linen).
    """

    name: str
    size: int
    incoming: tuple[ParamAxis, ...]
    own: tuple[tuple[ParamAxis, float], ...]
    outgoing: tuple[ParamAxis, ...]
    outgoing_bias: tuple[Path | ParamAxis | None, ...]
    feature: str | None = None


class EveryEntry(NamedTuple):
    """All entries of one parameter, each of which counts as a unit, in row-major order.

    Attributes:
        path: Keys that lead to the parameter.
    """

    path: Path


class WeightLayer(NamedTuple):
    """One kernel whose weights are replaced one by one: a layer whose "units" are the entries of the kernel.

    Attributes:
        name: The kernel's path, joined by slashes.
        size: Number of entries U.
        incoming: The kernel.
        own: Empty, as the following ones; they are there because `UnitLayer` has them.
        outgoing: Empty.
        outgoing_bias: Empty.
    """

    name: str
    size: int
    incoming: tuple[EveryEntry]
    own: tuple[()] = ()
    outgoing: tuple[()] = ()
    outgoing_bias: tuple[()] = ()


Layer = UnitLayer | WeightLayer


def weight_layer(path: Path, size: int) -> WeightLayer:
    """Returns the layer of the single weights of a kernel with `size` entries."""
    return WeightLayer(joined(path), size, incoming=(EveryEntry(path),))


def flatten_index(positions: int, units: int, order: str = "NHWC") -> np.ndarray:
    """Returns where each unit's values lie in a flattened feature map.

    Args:
        positions: Number of positions P of the map (H * W).
        units: Number of channels U.
        order: "NHWC" (channels last: entry p * U + u) or "NCHW" (channels first: entry u * P + p).

    Returns:
        int [U, P], for `ParamAxis.index`.

    Raises:
        ValueError: If `order` is neither of the two.
    """
    check_order(order)
    entries = np.arange(positions * units)
    return entries.reshape(positions, units).T if order == "NHWC" else entries.reshape(units, positions)


def check_order(order: str) -> None:
    """Checks the layout of a flattened feature map."""
    if order not in ("NHWC", "NCHW"):
        raise ValueError(f"unknown order {order!r}: allowed are 'NHWC' and 'NCHW'")
