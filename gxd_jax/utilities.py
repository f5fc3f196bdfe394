"""Utilities: how useful a layer's units are, one score a unit; the units of lowest utility are replaced first.

Each is a pure function of a `UnitRecord`. h are features, r references, g sensitivities; w_in and w_out are a unit's
incoming and outgoing weights. Means run over the batch and over positions. To add one, write a function and add its row
to `UTILITIES`; a function that reads no sensitivities says so by `without_sensitivities`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp

from gxd_jax.batches import broadcast_to_rank, unit_means
from gxd_jax.checks import check_number, look_up
from gxd_jax.observing.readouts import readout_of
from gxd_jax.types import UnitRecord

if TYPE_CHECKING:
    from jaxtyping import Array, Float

Utility = Callable[[UnitRecord], "Float[Array, ' U']"]


def without_sensitivities(utility: Utility) -> Utility:
    """Marks a utility that reads no sensitivities, for use as a decorator.

    Sensitivities that are not finite then do not keep a batch out of the averages. A utility that is not marked is
    taken to read them.
    """
    utility.reads_sensitivities = False
    return utility


@without_sensitivities
def contribution(record: UnitRecord) -> Float[Array, " U"]:
    """Contribution utility: mean abs(h) x sum_k abs(w_out[i, k]), Dohare et al., Nature 632 (2024), eq. (1)."""
    return unit_means(jnp.abs(record.features)) * record.outgoing_magnitude


@without_sensitivities
def mean_corrected_contribution(record: UnitRecord) -> Float[Array, " U"]:
    """Mean-corrected contribution utility: mean abs(h - r) x sum_k abs(w_out[i, k]).

    Differs from: the public code, which subtracts a reference without this batch and corrects it by another age.

    References:
        Dohare, Sutton, Mahmood, arXiv 2108.06325; Dohare et al., arXiv 2306.13812.
    """
    return unit_means(jnp.abs(_deviation(record))) * record.outgoing_magnitude


@without_sensitivities
def adaptable_contribution(record: UnitRecord) -> Float[Array, " U"]:
    """Mean-corrected contribution / mean abs(w_in): contribution x adaptation, arXiv 2108.06325 and 2306.13812."""
    contribution = mean_corrected_contribution(record)
    return jnp.where(
        contribution == 0, 0.0, contribution / record.incoming_magnitude
    )  # 0 also without incoming weights


@without_sensitivities
def weight(record: UnitRecord) -> Float[Array, " U"]:
    """Outgoing weights: sum_k abs(w_out[i, k]), an ablation in the public code of Dohare et al., Nature 632 (2024)."""
    return record.outgoing_magnitude


@without_sensitivities
def adaptation(record: UnitRecord) -> Float[Array, " U"]:
    """Adaptation utility: 1 / mean abs(w_in[., i]), arXiv 2108.06325. Units of large incoming weights learn slowly."""
    return 1 / record.incoming_magnitude


@without_sensitivities
def activation(record: UnitRecord) -> Float[Array, " U"]:
    """Activity: mean abs(h), ReDo's score (Sokar et al. 2023) without its division by the layer's mean."""
    return unit_means(jnp.abs(record.features))


def gradient(record: UnitRecord) -> Float[Array, " U"]:
    """Loss gradient: mean abs(dL/dh), L the mean loss of the batch, as ReGraMa (Liu et al., arXiv 2505.24061) takes it.

    Raises:
        ValueError: If the sensitivities are not those of the readout `loss`.
    """
    sensitivities = _sensitivities("gradient", record)
    if record.readout != "loss":
        raise ValueError(
            f"utility 'gradient' needs the sensitivities of readout 'loss', got those of {record.readout!r}: "
            "pass readout='loss' to observe"
        )
    return unit_means(jnp.abs(sensitivities)) / record.features.shape[0]


def gxd(record: UnitRecord) -> Float[Array, " U"]:
    """Gradient times difference from reference: mean_b abs(sum_p g[b, p, i] (h[b, p, i] - r[i])).

    To first order, the sum is the change of the readout when the unit moves to its reference, which is what a reset
    with compensation does. The readout defines its size: the absolute value; with `logits_exact` the 2-norm over
    outputs; with `fisher` the square.

    Raises:
        ValueError: If there are no sensitivities.

    References:
        Elisii, Beauchemin, Jamshed, arXiv 2605.06834.
    """
    sensitivities = _sensitivities("gxd", record)
    change = sensitivities * broadcast_to_rank(_deviation(record), sensitivities.ndim)
    positions = tuple(range(1 - record.features.ndim, -1))
    return readout_of(record.readout).size(change.sum(positions)).mean(0)


@without_sensitivities
def random(record: UnitRecord) -> Float[Array, " U"]:
    """Uniform on [0, 1): units are replaced at random, as a control."""
    return jax.random.uniform(record.key, record.reference.shape)


UTILITIES: dict[str, Utility] = {
    "contribution": contribution,
    "mean_corrected_contribution": mean_corrected_contribution,
    "adaptable_contribution": adaptable_contribution,
    "weight": weight,
    "adaptation": adaptation,
    "activation": activation,
    "gradient": gradient,
    "gxd": gxd,
    "random": random,
}


# Benefit of a reset, up to a constant of the layer: it is larger where a unit adapts less than a fresh one.
BENEFITS: dict[str, Utility] = {
    # A unit of large incoming weights learns slowly.
    "adaptation": without_sensitivities(lambda record: record.incoming_magnitude),
    "gradient": lambda record: -gradient(record),
}


def combine(
    cost: str | Utility = "gxd",
    benefit: str | Utility = "adaptation",
    *,
    weight: float = 1.0,
    scale: Literal["mean", "rank"] = "mean",
) -> Utility:
    """Returns a utility that weighs the cost of a reset against its benefit: weight * C - B, [G] eq. (2).

    C is the cost of a reset, the change of the outputs; B is its benefit, the plasticity gained. The units of lowest
    `weight * C - B` are replaced. C and B are measured on different scales, so each is divided by its mean absolute
    value over the layer, or turned into its rank within the layer; `weight`, the lambda of [G], then has no dimension.

    Args:
        cost: A name of `UTILITIES` or a function.
        benefit: "adaptation": mean abs(w_in), as units of large incoming weights learn slowly; "gradient": minus the
            utility `gradient`, which needs the readout `loss`; or a function that is larger where a reset brings more.
        weight: Weight of the cost, 0 or more.
        scale: "mean": each is divided by its mean absolute value; "rank": each is replaced by its rank in the layer,
            from 0 to 1, which is robust to a few units of very large cost and takes two sorts of the layer a step.

    Returns:
        A utility, for `continual_backprop`.

    Raises:
        TypeError, ValueError: If cost, benefit or scale is unknown, or the weight is not a number of 0 or more.

    Differs from: [G], which does not scale cost and benefit.

    References:
        [G] Elisii, Beauchemin, Jamshed, arXiv 2605.06834.

    Example:
        >>> utility = combine("contribution", "adaptation", weight=2.0)
    """
    score_cost = resolve_utility(cost)
    score_benefit = look_up("benefit", benefit, BENEFITS, "a function of a UnitRecord")
    check_number("weight", weight, "[0, inf)", lambda value: 0 <= value < float("inf"))
    if not isinstance(scale, str) or scale not in _SCALES:
        raise ValueError(f"unknown scale {scale!r}: allowed are {sorted(_SCALES)}")
    scaled = _SCALES[scale]

    def combined(record: UnitRecord) -> Float[Array, " U"]:
        return weight * scaled(score_cost(record)) - scaled(score_benefit(record))

    reads = reads_sensitivities(score_cost) or reads_sensitivities(score_benefit)
    return combined if reads else without_sensitivities(combined)


def _relative(values: Float[Array, " U"]) -> Float[Array, " U"]:
    """Divides scores by their mean absolute value over the layer; 0 where all are 0."""
    size = jnp.abs(values).mean()
    return values / jnp.where(size > 0, size, 1.0)


def _ranked(values: Float[Array, " U"]) -> Float[Array, " U"]:
    """Ranks of scores within the layer, 0 for the lowest and 1 for the highest; of equal ones the first is lower."""
    return jnp.argsort(jnp.argsort(values)).astype(jnp.float32) / max(1, values.size - 1)


_SCALES: dict[str, Callable] = {"mean": _relative, "rank": _ranked}


def resolve_utility(utility: str | Utility) -> Utility:
    """Returns the function of a utility's name, or the function itself.

    Raises:
        ValueError: If there is no such name.
        TypeError: If it is neither a name nor a function.
    """
    return look_up("utility", utility, UTILITIES, "a function of a UnitRecord")


def reads_sensitivities(utility: Utility) -> bool:
    """Whether a utility may read sensitivities: all may that are not marked by `without_sensitivities`."""
    return getattr(utility, "reads_sensitivities", True)


def _deviation(record: UnitRecord) -> Float[Array, "B *P U"]:
    """The features less their reference."""
    return record.features - broadcast_to_rank(record.reference, record.features.ndim)


def _sensitivities(utility: str, record: UnitRecord) -> Array:
    if record.sensitivities is None:
        raise ValueError(f"utility {utility!r} needs sensitivities: give observe a readout other than None")
    return record.sensitivities
