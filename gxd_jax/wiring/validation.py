"""Checks of a wiring: its form, and whether it fits the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gxd_jax.checks import check_number
from gxd_jax.trees import leaves_by_path
from gxd_jax.types import Params, Path
from gxd_jax.wiring.axes import bias_axis, positions_of
from gxd_jax.wiring.layers import ParamAxis, UnitLayer


def validate_units(units: Sequence[UnitLayer], params: Params) -> None:
    """Checks that the wiring fits the parameters.

    Args:
        units: The unit layers.
        params: The parameters.

    Raises:
        TypeError: If `units` is not a sequence of `UnitLayer`.
        ValueError: If a path is missing, an axis or index does not fit, a layer has no incoming or no outgoing kernel
            (an output layer is not hidden), a name or a parameter's axis is used twice.
    """
    check_unit_list(units)
    leaves = leaves_by_path(params)
    users: dict[tuple[Path, int, int], str] = {}
    for layer in units:
        own = tuple(axis for axis, _ in layer.own)
        for role, axes in (("incoming", layer.incoming), ("own", own), ("outgoing", layer.outgoing)):
            for param_axis in axes:
                where = f"layer {layer.name!r}: {role} {param_axis.path} axis {param_axis.axis}"
                axis, index = _check_axis(where, layer.size, param_axis, leaves)
                for position in index.ravel().tolist():
                    user = users.setdefault((param_axis.path, axis, position), where)
                    if user is not where:
                        raise ValueError(f"{where}: position {position} is used twice, also as {user}")
        for param_axis, bias in zip(layer.outgoing, layer.outgoing_bias, strict=True):
            _check_bias(layer.name, param_axis, bias, leaves)


def check_unit_list(units: Sequence[UnitLayer]) -> None:
    """Checks what can be checked of unit layers without parameters; raises as `validate_units` does."""
    if isinstance(units, UnitLayer) or not isinstance(units, Sequence) or isinstance(units, str):
        raise TypeError(f"units must be a list of UnitLayer, got {type(units).__name__}")
    for layer in units:
        if not isinstance(layer, UnitLayer):
            raise TypeError(f"units must be a list of UnitLayer, it holds a {type(layer).__name__}")
        _check_form(layer)
        if not layer.incoming or not layer.outgoing:
            missing = "outgoing" if layer.incoming else "incoming"
            raise ValueError(
                f"layer {layer.name!r} has no {missing} kernel: hidden units have both (an output layer is not hidden)"
            )
        if len(layer.outgoing_bias) != len(layer.outgoing):
            raise ValueError(
                f"layer {layer.name!r}: outgoing_bias must have one entry (a path or None) for each of the "
                f'{len(layer.outgoing)} outgoing kernels, such as (("output", "bias"),); it is {layer.outgoing_bias}'
            )
    names = [layer.name for layer in units]
    if not names:
        raise ValueError("units must hold at least one layer")
    if len(set(names)) < len(names):
        raise ValueError(f"the names of unit layers must differ, got {names}")


def _check_form(layer: UnitLayer) -> None:
    """Checks that the fields of a layer written by hand have the right form."""
    if not isinstance(layer.name, str) or not layer.name:
        raise TypeError(f"the name of a UnitLayer must be a string that is not empty, got {layer.name!r}")
    if isinstance(layer.size, bool) or not isinstance(layer.size, (int, np.integer)) or layer.size < 1:
        raise TypeError(f"layer {layer.name!r}: size must be a whole number of 1 or more, got {layer.size!r}")
    for field in ("incoming", "own", "outgoing", "outgoing_bias"):
        if not isinstance(getattr(layer, field), (tuple, list)):
            raise TypeError(f"layer {layer.name!r}: {field} must be a tuple, got {getattr(layer, field)!r}")
    own = [pair[0] if isinstance(pair, tuple) and len(pair) == 2 else pair for pair in layer.own]
    for role, axes in (("incoming", layer.incoming), ("own", own), ("outgoing", layer.outgoing)):
        wanted = "(ParamAxis, reset value) pairs" if role == "own" else "ParamAxis"
        for axis in [axes] if isinstance(axes, ParamAxis) else axes:
            form = (
                isinstance(axis, ParamAxis)
                and isinstance(axis.path, tuple)
                and isinstance(axis.axis, (int, np.integer))
            )
            if axes is axis or not form or (role == "own" and any(pair is axis for pair in layer.own)):
                raise TypeError(
                    f"layer {layer.name!r}: {role} must be a tuple of {wanted}, each with a tuple as path and an int "
                    f"as axis; got {getattr(layer, role)!r}"
                )
    for axis, value in layer.own:
        allowed = "(-inf, inf)"
        check_number(f"layer {layer.name!r}: the reset value of {axis.path}", value, allowed, np.isfinite)


def _check_axis(where: str, size: int, param_axis: ParamAxis, leaves: dict[Path, Any]) -> tuple[int, np.ndarray]:
    """Checks one parameter axis; returns the axis as a non-negative number and its index [U, P]."""
    shape = _check_path(where, tuple(param_axis.path), leaves)
    if not -len(shape) <= param_axis.axis < len(shape):
        raise ValueError(f"{where}: the parameter has shape {shape}, it has no such axis")
    length = shape[param_axis.axis]
    index = positions_of(param_axis, size)
    if param_axis.index is None and length != size:
        raise ValueError(f"{where}: shape {shape} has {length} entries there, the layer has {size} units")
    if index.ndim != 2 or index.shape[0] != size or not np.issubdtype(index.dtype, np.integer):
        raise ValueError(f"{where}: index must be integers [{size}, P], it is {index.dtype} {index.shape}")
    if index.size and (index.min() < 0 or index.max() >= length):
        raise ValueError(f"{where}: index must lie in [0, {length}), it spans [{index.min()}, {index.max()}]")
    if np.unique(index).size < index.size:
        raise ValueError(f"{where}: index names a position twice")
    return param_axis.axis % len(shape), index


def _check_path(where: str, path: Path, leaves: dict[Path, Any]) -> tuple[int, ...]:
    if path not in leaves:
        raise ValueError(
            f"{where}: params have no such path (or it is masked out); the paths there are {shown_leaves(leaves)}"
        )
    return np.shape(leaves[path])


def _check_bias(name: str, param_axis: ParamAxis, bias: Path | ParamAxis | None, leaves: dict[Path, Any]) -> None:
    if bias is None:
        return
    path, out_axis = bias_axis(param_axis, bias, np.ndim(leaves[param_axis.path]))
    where = f"layer {name!r}: outgoing bias {path}"
    shape = _check_path(where, path, leaves)
    kernel_shape = np.shape(leaves[param_axis.path])
    if out_axis == param_axis.axis % len(kernel_shape):
        raise ValueError(f"{where}: axis {out_axis} of {param_axis.path} holds the units, it cannot be its output axis")
    if shape != (kernel_shape[out_axis],):
        raise ValueError(
            f"{where}: shape {shape} does not fit axis {out_axis} of {param_axis.path} {kernel_shape}: "
            f"it must be ({kernel_shape[out_axis]},)"
        )


def shown_leaves(leaves: dict[Path, Any]) -> str:
    """Returns the first paths of a tree and their shapes, for messages."""
    shown = [f"{path} {np.shape(leaf)}" for path, leaf in list(leaves.items())[:20]]
    return ", ".join(shown + ["..."] * (len(leaves) > 20)) or "none"
