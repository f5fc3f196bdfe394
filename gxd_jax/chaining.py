"""Chains that reset the optimizer's state with the units, and the report of the last update."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from gxd_jax.resets import statistics
from gxd_jax.resets.state import ResettingTransformation, lend, resetting_states, statistics_after, take_back
from gxd_jax.types import ResetInfo


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

    inits = tuple(member.init for member in chained)

    def init(params):
        state = tuple(member.init(params) for member in chained)
        _check_names(resetting_states(state))
        return state

    def update(updates, state, params=None, *, optimizer_inits=(), **extra_args):
        if len(state) != len(chained):
            raise ValueError(
                f"the state has {len(state)} members, the chain {len(chained)}: call this chain's init first"
            )
        extra_args = {"grad": updates} | extra_args  # optax's name for the gradient, for members that read it
        # States that a surrounding chain put into this one come before those of this chain's own members.
        lent = next((held.optimizer for held in resetting_states(state)), ())
        states = tuple(lent)
        resets = False
        for number, (member, old_state) in enumerate(zip(chained, lend(state, ()), strict=True)):
            before = updates
            if resetting_states(old_state):
                resets = True
                known = (*optimizer_inits, *inits[:number])
                updates, new_state = member.update(
                    updates, lend(old_state, states), params, optimizer_inits=known, **extra_args
                )
                new_state, states = take_back(new_state, states)
            else:
                updates, new_state = member.update(updates, old_state, params, **extra_args)
                if resets and not _same_leaves(before, updates):
                    raise ValueError(_AFTER_RESET)
            states = (*states, new_state)
        return updates, lend(states[len(lent) :], states[: len(lent)])

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
    _check_names(states)
    layers = {name: layer for state in states for name, layer in state.layers.items()}
    averages = {name: statistics_after(layer) for name, layer in layers.items()}
    thresholds = {name: state.maturity_threshold for state in states for name in state.layers}
    return ResetInfo(
        replaced={name: layer.replaced for name, layer in layers.items()},
        counts={name: layer.replaced.sum(-1) for name, layer in layers.items()},
        totals={name: layer.total for name, layer in layers.items()},
        ages={name: s.age for name, s in averages.items()},
        utilities={name: statistics.corrected(s.utility, s.weight) for name, s in averages.items()},
        mature_fraction={
            name: statistics.mature(s, jnp.expand_dims(thresholds[name], -1)).mean(-1) for name, s in averages.items()
        },
        skipped_batches=jnp.stack([state.skipped_batches for state in states]).max(0),
    )


def _check_names(states: list[Any]) -> None:
    """Raises a ValueError if several resetting members have a layer of the same name."""
    names = [name for state in states for name in state.layers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"several resetting members have a layer of the same name, {twice[0]!r}: rename it, "
            "layer._replace(name=..., feature=layer.feature or layer.name)"
        )


_AFTER_RESET = (
    "a member after the resetting member of chain changes its updates, which would undo the resets: "
    "put continual_backprop last"
)


def _changes_updates(member: optax.GradientTransformation) -> bool:
    """Whether a member changes the updates of a small example; False where it cannot be tried on one."""
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
