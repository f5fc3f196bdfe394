"""Diagnostics of plasticity, as pure functions of features, parameters, gradients or losses.

Give them an explicit, fixed probe set: on the training batch they measure the policy or the stream, not the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from gxd_jax.checks import check_number, check_whole
from gxd_jax.costs import reset_cost
from gxd_jax.curvature import Loss, hessian_trace, top_eigenvalue
from gxd_jax.saturation import saturated_share
from gxd_jax.types import Params

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

__all__ = [
    "approximate_rank",
    "dead_units",
    "dormant_units",
    "effective_rank",
    "error_reduction",
    "gradient_norm",
    "hessian_trace",
    "saturated_share",
    "low_activity_units",
    "mean_weight_magnitude",
    "nonzero_gradients",
    "plasticity",
    "reset_cost",
    "saturated_units",
    "stable_rank",
    "top_eigenvalue",
]


def dead_units(features: Float[Array, "B *P U"]) -> Bool[Array, " U"]:
    """Units whose output is exactly 0 on every example (and position)."""
    return (features == 0).all(_all_but_last(features))


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
    return near.all(_all_but_last(features))


def low_activity_units(features: Float[Array, "B *P U"], *, fraction: float = 0.01) -> Bool[Array, " U"]:
    """Units whose output is other than 0 on less than `fraction` of the examples (and positions)."""
    check_number("fraction", fraction, "[0, 1]", lambda value: 0 <= value <= 1)
    return (features != 0).mean(_all_but_last(features)) < fraction


def dormant_units(features: Float[Array, "B *P U"], tau: float) -> Bool[Array, " U"]:
    """Tau-dormant units: mean abs(h) / (layer's mean of it) <= tau (Sokar et al. 2023, eq. 1).

    A layer whose outputs are all 0 is all dormant.
    """
    check_number("tau", tau, "[0, inf)", lambda value: 0 <= value < float("inf"))
    activity = jnp.abs(features).mean(_all_but_last(features))
    return activity <= tau * activity.mean()


def mean_weight_magnitude(params: Params) -> Float[Array, ""]:
    """Sum of absolute weights over their number, over all kernels (arrays of two or more axes).

    Raises:
        ValueError: If there is no kernel.
    """
    kernels = [leaf for leaf in jax.tree.leaves(params) if jnp.ndim(leaf) >= 2]
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

    [N] (Dohare et al., Nature 2024) calls the count with power 1 the stable rank; Yang et al. 2019 take power 2.
    """
    check_number("threshold", threshold, "(0, 1]", lambda value: 0 < value <= 1)
    values = _singular_values(features) ** power
    total = values.sum()
    count = jnp.where(total > 0, (jnp.cumsum(values) < threshold * total).sum() + 1, 0)
    return jnp.where(jnp.isnan(total), -1, count)


def gradient_norm(gradients: Params) -> Float[Array, ""]:
    """2-norm of the gradients, of the whole network or of the part that is given, in float32.

    References:
        Abbas et al., "Loss of plasticity in continual deep reinforcement learning", CoLLAs 2023, arXiv 2303.07507.
    """
    return optax.tree.norm(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), gradients))


def nonzero_gradients(gradients: Params) -> Float[Array, ""]:
    """Share of the gradients' entries that are not exactly 0: what of the network still learns (the l0 of [E]).

    Weights into units that are dead or saturated in float precision, and out of dead ones, have none.
    """
    leaves = jax.tree.leaves(gradients)
    counts = sum((jnp.count_nonzero(leaf).astype(jnp.float32) for leaf in leaves), jnp.zeros(()))
    return counts / sum(jnp.size(leaf) for leaf in leaves)


def error_reduction(
    before: Float[Array, "..."], after: Float[Array, "..."], *, epsilon: float = 1e-8
) -> Float[Array, "..."]:
    """Plasticity as the share of an error that learning took away: max(1 - after / max(before, epsilon), 0), in [0, 1].

    Elsayed and Mahmood measure both losses on the same sample, before and after the very step that learnt from it, and
    average over a stream's steps. Of a recorded curve take `(curve[:-1], curve[1:])`, the reductions of single steps,
    or `(curve[0], curve[-1])`, that of all of them.

    Args:
        before: Losses before learning, 0 or more.
        after: Losses of the same data afterwards.
        epsilon: Smallest error that there is something to take away from.

    References:
        [E] Elsayed and Mahmood, "Addressing loss of plasticity and catastrophic forgetting in continual learning",
        ICLR 2024, arXiv 2404.00781: its sample plasticity.
    """
    return jnp.maximum(1 - after / jnp.maximum(before, epsilon), 0.0)


def plasticity(
    loss: Loss, params: Params, tx: optax.GradientTransformation, *, steps: int = 1, opt_state: Any = None
) -> Float[Array, ""]:
    """How much of the error of a probe task a few steps of training take away, from the parameters as they are.

    The trained parameters are thrown away. Compare networks on the same probe task, one that none of them was trained
    on: a network that has already learnt it has no error left to take away.

    Args:
        loss: The loss of the probe task as a function of the parameters.
        params: The parameters.
        tx: The optimizer; without a resetting member, which needs observations.
        steps: Number of steps on the whole probe task.
        opt_state: The optimizer's state. None: a fresh one.

    Returns:
        `error_reduction` of the loss from before the first to after the last step, in [0, 1].

    Raises:
        TypeError, ValueError: If there is no step.

    Example:
        >>> loss = lambda w: w**2  # a step of SGD takes w to 0.8 w, the loss to 0.64 of itself
        >>> round(float(plasticity(loss, jnp.array(5.0), optax.sgd(0.1))), 4)
        0.36
    """
    check_whole("steps", steps, 1)

    def step(_, carry):
        params, opt_state = carry
        updates, opt_state = tx.update(jax.grad(loss)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    start = (params, tx.init(params) if opt_state is None else opt_state)
    trained, _ = jax.lax.fori_loop(0, steps, step, start)
    return error_reduction(loss(params), loss(trained))


def _singular_values(features: Float[Array, "B U"]) -> Float[Array, " min(B,U)"]:
    if features.ndim != 2:
        raise ValueError(f"a rank needs a matrix of features [B, U], got shape {features.shape}")
    return jnp.linalg.svd(jnp.asarray(features, jnp.float32), compute_uv=False)


def _all_but_last(features: Array) -> tuple[int, ...]:
    return tuple(range(features.ndim - 1))
