"""Checkpoints of one run: one file with the carry and the measures so far.

The state of these runs is small and on one host, so one NumPy archive, renamed into place, does it: it is there whole
or not at all, a digest in front shows any damage, and it is written in a few milliseconds, where Orbax's folder of
arrays takes fifty.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.folder import RefusedError, as_json, write_file

_DIGEST_BYTES = hashlib.sha256().digest_size


def save(path: Path, config: Mapping[str, Any], carry: Any, measures: Mapping[str, np.ndarray]) -> None:
    """Writes a checkpoint.

    Args:
        path: The file.
        config: What the run is: another run's checkpoint is refused.
        carry: Pytree of arrays.
        measures: Measure name -> values so far [S, chunks done].
    """
    leaves = [_as_numpy(leaf) for leaf in jax.tree.leaves(carry)]
    arrays = {f"carry/{i}": leaf for i, leaf in enumerate(leaves)} | {f"measure/{k}": v for k, v in measures.items()}
    buffer = io.BytesIO()
    np.savez(buffer, config=np.array(as_json(config)), **arrays)
    content = buffer.getvalue()
    write_file(path, hashlib.sha256(content).digest() + content)


def load(path: Path, config: Mapping[str, Any], like: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Reads a checkpoint.

    Args:
        path: The file.
        config: What the run is.
        like: A carry of the same structure, shapes and dtypes.

    Returns:
        The carry, on the host, and the measures so far.

    Raises:
        RefusedError: If the file is damaged or belongs to another run.
    """
    content = path.read_bytes()
    if hashlib.sha256(content[_DIGEST_BYTES:]).digest() != content[:_DIGEST_BYTES]:
        raise RefusedError(f"the checkpoint {path} is damaged: remove it to start this run again")
    with np.load(io.BytesIO(content[_DIGEST_BYTES:]), allow_pickle=False) as archive:
        arrays = dict(archive)
    leaves, structure = jax.tree.flatten(like)
    restored = [arrays.get(f"carry/{i}") for i in range(len(leaves))]
    fits = str(arrays["config"]) == as_json(config) and f"carry/{len(leaves)}" not in arrays
    if not fits or any(not _same_kind(new, old) for new, old in zip(restored, leaves, strict=True)):
        raise RefusedError(f"the checkpoint {path} belongs to another configuration: remove it to start this run again")
    carry = structure.unflatten([_as_key(new, old) for new, old in zip(restored, leaves, strict=True)])
    return carry, {name.removeprefix("measure/"): v for name, v in arrays.items() if name.startswith("measure/")}


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_numpy(leaf: Any) -> np.ndarray:
    """Random keys are kept as their raw data."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _as_key(array: np.ndarray, like: Any) -> Any:
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like)) if _is_key(like) else array


def _same_kind(array: np.ndarray | None, like: Any) -> bool:
    like = _as_numpy(like)
    return array is not None and array.shape == like.shape and array.dtype == like.dtype
