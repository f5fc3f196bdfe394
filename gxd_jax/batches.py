"""Averages over one batch: features [B, ..., U] become one value a unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float


def examples_and_positions(features: Array) -> tuple[int, ...]:
    """Returns the axes of features [B, ..., U] over which a unit's value is taken: all but the last."""
    return tuple(range(features.ndim - 1))


def unit_means(values: Float[Array, "B *P U"]) -> Float[Array, " U"]:
    """Returns the mean of each unit over examples and positions."""
    return values.mean(examples_and_positions(values))


def broadcast_to_rank(values: Array, ndim: int) -> Array:
    """Puts axes of length 1 before the others, so that nothing is left to implicit rank promotion."""
    return jnp.expand_dims(values, tuple(range(ndim - values.ndim)))


def mean_over_shards(value: Array, axis_name: str | tuple[str, ...] | None) -> Array:
    """Averages a batch statistic over the shards of the batch; with None the batch is not sharded."""
    return value if axis_name is None else jax.lax.pmean(value, axis_name)
