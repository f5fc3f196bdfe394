"""Leaves of a tree of parameters, or of an optimizer's state, by their paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax

from gxd_jax.types import Params, Path

if TYPE_CHECKING:
    from jaxtyping import Array, Float


def plain_path(key_path: Sequence[Any]) -> Path:
    """Turns a JAX key path (of dicts, sequences, attributes) into a tuple of names and positions.

    The attribute in which a Flax nnx variable keeps its array is left out: `nnx.Optimizer` gives `init` the variables
    and `update` their arrays, and both have the same paths.
    """
    last = key_path[-1] if len(key_path) > 1 else None
    if isinstance(last, jax.tree_util.GetAttrKey) and _plain_key(last) in ("value", "raw_value"):
        key_path = key_path[:-1]
    return tuple(_plain_key(entry) for entry in key_path)


def _plain_key(entry: Any) -> str | int:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    raise TypeError(f"cannot read the tree key {entry!r}: allowed are dict keys, attributes and positions")


def leaves_by_path(tree: Params) -> dict[Path, Any]:
    """Returns the leaves of a tree by their paths."""
    return {plain_path(key_path): leaf for key_path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def replace_leaves(tree: Params, leaves: dict[Path, Any]) -> Params:
    """Returns `tree` with the leaves at the paths of `leaves` replaced."""
    return jax.tree_util.tree_map_with_path(lambda key_path, leaf: leaves.get(plain_path(key_path), leaf), tree)


def with_values(params: Params) -> Params:
    """Returns the parameters, zeros for leaves that are shapes only: an `init` may be asked for shapes alone."""

    def value(leaf: Any) -> Any:
        return jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return jax.tree.map(value, params)


def is_placeholder(params: Params) -> bool:
    """Whether a tree stands for any parameters: `optax.tree_map_params` asks `init` for the structure of its state."""
    return not jax.tree.leaves(params) and not isinstance(params, (dict, list, tuple))


def joined(path: Path) -> str:
    """Returns a path as text, its keys joined by slashes."""
    return "/".join(map(str, path))


def kernels_of(params: Params) -> dict[Path, Any]:
    """Returns the kernels: parameters of two or more axes."""
    return {path: leaf for path, leaf in leaves_by_path(params).items() if jnp.ndim(leaf) >= 2}


def norm(tree: Any) -> Float[Array, ""]:
    """Returns the 2-norm of all leaves as one vector (`optax.tree.norm`, which older releases of optax do not have)."""
    squares = jax.tree.map(lambda leaf: jnp.square(leaf.real) + jnp.square(leaf.imag), tree)
    return jnp.sqrt(optax.tree_utils.tree_sum(squares))


def normal_like(tree: Params, key: Array) -> Params:
    """Draws standard normal noise like the leaves of a tree.

    One draw for all leaves: `optax.tree.random_like` draws each leaf by itself, which takes longer to compile and run.
    """
    flat, unravel = jax.flatten_util.ravel_pytree(tree)
    return unravel(jax.random.normal(key, flat.shape, flat.dtype))
