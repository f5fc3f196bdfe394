"""Shrink and perturb: every update shrinks all parameters a little and adds a little noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gxd_jax.checks import check_number
from gxd_jax.keys import KeyLike, implementation, key_data, step_key
from gxd_jax.trees import normal_like

if TYPE_CHECKING:
    from jaxtyping import Array, UInt32


class ShrinkAndPerturbState(NamedTuple):
    """State of `shrink_and_perturb`: the number of updates and the raw data of the key."""

    count: UInt32[Array, ""]
    key: UInt32[Array, " words"]


def shrink_and_perturb(shrink: float, noise_std: float, *, key: KeyLike = 0) -> optax.GradientTransformationExtraArgs:
    """Moves the stepped parameters p to (1 - shrink) p + noise_std N(0, I), at every update.

    Goes after the optimizer. With plain SGD of step size a, `shrink = a * l` is L2 regularisation of strength l.

    Args:
        shrink: Fraction taken off every parameter, in [0, 1].
        noise_std: Standard deviation of the noise, 0 or more.
        key: An int or a JAX key.

    Returns:
        An `optax.GradientTransformationExtraArgs`; `update` needs the parameters.

    Raises:
        TypeError, ValueError: If a number is out of range, or `update` gets no parameters.

    References:
        Ash and Adams, "On warm-starting neural network training", NeurIPS 2020; Dohare et al., Nature 632 (2024).
    """
    check_number("shrink", shrink, "[0, 1]", lambda value: 0 <= value <= 1)
    check_number("noise_std", noise_std, "[0, inf)", lambda value: 0 <= value < float("inf"))
    key_implementation = implementation(key)

    def init(params):
        del params
        return ShrinkAndPerturbState(count=jnp.zeros((), jnp.uint32), key=key_data(key))

    def update(updates, state, params=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError("shrink_and_perturb needs the parameters: call update(grads, state, params)")
        noise = normal_like(params, step_key(state.key, key_implementation, state.count))

        def move(update, param, noise):
            return (update - shrink * (param + update) + noise_std * noise).astype(update.dtype)

        return jax.tree.map(move, updates, params, noise), state._replace(count=state.count + 1)

    return optax.GradientTransformationExtraArgs(init, update)
