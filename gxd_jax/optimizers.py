"""Adam whose bias correction counts the updates of each weight, so that the count of a reset weight starts at 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

if TYPE_CHECKING:
    from jax.typing import DTypeLike
    from jaxtyping import Array, Float, Int


class ScaleByAdamState(NamedTuple):
    """State of `scale_by_adam`.

    Attributes:
        count: Updates of each weight since it was last reset, int32, of the parameters' shapes.
        mu: First moments.
        nu: Second moments.
    """

    count: Any
    mu: Any
    nu: Any


def scale_by_adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformation:
    """Rescales updates like `optax.scale_by_adam`, with a count for each weight.

    While nothing is reset it equals `optax.scale_by_adam`. After `gxd_jax.chain` has reset a weight's moments, a shared
    count would correct them as if they had been averaged since the start, and the weight's first updates would have the
    wrong size. Here the count is reset with them.

    Args:
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Added outside the root.
        eps_root: Added inside the root.
        mu_dtype: Dtype of the first moment; None: the parameters'.

    Returns:
        An `optax.GradientTransformation`.

    References:
        Kingma and Ba, "Adam", arXiv 1412.6980, Algorithm 1.
    """

    def init(params):
        return ScaleByAdamState(
            count=jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), jnp.int32), params),
            mu=optax.tree_utils.tree_zeros_like(params, dtype=mu_dtype),
            nu=optax.tree_utils.tree_zeros_like(params),
        )

    def update(updates, state, params=None):
        del params
        count = jax.tree.map(optax.safe_increment, state.count)
        mu = optax.tree_utils.tree_update_moment(updates, state.mu, b1, 1)
        nu = optax.tree_utils.tree_update_moment_per_elem_norm(updates, state.nu, b2, 2)

        def rescale(m, v, n):
            corrected_m = m / _one_minus_power(b1, n).astype(m.dtype)
            corrected_v = v / _one_minus_power(b2, n).astype(v.dtype)
            return corrected_m / (jnp.sqrt(corrected_v + eps_root) + eps)

        rescaled = jax.tree.map(rescale, mu, nu, count)
        return rescaled, ScaleByAdamState(count=count, mu=optax.tree_utils.tree_cast(mu, mu_dtype), nu=nu)

    return optax.GradientTransformation(init, update)


def adam(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Adam like `optax.adam`, with a bias-correction count for each weight: see `scale_by_adam`.

    Args:
        learning_rate: Step size or schedule.
        b1: Decay of the first moment.
        b2: Decay of the second moment.
        eps: Added outside the root.
        eps_root: Added inside the root.
        mu_dtype: Dtype of the first moment; None: the parameters'.

    Returns:
        An `optax.GradientTransformationExtraArgs`.
    """
    return optax.chain(
        scale_by_adam(b1=b1, b2=b2, eps=eps, eps_root=eps_root, mu_dtype=mu_dtype),
        optax.scale_by_learning_rate(learning_rate),
    )


@jax.jit  # as optax does, whose rounding depends on it
def _one_minus_power(base: Any, exponent: Int[Array, "..."]) -> Float[Array, "..."]:
    """Returns 1 - base^exponent, for the largest exponent with optax's own rounding.

    A power for each weight would take several times the rest of the update; most weights share the largest exponent.
    """
    largest = exponent.max(initial=0)
    of_largest = (1 - base ** largest.astype(float)).astype(jnp.float32)
    others = -jnp.expm1(exponent.astype(jnp.float32) * jnp.log(jnp.asarray(base, jnp.float32)))
    return jnp.where(exponent == largest, of_largest, others)
