"""Chains in which the optimizer hears about resets, and what happened in the last update."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from gxd_jax import reset, tracking
from gxd_jax.resetting import ResettingState, ResettingTransformation, report_wiring
from gxd_jax.types import ResetInfo
from gxd_jax.units import UnitLayer, WeightLayer


def chain(*members: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Chains transformations like `optax.chain`, and clears the optimizer's state of replaced units.

    After each update every parameter-shaped leaf of the state of the members before the resetting one (Adam's moments,
    momentum, Adagrad's sums) goes back, at the entries of replaced units only, to what the member's own `init` gives.
    State and contract are those of `optax.chain`; members also get the gradient that came in, as the extra argument
    `grad`, unless the caller passes one. The resetting member may be wrapped (`optax.inject_hyperparams`,
    `optax.masked`, `optax.apply_if_finite`), and the whole chain too.

    Args:
        *members: Transformations, the optimizer's first, then `continual_backprop` or another resetting method (or
            several of them).

    Returns:
        An `optax.GradientTransformationExtraArgs`.

    Raises:
        TypeError: If a member is no gradient transformation.
        ValueError: If a member after the resetting one changes its updates, which would undo the resets: at
            construction where that can be seen, else at the first update. At the first update, if the optimizer does
            not keep its statistics entry by entry (Adafactor).
    """
    resets = False
    for member in members:
        if not isinstance(member, optax.GradientTransformation):
            raise TypeError(f"members of chain must be gradient transformations, got {member!r}")
        if isinstance(member, ResettingTransformation):
            resets = True
        elif resets and _changes_updates(member):
            raise ValueError(_AFTER_RESET)
    chained = [optax.with_extra_args_support(member) for member in members]

    def init(params):
        return tuple(member.init(params) for member in chained)

    def update(updates, state, params=None, *, wiring=None, **extra_args):
        if len(state) != len(chained):
            raise ValueError(
                f"the state has {len(state)} members, the chain {len(chained)}: call this chain's init first"
            )
        extra_args = {"grad": updates} | extra_args  # optax's name for the gradient, for members that read it
        states: list[Any] = []
        resets = False
        for member, old_state in zip(chained, state, strict=True):
            found: dict[str, UnitLayer | WeightLayer] = {}  # filled by a resetting member, however it is wrapped
            before = updates
            updates, new_state = member.update(updates, old_state, params, **extra_args, wiring=found)
            if found:
                states = _clear(chained, states, found, _masks(old_state, new_state), params, updates)
            elif resets and not _same_leaves(before, updates):
                raise ValueError(_AFTER_RESET)
            resets = resets or bool(found)
            if wiring is not None:
                report_wiring(wiring, list(found.values()))
            states.append(new_state)
        return updates, tuple(states)

    return optax.GradientTransformationExtraArgs(init, update)


def reset_info(opt_state: Any) -> ResetInfo:
    """Returns what the last update did to the hidden units.

    Args:
        opt_state: Any optimizer state that holds the state of a resetting method somewhere; the layers of several are
            merged. May have leading axes (seeds of a vmapped run).

    Returns:
        A `ResetInfo`. Before the first update it says that nothing was replaced.

    Raises:
        ValueError: If there is no such state, or two of them have a layer of the same name.
    """
    states = resetting_states(opt_state)
    if not states:
        raise ValueError("the optimizer state holds no state of continual_backprop")
    names = [name for state in states for name in state.layers]
    if len(set(names)) < len(names):
        raise ValueError(
            f"several resetting members have layers of the same name, of {sorted(names)}: rename them, "
            "layer._replace(name=..., feature=layer.feature or layer.name)"
        )
    layers = {name: layer for state in states for name, layer in state.layers.items()}
    thresholds = {name: state.maturity_threshold for state in states for name in state.layers}
    statistics = {name: tracking.restart(layer.statistics, layer.replaced) for name, layer in layers.items()}
    return ResetInfo(
        replaced={name: layer.replaced for name, layer in layers.items()},
        counts={name: layer.replaced.sum(-1) for name, layer in layers.items()},
        totals={name: layer.total for name, layer in layers.items()},
        ages={name: s.age for name, s in statistics.items()},
        utilities={name: tracking.corrected(s.utility, s.weight) for name, s in statistics.items()},
        mature_fraction={
            name: tracking.mature(s, jnp.expand_dims(thresholds[name], -1)).mean(-1) for name, s in statistics.items()
        },
        skipped_batches=jnp.stack([state.skipped_batches for state in states]).max(0),
    )


def resetting_states(state: Any) -> list[ResettingState]:
    """Returns the states of the resetting members inside an optimizer state."""
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, ResettingState))
    return [leaf for leaf in leaves if isinstance(leaf, ResettingState)]


_AFTER_RESET = (
    "a member after the resetting member of chain changes its updates, which would undo the resets: "
    "put continual_backprop last"
)


def _clear(chained: list, states: list, wiring: dict, masks: dict, params: Any, updates: Any) -> list:
    """Clears the states of the members so far at the entries of the units just replaced."""
    units = list(wiring.values())
    for state in states:
        reset.check_clearable(state, params, units)
    inits = [member.init for member in chained[: len(states)]]
    return reset.clear_states(states, inits, optax.apply_updates(params, updates), units, masks)


def _masks(old_state: Any, new_state: Any) -> dict[str, Any]:
    """Returns the masks of units replaced in this very update: a wrapper may have skipped it."""
    pairs = zip(resetting_states(old_state), resetting_states(new_state), strict=True)
    return {name: layer.replaced & (new.count != old.count) for old, new in pairs for name, layer in new.layers.items()}


def _changes_updates(member: optax.GradientTransformation) -> bool:
    """Whether a member is seen to change updates; False where it cannot be tried on a small example."""
    example = {"probe": jnp.ones((2, 2))}
    try:
        updates, _ = member.update(example, member.init(example), example)
    except Exception:  # it needs its own parameters or extra arguments: the first update decides
        return False
    return not _same_leaves(example, updates)


def _same_leaves(before: Any, after: Any) -> bool:
    """Whether two trees hold the very same arrays."""
    old, new = jax.tree.leaves(before), jax.tree.leaves(after)
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))
