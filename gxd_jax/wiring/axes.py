"""Arithmetic on parameter axes: magnitudes of weights, masks over units as masks over entries, slices.

The only module that mentions the axes of a parameter; every other one sees features [B, ..., U] and values [U].

"Leaves" is a dict from a parameter's path to the parameter, and the "slices" of a parameter are its parts that belong
to one unit each. An array of k indices of units may hold U, one past the last unit, as padding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from gxd_jax.types import Path
from gxd_jax.wiring.layers import EveryEntry, Layer, ParamAxis, UnitLayer, flatten_index

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Shaped

Place = ParamAxis | EveryEntry
"""Where the units of a layer sit in one parameter."""

_FEW = 4
"""Largest number of units that are handled as slices."""


# --- Places of a layer ---------------------------------------------------------------------------------------------


def places_of(layer: Layer) -> tuple[Place, ...]:
    """Returns where the units of a layer sit, in all parameters: incoming, own and outgoing ones."""
    return (*layer.incoming, *(axis for axis, _ in layer.own), *layer.outgoing)


def positions_of(param_axis: ParamAxis, size: int) -> np.ndarray:
    """Returns the positions [U, P] of each unit along the axis."""
    return np.arange(size)[:, None] if param_axis.index is None else np.asarray(param_axis.index)


def bias_axis(param_axis: ParamAxis, bias: Path | ParamAxis, ndim: int) -> tuple[Path, int]:
    """Returns the path of an outgoing bias and the axis of the kernel along which it lies."""
    if isinstance(bias, ParamAxis):
        return tuple(bias.path), bias.axis % ndim
    return tuple(bias), 1 - param_axis.axis % ndim if ndim == 2 else ndim - 1


# --- Values of units -----------------------------------------------------------------------------------------------


def features_of(values: Array, param_axis: ParamAxis, size: int) -> Array:
    """Turns a kernel's input [..., n] into one value a unit: [..., U], or [..., P, U] with P positions a unit.

    Args:
        values: The kernel's input, its last axis as long as the axis that holds the units.
        param_axis: The outgoing kernel's axis.
        size: Number of units U.
    """
    if param_axis.index is None:
        return values
    index, lead = np.asarray(param_axis.index), values.shape[:-1]
    positions = index.shape[1]
    if positions == 1:
        return values[..., index[:, 0]]
    if values.shape[-1] == index.size and np.array_equal(index, flatten_index(positions, size, "NHWC")):
        return values.reshape(*lead, positions, size)
    return values[..., index.T]


def incoming_magnitude(layer: UnitLayer, leaves: dict[Path, Array]) -> Float[Array, " U"]:
    """Mean absolute incoming weight of each unit."""
    sums = [_per_unit(_float32(jnp.abs(leaves[a.path])), a, layer.size) for a in layer.incoming]
    count = sum(_entries_per_unit(a, leaves[a.path].shape) for a in layer.incoming)
    return sum(sums[1:], start=sums[0]) / count


def outgoing_magnitude(layer: UnitLayer, leaves: dict[Path, Array]) -> Float[Array, " U"]:
    """Sum of the absolute outgoing weights of each unit, over all consumers."""
    sums = [_per_unit(_float32(jnp.abs(leaves[a.path])), a, layer.size) for a in layer.outgoing]
    return sum(sums[1:], start=sums[0])


def outgoing_count(layer: UnitLayer, leaves: dict[Path, Array]) -> int:
    """Number of outgoing weights of each unit."""
    return sum(_entries_per_unit(a, leaves[a.path].shape) for a in layer.outgoing)


def incoming_std(layer: Layer, leaves: dict[Path, Array]) -> tuple[Float[Array, ""], ...]:
    """Standard deviation of the units' entries in each incoming parameter."""
    entries = (jnp.asarray(entries_of(place, leaves[place.path], layer.size)) for place in layer.incoming)
    return tuple(_computed(each).std() for each in entries)


