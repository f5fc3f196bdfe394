"""What one method decides: which units may be replaced, and how many. Everything else is the engine's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from gxd_jax.resets.statistics import Statistics

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, UInt32


class LayerStep(NamedTuple):
    """What a rule may read of one layer at one step.

    Attributes:
        statistics: Ages and running averages, this batch included.
        utility: This batch's utility alone [U].
        finite: Whether the batch may enter what the rule remembers.
        count: Number of this update, from 1.
        key: A key of this layer and step.
    """

    statistics: Statistics
    utility: Float[Array, " U"]
    finite: Bool[Array, ""]
    count: UInt32[Array, ""]
    key: Array


class Candidates(NamedTuple):
    """The units of one layer that may be replaced now, and how many are: those of lowest utility.

    Attributes:
        utility: What they are ranked by [U].
        eligible: Mask of the units that may be replaced [U].
        count: Number of units to replace, int32, at most those eligible.
    """

    utility: Float[Array, " U"]
    eligible: Bool[Array, " U"]
    count: Int[Array, ""]


class Rule(NamedTuple):
    """Which units are replaced, and when.

    Attributes:
        init: Size of a layer -> what the rule remembers of it.
        choose: (memory, `LayerStep`) -> (`Candidates`, next memory).
        most: Size of a layer -> the most units that can be replaced at once, static.
    """

    init: Callable[[int], Any]
    choose: Callable[[Any, LayerStep], tuple[Candidates, Any]]
    most: Callable[[int], int]


class Evidence(NamedTuple):
    """What one batch says of the units of one layer.

    Attributes:
        means: Mean output of each unit over the batch [U].
        finite: Whether the batch may enter the running statistics.
        score: Corrected references [U] -> this batch's utilities [U].
    """

    means: Float[Array, " U"]
    finite: Bool[Array, ""]
    score: Callable[[Float[Array, " U"]], Float[Array, " U"]]
