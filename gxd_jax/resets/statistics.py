"""Running statistics of the units of one layer: ages, references and utilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

_LARGEST_COUNT = jnp.iinfo(jnp.int32).max


class Statistics(NamedTuple):
    """Statistics of one layer's units since they were last initialised.

    The averages are raw, `average <- decay * average + (1 - decay) * value` from 0; `weight` is the same average of 1,
    so `average / weight` is bias-corrected: weight = 1 - decay^n after n batches, also where batches were skipped or
    the decay follows a schedule.

    Attributes:
        age: Updates since the unit was last initialised, int32 [U].
        weight: Total weight of the batches averaged, float32 [U].
        reference: Raw average of the mean output, float32 [U].
        utility: Raw average of the utility, float32 [U].
    """

    age: Int[Array, " U"]
    weight: Float[Array, " U"]
    reference: Float[Array, " U"]
    utility: Float[Array, " U"]


def init_statistics(size: int) -> Statistics:
    """Returns the statistics of `size` units that have just been initialised."""
    return Statistics(
        age=jnp.zeros(size, jnp.int32),
        weight=jnp.zeros(size, jnp.float32),
        reference=jnp.zeros(size, jnp.float32),
        utility=jnp.zeros(size, jnp.float32),
    )


def advance_reference(
    statistics: Statistics, means: Float[Array, " U"], finite: Bool[Array, ""], decay: float
) -> Statistics:
    """Ages every unit and averages the batch's mean outputs into the references (steps 2 and 3 of `engine`).

    Args:
        statistics: Statistics before this update.
        means: Mean output of each unit over the batch (and its positions).
        finite: Whether the batch may enter the averages; ages advance in any case.
        decay: Decay of the averages.
    """
    return statistics._replace(
        age=count_up(statistics.age, 1),
        weight=_average(statistics.weight, 1.0, finite, decay),
        reference=_average(statistics.reference, means, finite, decay),
    )


def advance_utility(
    statistics: Statistics, utility: Float[Array, " U"], finite: Bool[Array, ""], decay: float
) -> Statistics:
    """Averages the utilities on this batch into the running utilities (step 4 of `engine`).

    An infinite or undefined utility counts as the largest finite number: it protects the unit until it is averaged out.
    """
    largest = jnp.finfo(jnp.float32).max
    utility = jnp.nan_to_num(utility, nan=largest, posinf=largest, neginf=-largest)
    return statistics._replace(utility=_average(statistics.utility, utility, finite, decay))


def corrected(average: Float[Array, " U"], weight: Float[Array, " U"]) -> Float[Array, " U"]:
    """Bias-corrects a raw average; 0 where nothing was averaged yet."""
    return average / jnp.maximum(weight, jnp.finfo(jnp.float32).tiny)


def restart(statistics: Statistics, replaced: Bool[Array, " U"]) -> Statistics:
    """Returns the statistics with those of replaced units set to 0 (step 9 of `engine`)."""
    return jax.tree.map(lambda value: jnp.where(replaced, jnp.zeros_like(value), value), statistics)


def mature(statistics: Statistics, maturity_threshold: Array | float) -> Bool[Array, " U"]:
    """Returns the mask of the units that have seen more updates than the threshold (step 5 of `engine`)."""
    threshold = jnp.asarray(maturity_threshold)
    is_whole = jnp.issubdtype(threshold.dtype, jnp.integer)
    return (statistics.age if is_whole else statistics.age.astype(threshold.dtype)) > threshold


def all_finite(
    means: Float[Array, " U"], sensitivities: Array | None, axis_name: str | tuple[str, ...] | None
) -> Bool[Array, ""]:
    """Whether every feature and sensitivity of the batch is finite, on every shard.

    A sum is finite only if all its terms are, and costs less than looking at each of them.

    Args:
        means: Mean features of the batch.
        sensitivities: Sensitivities, or None where the utility reads none.
        axis_name: Mapped axis over which the batch is sharded, or None.
    """
    finite = jnp.isfinite(means).all()
    if sensitivities is not None:
        finite &= jnp.isfinite(sensitivities.sum())
    return finite if axis_name is None else jax.lax.pmin(finite.astype(jnp.int32), axis_name) > 0


def count_up(count: Int[Array, "..."], more: Array | int) -> Int[Array, "..."]:
    """Adds to a counter, which stops at its largest number."""
    more = jnp.asarray(more, count.dtype)
    return jnp.minimum(count, _LARGEST_COUNT - more) + more


def count_skipped(skipped: Int[Array, ""], finite: list[Bool[Array, ""]]) -> Int[Array, ""]:
    """Counts a batch that was kept out of some layer's averages."""
    return count_up(skipped, ~jnp.stack(finite).all())


def _average(average: Float[Array, " U"], value: Array | float, finite: Bool[Array, ""], decay: float) -> Array:
    keep = jnp.asarray(decay, jnp.float32)
    return jnp.where(finite, keep * average + (1 - keep) * value, average)
