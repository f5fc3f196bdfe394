"""Random keys: users give an int, a typed key or an old-style uint32 key; optimizer states hold the key's raw data.

Raw data survives checkpoints through NumPy. The key's implementation (threefry, rbg) is read from the key that the user
gave.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array, PRNGKeyArray

KeyLike = Any
"""An int, a typed JAX key, or an old-style uint32 key."""

_IMPLEMENTATION_BY_SIZE = {2: "threefry2x32", 4: "rbg"}


def as_key(key: KeyLike) -> PRNGKeyArray:
    """Returns a typed key.

    Args:
        key: An int (a seed), a typed key, or an old-style key (uint32 [2] or [4]). May be traced.

    Raises:
        TypeError: If it is none of these.
        ValueError: If the int is too large.
    """
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        if not -(2**63) <= key < 2**63:
            raise ValueError(f"key must lie in [-2**63, 2**63), got {key}")
        return jax.random.key(key)
    if isinstance(key, (jax.Array, np.ndarray)):
        key = jnp.asarray(key)
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
            return key
        if jnp.issubdtype(key.dtype, jnp.integer) and key.ndim == 0:
            return jax.random.key(key)
        if key.dtype == jnp.uint32 and key.shape in ((2,), (4,)):
            default = jax.random.key(0)
            same_size = jax.random.key_data(default).shape == key.shape
            implementation = jax.random.key_impl(default) if same_size else _IMPLEMENTATION_BY_SIZE[key.shape[0]]
            return jax.random.wrap_key_data(key, impl=implementation)
        raise TypeError(f"key must be one key: an int, a typed key or uint32 [2] or [4]; got {key.dtype} {key.shape}")
    raise TypeError(f"key must be an int, one jax.random key or an old-style uint32 key, got {key!r}")


def key_data(key: KeyLike) -> Array:
    """Returns a key's raw data, as a fresh copy that may be donated."""
    return jnp.array(jax.random.key_data(as_key(key)), copy=True)


def implementation(key: KeyLike) -> Hashable:
    """Returns the implementation of a key, for `jax.random.wrap_key_data`; static also where the key is traced."""
    return jax.random.key_impl(as_key(key))


def step_key(data: Array, key_implementation: Hashable, step: Array) -> PRNGKeyArray:
    """Returns the key of one step.

    Args:
        data: Raw key data, as a state holds it.
        key_implementation: From `implementation`.
        step: Index of the step.
    """
    return jax.random.fold_in(jax.random.wrap_key_data(data, impl=key_implementation), step)
