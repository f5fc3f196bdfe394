"""What is known of one array of a traced program."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import numpy as np

from gxd_jax.wiring.discovery.labels import FREE

Place = tuple[int, int]
"""A parameter's index and one of its axes."""


class Kind(enum.IntEnum):
    """What an array depends on; the kind of a result is the largest kind of its operands."""

    CONSTANT = 0
    PARAMETER = 1
    ACTIVATION = 2


@dataclasses.dataclass(frozen=True)
class Value:
    """An array of the program, as far as units are concerned.

    Attributes:
        axes: For each axis the label of every index.
        kind: What the array depends on.
        reduced: Indices of the groups of labels that every entry depends on, because their axis was reduced away.
        origin: For a parameter, the places from which each axis comes; for others empty.
        parameter: Index of the parameter that this is, up to the order of axes and new ones; None: it is none.
        keeps_zeros: Whether a zero entry of the parameter is a zero entry of this array.
        products: Indices of the products with kernels whose plain sum this is.
        stem: An identity that arrays share which hold the same values in another shape, order or precision.
    """

    axes: tuple[np.ndarray, ...]
    kind: Kind
    reduced: frozenset[int] = frozenset()
    origin: tuple[frozenset[Place], ...] = ()
    parameter: int | None = None
    keeps_zeros: bool = False
    products: frozenset[int] = frozenset()
    stem: int = -1

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return tuple(labels.size for labels in self.axes)

    def places(self, axis: int) -> frozenset[Place]:
        """Returns the parameter axes from which an axis comes."""
        return self.origin[axis] if self.origin else frozenset()


def constant(shape: tuple[int, ...]) -> Value:
    """Returns an array that depends on nothing."""
    return Value(tuple(free(size) for size in shape), Kind.CONSTANT)


def free(size: int) -> np.ndarray:
    """Returns labels of an axis of which nothing is known."""
    return np.full(size, FREE)


@dataclasses.dataclass(frozen=True)
class Step:
    """One equation of the program, with what is known of its operands.

    Attributes:
        name: Name of the primitive.
        settings: Its settings.
        operands: Its operands.
        shapes: Shapes of its results.
        needed: Which results the outputs depend on.
    """

    name: str
    settings: dict[str, Any]
    operands: list[Value]
    shapes: list[tuple[int, ...]]
    needed: tuple[bool, ...]
