"""Diagnostics of hidden units and of weights: masks over units, ranks of features, magnitudes of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax.core import Tracer

from gxd_jax.batches import examples_and_positions, unit_means
from gxd_jax.checks import check_number
from gxd_jax.trees import kernels_of
from gxd_jax.types import Params

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


def dead_units(features: Float[Array, "B *P U"]) -> Bool[Array, " U"]:
    """Units whose output is exactly 0 on every example (and position)."""
    return (features == 0).all(examples_and_positions(features))


def saturated_units(
    features: Float[Array, "B *P U"], *, lower: float = -1.0, upper: float = 1.0, epsilon: float = 0.05
) -> Bool[Array, " U"]:
    """Units within `epsilon` of a bound of their activation function on every example.

    Args:
        features: Unit outputs.
        lower: Lower bound: -1 for tanh, 0 for sigmoid.
        upper: Upper bound.
        epsilon: Distance that counts as saturated.
    """
    if not isinstance(lower, Tracer) and not isinstance(upper, Tracer) and not lower < upper:
        raise ValueError(f"lower must be below upper, got {lower} and {upper}")
    near = (features <= lower + epsilon) | (features >= upper - epsilon)
    return near.all(examples_and_positions(features))


def low_activity_units(features: Float[Array, "B *P U"], *, fraction: float = 0.01) -> Bool[Array, " U"]:
    """Units whose output is other than 0 on less than `fraction` of the examples (and positions)."""
    check_number("fraction", fraction, "[0, 1]", lambda value: 0 <= value <= 1)
    return (features != 0).mean(examples_and_positions(features)) < fraction


def dormant_units(features: Float[Array, "B *P U"], tau: float) -> Bool[Array, " U"]:
    """Tau-dormant units: mean abs(h) / (layer's mean of it) <= tau (Sokar et al. 2023, eq. 1).

    A layer whose outputs are all 0 is all dormant.
    """
    check_number("tau", tau, "[0, inf)", lambda value: 0 <= value < float("inf"))
    activity = unit_means(jnp.abs(features))
    return activity <= tau * activity.mean()


def mean_weight_magnitude(params: Params) -> Float[Array, ""]:
    """Sum of absolute weights over their number, over all kernels (arrays of two or more axes).

    Raises:
        ValueError: If there is no kernel.
    """
    kernels = kernels_of(params).values()
    if not kernels:
        raise ValueError("params hold no kernel (an array of 2 or more axes)")
    total = sum((jnp.abs(kernel).sum() for kernel in kernels), jnp.zeros(()))
    return total / sum(kernel.size for kernel in kernels)


def effective_rank(features: Float[Array, "B U"]) -> Float[Array, ""]:
    """Effective rank: exp(entropy of sigma / sum sigma), sigma the singular values; 0 for a zero matrix.

    References:
        Roy and Vetterli, "The effective rank", EUSIPCO 2007.
    """
    sigma = _singular_values(features)
    total = sigma.sum()
    shares = sigma / jnp.where(total > 0, total, 1.0)
    entropy = -(shares * jnp.log(jnp.where(shares > 0, shares, 1.0))).sum()
    return jnp.where(total == 0, 0.0, jnp.exp(entropy))


def stable_rank(features: Float[Array, "B U"]) -> Float[Array, ""]:
    """Stable rank: sum sigma^2 / max sigma^2, sigma the singular values; 0 for a zero matrix."""
    squares = jnp.square(_singular_values(features))
    largest = squares.max()
    return squares.sum() / jnp.where(largest > 0, largest, 1.0)


def approximate_rank(features: Float[Array, "B U"], threshold: float = 0.99, power: int = 1) -> Int[Array, ""]:
    """Least number of singular values that hold `threshold` of the sum of sigma^power; 0 for a zero matrix, -1 for NaN.

    Dohare et al., Nature 632 (2024), call the number with power 1 the stable rank; Yang et al. 2019 take power 2.
    """
    check_number("threshold", threshold, "(0, 1]", lambda value: 0 < value <= 1)
    values = _singular_values(features) ** power
    total = values.sum()
    count = jnp.where(total > 0, (jnp.cumsum(values) < threshold * total).sum() + 1, 0)
    return jnp.where(jnp.isnan(total), -1, count)


def _singular_values(features: Float[Array, "B U"]) -> Float[Array, " min(B,U)"]:
    if features.ndim != 2:
        raise ValueError(f"a rank needs a matrix of features [B, U], got shape {features.shape}")
    return jnp.linalg.svd(jnp.asarray(features, jnp.float32), compute_uv=False)
