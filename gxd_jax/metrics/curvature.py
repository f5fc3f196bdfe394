"""Curvature of a loss from Hessian-vector products, each at about twice the cost of a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import optax

from gxd_jax.keys import KeyLike, as_key
from gxd_jax.trees import norm
from gxd_jax.types import Params

if TYPE_CHECKING:
    from jaxtyping import Array, Float

Loss = Callable[[Params], "Float[Array, '']"]
"""The loss of a fixed probe set as a function of the parameters: `lambda params: loss(apply(params, x), y)`."""


def hessian_trace(loss: Loss, params: Params, *, samples: int = 16, key: KeyLike = 0) -> Float[Array, ""]:
    """Trace of the Hessian, the sum of its eigenvalues, estimated without bias.

    Hutchinson's estimate: the mean of v.Hv over vectors v of random signs. It is exact for a diagonal Hessian.
    Otherwise its variance is 2 x the sum of the squared off-diagonal entries / the number of samples.

    Args:
        loss: The loss as a function of the parameters.
        params: The parameters.
        samples: Number of vectors, each one product with the Hessian.
        key: An int or a JAX key.

    Returns:
        The estimate, float32.

    Raises:
        ValueError: If there is no sample.

    Example:
        >>> loss = lambda w: 1.5 * w[0] ** 2 - 0.5 * w[1] ** 2
        >>> float(hessian_trace(loss, jnp.array([3.0, 4.0])))
        2.0

    References:
        Hutchinson, "A stochastic estimator of the trace of the influence matrix", 1990; Yao et al., "PyHessian", 2020,
        arXiv 1912.07145.
    """
    _check_count("samples", samples)

    def sample(key):
        signs = optax.tree_utils.tree_random_like(key, params, jax.random.rademacher)
        return optax.tree_utils.tree_vdot(signs, _product(loss, params, signs))

    return jax.lax.map(sample, jax.random.split(as_key(key), samples)).mean()


def top_eigenvalue(loss: Loss, params: Params, *, iterations: int = 20, key: KeyLike = 0) -> Float[Array, ""]:
    """Eigenvalue of the Hessian of largest absolute value, with its sign, by power iteration.

    At each iteration the error shrinks by the factor (second largest / largest absolute eigenvalue)^2. A positive value
    is the sharpness of the edge of stability: gradient descent with step size s is unstable where it exceeds 2 / s.

    Args:
        loss: The loss as a function of the parameters.
        params: The parameters.
        iterations: Number of products with the Hessian.
        key: An int or a JAX key, for the vector to start from.

    Returns:
        The Rayleigh quotient of the last vector, float32; 0 where the Hessian is 0.

    Raises:
        ValueError: If there is no iteration.

    Example:
        >>> loss = lambda w: 1.5 * w[0] ** 2 - 0.5 * w[1] ** 2
        >>> round(float(top_eigenvalue(loss, jnp.array([3.0, 4.0]))), 4)
        3.0

    References:
        Yao et al., "PyHessian", 2020, arXiv 1912.07145; Lewandowski et al., "Directions of curvature as an explanation
        for loss of plasticity", 2023, arXiv 2312.00246.
    """
    _check_count("iterations", iterations)

    def iterate(_, carry):
        vector, _ = carry
        size = norm(vector)
        unit = jax.tree.map(lambda v: (v / jnp.where(size > 0, size, 1.0)).astype(v.dtype), vector)
        product = _product(loss, params, unit)
        return product, optax.tree_utils.tree_vdot(unit, product)

    start = optax.tree_utils.tree_random_like(as_key(key), params)
    return jax.lax.fori_loop(0, iterations, iterate, (start, jnp.zeros((), jnp.float32)))[1]


def _product(loss: Loss, params: Params, vector: Params) -> Params:
    """Hessian times vector."""
    return jax.jvp(jax.grad(loss), (params,), (vector,))[1]


def _check_count(name: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"{name} must be 1 or more, got {count}")
