"""Several processes that compute one experiment together: how they meet, and what only the first of them does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from benchmarks.checks import check_options
from benchmarks.experiment import Options, prepare_devices
from benchmarks.running.folder import RefusedError, refusing_values

_MESSAGE_BYTES = 4096


def start(settings: Options) -> None:
    """Makes the devices ready, and meets the other processes of a distributed run; before JAX computes anything.

    Raises:
        RefusedError: If an option is impossible, or they do not fit together.
    """
    with refusing_values():
        check_options(settings)  # before anyone waits for anyone
    given = {name: getattr(settings, name) for name in ("coordinator", "processes", "process")}
    named = [name for name, value in given.items() if value is not None]
    if named and not settings.distributed:
        raise RefusedError(f"{', '.join(named)} can be given with --distributed only")
    if 0 < len(named) < len(given):
        raise RefusedError(f"coordinator, processes and process are given together, got {', '.join(named)} only")
    if named and settings.process >= settings.processes:
        raise RefusedError(
            f"process must lie between 0 and {settings.processes - 1} for {settings.processes} processes, "
            f"got {settings.process}"
        )
    prepare_devices(settings.devices)
    if not settings.distributed:
        return
    try:
        jax.distributed.initialize(settings.coordinator, settings.processes, settings.process)
    except ValueError as error:  # no cluster that JAX knows
        raise RefusedError(f"{error}: give --coordinator, --processes and --process") from error


def is_first() -> bool:
    """Whether this process writes the results and talks on the terminal."""
    return jax.process_index() == 0


def on_first(action: Callable[..., None], *arguments: Any) -> None:
    """Lets the first process act while the others wait for it.

    Raises:
        RefusedError: In every process, if the first one refuses.
    """
    refusal = ""
    if is_first():
        try:
            action(*arguments)
        except RefusedError as error:
            refusal = str(error)
    padded = refusal.encode()[:_MESSAGE_BYTES].ljust(_MESSAGE_BYTES, b"\0")
    told = multihost_utils.broadcast_one_to_all(np.frombuffer(padded, np.uint8))
    message = np.asarray(told).tobytes().rstrip(b"\0").decode(errors="ignore")
    if message:
        raise RefusedError(message)


def gather(values: Any) -> np.ndarray:
    """Returns an array of which each process may hold a part, whole, in every process."""
    if isinstance(values, jax.Array) and not values.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(values, tiled=True))
    return np.asarray(values)
