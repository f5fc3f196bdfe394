"""The cost of a reset: the change of the outputs when units are replaced, measured instead of estimated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gxd_jax.batches import unit_means
from gxd_jax.checks import check_flag, check_whole, look_up
from gxd_jax.keys import KeyLike, as_key
from gxd_jax.observing.observation import capture
from gxd_jax.resets import fresh_weights, parameters, selection
from gxd_jax.resets.initial_weights import initial_weights
from gxd_jax.resets.initializers import KernelInit, check_kernel_init
from gxd_jax.trees import leaves_by_path
from gxd_jax.types import Params
from gxd_jax.wiring.layers import UnitLayer

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

Distance = Callable[[Any, Any], "Float[Array, ' B']"]
"""A function (outputs before, outputs after) -> one number for each example."""


def reset_cost(
    apply: Callable[[Params, Any], Any],
    params: Params,
    units: Sequence[UnitLayer],
    inputs: Any,
    *,
    sets: dict[str, Int[Array, "S k"]] | None = None,
    references: dict[str, Float[Array, " U"]] | None = None,
    distance: str | Distance = "norm2",
    compensate: bool = True,
    redraw: bool = True,
    kernel_init: KernelInit = None,
    key: KeyLike = 0,
    chunk: int = 16,
) -> dict[str, Float[Array, " S"]]:
    """Measures the reset cost C(S) of single units, or of sets of units, of each layer.

    Each set is reset as `continual_backprop` resets units: incoming weights re-initialised, own parameters at their
    reset values, outgoing weights 0, consumers' biases compensated. The cost is the mean distance between the outputs
    before and after, over the examples.

    Args:
        apply: (params, inputs) -> outputs [B, ...].
        params: The parameters.
        units: The unit layers.
        inputs: Examples, best held-out examples of the current data.
        sets: Layer name -> indices of units [S, k], S sets of k units of that layer, padded with U. None: every single
            unit.
        references: Layer name -> mean output of each unit, for the compensation. None: the mean over `inputs`.
        distance: "norm2" (of all outputs of an example), "kl" (of softmax(before) from softmax(after), for logits
            [B, ..., K]), or a function (before, after) -> [B].
        compensate: As in `continual_backprop`.
        redraw: False leaves the incoming weights and own parameters as they are. The cost is then that of losing the
            units' outputs alone, without the effect of fresh weights on siblings under a layer norm.
        kernel_init: As in `continual_backprop`; None: normal, with the mean and the standard deviation that the kernel
            has now.
        key: An int or a JAX key, for the fresh weights.
        chunk: Sets that are computed at once; each needs a copy of the parameters.

    Returns:
        Layer name -> costs [S]; S is the number of units where `sets` is None.

    Raises:
        TypeError, ValueError: If the distance, a layer or a unit of `sets` is unknown, a set names a unit twice, or the
            wiring does not fit.

    References:
        Elisii et al., arXiv 2605.06834, eq. (1).
    """
    measure = look_up("distance", distance, DISTANCES, "a function")
    check_flag("compensate", compensate)
    check_flag("redraw", redraw)
    check_whole("chunk", chunk, 1)
    check_kernel_init(kernel_init, units)
    before, features = capture(apply, params, units, inputs)
    if references is not None:
        _check_references(references, units)
    else:
        references = {name: unit_means(values) for name, values in features.items()}
    by_name = {layer.name: layer for layer in units}
    if sets is None:
        sets = {layer.name: jnp.arange(layer.size)[:, None] for layer in units}
    if unknown := sorted(set(sets) - set(by_name)):
        raise ValueError(f"sets names the layers {unknown}; the layers of units are {sorted(by_name)}")

    def cost_of(layer: UnitLayer, indices: Int[Array, " k"], key: Array) -> Float[Array, ""]:
        only = {layer.name: indices}
        after = reset_units([layer], params, only, references, key, kernel_init, compensate=compensate, redraw=redraw)
        return measure(before, apply(after, inputs)).mean()

    costs = {}
    for (name, indices), layer_key in zip(sets.items(), jax.random.split(as_key(key), len(sets)), strict=True):
        layer = by_name[name]
        indices = _checked_sets(layer, indices)
        keys = jax.random.split(layer_key, indices.shape[0])
        costs[name] = jax.lax.map(lambda args, layer=layer: cost_of(layer, *args), (indices, keys), batch_size=chunk)
    return costs


def reset_units(
    units: Sequence[UnitLayer],
    params: Params,
    indices: dict[str, Int[Array, " k"]],
    references: dict[str, Float[Array, " U"]],
    key: Array,
    kernel_init: KernelInit = None,
    *,
    compensate: bool = True,
    redraw: bool = True,
) -> Params:
    """Returns parameters in which these units are reset, as `continual_backprop` would.

    Args:
        units: The unit layers.
        params: The parameters.
        indices: Layer name -> indices of the units, padded with U.
        references: Layer name -> mean output of each unit, for the compensation.
        key: Key of the fresh weights.
        kernel_init: As in `reset_cost`.
        compensate: As in `continual_backprop`.
        redraw: As in `reset_cost`.
    """
    if not redraw:
        units = [layer._replace(incoming=(), own=()) for layer in units]
    leaves = leaves_by_path(params)
    initial = {
        layer.name: tuple(initial_weights(place, leaves[place.path], layer.size) for place in layer.incoming)
        for layer in units
    }
    incoming = fresh_weights.incoming_of(units, leaves, kernel_init, initial, indices)
    fresh = fresh_weights.unpack(fresh_weights.draw(incoming, key), incoming, units)
    replacements = {
        layer.name: parameters.Replacement(
            mask=selection.mask_of(indices[layer.name], layer.size),
            indices=indices[layer.name],
            incoming=fresh[layer.name],
        )
        for layer in units
    }
    no_updates = jax.tree.map(jnp.zeros_like, params)
    updates = parameters.reset_updates(units, params, no_updates, replacements, references, compensate)
    return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)


def norm2(before: Any, after: Any) -> Float[Array, " B"]:
    """2-norm of the change of all outputs of each example."""
    squares = jax.tree.map(
        lambda b, a: jnp.square(a - b).reshape(b.shape[0], -1).sum(1), _float32(before), _float32(after)
    )
    return jnp.sqrt(sum(jax.tree.leaves(squares)[1:], start=jax.tree.leaves(squares)[0]))


def kl(before: Float[Array, "B *T K"], after: Float[Array, "B *T K"]) -> Float[Array, " B"]:
    """Kullback-Leibler divergence of softmax(before) from softmax(after), summed over all axes but the batch."""
    log_p, log_q = jax.nn.log_softmax(_float32(before)), jax.nn.log_softmax(_float32(after))
    return (jnp.exp(log_p) * (log_p - log_q)).reshape(log_p.shape[0], -1).sum(1)


DISTANCES: dict[str, Distance] = {"norm2": norm2, "kl": kl}


def _check_references(references: dict[str, Any], units: Sequence[UnitLayer]) -> None:
    for layer in units:
        shape = jnp.shape(references[layer.name]) if layer.name in references else "none"
        if shape != (layer.size,):
            raise ValueError(f"references of layer {layer.name!r} must have shape ({layer.size},), got {shape}")


def _checked_sets(layer: UnitLayer, indices: Any) -> Int[Array, "S k"]:
    """Returns sets of units as an array; concrete values are checked."""
    if not isinstance(indices, Tracer):
        indices = np.asarray(indices)
        if not np.issubdtype(indices.dtype, np.integer):
            raise TypeError(f"sets of layer {layer.name!r} must be indices of units, got {indices.dtype}")
        outside = indices[(indices < 0) | (indices > layer.size)]
        if outside.size:
            raise ValueError(
                f"sets of layer {layer.name!r} name the units {outside.tolist()}: allowed are 0 to {layer.size - 1}, "
                f"and {layer.size} as padding"
            )
    if indices.ndim != 2:
        raise ValueError(f"sets of layer {layer.name!r} must be indices of units [S, k], got shape {indices.shape}")
    if isinstance(indices, np.ndarray):
        for row in indices:
            units = row[row < layer.size]
            if np.unique(units).size < units.size:
                raise ValueError(f"a set of layer {layer.name!r} names a unit twice: {row.tolist()}")
    return jnp.asarray(indices, jnp.int32)


def _float32(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)
