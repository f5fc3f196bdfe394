"""Self-normalized resets: a unit that is silent for longer than its own past makes likely is reset."""

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
    """What is remembered of the firing of a layer's units.

    Attributes:
        silence: Updates since a unit last fired (or was born), int32 [U].
        firings: Decayed number of updates in which it fired, float32 [U].
        updates: Decayed number of updates that these firings took, silence before them included, float32 [U].
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
    """Replaces, at each update, the units whose silence their own firing rate makes improbable.

    A unit fires in an update if its output is positive for some example (and position) of the batch. Let A be the
    number of updates from one firing to the next and a the number of updates that the unit has now been silent. It is
    replaced when

        P(A > a) <= rejection,

    the test of [F] of whether it has died against whether it fires as it always did. A is taken as geometric with the
    unit's own rate p, P(A > a) = (1 - p)^a: 1 / p is the mean of its past gaps, and of one more of `initial_gap`
    updates. A unit that has not fired since birth thus has a rate of 1 / initial_gap, and a unit that has always fired
    one below 1; neither is replaced for a single silent update.

    For ReLU-like units: one that is never exactly off, such as GELU's, always fires. Goes where `continual_backprop`
    goes, and resets units, and the optimizer's moments under `gxd_jax.chain`, as it does. `update` needs `params` and
    the keyword `observation`; no sensitivities. `ResetInfo.utilities` holds the share of updates in which units fired.

    Args:
        units: The unit layers.
        rejection: The test's threshold, in (0, 1): the chance of taking a living unit for dead.
        initial_gap: Gap between firings that a unit without a past is taken to have, 1 or more.
        decay: Decay, from firing to firing, of a unit's past, in [0, 1): it remembers about 1 / (1 - decay) gaps.
        kernel_init: As in `continual_backprop`.
        compensate: Whether the biases of the consumers take up the mean output of replaced units.
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
        return candidates, Firing(*(jnp.where(improbable, 0, value) for value in memory))  # a newborn has no past

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
    """Lets an update enter a unit's past: with its next firing, so that a silence does not excuse itself."""
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
