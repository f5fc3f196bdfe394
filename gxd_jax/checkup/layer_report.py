"""The state of one layer's units, as a check-up finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


STATES = ("dead", "saturated", "dormant", "low_activity")
"""States of units that contribute or adapt little, "worn out" in text and figure; the gravest first."""


class LayerReport(NamedTuple):
    """The state of one layer's units on the probe set.

    Attributes:
        dead: Units whose output is exactly 0 everywhere, bool [U].
        dormant: Tau-dormant units, dead ones included, bool [U].
        saturated: Units that are near a bound of their activation function on most examples, bool [U].
        low_activity: Units whose output is other than 0 on too small a share of the examples, bool [U].
        active_share: Share of the examples on which a unit's output is other than 0, float32 [U].
        saturated_share: Share of the examples on which a unit is near a bound, float32 [U].
        activity: Mean absolute output of each unit, float32 [U].
        contribution: Activity x sum of the absolute outgoing weights, float32 [U].
        incoming: Mean absolute incoming weight of each unit, float32 [U].
        outgoing: Mean absolute outgoing weight of each unit, float32 [U].
        effective_rank: Of the features, as in `metrics`, float32.
        stable_rank: The same.
        approximate_rank: The same, int32.
        highest_rank: Largest possible rank: the smaller one of the numbers of units and examples, int32.
        growth: Standard deviation of the incoming weights / their standard deviation when the optimizer's state was
            created, mean over the layer's kernels; NaN where that was 0. This and the following attributes are None for
            layers without a resetting member.
        ages: Updates since each unit was last initialised, int32 [U].
        utilities: Bias-corrected running utility of each unit, float32 [U].
        mature_fraction: Share of units old enough to be replaced, float32.
    """

    dead: Bool[Array, " U"]
    dormant: Bool[Array, " U"]
    saturated: Bool[Array, " U"]
    low_activity: Bool[Array, " U"]
    active_share: Float[Array, " U"]
    saturated_share: Float[Array, " U"]
    activity: Float[Array, " U"]
    contribution: Float[Array, " U"]
    incoming: Float[Array, " U"]
    outgoing: Float[Array, " U"]
    effective_rank: Float[Array, ""]
    stable_rank: Float[Array, ""]
    approximate_rank: Int[Array, ""]
    highest_rank: Int[Array, ""]
    growth: Float[Array, ""] | None = None
    ages: Int[Array, " U"] | None = None
    utilities: Float[Array, " U"] | None = None
    mature_fraction: Float[Array, ""] | None = None


def usefulness(layer: LayerReport) -> tuple[Array, str]:
    """Returns the score that ranks units, and its name: the utility, or without a resetting member the contribution."""
    return (layer.contribution, "contribution") if layer.utilities is None else (layer.utilities, "utility")
