"""What every method that resets units shares: its state and its update, around a rule that says who is replaced.

The assembly of the rooms, without arithmetic of its own. A method is a `Rule`: continual backprop replaces the units of
lowest utility at a rate, ReDo all those below a threshold, ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gxd_jax import drawing, reset, selection, tracking
from gxd_jax import units as units_room
from gxd_jax.checks import check_flag, check_number
from gxd_jax.gating import run_if
from gxd_jax.keys import KeyLike, implementation, key_data
from gxd_jax.types import Observation, UnitRecord
from gxd_jax.units import UnitLayer, WeightLayer
from gxd_jax.utilities import Utility, reads_sensitivities

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, UInt32


class LayerState(NamedTuple):
    """What a resetting method keeps of one layer.

    Attributes:
        statistics: Ages and running averages at the last ranking; units in `replaced` restart at the next update.
        memory: What the method's rule keeps besides: of continual backprop the fraction of a unit owed.
        initial_std: Standard deviation of each incoming kernel when the state was created.
        replaced: Units replaced in the last update, bool [U].
        total: Units replaced since the start, int32.
    """

    statistics: tracking.Statistics
    memory: Any
    initial_std: tuple[Float[Array, ""], ...]
    replaced: Bool[Array, " U"]
    total: Int[Array, ""]


class ResettingState(NamedTuple):
    """State of a resetting method.

    Attributes:
        count: Number of updates, uint32.
        key: Raw data of the key from which every step's keys are derived.
        maturity_threshold: As in the last update, float32.
        skipped_batches: Batches kept out of some layer's statistics, int32.
        layers: Layer name -> `LayerState`.
    """

    count: UInt32[Array, ""]
    key: UInt32[Array, " words"]
    maturity_threshold: Float[Array, ""]
    skipped_batches: Int[Array, ""]
    layers: dict[str, LayerState]


class ResettingTransformation(optax.GradientTransformationExtraArgs):
    """A transformation whose updates reset units; nothing in a chain may change them afterwards."""


class Candidates(NamedTuple):
    """Who may be replaced in one layer, and how many are: those of lowest utility."""

    utility: Float[Array, " U"]
    eligible: Bool[Array, " U"]
    count: Int[Array, ""]


class Step(NamedTuple):
    """What a rule may read of one layer at one step.

    Attributes:
        statistics: Ages and running averages, this batch included.
        utility: This batch's utility alone [U].
        finite: Whether the batch may enter what the rule remembers.
        count: Number of this update, from 1.
        key: A key of this layer and step.
    """

    statistics: tracking.Statistics
    utility: Float[Array, " U"]
    finite: Bool[Array, ""]
    count: UInt32[Array, ""]
    key: Array


class Rule(NamedTuple):
    """Who is replaced.

    Attributes:
        init: Size of a layer -> what the rule remembers of it.
        choose: (memory, step) -> (candidates, next memory).
        most: Size of a layer -> the most units that can be replaced at once, static.
    """

    init: Callable[[int], Any]
    choose: Callable[[Any, Step], tuple[Candidates, Any]]
    most: Callable[[int], int]


def resetting_transformation(
    units: Sequence[UnitLayer],
    rule: Rule,
    *,
    utility: Utility,
    decay: Any,
    maturity_threshold: Any = 0,
    kernel_init: drawing.Initializer | dict[str, drawing.Initializer] | None,
    compensate: bool,
    axis_name: str | None,
    key: KeyLike,
) -> ResettingTransformation:
    """Builds the transformation of a method that resets units.

    Args:
        units: The unit layers.
        rule: Who is replaced.
        utility: A function from a `UnitRecord` to scores [U], averaged over time.
        decay: Decay of the running averages.
        maturity_threshold: Updates after which a unit counts as mature, for `ResetInfo`.
        kernel_init: As in `continual_backprop`.
        compensate: As in `continual_backprop`.
        axis_name: As in `continual_backprop`.
        key: As in `continual_backprop`.

    Raises:
        TypeError, ValueError: As in `continual_backprop`.
    """
    units_room.check_unit_list(units)
    units = list(units)
    initializers = drawing.resolve_initializers(kernel_init, units)
    check_number("decay", decay, "[0, 1)", lambda value: 0 <= value < 1)
    check_flag("compensate", compensate)
    for layer in units:
        if layer.size > selection.LARGEST_LAYER:
            raise ValueError(
                f"layer {layer.name!r} has {layer.size} units: at most {selection.LARGEST_LAYER} are allowed"
            )
    if axis_name is not None and not isinstance(axis_name, (str, tuple)):
        raise TypeError(f"axis_name must be the name of a mapped axis, a tuple of names, or None, got {axis_name!r}")
    wrap = functools.partial(jax.random.wrap_key_data, impl=implementation(key))

    def init(params):
        units_room.validate_units(units, params)
        leaves = units_room.leaves_by_path(params)
        drawing.check_initializers(
            initializers, {layer.name: [leaves[axis.path].shape for axis in layer.incoming] for layer in units}
        )
        layers = {
            layer.name: LayerState(
                statistics=tracking.init_statistics(layer.size),
                memory=rule.init(layer.size),
                initial_std=units_room.incoming_std(layer, leaves),
                replaced=jnp.zeros(layer.size, bool),
                total=jnp.zeros((), jnp.int32),
            )
            for layer in units
        }
        return initial_state(key, maturity_threshold, layers)

    def update(updates, state, params=None, *, observation=None, wiring=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError("resets need the parameters: call update(grads, state, params, observation=...)")
        check_state(state, [layer.name for layer in units])
        observation = check_observation(observation, units)
        if wiring is not None:
            report_wiring(wiring, units)
        stepped = units_room.leaves_by_path(optax.apply_updates(params, updates))
        utility_keys, rule_keys, _ = _step_keys(wrap(state.key), state.count, len(units))

        statistics, references, memories, candidates, finite = {}, {}, {}, {}, []
        for layer, utility_key, rule_key in zip(units, utility_keys, rule_keys, strict=True):
            old = state.layers[layer.name]
            record = _record(layer, observation, stepped, utility_key, reads_sensitivities(utility))
            means = tracking.feature_means(record.features, axis_name)
            finite.append(tracking.all_finite(means, record.sensitivities, axis_name))
            aged = tracking.restart(old.statistics, old.replaced)
            aged = tracking.advance_reference(aged, means, finite[-1], decay)
            references[layer.name] = tracking.corrected(aged.reference, aged.weight)
            utilities = score_units(utility, record._replace(reference=references[layer.name]), layer)
            utilities = tracking.batch_mean(utilities, axis_name)
            statistics[layer.name] = tracking.advance_utility(aged, utilities, finite[-1], decay)
            step = Step(statistics[layer.name], utilities, finite[-1], state.count + 1, rule_key)
            candidates[layer.name], memories[layer.name] = rule.choose(old.memory, step)

        replacements = replace_units(state, candidates, stepped)
        updates = reset.reset_updates(units, params, updates, replacements, references, compensate)
        layers = {
            name: LayerState(
                statistics=statistics[name],
                memory=memories[name],
                initial_std=state.layers[name].initial_std,
                replaced=replacements[name].mask,
                total=tracking.count_up(state.layers[name].total, candidates[name].count),
            )
            for name in replacements
        }
        return updates, ResettingState(
            count=state.count + 1,
            key=state.key,
            maturity_threshold=jnp.asarray(maturity_threshold, jnp.float32),
            skipped_batches=tracking.count_skipped(state.skipped_batches, finite),
            layers=layers,
        )

    def replace_units(state, candidates, stepped):
        """Chooses the units and draws their weights, on steps where some layer (of some replica) owes one."""
        most = {layer.name: rule.most(layer.size) for layer in units}
        if not all(most.values()):  # a rate of 0
            nobody = jnp.zeros(0, jnp.int32)
            return {layer.name: reset.Replacement(jnp.zeros(layer.size, bool), nobody, ()) for layer in units}
        shapes = {layer.name: [stepped[axis.path].shape for axis in layer.incoming] for layer in units}
        stds = {layer.name: state.layers[layer.name].initial_std for layer in units}

        def kernels_of(stds, numbers):
            return drawing.incoming_kernels(units, shapes, initializers, stds, numbers)

        def work(data, step, stds, candidates):
            _, _, draw_key = _step_keys(wrap(data), step, len(units))
            numbers = {}
            for layer in units:
                chosen = candidates[layer.name]
                numbers[layer.name] = selection.lowest(chosen.utility, chosen.eligible, chosen.count, most[layer.name])
            masks = {layer.name: selection.mask_of(numbers[layer.name], layer.size) for layer in units}
            return numbers, masks, drawing.draw_incoming(kernels_of(stds, numbers), draw_key)

        def skip(*operands):
            numbers, *others = jax.eval_shape(work, *operands)
            nobody = {layer.name: jnp.full_like(numbers[layer.name], layer.size) for layer in units}
            return nobody, *jax.tree.map(jnp.zeros_like, others)

        owed = jnp.stack([candidates[layer.name].count for layer in units])
        numbers, masks, draws = run_if((owed > 0).any(), work, skip, state.key, state.count, stds, candidates)
        draws = drawing.unpack(draws, kernels_of(stds, numbers), units)
        return {
            layer.name: reset.Replacement(mask=masks[layer.name], numbers=numbers[layer.name], draws=draws[layer.name])
            for layer in units
        }

    return ResettingTransformation(init, update)


def initial_state(key: KeyLike, maturity_threshold: Any, layers: dict[str, LayerState]) -> ResettingState:
    """Returns the state before the first update."""
    return ResettingState(
        count=jnp.zeros((), jnp.uint32),
        key=key_data(key),
        maturity_threshold=jnp.array(maturity_threshold, jnp.float32),
        skipped_batches=jnp.zeros((), jnp.int32),
        layers=layers,
    )


def report_wiring(wiring: dict[str, UnitLayer | WeightLayer], units: Sequence[UnitLayer | WeightLayer]) -> None:
    """Tells a surrounding chain which units may be replaced; raises a ValueError where a name is used twice."""
    for layer in units:
        if wiring.setdefault(layer.name, layer) is not layer:
            raise ValueError(
                f"several resetting members have a layer named {layer.name!r}: rename it, "
                "layer._replace(name=..., feature=layer.feature or layer.name)"
            )


def check_state(state: ResettingState, names: Sequence[str]) -> None:
    """Raises a ValueError if a state was made for other layers."""
    if set(state.layers) != set(names):
        raise ValueError(f"the state holds the layers {sorted(state.layers)}, the method resets {sorted(names)}")


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
        if (given[1:] if observation.readout == "logits_exact" else given) != shape:
            raise ValueError(
                f"the sensitivities of layer {layer.name!r} have shape {given}, its features {shape}: they must agree "
                "(after a leading axis of outputs for the readout 'logits_exact')"
            )
    return observation


def score_units(score: Utility, record: UnitRecord, layer: UnitLayer) -> Float[Array, " U"]:
    """Runs a utility and checks what it returns; raises an error if that is not one number a unit."""
    utilities = score(record)
    if not isinstance(utilities, (jax.Array, np.ndarray)):
        raise TypeError(f"the utility returned {utilities!r} for layer {layer.name!r}: it must return an array [U]")
    utilities = jnp.asarray(utilities, jnp.float32)
    if utilities.shape != (layer.size,):
        raise ValueError(
            f"the utility returned shape {utilities.shape} for layer {layer.name!r}: it must return one number a unit, "
            f"({layer.size},)"
        )
    return utilities


def _record(
    layer: UnitLayer,
    observation: Observation,
    stepped: dict[units_room.Path, Array],
    key: Array,
    with_sensitivities: bool,
) -> UnitRecord:
    """Gathers what a utility may read; the reference is filled in when this batch has entered it."""
    sensitivities = observation.sensitivities if with_sensitivities else None
    return UnitRecord(
        features=jnp.asarray(observation.features[layer.name], jnp.float32),
        sensitivities=None if sensitivities is None else jnp.asarray(sensitivities[layer.name], jnp.float32),
        readout=observation.readout,
        reference=jnp.zeros(layer.size, jnp.float32),
        incoming_magnitude=units_room.incoming_magnitude(layer, stepped),
        outgoing_magnitude=units_room.outgoing_magnitude(layer, stepped),
        key=key,
    )


def _step_keys(key: Array, step: UInt32[Array, ""], layers: int) -> tuple[Array, Array, Array]:
    """Returns this step's keys: of the utility and of the rule for each layer, and of the draws."""
    keys = jax.random.split(jax.random.fold_in(key, step), 2 * layers + 1)
    return keys[:layers], keys[layers:-1], keys[-1]
