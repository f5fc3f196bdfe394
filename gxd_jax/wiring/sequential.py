"""The wiring of a plain stack of layers, given in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gxd_jax.trees import joined, leaves_by_path
from gxd_jax.types import Params, Path
from gxd_jax.wiring.layers import ParamAxis, UnitLayer, check_order, flatten_index
from gxd_jax.wiring.validation import shown_leaves, validate_units


def sequential_units(params: Params, layers: Sequence[str | int | Path], *, order: str = "NHWC") -> list[UnitLayer]:
    """Builds the unit layers of a plain stack of dense or convolutional layers.

    Every layer but the last, which is the network's output, becomes a `UnitLayer` with the layer's own name. A layer is
    a subtree of `params` with one kernel [..., in, out] and at most one bias [out]. Pooling between convolutions, and
    pooling or flattening between a convolution and a dense layer, are understood.

    The order of `layers` is the order of the data. It cannot be inferred: Flax numbers modules as they are *created*,
    so in `Dense(2)(Dense(5)(x))` the output layer is `Dense_0`, and dictionaries sort 'Dense_10' before 'Dense_2'.

    Args:
        params: The parameters, or Flax variables with a 'params' collection.
        layers: Keys (or whole paths, as tuples) of the layers from first to last.
        order: Layout of a feature map that is flattened, "NHWC" or "NCHW".

    Returns:
        One `UnitLayer` for each layer but the last.

    Raises:
        TypeError: If `layers` is no list of names or paths.
        ValueError: If a layer is missing, listed twice, has no or several kernels, or does not fit the next one.

    Example:
        >>> params = {
        ...     "hidden": {"kernel": np.ones((3, 5)), "bias": np.zeros(5)},
        ...     "output": {"kernel": np.ones((5, 2)), "bias": np.zeros(2)},
        ... }
        >>> [layer.name for layer in sequential_units(params, ["hidden", "output"])]
        ['hidden']
    """
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        raise TypeError(f"layers must be a list of layer names in order, got {layers!r}")
    if any(not isinstance(layer, (str, int, tuple)) for layer in layers):
        raise TypeError(f"layers must be names or paths (tuples) of layers, got {list(layers)!r}")
    check_order(order)
    if len(layers) < 2:
        raise ValueError(f"layers must name at least a hidden layer and the output layer, got {list(layers)!r}")
    leaves = leaves_by_path(params)
    stack = [_find_layer(leaves, layer) for layer in layers]
    names = [joined(layer if isinstance(layer, tuple) else (layer,)) for layer in layers]
    if len({kernel for kernel, _ in stack}) < len(stack):
        raise ValueError(f"layers must differ, got {list(layers)!r}")
    units = []
    for name, (kernel, bias), (next_kernel, next_bias) in zip(names[:-1], stack[:-1], stack[1:], strict=True):
        shape, next_shape = leaves[kernel].shape, leaves[next_kernel].shape
        size = shape[-1]
        units.append(
            UnitLayer(
                name=name,
                size=size,
                incoming=(ParamAxis(kernel, len(shape) - 1),),
                own=() if bias is None else ((ParamAxis(bias, 0), 0.0),),
                outgoing=(
                    ParamAxis(next_kernel, len(next_shape) - 2, _join(kernel, shape, next_kernel, next_shape, order)),
                ),
                outgoing_bias=(next_bias,),
            )
        )
    validate_units(units, params)
    return units


def _find_layer(leaves: dict[Path, Any], layer: str | int | Path) -> tuple[Path, Path | None]:
    """Returns the paths of a layer's kernel and bias."""
    path = (layer,) if isinstance(layer, (str, int)) else tuple(layer)
    for prefix in (path, ("params", *path)):
        inside = {p: leaf for p, leaf in leaves.items() if p[: len(prefix)] == prefix}
        if inside:
            break
    else:
        raise ValueError(f"params have no layer {layer!r}; the paths there are {shown_leaves(leaves)}")
    shapes = {path: np.shape(leaf) for path, leaf in inside.items()}
    kernels = [path for path, shape in shapes.items() if len(shape) >= 2]
    if len(kernels) != 1:
        raise ValueError(
            f"layer {layer!r} must hold exactly one kernel (an array of 2 or more axes), it holds {shapes}"
        )
    size = shapes[kernels[0]][-1]
    others = [path for path in inside if path != kernels[0]]
    if len(others) > 1 or any(shapes[path] != (size,) for path in others):
        raise ValueError(
            f"layer {layer!r} must hold one kernel [..., in, out] and at most one bias [out], it holds {shapes}; "
            "describe other layers with UnitLayer"
        )
    return kernels[0], others[0] if others else None


def _join(kernel: Path, shape: tuple, next_kernel: Path, next_shape: tuple, order: str) -> np.ndarray | None:
    """Returns the index by which the next kernel reads this one's units."""
    size, inputs = shape[-1], next_shape[-2]
    if inputs == size:
        return None
    flattened = len(shape) > 2 and len(next_shape) == 2 and inputs % size == 0
    if not flattened:
        raise ValueError(
            f"{kernel} {shape} gives {size} units but {next_kernel} {next_shape} reads {inputs} inputs: kernels must "
            "be [..., in, out] and stand in the order of the data (Flax numbers modules as they are created: in "
            "Dense(3)(Dense(4)(x)) the output layer is Dense_0)"
        )
    return flatten_index(inputs // size, size, order)
