"""Checks of hyper-parameters: wrong concrete values raise before tracing, traced values are not checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def check_number(name: str, value: Any, allowed: str, is_allowed: Callable[[float], bool]) -> None:
    """Checks a concrete hyper-parameter; a traced one passes."""
    if isinstance(value, Tracer):
        return
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, np.number, np.ndarray, jax.Array))
        or np.ndim(value)
    ):
        raise TypeError(f"{name} must be a number in {allowed}, got {value!r}")
    if not is_allowed(float(value)):
        raise ValueError(f"{name} must lie in {allowed}, got {value}")


def check_period(period: Any) -> None:
    """Checks a number of updates between resets; a traced one passes."""
    if isinstance(period, Tracer):
        return
    whole = isinstance(period, (int, np.integer)) and not isinstance(period, bool)
    injected = isinstance(period, jax.Array) and period.ndim == 0 and jnp.issubdtype(period.dtype, jnp.integer)
    if not (whole or injected):
        raise TypeError(f"period must be a whole number of updates, got {period!r}")
    if period < 1:
        raise ValueError(f"period must be 1 or more, got {period}")


def check_function(name: str, function: Any) -> None:
    """Checks a function of parameters and inputs."""
    if isinstance(function, nn.Module):
        raise TypeError(f"{name} must be a function of parameters and inputs, got a Flax module: pass its .apply")
    if not callable(function):
        raise TypeError(f"{name} must be a function, got {function!r}")


def check_whole(name: str, value: Any, least: int) -> None:
    """Checks a static whole number."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number of {least} or more, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be {least} or more, got {value}")


def check_flag(name: str, flag: Any) -> None:
    """Checks a flag."""
    if not isinstance(flag, bool):
        raise TypeError(f"{name} must be True or False, got {flag!r}")


def look_up(what: str, given: Any, table: Mapping[str, Any], others: str) -> Any:
    """Returns the row of a table by its name; a function is returned as it is.

    Args:
        what: What the table holds, for messages.
        given: A name of the table, or a function.
        table: Name -> row.
        others: What may be given instead of a name, for messages.

    Raises:
        ValueError: If there is no such name.
        TypeError: If it is neither a name nor callable.
    """
    if isinstance(given, str):
        if given not in table:
            raise ValueError(f"unknown {what} {given!r}: allowed are {sorted(table)} or {others}")
        return table[given]
    if not callable(given):
        raise TypeError(f"{what} must be one of {sorted(table)} or {others}, got {given!r}")
    return given
