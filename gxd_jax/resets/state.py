"""What a resetting method keeps from update to update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gxd_jax.keys import KeyLike, key_data
from gxd_jax.resets.initial_weights import InitialWeights
from gxd_jax.resets.statistics import Statistics, restart

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, UInt32


class LayerState(NamedTuple):
    """What a resetting method keeps of one layer.

    Attributes:
        statistics: Ages and running averages, before the units in `replaced` start anew: read `statistics_after`.
        memory: What the method's rule keeps besides: for continual backprop the accumulator of replacements.
        initial: Initial distribution of each incoming parameter.
        replaced: Units replaced in the last update, bool [U].
        total: Units replaced since the start, int32.
    """

    statistics: Statistics
    memory: Any
    initial: tuple[InitialWeights, ...]
    replaced: Bool[Array, " U"]
    total: Int[Array, ""]


class ResettingState(NamedTuple):
    """State of a resetting method.

    Attributes:
        count: Number of updates, uint32.
        key: Raw data of the key from which the keys of every update are derived.
        maturity_threshold: As in the last update, float32.
        skipped_batches: Number of batches that did not enter some layer's averages, int32.
        layers: Layer name -> `LayerState`.
        optimizer: States of the optimizer. A surrounding `gxd_jax.chain` puts them here for the time of an update, so
            that they are reset with the units (step 8 of `engine`). Between updates there are none.
    """

    count: UInt32[Array, ""]
    key: UInt32[Array, " words"]
    maturity_threshold: Float[Array, ""]
    skipped_batches: Int[Array, ""]
    layers: dict[str, LayerState]
    optimizer: tuple[Any, ...] = ()


class ResettingTransformation(optax.GradientTransformationExtraArgs):
    """A transformation whose updates reset units; nothing in a chain may change them afterwards."""


def first_state(key: KeyLike, maturity_threshold: Any, layers: dict[str, LayerState]) -> ResettingState:
    """Returns the state before the first update."""
    return ResettingState(
        count=jnp.zeros((), jnp.uint32),
        key=key_data(key),
        maturity_threshold=jnp.array(maturity_threshold, jnp.float32),
        skipped_batches=jnp.zeros((), jnp.int32),
        layers=layers,
    )


def statistics_after(layer: LayerState) -> Statistics:
    """Returns the statistics after an update, with the replaced units newborn (step 9 of `engine`).

    The next update reads them through this function instead of finding them so: there the newborn start anew inside the
    loop that advances the averages anyhow. Written at once they are loops of their own, after the branch that selects:
    with 100 seeds of a 20-5-1 network a step then took 42 microseconds instead of 31 (the least of eight runs, both in
    turn, on two CPU cores), and 41 where the branch itself wrote them.
    """
    return restart(layer.statistics, layer.replaced)


def check_layers(state: ResettingState, names: Sequence[str]) -> None:
    """Raises a ValueError if a state was made for other layers."""
    if set(state.layers) != set(names):
        raise ValueError(f"the state holds the layers {sorted(state.layers)}, the method resets {sorted(names)}")


def _is_resetting(node: Any) -> bool:
    return isinstance(node, ResettingState)


def resetting_states(state: Any) -> list[ResettingState]:
    """Returns the states of the resetting members inside an optimizer state."""
    return [node for node in jax.tree.leaves(state, is_leaf=_is_resetting) if _is_resetting(node)]


def lend(state: Any, optimizer: Sequence[Any]) -> Any:
    """Returns an optimizer state whose resetting members hold these states of the optimizer."""

    def held(node: Any) -> Any:
        return node._replace(optimizer=tuple(optimizer)) if _is_resetting(node) else node

    return jax.tree.map(held, state, is_leaf=_is_resetting)


def take_back(state: Any, optimizer: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Takes the optimizer's states out of the resetting members' states, where `lend` put them.

    Args:
        state: The state of a chain's member after its update.
        optimizer: The optimizer's states as `lend` got them.

    Returns:
        The state without them, and the optimizer's states with the entries that each resetting member has reset.
    """
    copies = [node.optimizer for node in resetting_states(state)]
    taken = copies[0] if len(copies) == 1 else jax.tree.map(_changed, optimizer, *copies)
    return lend(state, ()), taken


def _changed(lent: Array, *copies: Array) -> Array:
    """Merges one leaf's versions of several resetting members: each has changed the entries of its own units."""
    merged = lent
    for copy in copies:
        if copy is not lent and jnp.issubdtype(copy.dtype, jnp.number):
            same = (copy == lent) | ((copy != copy) & (lent != lent))
            merged = jnp.where(same, merged, copy)
    return merged
