"""What a replacement does to the parameters, as a change of the updates (step 7 of `engine`).

Masks are True for what is replaced. They are used in `where` and never as factors, because 0 x NaN is NaN: an entry
that is not finite must not spoil others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp

from gxd_jax.resets.fresh_weights import FreshWeights
from gxd_jax.trees import leaves_by_path, replace_leaves
from gxd_jax.types import Params, Path
from gxd_jax.wiring import axes
from gxd_jax.wiring.axes import Place
from gxd_jax.wiring.layers import Layer

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


class Replacement(NamedTuple):
    """The units of one layer that are replaced now, at most k of them.

    Attributes:
        mask: Which units, bool [U].
        indices: Their indices, int32 [k], padded with U. k = 0: no unit is ever replaced.
        incoming: Fresh weights, one for each incoming parameter.
    """

    mask: Bool[Array, " U"]
    indices: Int[Array, " k"]
    incoming: tuple[FreshWeights, ...]


def reset_updates(
    layers: Sequence[Layer],
    params: Params,
    updates: Params,
    replacements: Mapping[str, Replacement],
    references: Mapping[str, Float[Array, " U"]],
    compensate: bool,
) -> Params:
    """Changes updates so that applying them resets the replaced units ([N], Algorithm 1).

    Incoming slices are set to the fresh weights, own parameters to their reset values, outgoing slices to exactly 0;
    the mean contribution of the replaced units is added to the biases of their consumers. Later writes win, in the
    order compensation, fresh weights, own values, zeros.

    Args:
        layers: The layers.
        params: Parameters before the optimizer's step.
        updates: The optimizer's updates.
        replacements: Layer name -> which units are replaced, and their fresh weights.
        references: Layer name -> mean output of each unit.
        compensate: Whether consumers' biases are compensated.

    Returns:
        Updates. Those of parameters of less than 32 bits are float32, so that fresh weights survive the addition.

    References:
        [N] Dohare et al., "Loss of plasticity in deep continual learning", Nature 632 (2024).
    """
    layers = [layer for layer in layers if replacements[layer.name].indices.size]
    leaves, old = leaves_by_path(params), leaves_by_path(updates)
    new: dict[Path, Array] = {}

    def current(path: Path) -> Array:
        update = new[path] if path in new else old[path]
        return update.astype(jnp.promote_types(update.dtype, jnp.float32))

    def overwrite(place: Place, replacement: Replacement, values: Array | float) -> None:
        """Makes the replaced units' entries `values`: their slices, an array like the parameter, or a number."""
        param, update = leaves[place.path], current(place.path)
        compact = axes.is_compact(place, replacement.indices.size)
        size = replacement.mask.size
        before = axes.take_slices(place, param, size, replacement.indices) if compact else param
        changes = _changes(before.astype(update.dtype), values)
        if compact:
            changes = axes.spread_slices(place, changes, replacement.indices, param.shape)
        new[place.path] = jnp.where(axes.spread_mask(place, replacement.mask, param.shape), changes, update)

    if compensate:
        for layer in layers:
            indices = replacements[layer.name].indices
            for path, share in axes.weighted_outgoing_sums(layer, references[layer.name], indices, leaves, old):
                new[path] = current(path) + share
    for layer in layers:
        for place, fresh in zip(layer.incoming, replacements[layer.name].incoming, strict=True):
            overwrite(place, replacements[layer.name], fresh.values)
    for layer in layers:
        for place, value in layer.own:
            overwrite(place, replacements[layer.name], value)
    for layer in layers:
        for place in layer.outgoing:
            overwrite(place, replacements[layer.name], 0.0)
    return replace_leaves(updates, new)


def _changes(before: Array, targets: Array | float) -> Array:
    """Returns what has to be added to get the targets.

    Adding cannot turn a parameter that is not finite into a number; its update is then the target itself, which
    `gxd_jax.apply_updates` selects.
    """
    return jnp.where(jnp.isfinite(before), targets - before, targets)
