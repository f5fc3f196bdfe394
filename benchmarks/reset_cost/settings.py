"""What can be chosen: the utilities that are followed, options and scales."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

from benchmarks import methods
from benchmarks.experiment import Options, fill_in
from benchmarks.networks import small
from benchmarks.problems import classification
from benchmarks.running.folder import RefusedError, refusing_values

NAME = "reset-cost"


class Score(NamedTuple):
    """A utility as continual backprop follows it.

    Attributes:
        utility: A name of `gxd_jax.utilities.UTILITIES`.
        readout: Readout of the sensitivities that it reads, or None.
        decay: Decay of its running average; None: that of the settings.
    """

    utility: str
    readout: str | None = None
    decay: float | None = None


SCORES: dict[str, Score] = {
    "activation": Score("activation"),
    "weight": Score("weight"),
    "contribution": Score("contribution"),
    "mean_corrected_contribution": Score("mean_corrected_contribution"),
    "adaptable_contribution": Score("adaptable_contribution"),
    "adaptation": Score("adaptation"),
    "gradient": Score("gradient", "loss"),
    "random": Score("random"),
    "gxd_loss": Score("gxd", "loss"),
    "gxd_predicted": Score("gxd", "predicted"),
    "gxd_target": Score("gxd", "target"),
    "gxd_fisher": Score("gxd", "fisher"),
    "gxd": Score("gxd", "logits"),
    "gxd_exact": Score("gxd", "logits_exact"),
    "gxd_fast": Score("gxd", "logits", 0.9),
    "gxd_exact_fast": Score("gxd", "logits_exact", 0.9),
}
AT_ONCE = ("mean_corrected_contribution", "gxd", "gxd_exact")
"""Scores that are also taken from the held-back images alone: without noise of other images and of older weights."""
NOW = "_now"
"""Ends the names of those."""
CHEAPEST = "cheapest"


@dataclasses.dataclass(frozen=True)
class Settings(classification.DataOptions, methods.Hyperparameters, Options):
    """Reset cost: what a reset changes in a network's outputs, and which utility predicts it."""

    network: tuple[Literal[tuple(small.KINDS)], ...] | None = None  # type: ignore[valid-type]
    """Networks to study."""
    method: Literal[classification.METHODS] = "backprop"  # type: ignore[valid-type]
    """How the networks are trained; with a method that resets, their units differ in age."""
    optimizer: Literal["sgd", "adam"] = "adam"
    """Optimizer."""
    step_size: float = 0.001
    """Step size of the optimizer."""
    batch: int = 16
    """Examples of a step."""
    steps: int | None = None
    """Steps of a task; the running averages are taken over the last task before each moment."""
    moments: int | None = None
    """How often along the run the costs are measured."""
    tasks_between: int | None = None
    """Tasks from one moment to the next."""
    probe: int | None = None
    """Held-back images on which costs are measured."""
    share: float = 0.1
    """Share of a layer in the sets of units."""
    recovery: int | None = None
    """Steps after a reset within which the network may recover."""
    distance: Literal["norm2", "kl"] = "norm2"
    """Distance of the outputs: the 2-norm of the logits, or the Kullback-Leibler divergence."""
    compensate: bool = True
    """Whether the biases of the next layer take up the mean output of a unit that is reset."""
    redraw: bool = True
    """Whether a reset re-initialises incoming weights; if not, it takes the unit's outputs alone."""


_ALL = {"network": tuple(small.KINDS), "replacement_rate": (1e-3,)}
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        **_ALL,
        "network": ("tanh", "relu_norm_before", "residual_gelu"),
        "seeds": 2,
        "steps": 60,
        "moments": 1,
        "tasks_between": 2,
        "probe": 64,
        "recovery": 10,
    },
    "default": {
        **_ALL,
        "seeds": 10,
        "steps": 200,
        "moments": 3,
        "tasks_between": 5,
        "probe": 256,
        "recovery": 50,
    },
    "paper": {
        **_ALL,
        "seeds": 30,
        "steps": 1000,
        "moments": 5,
        "tasks_between": 20,
        "probe": 1000,
        "recovery": 200,
    },
}


def check(settings: Settings) -> Settings:
    """Returns the settings with every value filled in.

    Raises:
        RefusedError: If a value is impossible.
    """
    with refusing_values():
        settings = fill_in(settings, SCALES)
    if not 0 < settings.share < 1:
        raise RefusedError(f"share must lie between 0 and 1, got {settings.share}")
    if len(settings.replacement_rate) != 1:
        raise RefusedError(f"one replacement_rate is needed, got {settings.replacement_rate}")
    return settings
