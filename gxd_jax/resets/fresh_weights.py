"""Fresh incoming weights for a few units: from their parameter's initial distribution or from a user's initializer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from gxd_jax.resets.initial_weights import InitialWeights
from gxd_jax.resets.initializers import Initializer, KernelInit, initializer_of, scale_of_slices
from gxd_jax.types import Path
from gxd_jax.wiring import axes
from gxd_jax.wiring.axes import Place
from gxd_jax.wiring.layers import EveryEntry, Layer, ParamAxis

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Inexact, Int, PRNGKeyArray

_BLOCK = 8
"""Units that are drawn at once where there may be many."""


class FreshWeights(NamedTuple):
    """Fresh values of the entries of replaced units in one parameter.

    Attributes:
        values: The slices of the k units where `axes.is_compact` says so, laid out like the parameter; else an array
            like the parameter, with the slices at their places.
        indices: Indices of the k units, padded with U.
    """

    values: Inexact[Array, "..."]
    indices: Int[Array, " k"]


class Incoming(NamedTuple):
    """One incoming parameter of a layer, and the units whose slices are drawn.

    Attributes:
        place: Where the units are.
        shape: Shape of the parameter.
        size: Number of units U.
        initializer: The user's initializer; None: weights are drawn from `initial`.
        initial: The parameter's initial distribution.
        indices: Indices of the k units, padded with U.
    """

    place: Place
    shape: tuple[int, ...]
    size: int
    initializer: Initializer | None
    initial: InitialWeights
    indices: Int[Array, " k"]


class PackedDraws(NamedTuple):
    """Fresh incoming weights of an update as they leave the branch that draws them.

    Attributes:
        normals: Standard normal numbers for the slices of all compact parameters in a row, float32. One draw for all of
            them: one for each parameter would take most of the time of compilation.
        others: One array for each of the other parameters.
    """

    normals: Float[Array, " n"]
    others: tuple[Array, ...]


def incoming_of(
    layers: Sequence[Layer],
    leaves: dict[Path, Array],
    kernel_init: KernelInit,
    initial: Mapping[str, Sequence[InitialWeights]],
    indices: Mapping[str, Int[Array, " k"]],
) -> list[Incoming]:
    """Lists the incoming parameters of all layers; the mappings are by the layers' names."""
    return [
        Incoming(
            place=place,
            shape=leaves[place.path].shape,
            size=layer.size,
            initializer=initializer_of(kernel_init, layer.name, place.path, leaves[place.path].ndim),
            initial=weights,
            indices=indices[layer.name],
        )
        for layer in layers
        for place, weights in zip(layer.incoming, initial[layer.name], strict=True)
    ]


def draw(incoming: Sequence[Incoming], key: PRNGKeyArray) -> PackedDraws:
    """Draws fresh incoming weights of the units of each parameter.

    Only the weights of replaced units are drawn. An initializer whose standard deviation depends on the shape (fan-in,
    fan-out) gives that of the whole kernel: the factor between slices and kernel is measured once, while tracing. One
    whose values cannot be drawn by slices (orthogonal) is drawn whole.

    Args:
        incoming: From `incoming_of`.
        key: Key of this update.
    """
    normal_key, others_key = jax.random.split(key)
    count = sum(_normals(each) for each in incoming if _is_packed(each))
    others = tuple(
        _draw_other(each, each_key)
        for each, each_key in zip(incoming, jax.random.split(others_key, max(len(incoming), 1)), strict=False)
        if not _is_packed(each)
    )
    return PackedDraws(jax.random.normal(normal_key, (count,), jnp.float32), others)


def unpack(
    packed: PackedDraws, incoming: Sequence[Incoming], layers: Sequence[Layer]
) -> dict[str, tuple[FreshWeights, ...]]:
    """Returns the fresh weights: layer name -> those of each incoming parameter."""
    others, fresh, start = iter(packed.others), [], 0
    for each in incoming:
        if _is_packed(each):
            end = start + _normals(each)
            values = _from_normals(each, packed.normals[start:end], each.indices)
            start = end
        else:
            values = next(others)
        fresh.append(FreshWeights(values, each.indices))
    remaining = iter(fresh)
    return {layer.name: tuple(next(remaining) for _ in layer.incoming) for layer in layers}


def _is_packed(each: Incoming) -> bool:
    return each.initializer is None and axes.is_compact(each.place, each.indices.shape[0])


