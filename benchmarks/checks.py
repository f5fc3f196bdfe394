"""What can be said of a setting alone: that a list names something, and each value once; that numbers are possible."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

_FROM_ZERO = ("first_seed", "process", "maturity_threshold")
"""Whole numbers that may be zero; the others count something there must be."""
_POSITIVE = ("step_size",)
_SHARES = ("dropout",)
"""Numbers below one that nothing else checks."""
_LAST_SEED = 2**31 - 1
"""Seeds are int32."""


def check_options(settings: Any) -> None:
    """Checks every value of some settings that is given; None is not.

    Args:
        settings: A dataclass of options.

    Raises:
        ValueError: If a value is impossible whatever the others are, or the seeds' numbers are.
    """
    for field in dataclasses.fields(settings):
        given = getattr(settings, field.name)
        if isinstance(given, tuple):
            _check_list(field.name, given)
        for value in given if isinstance(given, tuple) else (given,):
            _check_number(field.name, value)
    if hasattr(settings, "first_seed"):
        _check_seeds(settings.first_seed, settings.seeds or 1)


def _check_list(name: str, values: tuple) -> None:
    if not values:
        raise ValueError(f"{name} must name at least one value, got none")
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ValueError(f"{name} must name each value once, got {value} twice")


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, int) and not isinstance(value, bool):
        least = 0 if name in _FROM_ZERO else 1
        if value < least:
            raise ValueError(f"{name} must be {least} or more, got {value}")
    elif isinstance(value, float):
        if name in _POSITIVE and not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive number, got {value}")
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a finite number, 0 or more, got {value}")
        if name in _SHARES and value >= 1:
            raise ValueError(f"{name} must be below 1, got {value}")


def _check_seeds(first: int, seeds: int) -> None:
    if first + seeds - 1 > _LAST_SEED:
        raise ValueError(
            f"first_seed must lie between 0 and {_LAST_SEED + 1 - seeds}, as seeds end at {_LAST_SEED}, got {first}"
        )
