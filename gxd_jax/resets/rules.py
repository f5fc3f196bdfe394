"""What a resetting method decides: which units may be replaced, and how many. The engine does everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from gxd_jax.resets.statistics import Statistics

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, UInt32


class LayerStep(NamedTuple):
    """What a rule may read of one layer at one update.

    Attributes:
        statistics: Ages and running averages, this batch included.
        utility: Utility of each unit on this batch alone [U].
        finite: Whether the batch may enter the rule's memory.
        count: Number of updates, this one included.
        key: A key of this layer and update.
    """

    statistics: Statistics
    utility: Float[Array, " U"]
    finite: Bool[Array, ""]
    count: UInt32[Array, ""]
    key: Array


class Candidates(NamedTuple):
    """The units of one layer that may be replaced now, and how many of them are: those of lowest utility.

    Attributes:
        utility: Utility by which units are ranked [U].
        eligible: Mask of the units that may be replaced [U].
        count: Number of units to replace, int32, at most those eligible.
    """

    utility: Float[Array, " U"]
    eligible: Bool[Array, " U"]
    count: Int[Array, ""]


class Rule(NamedTuple):
    """Which units are replaced, and when.

    Attributes:
        init: Size of a layer -> the rule's memory of it, a pytree of arrays, before the first update.
        choose: (memory, `LayerStep`) -> (`Candidates`, next memory).
        most: Size of a layer -> the largest number of units that can be replaced at one update, static.
    """

    init: Callable[[int], Any]
    choose: Callable[[Any, LayerStep], tuple[Candidates, Any]]
    most: Callable[[int], int]


class Evidence(NamedTuple):
    """What one batch tells about the units of one layer.

    Attributes:
        means: Mean output of each unit over the batch [U].
        finite: Whether the batch may enter the running averages.
        score: Corrected references [U] -> utilities on this batch [U].
    """

    means: Float[Array, " U"]
    finite: Bool[Array, ""]
    score: Callable[[Float[Array, " U"]], Float[Array, " U"]]
