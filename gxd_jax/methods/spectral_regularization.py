"""Spectral regularization: keeps the largest singular value of each kernel close to 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gxd_jax.checks import check_number, check_whole
from gxd_jax.keys import KeyLike, as_key
from gxd_jax.trees import kernels_of, leaves_by_path, replace_leaves

if TYPE_CHECKING:
    from jaxtyping import Array, Float


class SpectralRegularizationState(NamedTuple):
    """State of `spectral_regularization`.

    Attributes:
        vectors: Estimates of the first right singular vectors of all kernels, one after the other, float32.
        cost: strength x the regulariser at the last update's parameters, float32.
    """

    vectors: Float[Array, " n"]
    cost: Float[Array, ""]


def spectral_regularization(
    strength: float, *, power: int = 2, iterations: int = 1, key: KeyLike = 0
) -> optax.GradientTransformationExtraArgs:
    """Adds the gradient of strength x sum over kernels of (sigma^power - 1)^2, sigma the largest singular value.

    A kernel [..., in, out] of two or more axes is read as a matrix [the rest, out]. sigma and its singular vectors come
    from power iteration, which goes on from update to update; the gradient of sigma by the kernel is u v^T. Goes
    before the optimizer: `optax.chain(spectral_regularization(1e-4), optax.adam(1e-3))`.

    Args:
        strength: Weight of the regulariser, 0 or more.
        power: The k of [L], 1 or more.
        iterations: Power iterations at each update, 1 or more.
        key: An int or a JAX key, for the first vectors.

    Returns:
        An `optax.GradientTransformationExtraArgs`; `update` needs the parameters. `state.cost` is what the regulariser
        adds to the loss.

    Raises:
        TypeError, ValueError: If a number is out of range, or `update` gets no parameters.

    Differs from: [L], which regularises biases and norm scales as well; add `optax.add_decayed_weights` with a mask for
        them.

    References:
        [L] Lewandowski et al., "Learning continually by spectral regularization", ICLR 2025, arXiv 2406.06811; Yoshida
        and Miyato, "Spectral norm regularization", arXiv 1705.10941, for the power iteration.
    """
    check_number("strength", strength, "[0, inf)", lambda value: 0 <= value < float("inf"))
    check_whole("power", power, 1)
    check_whole("iterations", iterations, 1)

    def init(params):
        kernels = kernels_of(params)
        keys = jax.random.split(as_key(key), max(len(kernels), 1))
        vectors = [
            _unit(jax.random.normal(vector_key, kernel.shape[-1:], jnp.float32))
            for kernel, vector_key in zip(kernels.values(), keys, strict=False)
        ]
        return SpectralRegularizationState(
            vectors=jnp.concatenate([jnp.zeros(0, jnp.float32), *vectors]), cost=jnp.zeros((), jnp.float32)
        )

    def update(updates, state, params=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError("spectral_regularization needs the parameters: call update(grads, state, params)")
        gradients = leaves_by_path(updates)
        kernels = kernels_of(params)
        ends = np.cumsum([kernel.shape[-1] for kernel in kernels.values()])
        estimates = jnp.split(state.vectors, ends[:-1]) if kernels else []
        vectors, new, cost = [state.vectors[:0]], {}, jnp.zeros((), jnp.float32)
        for (path, kernel), estimate in zip(kernels.items(), estimates, strict=True):
            matrix = jnp.asarray(kernel, jnp.float32).reshape(-1, kernel.shape[-1])
            u, sigma, v = _first_singular_triple(matrix, estimate, iterations)
            excess = sigma**power - 1
            slope = strength * 2 * excess * power * sigma ** (power - 1)
            term = (slope * u[:, None] * v[None]).reshape(kernel.shape)
            new[path] = gradients[path] + term.astype(gradients[path].dtype)
            vectors.append(v)
            cost += jnp.asarray(strength * excess**2, jnp.float32)
        return replace_leaves(updates, new), SpectralRegularizationState(vectors=jnp.concatenate(vectors), cost=cost)

    return optax.GradientTransformationExtraArgs(init, update)


def _unit(vector: Float[Array, " n"]) -> Float[Array, " n"]:
    """Scales a vector to norm 1; 0 stays 0."""
    return vector / jnp.maximum(jnp.linalg.norm(vector), jnp.finfo(jnp.float32).tiny)


def _first_singular_triple(
    matrix: Float[Array, "m n"], vector: Float[Array, " n"], iterations: int
) -> tuple[Float[Array, " m"], Float[Array, ""], Float[Array, " n"]]:
    """Returns left vector, value and right vector, from an estimate of the right one."""

    def iterate(_, v):
        pulled = _unit(matrix @ v) @ matrix
        return jnp.where((pulled == 0).all(), v, _unit(pulled))  # a zero matrix has no direction

    v = jax.lax.fori_loop(0, iterations, iterate, vector)
    image = matrix @ v
    return _unit(image), jnp.linalg.norm(image), v
