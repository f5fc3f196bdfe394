"""What a replacement does to the optimizer's state (step 8 of `engine`): its entries go back to what `init` gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax.core import Tracer

from gxd_jax.resets.gating import known_after, run_if
from gxd_jax.trees import leaves_by_path, replace_leaves
from gxd_jax.types import Params, Path
from gxd_jax.wiring import axes
from gxd_jax.wiring.layers import Layer

if TYPE_CHECKING:
    from jaxtyping import Array, Bool

Init = Callable[[Params], Any]
"""The `init` of a gradient transformation."""


def clear_state(state: Any, init: Init, params: Params, entries: dict[Path, Array]) -> Any:
    """Resets the parameter-shaped leaves of an optimizer's state at the entries of replaced units.

    Args:
        state: The state of one member of a chain.
        init: The member's own `init`.
        params: The parameters after the reset.
        entries: From `axes.entry_masks`.

    Returns:
        The state, with the entries' values as `init(params)` gives them.
    """
    slots = _parameter_slots(state, params, entries)
    pairs = zip(slots.items(), _slots_of(state, slots), _slots_of(init(params), slots), strict=True)
    return replace_leaves(state, {place: _cleared(leaf, new, entries[path]) for (place, path), leaf, new in pairs})


def clear_states(
    states: Sequence[Any],
    inits: Sequence[Init],
    params: Params,
    layers: Sequence[Layer],
    masks: Mapping[str, Bool[Array, " U"]],
) -> tuple[Any, ...]:
    """Resets several states like `clear_state`, at updates that replace units.

    At other updates the states are not touched, so that they are not read and written once more.

    Args:
        states: The states of the members of a chain.
        inits: The members' `init`.
        params: The parameters after the reset.
        layers: The layers.
        masks: Layer name -> replaced units.

    Raises:
        ValueError: If a state does not keep the statistics of a parameter entry by entry.
    """
    for state in states:
        _check_clearable(state, params, layers)
    slots = [_parameter_slots(state, params, _paths_of(layers)) for state in states]
    if not any(slots):
        return tuple(states)
    any_replaced = jnp.stack([mask.any() for mask in masks.values()]).any()
    if not isinstance(any_replaced, Tracer) and not any_replaced:  # outside of jit: spares the tracing
        return tuple(states)

    def work(leaves, params, masks):
        entries = axes.entry_masks(layers, known_after(masks, params), leaves_by_path(params))
        fresh = [leaf for init, own in zip(inits, slots, strict=True) for leaf in _slots_of(init(params), own)]
        paths = [path for own in slots for path in own.values()]
        return [_cleared(leaf, new, entries[path]) for leaf, new, path in zip(leaves, fresh, paths, strict=True)]

    def skip(leaves, *others):
        del others
        return leaves

    leaves = [leaf for state, own in zip(states, slots, strict=True) for leaf in _slots_of(state, own)]
    cleared = iter(run_if(any_replaced, work, skip, leaves, params, masks))
    return tuple(
        replace_leaves(state, {place: next(cleared) for place in own}) for state, own in zip(states, slots, strict=True)
    )


def _paths_of(layers: Sequence[Layer]) -> set[Path]:
    """Returns the paths of the parameters that hold entries of units."""
    return {place.path for layer in layers for place in axes.places_of(layer)}


def _check_clearable(state: Any, params: Params, layers: Sequence[Layer]) -> None:
    """Refuses an optimizer whose statistics of a parameter with units are not kept entry by entry.

    Raises:
        ValueError: If the state holds, for such a parameter, an array of another shape (Adafactor's rows and columns).
    """
    shapes = {path: leaf.shape for path, leaf in leaves_by_path(params).items()}
    touched = _paths_of(layers)
    total = sum(math.prod(shape) for shape in shapes.values())
    for path, leaf in leaves_by_path(state).items():
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


def _parameter_slots(state: Any, params: Params, touched: Iterable[Path]) -> dict[Path, Path]:
    """Maps the paths of a state's leaves that are shaped like a touched parameter to the path of that parameter."""
    shapes = {path: leaf.shape for path, leaf in leaves_by_path(params).items()}
    slots = {}
    for path, leaf in leaves_by_path(state).items():
        parameter = _longest_suffix(path, shapes)
        if parameter is not None and parameter in touched and jnp.shape(leaf) == shapes[parameter]:
            slots[path] = parameter
    return slots


def _slots_of(state: Any, slots: dict[Path, Path]) -> list[Array]:
    leaves = leaves_by_path(state)
    return [leaves[place] for place in slots]


def _cleared(leaf: Array, fresh: Array, entries: Array) -> Array:
    return jnp.where(entries, fresh.astype(leaf.dtype), leaf)


def _longest_suffix(path: Path, parameters: dict[Path, Any]) -> Path | None:
    """Returns the parameter whose path ends a state's path: optax keeps copies of the parameter tree."""
    suffixes = (path[start:] for start in range(len(path)))
    return next((suffix for suffix in suffixes if suffix in parameters), None)
