"""Weight clipping: weights are kept within a multiple of their initial bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gxd_jax.checks import check_number
from gxd_jax.trees import is_placeholder, with_values
from gxd_jax.types import Params

if TYPE_CHECKING:
    from jaxtyping import Array, Float


_UNBOUNDED = float(jnp.finfo(jnp.float32).max)


class WeightClippingState(NamedTuple):
    """State of `weight_clipping`: the initial bound s of each parameter, a tree of float32 numbers.

    The largest of them, `_UNBOUNDED`, stands for no bound: an infinite one would stop a run with `jax_debug_infs`.
    """

    bounds: Params


def weight_clipping(kappa: float, *, bounds: Params | None = None) -> optax.GradientTransformationExtraArgs:
    """Clips the stepped parameters to [-kappa s, kappa s], s the bound of the initial distribution of their layer.

    Goes after the optimizer, and before a resetting member, whose fresh weights it clips at the next update.

    Args:
        kappa: Multiple of the initial bound, more than 0.
        bounds: A tree like the parameters with one number s for each, `inf` for one that is not clipped. None: for
            parameters of two or more axes the largest absolute weight when the state was created (nearly the bound of
            a uniform distribution). Parameters of one axis (biases, norm scales) and kernels of zeros are not clipped.

    Returns:
        An `optax.GradientTransformationExtraArgs`; `update` needs the parameters.

    Raises:
        TypeError, ValueError: If kappa is out of range, `init` if parameters are complex or the bounds are no tree of
            positive numbers like the parameters, `update` if it gets no parameters.

    Differs from: the public code of [E], which takes s = 1 / sqrt(fan_in), the bound of PyTorch's default
        distribution, whatever the network was initialised from, and for a bias that of the kernel before it.

    References:
        [E] Elsayed et al., "Weight clipping for deep continual and reinforcement learning", RLC 2024, arXiv
        2407.01704, Algorithm 1.
    """
    check_number("kappa", kappa, "(0, inf)", lambda value: 0 < value < float("inf"))

    def init(params):
        if bounds is not None and not is_placeholder(params):
            _check_bounds(bounds, params)
        if any(jnp.issubdtype(leaf.dtype, jnp.complexfloating) for leaf in jax.tree.leaves(params)):
            raise TypeError("weight_clipping clips to an interval: it is not defined for complex parameters")
        given = (
            jax.tree.map(_initial_bound, with_values(params)) if bounds is None or is_placeholder(params) else bounds
        )
        return WeightClippingState(bounds=jax.tree.map(lambda param, s: _finite(s), params, given))

    def update(updates, state, params=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError("weight_clipping needs the parameters: call update(grads, state, params)")

        def clip(update, param, bound):
            is_free = bound >= _UNBOUNDED
            limit = kappa * jnp.where(is_free, 1.0, bound)
            stepped = param + update
            kept = is_free | (jnp.abs(stepped) <= limit)
            return jnp.where(kept, update, jnp.clip(stepped, -limit, limit) - param).astype(update.dtype)

        return jax.tree.map(clip, updates, params, state.bounds), state

    return optax.GradientTransformationExtraArgs(init, update)


def _check_bounds(bounds: Params, params: Params) -> None:
    if jax.tree.structure(bounds) != jax.tree.structure(params):
        raise ValueError(
            f"bounds must be a tree like the parameters, {jax.tree.structure(params)}, got {jax.tree.structure(bounds)}"
        )
    for bound in jax.tree.leaves(bounds):
        check_number("a bound of weight_clipping", bound, "(0, inf]", lambda value: value > 0)


def _initial_bound(param: Array) -> Float[Array, ""]:
    """The largest absolute weight of a kernel; `_UNBOUNDED` for what is not clipped."""
    if jnp.ndim(param) < 2:
        return jnp.array(_UNBOUNDED, jnp.float32)
    largest = jnp.abs(param).max()
    return jnp.where(largest > 0, largest, _UNBOUNDED)


def _finite(bound: Any) -> Float[Array, ""]:
    """Returns a bound as float32, with `_UNBOUNDED` instead of infinity."""
    bound = min(bound, _UNBOUNDED) if isinstance(bound, (int, float)) else bound
    return jnp.minimum(jnp.array(bound, jnp.float32), _UNBOUNDED)  # a copy: the state may be donated
