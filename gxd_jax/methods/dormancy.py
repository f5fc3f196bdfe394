"""Resets of all units whose utility is small relative to their layer's mean: what ReDo and ReGraMa share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from gxd_jax.checks import check_number, check_period
from gxd_jax.keys import KeyLike
from gxd_jax.resets import statistics
from gxd_jax.resets.engine import unit_resets
from gxd_jax.resets.initializers import KernelInit
from gxd_jax.resets.rules import Candidates, Rule
from gxd_jax.resets.state import ResettingTransformation
from gxd_jax.utilities import Utility
from gxd_jax.wiring.layers import UnitLayer

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float


def reset_dormant(
    units: Sequence[UnitLayer],
    utility: Utility,
    *,
    tau: float,
    period: int,
    decay: float,
    kernel_init: KernelInit,
    compensate: bool,
    axis_name: str | None,
    key: KeyLike,
) -> ResettingTransformation:
    """Replaces, every `period` updates, the units whose utility is at most `tau` times their layer's mean.

    Args:
        units: The unit layers.
        utility: The score.
        tau: Threshold of the score, 0 or more.
        period: Updates between resets.
        decay: Decay of the score's and the mean output's running averages.
        kernel_init: As in `continual_backprop`.
        compensate: As in `continual_backprop`.
        axis_name: As in `continual_backprop`.
        key: As in `continual_backprop`.
    """
    check_number("tau", tau, "[0, inf)", lambda value: 0 <= value < float("inf"))
    check_period(period)

    def choose(memory, step):
        ranking = statistics.corrected(step.statistics.utility, step.statistics.weight)
        due = step.count % period == 0
        eligible = due & dormant(ranking, step.statistics.weight > 0, tau)
        return Candidates(ranking, eligible, eligible.sum(dtype=jnp.int32)), memory

    return unit_resets(
        units,
        Rule(init=lambda size: (), choose=choose, most=lambda size: size),
        utility=utility,
        decay=decay,
        kernel_init=kernel_init,
        compensate=compensate,
        axis_name=axis_name,
        key=key,
    )


def dormant(score: Float[Array, " U"], observed: Bool[Array, " U"], tau: Any) -> Bool[Array, " U"]:
    """Returns the mask of the units whose score is at most tau times the layer's mean.

    Where all units score 0 the mask holds all of them: nothing is divided by the mean.

    Args:
        score: A score of each unit, 0 or more.
        observed: Units that have a score; the others are left out.
        tau: The threshold.
    """
    mean = jnp.where(observed, score, 0.0).sum() / jnp.maximum(observed.sum(), 1).astype(jnp.float32)
    return observed & jnp.isfinite(mean) & (score <= tau * mean)
