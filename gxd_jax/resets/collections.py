"""What a replacement does to other collections of variables: batch norm's running statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from gxd_jax.trees import leaves_by_path, replace_leaves
from gxd_jax.types import Path
from gxd_jax.wiring.layers import UnitLayer

if TYPE_CHECKING:
    from jaxtyping import Array, Bool


def reset_collection(
    collection: Any, initial: Any, units: Sequence[UnitLayer], replaced: dict[str, Bool[Array, " U"]]
) -> Any:
    """Resets the replaced units' entries in another collection of variables: batch norm's running mean and variance.

    A variable belongs to a layer if it lies in the module that holds one of the layer's own parameters (a norm's scale
    or bias) and its last axis has one entry a unit. Call this after the update, and use the result at the next step.

    Args:
        collection: The variables now, such as the new `batch_stats` of Flax linen.
        initial: The same variables as initialised.
        units: The unit layers.
        replaced: Layer name -> replaced units, as in `reset_info(opt_state).replaced`.

    Returns:
        The collection, with replaced units' entries as in `initial`.

    Raises:
        ValueError: If the collections differ in structure, or no variable of `collection` belongs to any layer.

    Example:
        >>> stats = {"norm": {"mean": jnp.array([3.0, 4.0])}}
        >>> from gxd_jax import ParamAxis, UnitLayer
        >>> norm = ParamAxis(("norm", "scale"), 0)
        >>> kernels = ParamAxis(("a", "kernel"), 1), ParamAxis(("b", "kernel"), 0)
        >>> layer = UnitLayer("a", 2, kernels[:1], ((norm, 1.0),), kernels[1:], (None,))
        >>> initial = {"norm": {"mean": jnp.zeros(2)}}
        >>> reset_collection(stats, initial, [layer], {"a": jnp.array([True, False])})["norm"]["mean"].tolist()
        [0.0, 4.0]
    """
    variables, fresh = leaves_by_path(collection), leaves_by_path(initial)
    if variables.keys() != fresh.keys():
        differing = sorted(map(str, variables.keys() ^ fresh.keys()))
        raise ValueError(f"collection and initial must hold the same variables; in one of them only: {differing}")
    new: dict[Path, Array] = {}
    for layer in units:
        modules = {_within_collection(axis.path[:-1]) for axis, _ in layer.own}
        for path, value in variables.items():
            if _within_collection(path[:-1]) in modules and value.ndim and value.shape[-1] == layer.size:
                new[path] = jnp.where(replaced[layer.name], fresh[path], new[path] if path in new else value)
    if not new:
        raise ValueError(
            f"no variable of the collection stands beside an own parameter of a layer; its paths are {list(variables)}"
        )
    return replace_leaves(collection, new)


def _within_collection(path: Path) -> Path:
    """Strips the name of a Flax collection that a path may begin with."""
    return path[1:] if path[:1] in (("params",), ("batch_stats",)) else path
