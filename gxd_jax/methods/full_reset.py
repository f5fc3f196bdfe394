"""Full resets: the whole network, or its last layers, are re-initialised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gxd_jax.resets.optimizer_state import clear_state
from gxd_jax.trees import leaves_by_path, replace_leaves
from gxd_jax.types import Params, Path


def full_reset(
    params: Params,
    opt_state: Any,
    fresh: Params,
    tx: optax.GradientTransformation,
    *,
    paths: Sequence[Path] | None = None,
) -> tuple[Params, Any]:
    """Replaces parameters by fresh ones, and the optimizer's state of them by what its `init` gives.

    Call it at a change of task or every so many steps, under `jax.lax.cond` in compiled loops.

    Args:
        params: The parameters now.
        opt_state: The optimizer's state now.
        fresh: The parameters as freshly initialised.
        tx: The optimizer.
        paths: Every parameter whose path begins with one of these is reset, such as the last layers in [P]. Of the
            optimizer's state only what has the shape of these parameters is reset, not its counts. None: everything.

    Returns:
        The parameters and the optimizer's state.

    Raises:
        TypeError: If `paths` is no list of tuples.
        ValueError: If no parameter lies at one of the paths, or the fresh parameters are not shaped as the old ones.

    Example:
        >>> params, fresh = {"body": jnp.ones(2), "head": jnp.ones(2)}, {"body": jnp.zeros(2), "head": jnp.zeros(2)}
        >>> tx = optax.sgd(0.1)
        >>> params, _ = full_reset(params, tx.init(params), fresh, tx, paths=[("head",)])
        >>> {name: leaf.tolist() for name, leaf in params.items()}
        {'body': [1.0, 1.0], 'head': [0.0, 0.0]}

    References:
        [P] Nikishin et al., "The primacy bias in deep reinforcement learning", ICML 2022, arXiv 2205.07802.
    """
    if jax.tree.structure(params) != jax.tree.structure(fresh):
        raise ValueError(
            f"fresh must be a tree like params, {jax.tree.structure(params)}, got {jax.tree.structure(fresh)}"
        )
    fresh = jax.tree.map(jnp.copy, fresh)  # the result may be donated, and the caller keeps its own
    leaves = leaves_by_path(fresh)
    for path, leaf in leaves_by_path(params).items():
        if jnp.shape(leaf) != jnp.shape(leaves[path]):
            raise ValueError(f"{path} has shape {jnp.shape(leaf)} in params and {jnp.shape(leaves[path])} in fresh")
    if paths is None:
        return fresh, tx.init(fresh)
    if isinstance(paths, str) or any(isinstance(path, str) for path in paths):
        raise TypeError(f'paths must be a list of tuples such as [("head",)], got {paths!r}')
    chosen: dict[Path, Any] = {}
    for prefix in map(tuple, paths):
        found = {path: leaf for path, leaf in leaves.items() if path[: len(prefix)] == prefix}
        if not found:
            raise ValueError(f"params have nothing at {prefix}; the paths there are {list(leaves)}")
        chosen |= found
    params = replace_leaves(params, chosen)
    return params, clear_state(opt_state, tx.init, params, dict.fromkeys(chosen, jnp.array(True)))
