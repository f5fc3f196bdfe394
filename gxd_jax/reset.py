"""What a replacement does: to the parameters (as updates) and to the optimizer's state.

Masks are True for what is replaced. They select, they never multiply, so that entries elsewhere that are not finite
stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from gxd_jax import units as units_room
from gxd_jax.gating import known_after, run_if
from gxd_jax.types import Params
from gxd_jax.units import ParamAxis, Path, UnitLayer, WeightLayer

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


class Replacement(NamedTuple):
    """The units of one layer that are replaced now, at most k of them.

    Attributes:
        mask: Which units, bool [U].
        numbers: Their numbers, int32 [k]; U for places that stay empty. k = 0: nobody is ever replaced.
        draws: Fresh incoming weights, one array for each incoming kernel, from `drawing.unpack`.
    """

    mask: Bool[Array, " U"]
    numbers: Int[Array, " k"]
    draws: tuple[Array, ...]


def reset_updates(
    units: Sequence[UnitLayer],
    params: Params,
    updates: Params,
    replacements: dict[str, Replacement],
    references: dict[str, Float[Array, " U"]],
    compensate: bool,
) -> Params:
    """Changes updates so that applying them resets the replaced units (SEMANTICS 7; [N], Algorithm 1).

    Incoming slices become the fresh draws, own parameters their reset values, outgoing slices exactly 0; the biases of
    the consumers take up the mean contribution of the replaced units. Later writes win: compensation, fresh draws, own
    values, zeros.

    Args:
        units: The unit layers.
        params: Parameters before the optimizer's step.
        updates: The optimizer's updates.
        replacements: Layer name -> who is replaced.
        references: Layer name -> mean output of each unit.
        compensate: Whether consumers' biases are compensated.

    Returns:
        Updates. Those of parameters of less than 32 bits are float32, so that a draw survives the addition.
    """
    units = [layer for layer in units if replacements[layer.name].numbers.size]
    leaves, old = units_room.leaves_by_path(params), units_room.leaves_by_path(updates)
    new: dict[Path, Array] = {}

    def current(path: Path) -> Array:
        update = new[path] if path in new else old[path]
        return update.astype(jnp.promote_types(update.dtype, jnp.float32))

    def overwrite(axis: ParamAxis, replacement: Replacement, targets: Array | float) -> None:
        """Makes the replaced units' entries along this axis `targets`: slices, or an array like the parameter."""
        param, update = leaves[axis.path], current(axis.path)
        few = units_room.is_compact(axis, replacement.numbers.size)
        size = replacement.mask.size
        old_values = units_room.take_slices(axis, param, size, replacement.numbers) if few else param
        old_values = old_values.astype(update.dtype)
        changes = _changes(old_values, targets)
        if few:
            changes = units_room.spread_slices(axis, changes, replacement.numbers, param.shape)
        new[axis.path] = jnp.where(units_room.spread_mask(axis, replacement.mask, param.shape), changes, update)

    if compensate:
        for layer in units:
            numbers = replacements[layer.name].numbers
            shares = units_room.weighted_outgoing_sums(layer, references[layer.name], numbers, leaves, old)
            for path, share in shares:
                new[path] = current(path) + share
    for layer in units:
        for axis, draws in zip(layer.incoming, replacements[layer.name].draws, strict=True):
            overwrite(axis, replacements[layer.name], draws)
    for layer in units:
        for axis, value in layer.own:
            overwrite(axis, replacements[layer.name], value)
    for layer in units:
        for axis in layer.outgoing:
            overwrite(axis, replacements[layer.name], 0.0)
    return units_room.replace_leaves(updates, new)


def overwritten(param: Array, update: Array, mask: Bool[Array, "..."], targets: Array) -> Array:
    """Changes a parameter's update so that applying it makes the entries in the mask `targets`."""
    update = update.astype(jnp.promote_types(update.dtype, jnp.float32))
    return jnp.where(mask, _changes(param.astype(update.dtype), targets), update)


def _changes(old: Array, targets: Array | float) -> Array:
    """What to add to `old` to get the targets.

    Adding cannot heal a parameter that is not finite; its update is then the target, for `gxd_jax.apply_updates`.
    """
    return jnp.where(jnp.isfinite(old), targets - old, targets)


