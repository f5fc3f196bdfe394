"""L2-init: weight decay towards the initial parameters instead of towards 0 (regenerative regularisation)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gxd_jax.checks import check_number
from gxd_jax.trees import with_values


class L2InitState(NamedTuple):
    """State of `l2_init`: the parameters as they were when it was created."""

    initial: Any


def l2_init(strength: float) -> optax.GradientTransformationExtraArgs:
    """Adds strength x (p - p0) to the gradients, p0 the parameters that `init` saw.

    That is the gradient of strength / 2 |p - p0|^2, which keeps parameters near their initial values. Goes before the
    optimizer, as `optax.add_decayed_weights` does for p0 = 0.

    Args:
        strength: Weight of the regulariser, 0 or more; twice the lambda of [K].

    Returns:
        An `optax.GradientTransformationExtraArgs`; `update` needs the parameters.

    Raises:
        TypeError, ValueError: If the strength is impossible, or `update` gets no parameters.

    Example:
        >>> tx = optax.chain(l2_init(0.1), optax.sgd(1.0))
        >>> state = tx.init(jnp.array([1.0, 2.0]))
        >>> updates, _ = tx.update(jnp.zeros(2), state, jnp.array([3.0, 2.0]))
        >>> [round(x, 3) for x in updates.tolist()]
        [-0.2, -0.0]

    References:
        [K] Kumar et al., "Maintaining plasticity in continual learning via regenerative regularization", arXiv
        2308.11958.
    """
    check_number("strength", strength, "[0, inf)", lambda value: 0 <= value < float("inf"))

    def init(params):
        return L2InitState(initial=jax.tree.map(jnp.copy, with_values(params)))  # a copy: the parameters may be donated

    def update(updates, state, params=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError("l2_init needs the parameters: call update(grads, state, params)")

        def pull(update, param, initial):
            return (update + strength * (param - initial)).astype(update.dtype)

        return jax.tree.map(pull, updates, params, state.initial), state

    return optax.GradientTransformationExtraArgs(init, update)
