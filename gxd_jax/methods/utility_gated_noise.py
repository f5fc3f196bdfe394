"""Utility-gated noise (UPGD): the lower a weight's utility, the larger its gradient step and the noise added to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gxd_jax.checks import check_number
from gxd_jax.keys import KeyLike, implementation, key_data, step_key
from gxd_jax.trees import normal_like
from gxd_jax.types import Params

if TYPE_CHECKING:
    from jaxtyping import Array, UInt32


class UtilityGatedNoiseState(NamedTuple):
    """State of `utility_gated_noise`.

    Attributes:
        count: Number of updates, uint32.
        key: Raw data of the key from which the key of every update is derived.
        utility: Raw running average of each weight's utility, float32, like the parameters.
    """

    count: UInt32[Array, ""]
    key: UInt32[Array, " words"]
    utility: Params


def utility_gated_noise(
    noise_std: float, *, decay: float = 0.999, key: KeyLike = 0
) -> optax.GradientTransformationExtraArgs:
    """Turns the gradient g into (g + noise_std N(0, I)) (1 - U), with U in (0, 1) the scaled utility of each weight.

    The utility of a weight w is -g w, to first order the increase of the loss when w is set to 0. It is averaged over
    time and divided by the largest average of all weights; U is the logistic function of the quotient ([E],
    Algorithm 1, with global scaling). Where no weight has a positive utility, U is 1/2.

    Goes before the optimizer. With plain SGD it is the update of [E]:
    `optax.chain(utility_gated_noise(1e-3), optax.add_decayed_weights(1e-3), optax.sgd(1e-2))`.

    Args:
        noise_std: Standard deviation of the noise, 0 or more.
        decay: Decay of the running average, in [0, 1).
        key: An int or a JAX key.

    Returns:
        An `optax.GradientTransformationExtraArgs`; `update` needs the parameters.

    Raises:
        TypeError, ValueError: If a number is out of range, or `update` gets no parameters.

    Differs from: the public code of [E], which doubles the step size, divides by the largest utility also where that is
        negative or 0, and corrects the averages, but not the largest of them, for their start at 0.

    References:
        [E] Elsayed and Mahmood, "Addressing loss of plasticity and catastrophic forgetting in continual learning",
        ICLR 2024, arXiv 2404.00781.
    """
    check_number("noise_std", noise_std, "[0, inf)", lambda value: 0 <= value < float("inf"))
    check_number("decay", decay, "[0, 1)", lambda value: 0 <= value < 1)
    key_implementation = implementation(key)

    def init(params):
        return UtilityGatedNoiseState(
            count=jnp.zeros((), jnp.uint32),
            key=key_data(key),
            utility=optax.tree_utils.tree_zeros_like(params, dtype=jnp.float32),
        )

    def update(updates, state, params=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError("utility_gated_noise needs the parameters: call update(grads, state, params)")
        noise = normal_like(updates, step_key(state.key, key_implementation, state.count))

        def follow(utility, gradient, weight):
            return (decay * utility - (1 - decay) * gradient * weight).astype(utility.dtype)

        utility = jax.tree.map(follow, state.utility, updates, params)
        # No bias correction of the averages: it would cancel in the quotient.
        largest = jnp.stack([leaf.max() for leaf in jax.tree.leaves(utility)]).max()

        def gate(gradient, noise, utility):
            scaled = jax.nn.sigmoid(jnp.where(largest > 0, utility / jnp.where(largest > 0, largest, 1.0), 0.0))
            return ((gradient + noise_std * noise) * (1 - scaled)).astype(gradient.dtype)

        gated = jax.tree.map(gate, updates, noise, utility)
        return gated, UtilityGatedNoiseState(count=state.count + 1, key=state.key, utility=utility)

    return optax.GradientTransformationExtraArgs(init, update)
