"""Applying updates: an exact form of `optax.apply_updates`, and the step of a Flax `TrainState`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gxd_jax.chaining import reset_info
from gxd_jax.trees import leaves_by_path, plain_path
from gxd_jax.types import Observation, Params
from gxd_jax.wiring import axes
from gxd_jax.wiring.layers import UnitLayer


def apply_updates(params: Params, updates: Params, opt_state: Any, units: Sequence[UnitLayer]) -> Params:
    """Applies updates like `optax.apply_updates`, also to replaced units whose parameters were not finite.

    Adding an update cannot turn a NaN or an infinity into a number. Here the new values of replaced units are selected
    instead of added where the old parameter was not finite.

    Args:
        params: Parameters before the update.
        updates: Updates from a chain with a resetting member.
        opt_state: The state that came with these updates.
        units: The unit layers of the resetting member.

    Returns:
        The new parameters.
    """
    entries = axes.entry_masks(units, reset_info(opt_state).replaced, leaves_by_path(params))

    def apply(key_path, param, update):
        stepped = jnp.asarray(param + update).astype(param.dtype)
        mask = entries.get(plain_path(key_path))
        return stepped if mask is None else jnp.where(mask & ~jnp.isfinite(param), update.astype(param.dtype), stepped)

    return jax.tree_util.tree_map_with_path(apply, params, updates)


def apply_gradients(train_state: Any, gradients: Params, *, observation: Observation, **changes: Any) -> Any:
    """Makes one step of a Flax `TrainState`, whose own `apply_gradients` cannot pass an observation on.

    Args:
        train_state: A `flax.training.train_state.TrainState` (or subclass) whose `tx` holds `continual_backprop`.
        gradients: From the observing function.
        observation: From the observing function.
        **changes: Other fields to replace, as in `TrainState.apply_gradients`.

    Returns:
        The next state.
    """
    state = train_state
    updates, opt_state = state.tx.update(gradients, state.opt_state, state.params, observation=observation)
    params = optax.apply_updates(state.params, updates)
    return state.replace(step=state.step + 1, params=params, opt_state=opt_state, **changes)