def _axis(each: Incoming) -> ParamAxis:
    """Returns the axis of the units; single weights are drawn with their whole kernel, never as slices."""
    return cast(ParamAxis, each.place)


def _normals(each: Incoming) -> int:
    """Returns how many standard normal numbers the slices need; a complex entry needs two."""
    entries = math.prod(axes.slices_shape(_axis(each), each.shape, each.indices.shape[0]))
    return entries * (2 if jnp.iscomplexobj(each.initial.mean) else 1)


def _from_normals(each: Incoming, normals: Float[Array, " n"], indices: Int[Array, " k"]) -> Array:
    """Turns standard normal numbers into slices of the parameter's initial distribution."""
    initial = each.initial
    shape = axes.slices_shape(_axis(each), each.shape, indices.shape[0])
    slices = _scaled(initial, normals, shape)
    if initial.values.size:
        own = axes.take_slices(_in_unit_order(_axis(each)), initial.values, each.size, indices)
        slices = jnp.where(initial.follows_units, own, slices)
    return slices


def _scaled(initial: InitialWeights, normals: Float[Array, " n"], shape: tuple[int, ...]) -> Array:
    if not jnp.iscomplexobj(initial.mean):
        return initial.mean + initial.std * normals.reshape(shape)
    real, imag = normals.reshape(2, *shape)
    return initial.mean + jax.lax.complex(initial.std.real * real, initial.std.imag * imag)


def _in_unit_order(place: ParamAxis) -> ParamAxis:
    """Returns where the units are among the values that `InitialWeights` keeps, which are in the order of the units."""
    if place.index is None:
        return place._replace(axis=0)
    return place._replace(axis=0, index=np.arange(np.size(place.index)).reshape(np.shape(place.index)))


def _draw_other(each: Incoming, key: PRNGKeyArray) -> Array:
    if isinstance(each.place, EveryEntry):
        return _draw_whole(each, key)
    if axes.is_compact(each.place, each.indices.shape[0]):
        return _draw_slices(each, each.indices, key)
    return _draw_in_place(each, key)


def _draw_whole(each: Incoming, key: PRNGKeyArray) -> Array:
    """Draws a whole kernel: of its single weights so many may be replaced that slices would not be faster."""
    if each.initializer is not None:
        return each.initializer(key, each.shape, jnp.float32)
    parts = 2 if jnp.iscomplexobj(each.initial.mean) else 1
    return _scaled(each.initial, jax.random.normal(key, (parts * math.prod(each.shape),), jnp.float32), each.shape)


def _draw_slices(each: Incoming, indices: Int[Array, " k"], key: PRNGKeyArray) -> Array:
    """Draws the slices of k units of one parameter."""
    place, shape, size, initializer = _axis(each), each.shape, each.size, each.initializer
    if initializer is None:
        count = _normals(each._replace(indices=indices))
        return _from_normals(each, jax.random.normal(key, (count,), jnp.float32), indices)
    slices_shape = axes.slices_shape(place, shape, indices.shape[0])
    probe_shape = axes.slices_shape(place, shape, max(1, min(3, size - 1)))
    scale = scale_of_slices(initializer, shape, slices_shape, probe_shape)
    if scale is None:
        return axes.take_slices(place, initializer(key, shape, jnp.float32), size, indices)
    return scale * initializer(key, slices_shape, jnp.float32)


def _draw_in_place(each: Incoming, key: PRNGKeyArray) -> Array:
    """Draws the slices block by block, as many as there are units, into an array like the parameter."""
    size, indices = each.size, each.indices
    blocks = -(-indices.shape[0] // _BLOCK)
    indices = jnp.pad(indices, (0, blocks * _BLOCK - indices.shape[0]), constant_values=size).reshape(blocks, _BLOCK)

    def draw_block(i, whole):
        slices = _draw_slices(each, indices[i], jax.random.fold_in(key, i))
        return axes.place_slices(_axis(each), whole, size, indices[i], slices)

    needed = (indices[:, 0] < size).sum()
    empty = jnp.zeros(each.shape, jnp.result_type(each.initial.mean))
    empty = jnp.zeros_like(jax.eval_shape(draw_block, 0, empty))  # under shard_map it varies as the draws do
    return jax.lax.fori_loop(0, needed, draw_block, empty)
