"""Self-normalized resets: a unit is reset when its silence is improbably long, given how often it fired before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import optax

from gxd_jax.batches import examples_and_positions
from gxd_jax.checks import check_number
from gxd_jax.keys import KeyLike
from gxd_jax.resets import statistics
from gxd_jax.resets.engine import unit_resets
from gxd_jax.resets.initializers import KernelInit
from gxd_jax.resets.rules import Candidates, Rule
from gxd_jax.types import UnitRecord
from gxd_jax.wiring.layers import UnitLayer

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


class Firing(NamedTuple):
    """Statistics of the firing of a layer's units.

    Attributes:
        silence: Updates since a unit last fired or was initialised, int32 [U].
        firings: Decayed number of updates in which it fired, float32 [U].
        updates: Decayed sum of the gaps that ended with these firings, in updates, float32 [U].
    """

    silence: Int[Array, " U"]
    firings: Float[Array, " U"]
    updates: Float[Array, " U"]


def self_normalized_resets(
    units: Sequence[UnitLayer],
    *,
    rejection: float = 0.01,
    initial_gap: float = 100.0,
    decay: float = 0.99,
    kernel_init: KernelInit = None,
    compensate: bool = True,
    axis_name: str | None = None,
    key: KeyLike = 0,
) -> optax.GradientTransformationExtraArgs:
    """Replaces, at each update, the units whose silence is improbable given their own firing rate.

    A unit fires in an update if its output is positive for some example (and position) of the batch. Let A be the
    number of updates from one firing to the next, and a the number of updates for which the unit has now been silent.
    It is replaced when

        P(A > a) <= rejection,

    which is the hypothesis test of [F]: that the unit is dead, against that it still fires as before. A is taken to be
    geometric with the unit's own rate p, so that P(A > a) = (1 - p)^a. 1 / p is the mean of its past gaps and of one
    more gap of `initial_gap` updates. A unit that has not fired since it was initialised thus has the rate
    1 / initial_gap, and a unit that has always fired a rate below 1; neither is replaced for a single silent update.

    This is for ReLU-like units: one whose output is always positive, such as a sigmoid's, always fires. Goes where
    `continual_backprop` goes and resets in the same way, with the optimizer's moments under `gxd_jax.chain`. `update`
    needs `params` and the keyword `observation`; no sensitivities. `ResetInfo.utilities` holds the share of updates in
    which units fired.

    Args:
        units: The unit layers.
        rejection: The test's threshold, in (0, 1): the probability of taking a unit that still fires for dead.
        initial_gap: Gap between firings, in updates, that is assumed of a unit that has not fired yet, 1 or more.
        decay: Decay, from firing to firing, of the mean gap, in [0, 1): about 1 / (1 - decay) gaps enter it.
        kernel_init: As in `continual_backprop`.
        compensate: As in `continual_backprop`.
        axis_name: Mapped axis over which the batch is sharded.
        key: An int or a JAX key; under vmap a key for each replica.

    Returns:
        An `optax.GradientTransformationExtraArgs`.

    Raises:
        TypeError, ValueError: If a hyper-parameter is impossible; else as `continual_backprop`.

    Differs from: the public code of [F], which keeps a histogram of gaps for each unit (or, for large networks, their
        mean) and sets a threshold from its percentile from time to time. There the percentile of an empty histogram is
        the shortest gap allowed, so that a unit that did not fire meanwhile is reset at once, and a unit's gaps pass on
        to its replacement.

    References:
        [F] Farias and Jozefiak, "Self-normalized resets for plasticity in continual learning", ICLR 2025, arXiv
        2410.20098, Algorithm 1.
    """
    check_number("rejection", rejection, "(0, 1)", lambda value: 0 < value < 1)
    check_number("initial_gap", initial_gap, "[1, inf)", lambda value: 1 <= value < float("inf"))

    def init(size):
        return Firing(
            silence=jnp.zeros(size, jnp.int32),
            firings=jnp.zeros(size, jnp.float32),
            updates=jnp.zeros(size, jnp.float32),
        )

    def choose(memory, step):
        memory = _advance(memory, step.utility > 0, step.finite, decay)
        improbable = _probability(memory, initial_gap) <= rejection
        candidates = Candidates(step.statistics.utility, improbable, improbable.sum(dtype=jnp.int32))
        return candidates, Firing(*(jnp.where(improbable, 0, value) for value in memory))  # replaced: no past gaps

    return unit_resets(
        units,
        Rule(init=init, choose=choose, most=lambda size: size),
        utility=_fires,
        decay=decay,
        kernel_init=kernel_init,
        compensate=compensate,
        axis_name=axis_name,
        key=key,
    )


def _fires(record: UnitRecord) -> Float[Array, " U"]:
    """1 for units that fire in this batch, else 0."""
    return (record.features > 0).any(examples_and_positions(record.features)).astype(jnp.float32)


def _advance(memory: Firing, fires: Bool[Array, " U"], finite: Bool[Array, ""], decay: float) -> Firing:
    """Counts one update. A gap enters the mean when a firing ends it, so that a lasting silence does not raise it."""
    silence = statistics.count_up(memory.silence, finite)
    fires = fires & finite
    return Firing(
        silence=jnp.where(fires, 0, silence),
        firings=jnp.where(fires, decay * memory.firings + 1, memory.firings),
        updates=jnp.where(fires, decay * memory.updates + silence.astype(jnp.float32), memory.updates),
    )


def _probability(memory: Firing, initial_gap: float) -> Float[Array, " U"]:
    """P(A > a) = (1 - p)^a, for each unit."""
    rate = (memory.firings + 1) / (memory.updates + initial_gap)
    return (1 - rate) ** memory.silence.astype(jnp.float32)
