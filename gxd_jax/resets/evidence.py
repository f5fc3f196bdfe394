"""From an observation to the evidence about hidden units: the record that a utility reads, and the checks of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from gxd_jax.batches import mean_over_shards, unit_means
from gxd_jax.observing.readouts import readout_of
from gxd_jax.resets.rules import Evidence
from gxd_jax.resets.statistics import all_finite
from gxd_jax.types import Observation, Path, UnitRecord
from gxd_jax.utilities import Utility, reads_sensitivities
from gxd_jax.wiring import axes
from gxd_jax.wiring.layers import UnitLayer

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray


def unit_evidence(
    layer: UnitLayer,
    observation: Observation,
    stepped: dict[Path, Array],
    utility: Utility,
    axis_name: str | tuple[str, ...] | None,
    key: PRNGKeyArray,
) -> Evidence:
    """Returns the evidence of a batch about the units of one layer.

    Args:
        layer: The layer.
        observation: From `check_observation`.
        stepped: The parameters after the optimizer's step.
        utility: The score.
        axis_name: Mapped axis over which the batch is sharded.
        key: A key of this layer and update.
    """
    sensitivities = observation.sensitivities if reads_sensitivities(utility) else None
    features = jnp.asarray(observation.features[layer.name], jnp.float32)
    record = UnitRecord(
        features=features,
        sensitivities=None if sensitivities is None else jnp.asarray(sensitivities[layer.name], jnp.float32),
        readout=observation.readout,
        reference=jnp.zeros(layer.size, jnp.float32),  # `score` puts in the average that includes this batch
        incoming_magnitude=axes.incoming_magnitude(layer, stepped),
        outgoing_magnitude=axes.outgoing_magnitude(layer, stepped),
        key=key,
    )
    means = mean_over_shards(unit_means(features), axis_name)

    def score(reference: Float[Array, " U"]) -> Float[Array, " U"]:
        utilities = checked_utilities(utility, record._replace(reference=reference), layer)
        return mean_over_shards(utilities, axis_name)

    return Evidence(means, all_finite(means, record.sensitivities, axis_name), score)


def check_observation(observation: Observation | None, units: Sequence[UnitLayer]) -> Observation:
    """Returns the observation if it holds fitting features, and sensitivities if any, of every unit layer.

    Raises:
        TypeError: If it is no `Observation`.
        ValueError: If it is missing, lacks a layer, or holds arrays of another width or without batch axis.
    """
    if observation is None:
        raise ValueError(
            "a method that resets units needs an observation: call update(..., observation=observation) with that of "
            "observe"
        )
    if not isinstance(observation, Observation):
        raise TypeError(f"observation must be a gxd_jax.Observation, got {type(observation).__name__}")
    for layer in units:
        if layer.name not in observation.features:
            raise ValueError(
                f"the observation has no features of layer {layer.name!r}, only of {sorted(observation.features)}"
            )
        shape = jnp.shape(observation.features[layer.name])
        if len(shape) < 2 or shape[-1] != layer.size:
            raise ValueError(
                f"the features of layer {layer.name!r} have shape {shape}: they must be [B, ..., {layer.size}], with a "
                "batch axis first and the units last"
            )
        if observation.sensitivities is None:
            continue
        if layer.name not in observation.sensitivities:
            raise ValueError(f"the observation has sensitivities, but none of layer {layer.name!r}")
        given = jnp.shape(observation.sensitivities[layer.name])
        if (given[1:] if readout_of(observation.readout).has_output_axis else given) != shape:
            raise ValueError(
                f"the sensitivities of layer {layer.name!r} have shape {given}, its features {shape}: they must agree "
                "(after a leading axis of outputs for the readout 'logits_exact')"
            )
    return observation


def checked_utilities(utility: Utility, record: UnitRecord, layer: UnitLayer) -> Float[Array, " U"]:
    """Runs a utility and checks what it returns.

    Raises:
        TypeError, ValueError: If that is not one number a unit.
    """
    utilities = utility(record)
    if not isinstance(utilities, (jax.Array, np.ndarray)):
        raise TypeError(f"the utility returned {utilities!r} for layer {layer.name!r}: it must return an array [U]")
    utilities = jnp.asarray(utilities, jnp.float32)
    if utilities.shape != (layer.size,):
        raise ValueError(
            f"the utility returned shape {utilities.shape} for layer {layer.name!r}: it must return one number a unit, "
            f"({layer.size},)"
        )
    return utilities
