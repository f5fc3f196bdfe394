"""Types that several modules share: an observed batch, what a utility may read, what an update did."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

Params = Any
"""Any pytree of arrays: a dict, a FrozenDict, a module."""

Path = tuple[str | int, ...]
"""The keys that lead to a leaf of a tree."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Observation:
    """Features and sensitivities of the hidden units on one batch.

    Attributes:
        features: Layer name -> unit outputs [B, ..., U], the values that the outgoing weights read.
        sensitivities: Layer name -> derivative of the readout, per example (not divided by the batch size), by the
            features: [B, ..., U], or [K, B, ..., U] for the readout `logits_exact`. None where no utility needs it.
        readout: Name of the readout of the sensitivities. Static: it is not an array.
    """

    features: dict[str, Array]
    sensitivities: dict[str, Array] | None = None
    readout: str | None = dataclasses.field(default=None, metadata={"static": True})


class UnitRecord(NamedTuple):
    """Everything that a utility may read of one layer at one update.

    Attributes:
        features: Unit outputs of the batch [B, ..., U], float32.
        sensitivities: As in `Observation`, float32, or None.
        readout: Name of the readout of the sensitivities, or None.
        reference: Running mean output of each unit, bias-corrected, current batch included [U].
        incoming_magnitude: Mean absolute incoming weight of each unit [U], after the optimizer's step.
        outgoing_magnitude: Sum of absolute outgoing weights of each unit [U], after the optimizer's step.
        key: A key of this layer and update.
    """

    features: Float[Array, "B *P U"]
    sensitivities: Float[Array, "..."] | None
    readout: str | None
    reference: Float[Array, " U"]
    incoming_magnitude: Float[Array, " U"]
    outgoing_magnitude: Float[Array, " U"]
    key: PRNGKeyArray


class ResetInfo(NamedTuple):
    """What the last update did to the hidden units; every field but the last maps a layer's name to a value.

    Attributes:
        replaced: Units replaced in the last update, bool [U].
        counts: Number of units replaced in the last update, int32.
        totals: Number of units replaced since the start, int32.
        ages: Updates since each unit was last initialised, int32 [U].
        utilities: Bias-corrected running utility of each unit, float32 [U]; 0 for a unit without statistics.
        mature_fraction: Share of units old enough to be replaced, float32.
        skipped_batches: Number of batches that did not enter some layer's averages because they were not finite, int32.
    """

    replaced: dict[str, Bool[Array, " U"]]
    counts: dict[str, Int[Array, ""]]
    totals: dict[str, Int[Array, ""]]
    ages: dict[str, Int[Array, " U"]]
    utilities: dict[str, Float[Array, " U"]]
    mature_fraction: dict[str, Float[Array, ""]]
    skipped_batches: Int[Array, ""]
