"""Diagnostics of learning: gradients that are not 0, and the share of an error that a few steps remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from gxd_jax.checks import check_whole
from gxd_jax.metrics.curvature import Loss
from gxd_jax.trees import norm
from gxd_jax.types import Params

if TYPE_CHECKING:
    from jaxtyping import Array, Float


def gradient_norm(gradients: Params) -> Float[Array, ""]:
    """2-norm of the gradients, of the whole network or of the part that is given, in float32.

    References:
        Abbas et al., "Loss of plasticity in continual deep reinforcement learning", CoLLAs 2023, arXiv 2303.07507.
    """
    return norm(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), gradients))


def nonzero_gradients(gradients: Params) -> Float[Array, ""]:
    """Share of the gradients' entries that are not exactly 0: the l0 norm that Elsayed and Mahmood report.

    It is 0 for weights into units that are dead or saturated to float precision, and for weights out of dead units.

    References:
        Elsayed and Mahmood, ICLR 2024, arXiv 2404.00781.
    """
    leaves = jax.tree.leaves(gradients)
    counts = sum((jnp.count_nonzero(leaf).astype(jnp.float32) for leaf in leaves), jnp.zeros(()))
    return counts / sum(jnp.size(leaf) for leaf in leaves)


def error_reduction(
    before: Float[Array, "..."], after: Float[Array, "..."], *, epsilon: float = 1e-8
) -> Float[Array, "..."]:
    """Plasticity as the share of an error that learning removed: max(1 - after / max(before, epsilon), 0), in [0, 1].

    In [E] both losses are measured on the same sample, before and after the step that learns from it, and the result is
    averaged over the steps of the stream. For a recorded curve pass `(curve[:-1], curve[1:])`, the reductions of single
    steps, or `(curve[0], curve[-1])`, the reduction of all of them.

    Args:
        before: Losses before learning, 0 or more.
        after: Losses of the same data afterwards.
        epsilon: Smaller losses before learning count as this, against a division by 0.

    References:
        [E] Elsayed and Mahmood, "Addressing loss of plasticity and catastrophic forgetting in continual learning",
        ICLR 2024, arXiv 2404.00781: its sample plasticity.
    """
    return jnp.maximum(1 - after / jnp.maximum(before, epsilon), 0.0)


def plasticity(
    loss: Loss, params: Params, tx: optax.GradientTransformation, *, steps: int = 1, opt_state: Any = None
) -> Float[Array, ""]:
    """Share of the error of a probe task that a few steps of training remove, starting from these parameters.

    The trained parameters are discarded. Compare networks on the same probe task, on which none of them was trained: a
    network that has already learned it has no error left to remove.

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