def entry_masks(
    units: Sequence[UnitLayer | WeightLayer], masks: dict[str, Bool[Array, " U"]], params: Params
) -> dict[Path, Array]:
    """Returns the masks of the parameter entries that belong to replaced units: incoming, own and outgoing ones.

    Args:
        units: The unit layers.
        masks: Layer name -> replaced units.
        params: The parameters.

    Returns:
        Path of a parameter -> mask that broadcasts against it; parameters without units are absent.
    """
    leaves = units_room.leaves_by_path(params)
    entries: dict[Path, Array] = {}
    for layer in units:
        for path, mask in units_room.entry_masks_of(layer, masks[layer.name], leaves):
            entries[path] = entries[path] | mask if path in entries else mask
    return entries


def clear_state(state: Any, init: Callable[[Params], Any], params: Params, entries: dict[Path, Array]) -> Any:
    """Resets the parameter-shaped leaves of an optimizer's state at the replaced units' entries (SEMANTICS 8).

    Args:
        state: The state of one member of a chain.
        init: The member's own `init`, which says what a fresh state holds.
        params: The parameters after the reset.
        entries: From `entry_masks`.

    Returns:
        The state, with the entries' values as `init(params)` gives them.
    """
    slots = _parameter_slots(state, params, entries)
    pairs = zip(slots.items(), _slots_of(state, slots), _slots_of(init(params), slots), strict=True)
    return units_room.replace_leaves(
        state, {place: _cleared(leaf, new, entries[path]) for (place, path), leaf, new in pairs}
    )


def clear_states(
    states: Sequence[Any],
    inits: Sequence[Callable[[Params], Any]],
    params: Params,
    units: Sequence[UnitLayer | WeightLayer],
    masks: dict[str, Bool[Array, " U"]],
) -> list[Any]:
    """Resets several states like `clear_state` at the entries of replaced units, on steps where some were replaced.

    Where nobody was, the states stay where they are, so that a step does not read and write them once more.

    Args:
        states: The states of the members of a chain.
        inits: The members' `init`.
        params: The parameters after the reset.
        units: The unit layers.
        masks: Layer name -> replaced units.
    """
    touched = {path for layer in units for path in units_room.paths_of(layer)}
    slots = [_parameter_slots(state, params, touched) for state in states]
    if not any(slots):
        return list(states)
    anybody = jnp.stack([mask.any() for mask in masks.values()]).any()
    if not isinstance(anybody, Tracer) and not anybody:  # outside of jit: spares the tracing
        return list(states)

    def fresh_slots(params):
        return [_slots_of(init(params), own) for init, own in zip(inits, slots, strict=True)]

    traced = jax.make_jaxpr(fresh_slots)(params)  # an `init` may close over tracers: they become its constants

    def work(leaves, params, masks, constants):
        entries = entry_masks(units, known_after(masks, params), params)
        fresh = jaxpr_as_fun(ClosedJaxpr(traced.jaxpr, constants))(*jax.tree.leaves(params))
        paths = [path for own in slots for path in own.values()]
        return [_cleared(leaf, new, entries[path]) for leaf, new, path in zip(leaves, fresh, paths, strict=True)]

    def skip(leaves, *others):
        del others
        return leaves

    leaves = [leaf for state, own in zip(states, slots, strict=True) for leaf in _slots_of(state, own)]
    cleared = iter(run_if(anybody, work, skip, leaves, params, masks, traced.consts))
    return [
        units_room.replace_leaves(state, {place: next(cleared) for place in own})
        for state, own in zip(states, slots, strict=True)
    ]


def check_clearable(state: Any, params: Params, units: Sequence[UnitLayer | WeightLayer]) -> None:
    """Refuses an optimizer whose statistics of a parameter with units are not kept entry by entry.

    Raises:
        ValueError: If the state holds, for such a parameter, an array of another shape (Adafactor's rows and columns).
    """
    shapes = {path: leaf.shape for path, leaf in units_room.leaves_by_path(params).items()}
    touched = {path for layer in units for path in units_room.paths_of(layer)}
    total = sum(math.prod(shape) for shape in shapes.values())
    for path, leaf in units_room.leaves_by_path(state).items():
        parameter = _longest_suffix(path, shapes)
        if parameter is None and jnp.size(leaf) == total > 1:
            raise ValueError(
                f"the optimizer keeps {path} of shape {jnp.shape(leaf)} for all parameters at once (optax.flatten): it "
                "cannot be cleared for single units"
            )
        if parameter in touched and jnp.size(leaf) > 1 and jnp.shape(leaf) != shapes[parameter]:
            raise ValueError(
                f"the optimizer keeps {path} of shape {jnp.shape(leaf)} for the parameter {parameter} of shape "
                f"{shapes[parameter]}: it cannot be cleared for single units; with optax.chain instead of "
                "gxd_jax.chain it is left as it is"
            )


