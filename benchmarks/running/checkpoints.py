"""Checkpoints of one run, kept by Orbax: the carry and the measures so far, and in the metadata whose they are."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from benchmarks.running import processes
from benchmarks.running.folder import RefusedError, as_json

# What Orbax logs about a damaged checkpoint, the RefusedError says in one line.
logging.getLogger("absl").setLevel(logging.CRITICAL)


def open_manager(path: Path) -> ocp.CheckpointManager:
    """Opens the folder of a run's checkpoints, of which the latest is kept; to be used in a `with` statement."""
    options = ocp.CheckpointManagerOptions(
        preservation_policy=ocp.checkpoint_managers.LatestN(1),
        cleanup_tmp_directories=True,
        lightweight_initialize=True,  # leaves a damaged one for `load` to find
        enable_async_checkpointing=False,
    )
    return ocp.CheckpointManager(path.absolute(), options=options)


def save(
    manager: ocp.CheckpointManager, config: Mapping[str, Any], carry: Any, measures: Mapping[str, np.ndarray]
) -> None:
    """Writes a checkpoint; whenever the process dies, this one or the one before is there and whole.

    Args:
        manager: Of the run's folder.
        config: What the run is: another run's checkpoint is refused.
        carry: Pytree of arrays.
        measures: Measure name -> values so far [S, points done].
    """
    # NumPy arrays are written in half the time of sharded ones.
    arrays = _carry_arrays(carry) | {f"measure_{name}": values for name, values in measures.items()}
    about = {"config": as_json(config), "arrays": _kinds(arrays)}
    points = min(values.shape[1] for values in measures.values())
    manager.save(points, args=ocp.args.PyTreeSave(arrays), custom_metadata=about)


def load(manager: ocp.CheckpointManager, config: Mapping[str, Any], like: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Reads the latest checkpoint; there must be one.

    Args:
        manager: Of the run's folder.
        config: What the run is.
        like: A carry of the same structure, shapes, dtypes and sharding.

    Returns:
        The carry and the measures so far.

    Raises:
        RefusedError: If the checkpoint is damaged or belongs to another run.
    """
    path, points = Path(manager.directory), manager.latest_step()
    try:
        about = manager.metadata(points).custom_metadata
        found, kinds = about["config"], about["arrays"]
        arrays = {name: _read(manager, points, name) for name in kinds}
        whole = _kinds(arrays) == kinds
    except Exception as error:  # whatever the damage leads to; Orbax keeps checksums of the arrays
        raise _damaged(path) from error
    if not whole:
        raise _damaged(path)
    carry_kinds = {name: kind for name, kind in kinds.items() if name.startswith("carry_")}
    if found != as_json(config) or carry_kinds != _kinds(_carry_arrays(like)):
        raise RefusedError(f"the checkpoint {path} belongs to another configuration: remove it to start this run again")
    leaves, structure = jax.tree.flatten(like)
    carry = structure.unflatten([_restored(arrays.get(f"carry_{i}"), leaf) for i, leaf in enumerate(leaves)])
    return carry, {k.removeprefix("measure_"): v for k, v in arrays.items() if k.startswith("measure_")}


def _read(manager: ocp.CheckpointManager, points: int, name: str) -> np.ndarray:
    """Reads one array: of several damaged ones that it reads together, Orbax leaves tracebacks on the terminal."""
    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    wanted = ocp.args.PyTreeRestore({name: 0}, restore_args={name: as_numpy}, partial_restore=True)
    return manager.restore(points, args=wanted)[name]


def _damaged(path: Path) -> RefusedError:
    return RefusedError(f"the checkpoint {path} is damaged: remove it to start this run again")


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _carry_arrays(carry: Any) -> dict[str, np.ndarray]:
    """Returns the leaves by position, random keys as their raw data, but no empty ones: Orbax refuses them."""
    raw = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in jax.tree.leaves(carry)]
    leaves = [processes.gather(leaf) for leaf in raw]
    return {f"carry_{i}": leaf for i, leaf in enumerate(leaves) if leaf.size}


def _restored(array: np.ndarray | None, like: Any) -> Any:
    if array is None:
        return like
    if isinstance(like, np.ndarray):
        return array
    restored = jax.device_put(array, like.sharding)
    return jax.random.wrap_key_data(restored, impl=jax.random.key_impl(like)) if _is_key(like) else restored


def _kinds(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    return {name: f"{array.dtype}{list(array.shape)}" for name, array in arrays.items()}