def weighted_outgoing_sums(
    layer: Layer, weights: Float[Array, " U"], indices: Int[Array, " k"], *trees: dict[Path, Array]
) -> list[tuple[Path, Float[Array, " K"]]]:
    """Sums weight x outgoing entry over the given units, by the outputs of each consumer with a bias.

    Args:
        layer: The layer.
        weights: A weight for each unit.
        indices: The units; the slices of a few are looked up, for many the whole kernel is read.
        *trees: Leaves that are added up first (parameters and updates).

    Returns:
        For each consumer with a bias, the bias's path and the sums [K]; entries that are not finite are left out.
    """
    sums = []
    for param_axis, bias in zip(layer.outgoing, layer.outgoing_bias, strict=True):
        if bias is None:
            continue
        kernels = [tree[param_axis.path] for tree in trees]
        shape = kernels[0].shape
        bias_path, out_axis = bias_axis(param_axis, bias, len(shape))
        if indices.shape[0] <= _FEW:
            kernels = [take_slices(param_axis, kernel, layer.size, indices) for kernel in kernels]
            axis, positions = param_axis.axis % len(shape), kernels[0].shape[param_axis.axis] // indices.shape[0]
            of_entry = jnp.repeat(jnp.minimum(indices, layer.size - 1), positions)
            weight = _along(weights[of_entry], axis, len(shape))
            counts = _along(jnp.repeat(indices < layer.size, positions), axis, len(shape))
        else:
            given = jnp.zeros(layer.size, bool).at[indices].set(True, mode="drop")
            weight = spread(param_axis, weights, shape, 0.0)
            counts = spread_mask(param_axis, given, shape)
        entries = weight * sum(_computed(kernel) for kernel in kernels)
        entries = jnp.where(counts & jnp.isfinite(entries), entries, 0.0)
        sums.append((bias_path, entries.sum([i for i in range(len(shape)) if i != out_axis])))
    return sums


# --- Values and masks over units, repeated over a parameter --------------------------------------------------------


def spread(place: Place, values: Shaped[Array, " U"], shape: tuple[int, ...], fill: Any) -> Array:
    """Repeats values of units over a parameter's entries: an array that broadcasts against it.

    Args:
        place: Where the units sit.
        values: A value for each unit.
        shape: Shape of the parameter.
        fill: The value at positions that belong to no unit.
    """
    if isinstance(place, EveryEntry):
        return values.reshape(shape)
    axis = place.axis % len(shape)
    if place.index is not None:
        unit = _unit_of_position(np.asarray(place.index), shape[axis])
        values = jnp.where(unit >= 0, values[np.maximum(unit, 0)], fill)
    return _along(values, axis, len(shape))


def spread_mask(place: Place, mask: Bool[Array, " U"], shape: tuple[int, ...]) -> Array:
    """Turns a mask over units into one that broadcasts against a parameter of this shape."""
    return spread(place, mask, shape, False)


def entry_masks(
    layers: Sequence[Layer], masks: Mapping[str, Bool[Array, " U"]], leaves: dict[Path, Array]
) -> dict[Path, Array]:
    """Returns the masks of the parameter entries that belong to the units in `masks`: incoming, own and outgoing ones.

    Args:
        layers: The layers.
        masks: Layer name -> mask over its units.
        leaves: The parameters.

    Returns:
        Path of a parameter -> mask that broadcasts against it; parameters without units are absent.
    """
    entries: dict[Path, Array] = {}
    for layer in layers:
        for place in places_of(layer):
            mask = spread_mask(place, masks[layer.name], leaves[place.path].shape)
            entries[place.path] = entries[place.path] | mask if place.path in entries else mask
    return entries


def scale_units(layer: UnitLayer, leaves: dict[Path, Array], gains: Float[Array, " U"]) -> dict[Path, Array]:
    """Returns the leaves with the incoming weights and own parameters of each unit times its gain."""
    scaled = dict(leaves)
    for param_axis in (*layer.incoming, *(axis for axis, _ in layer.own)):
        leaf = scaled[param_axis.path]
        scaled[param_axis.path] = (leaf * spread(param_axis, gains, jnp.shape(leaf), 1.0)).astype(leaf.dtype)
    return scaled


# --- Slices --------------------------------------------------------------------------------------------------------


def is_compact(place: Place, count: int) -> TypeGuard[ParamAxis]:
    """Whether the entries of at most `count` units are handled as slices, and not as an array like the parameter.

    XLA fuses the selection among a few slices with the loop that applies the kernel's update, at almost no cost; among
    many slices it would be a lookup at every entry.
    """
    return isinstance(place, ParamAxis) and place.index is None and count <= _FEW