def reset_collection(
    collection: Any, initial: Any, units: Sequence[UnitLayer], replaced: dict[str, Bool[Array, " U"]]
) -> Any:
    """Resets the replaced units' entries in another collection of variables: batch norm's running mean and variance.

    A variable belongs to a layer if it stands at the path of the module that holds one of the layer's own parameters
    (a norm's scale or bias) and its last axis has one entry a unit. Call it after the update, and keep the result.

    Args:
        collection: The variables now, such as the new `batch_stats` of Flax linen.
        initial: The same variables as initialised.
        units: The unit layers.
        replaced: Layer name -> replaced units, as in `reset_info(opt_state).replaced`.

    Returns:
        The collection, with replaced units' entries as in `initial`.

    Raises:
        ValueError: If the collections differ in structure, or no variable of `collection` belongs to any layer.

    Example:
        >>> stats = {"norm": {"mean": jnp.array([3.0, 4.0])}}
        >>> norm = units_room.ParamAxis(("norm", "scale"), 0)
        >>> kernels = units_room.ParamAxis(("a", "kernel"), 1), units_room.ParamAxis(("b", "kernel"), 0)
        >>> layer = UnitLayer("a", 2, kernels[:1], ((norm, 1.0),), kernels[1:], (None,))
        >>> initial = {"norm": {"mean": jnp.zeros(2)}}
        >>> reset_collection(stats, initial, [layer], {"a": jnp.array([True, False])})["norm"]["mean"].tolist()
        [0.0, 4.0]
    """
    variables, fresh = units_room.leaves_by_path(collection), units_room.leaves_by_path(initial)
    if variables.keys() != fresh.keys():
        differing = sorted(map(str, variables.keys() ^ fresh.keys()))
        raise ValueError(f"collection and initial must hold the same variables; in one of them only: {differing}")
    new: dict[Path, Array] = {}
    for layer in units:
        modules = {_within_collection(axis.path[:-1]) for axis, _ in layer.own}
        for path, value in variables.items():
            if _within_collection(path[:-1]) in modules and value.ndim and value.shape[-1] == layer.size:
                new[path] = jnp.where(replaced[layer.name], fresh[path], new[path] if path in new else value)
    if not new:
        raise ValueError(
            f"no variable of the collection stands beside an own parameter of a layer; its paths are {list(variables)}"
        )
    return units_room.replace_leaves(collection, new)


def _within_collection(path: Path) -> Path:
    """Strips the name of a Flax collection that a path may begin with."""
    return path[1:] if path[:1] in (("params",), ("batch_stats",)) else path


def _parameter_slots(state: Any, params: Params, touched: Iterable[Path]) -> dict[Path, Path]:
    """Maps the paths of a state's leaves that are shaped like a touched parameter to the path of that parameter."""
    shapes = {path: leaf.shape for path, leaf in units_room.leaves_by_path(params).items()}
    slots = {}
    for path, leaf in units_room.leaves_by_path(state).items():
        parameter = _longest_suffix(path, shapes)
        if parameter is not None and parameter in touched and jnp.shape(leaf) == shapes[parameter]:
            slots[path] = parameter
    return slots


def _slots_of(state: Any, slots: dict[Path, Path]) -> list[Array]:
    leaves = units_room.leaves_by_path(state)
    return [leaves[place] for place in slots]


def _cleared(leaf: Array, fresh: Array, entries: Array) -> Array:
    return jnp.where(entries, fresh.astype(leaf.dtype), leaf)


def _longest_suffix(path: Path, parameters: dict[Path, Any]) -> Path | None:
    """Returns the parameter whose path ends a state's path: optax keeps copies of the parameter tree."""
    suffixes = (path[start:] for start in range(len(path)))
    return next((suffix for suffix in suffixes if suffix in parameters), None)