def slices_shape(param_axis: ParamAxis, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Returns the shape of the slices of `count` units, laid out like the parameter itself."""
    axis = param_axis.axis % len(shape)
    positions = 1 if param_axis.index is None else np.shape(param_axis.index)[1]
    return (*shape[:axis], count * positions, *shape[axis + 1 :])


def take_slices(param_axis: ParamAxis, leaf: Array, size: int, indices: Int[Array, " k"]) -> Array:
    """Returns the slices of k units, of shape `slices_shape(param_axis, leaf.shape, k)`; any slice for padding."""
    if param_axis.index is None and indices.shape[0] == 1:  # less to compile than a gather
        return jax.lax.dynamic_slice_in_dim(leaf, indices[0], 1, param_axis.axis)
    positions = _positions(param_axis, jnp.minimum(indices, size - 1))
    return jnp.take(leaf, positions.ravel(), axis=param_axis.axis, mode="clip")


def place_slices(param_axis: ParamAxis, leaf: Array, size: int, indices: Int[Array, " k"], slices: Array) -> Array:
    """Returns the leaf with the slices of k units written into it."""
    axis = param_axis.axis % leaf.ndim
    positions = jnp.where((indices < size)[:, None], _positions(param_axis, indices), leaf.shape[axis])
    return leaf.at[(slice(None),) * axis + (positions.ravel(),)].set(slices, mode="drop")


def spread_slices(param_axis: ParamAxis, slices: Array, indices: Int[Array, " k"], shape: tuple[int, ...]) -> Array:
    """Spreads the slices of a few units (see `is_compact`) so that they broadcast against the parameter.

    Returns:
        An array in which every unit's entries hold its slice; entries of other units are arbitrary.
    """
    axis = param_axis.axis % len(shape)
    spread_out = jax.lax.slice_in_dim(slices, 0, 1, axis=axis)
    unit = _along(jnp.arange(shape[axis]), axis, len(shape))
    for number in range(1, indices.shape[0]):
        one = jax.lax.slice_in_dim(slices, number, number + 1, axis=axis)
        spread_out = jnp.where(unit == indices[number], one, spread_out)
    return spread_out


# --- Helpers -------------------------------------------------------------------------------------------------------


def _along(values: Array, axis: int, ndim: int) -> Array:
    """Shapes a vector so that it lies along one of `ndim` axes."""
    return values.reshape([-1 if i == axis else 1 for i in range(ndim)])


def _positions(param_axis: ParamAxis, indices: Int[Array, " k"]) -> Int[Array, "k P"]:
    if param_axis.index is None:
        return indices[:, None]
    return jnp.take(jnp.asarray(param_axis.index), indices, axis=0, mode="clip")


def _unit_of_position(index: np.ndarray, length: int) -> np.ndarray:
    """Returns the unit of each position along an axis, -1 where it belongs to none."""
    unit = np.full(length, -1)
    unit[index] = np.arange(len(index))[:, None]
    return unit


def entries_of(place: Place, leaf: Array, size: int) -> Array:
    """Returns the entries of a parameter that belong to units."""
    if isinstance(place, EveryEntry):
        return jnp.asarray(leaf)
    return jnp.take(leaf, positions_of(place, size).ravel(), axis=place.axis)


def _entries_per_unit(param_axis: ParamAxis, shape: tuple[int, ...]) -> int:
    return math.prod(slices_shape(param_axis, shape, 1))


def _per_unit(values: Array, param_axis: ParamAxis, size: int) -> Float[Array, " U"]:
    """Sums a parameter's entries by unit."""
    axis = param_axis.axis % values.ndim
    sums = values.sum([i for i in range(values.ndim) if i != axis])
    return sums if param_axis.index is None else sums[positions_of(param_axis, size)].sum(1)


def _float32(leaf: Array) -> Array:
    return jnp.asarray(leaf, jnp.float32)


def _computed(leaf: Array) -> Array:
    """Returns a parameter in the precision of statistics: float32, or complex64."""
    return jnp.asarray(leaf, jnp.complex64 if jnp.iscomplexobj(leaf) else jnp.float32)
