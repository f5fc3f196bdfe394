"""Continual backprop as an optax transformation: the assembly of the rooms, without arithmetic of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from gxd_jax import drawing, reset, selection, tracking
from gxd_jax import units as units_room
from gxd_jax.gating import run_if
from gxd_jax.keys import KeyLike, implementation, key_data
from gxd_jax.types import Observation, UnitRecord
from gxd_jax.units import UnitLayer
from gxd_jax.utilities import Utility, reads_sensitivities, resolve_utility

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, UInt32


class LayerState(NamedTuple):
    """What continual backprop keeps of one layer.

    Attributes:
        statistics: Ages and running averages at the last ranking; units in `replaced` restart at the next update.
        debt: Fraction of a unit owed, see `selection.owe`.
        initial_std: Standard deviation of each incoming kernel when the state was created.
        replaced: Units replaced in the last update, bool [U].
        total: Units replaced since the start, int32.
    """

    statistics: tracking.Statistics
    debt: tuple[UInt32[Array, ""], ...]
    initial_std: tuple[Float[Array, ""], ...]
    replaced: Bool[Array, " U"]
    total: Int[Array, ""]


class ContinualBackpropState(NamedTuple):
    """State of `continual_backprop`.

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


def continual_backprop(
    units: Sequence[UnitLayer],
    *,
    utility: str | Utility = "gxd",
    replacement_rate: float = 1e-4,
    maturity_threshold: float = 100,
    decay: float = 0.99,
    kernel_init: drawing.Initializer | dict[str, drawing.Initializer] | None = None,
    compensate: bool = True,
    accumulate: bool = True,
    axis_name: str | None = None,
    key: KeyLike = 0,
) -> optax.GradientTransformationExtraArgs:
    """Re-initialises, at each step, the few least useful hidden units that are old enough.

    Goes after the optimizer, best as the last member of `gxd_jax.chain`, which also clears the optimizer's moments of
    the replaced units; in plain `optax.chain` it cannot. `update` needs `params` and the keyword `observation`.

    A reset is an update: `optax.apply_updates` gives exact zeros, and draws exact to one rounding of the old value. It
    cannot heal a parameter that is NaN or infinite; `gxd_jax.apply_updates` can. The updates of parameters of less than
    32 bits are float32. Compensation keeps the mean input of the consumers where every position reads the unit: it is
    exact for dense layers, approximate at the borders of convolutions with SAME padding. Without it, or where a
    consumer has no bias, a replaced unit really moves to 0 while GXD's formula keeps the unit's mean.

    Args:
        units: The unit layers, from `sequential_units` or written by hand.
        utility: A name of `gxd_jax.utilities.UTILITIES` or a function from a `UnitRecord` to scores [U].
        replacement_rate: Share of the eligible units of a layer that is replaced at each update, in [0, 1], exact to 16
            decimals.
        maturity_threshold: A unit is eligible when it has seen more updates than this.
        decay: Decay of the running averages, in [0, 1).
        kernel_init: Initializer (key, shape, dtype) -> array of the fresh incoming weights, or a dict of them by layer.
            None: normal, zero mean, with the standard deviation that the kernel had when the state was created; pass an
            initializer for kernels that start constant, whose standard deviation is 0.
        compensate: Whether the biases of the consumers take up the mean output of replaced units.
        accumulate: True: fractions of a unit are carried, so that the counts are exact. False: they are rounded by
            chance and nothing is carried.
        axis_name: Mapped axis (of vmap, pmap, shard_map) over which the batch is sharded.
        key: An int or a JAX key; under vmap a key for each replica.

    Returns:
        An `optax.GradientTransformationExtraArgs`. With `optax.inject_hyperparams` pass functions (`utility`,
        `kernel_init`) as static_args.

    Raises:
        TypeError, ValueError: If a hyper-parameter or the wiring is impossible; `init` raises a ValueError where the
            wiring does not fit the parameters, `update` where params or observation are missing or do not fit.

    Differs from: the public code of [N], which ranks by averages that are not bias-corrected for young units, keeps
        the optimizer's moments, and does not compensate biases.

    References:
        Dohare et al., "Loss of plasticity in deep continual learning", Nature 632 (2024), Algorithm 1; Elisii et al.,
        arXiv 2605.06834.
    """
    units_room.check_unit_list(units)
    units = list(units)
    score = resolve_utility(utility)
    initializers = drawing.resolve_initializers(kernel_init, units)
    _check_number("replacement_rate", replacement_rate, "[0, 1]", lambda value: 0 <= value <= 1)
    _check_number("decay", decay, "[0, 1)", lambda value: 0 <= value < 1)
    _check_number("maturity_threshold", maturity_threshold, "[0, inf)", lambda value: 0 <= value < float("inf"))
    for name, flag in (("compensate", compensate), ("accumulate", accumulate)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} must be True or False, got {flag!r}")
    if not isinstance(maturity_threshold, Tracer):
        maturity_threshold = min(maturity_threshold, np.iinfo(np.int32).max)
    for layer in units:
        if layer.size > selection.LARGEST_LAYER:
            raise ValueError(
                f"layer {layer.name!r} has {layer.size} units: at most {selection.LARGEST_LAYER} are allowed"
            )
    wrap = functools.partial(jax.random.wrap_key_data, impl=implementation(key))

    def init(params):
        units_room.validate_units(units, params)
        leaves = units_room.leaves_by_path(params)
        layers = {
            layer.name: LayerState(
                statistics=tracking.init_statistics(layer.size),
                debt=selection.no_debt(),
                initial_std=units_room.incoming_std(layer, leaves),
                replaced=jnp.zeros(layer.size, bool),
                total=jnp.zeros((), jnp.int32),
            )
            for layer in units
        }
        return ContinualBackpropState(
            count=jnp.zeros((), jnp.uint32),
            key=key_data(key),
            maturity_threshold=jnp.array(maturity_threshold, jnp.float32),
            skipped_batches=jnp.zeros((), jnp.int32),
            layers=layers,
        )

    def update(updates, state, params=None, *, observation=None, wiring=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError(
                "continual_backprop needs the parameters: call update(grads, state, params, observation=...)"
            )
        observation = check_observation(observation, units)
        if wiring is not None:
            report_wiring(wiring, units)
        stepped = units_room.leaves_by_path(optax.apply_updates(params, updates))
        rate = selection.as_rate(replacement_rate)
        utility_keys, count_keys, _ = _step_keys(wrap(state.key), state.count, len(units))

        statistics, references, debts, candidates, finite = {}, {}, {}, {}, []
        for layer, utility_key, count_key in zip(units, utility_keys, count_keys, strict=True):
            old = state.layers[layer.name]
            record = _record(layer, observation, stepped, utility_key, reads_sensitivities(score))
            means = tracking.feature_means(record.features, axis_name)
            finite.append(tracking.all_finite(means, record.sensitivities, axis_name))
            aged = tracking.restart(old.statistics, old.replaced)
            aged = tracking.advance_reference(aged, means, finite[-1], decay)
            references[layer.name] = tracking.corrected(aged.reference, aged.weight)
            utilities = score_units(score, record._replace(reference=references[layer.name]), layer)
            utilities = tracking.batch_mean(utilities, axis_name)
            statistics[layer.name] = tracking.advance_utility(aged, utilities, finite[-1], decay)
            eligible = tracking.mature(aged, maturity_threshold)
            owe = selection.owe if accumulate else functools.partial(selection.owe_by_chance, key=count_key)
            count, debts[layer.name] = owe(old.debt, rate, eligible)
            ranking = tracking.corrected(statistics[layer.name].utility, aged.weight)
            candidates[layer.name] = _Candidates(ranking, eligible, count)

        replacements = replace_units(state, candidates, stepped)
        updates = reset.reset_updates(units, params, updates, replacements, references, compensate)
        layers = {
            name: LayerState(
                statistics=statistics[name],
                debt=debts[name],
                initial_std=state.layers[name].initial_std,
                replaced=replacements[name].mask,
                total=state.layers[name].total + candidates[name].count,
            )
            for name in replacements
        }
        return updates, ContinualBackpropState(
            count=state.count + 1,
            key=state.key,
            maturity_threshold=jnp.asarray(maturity_threshold, jnp.float32),
            skipped_batches=tracking.count_skipped(state.skipped_batches, finite),
            layers=layers,
        )

    def replace_units(state, candidates, stepped):
        """Chooses the units and draws their weights, on steps where some layer (of some replica) owes one."""
        shapes = {layer.name: [stepped[axis.path].shape for axis in layer.incoming] for layer in units}
        most = {layer.name: selection.most_owed(replacement_rate, layer.size) for layer in units}
        stds = {layer.name: state.layers[layer.name].initial_std for layer in units}

        def skip(*_):
            return {layer.name: reset.no_replacement(layer, shapes[layer.name], most[layer.name]) for layer in units}

        def work(data, step, stds, candidates):
            _, _, draw_key = _step_keys(wrap(data), step, len(units))
            mortal = [layer for layer in units if most[layer.name]]  # a rate of 0 replaces nobody
            numbers = {}
            for layer in mortal:
                chosen = candidates[layer.name]
                numbers[layer.name] = selection.lowest(chosen.utility, chosen.eligible, chosen.count, most[layer.name])
            draws = drawing.draw_incoming(mortal, shapes, initializers, stds, numbers, draw_key)
            replaced = {
                layer.name: reset.replacement_of(numbers[layer.name], draws[layer.name], layer.size) for layer in mortal
            }
            return skip() | replaced

        owed = jnp.stack([candidates[layer.name].count for layer in units])
        return run_if((owed > 0).any(), work, skip, state.key, state.count, stds, candidates)

    return ResettingTransformation(init, update)


def report_wiring(wiring: dict[str, UnitLayer], units: Sequence[UnitLayer]) -> None:
    """Tells a surrounding chain which units may be replaced; raises a ValueError where a name is used twice."""
    for layer in units:
        if wiring.setdefault(layer.name, layer) is not layer:
            raise ValueError(
                f"several resetting members have a layer named {layer.name!r}: rename it, "
                "layer._replace(name=..., feature=layer.feature or layer.name)"
            )


class _Candidates(NamedTuple):
    """Who may be replaced in one layer, and how many are."""

    utility: Float[Array, " U"]
    eligible: Bool[Array, " U"]
    count: Int[Array, ""]


def check_observation(observation: Observation | None, units: Sequence[UnitLayer]) -> Observation:
    """Returns the observation if it holds fitting features, and sensitivities if any, of every unit layer.

    Raises:
        TypeError: If it is no `Observation`.
        ValueError: If it is missing, lacks a layer, or holds arrays of another width or without batch axis.
    """
    if observation is None:
        raise ValueError(
            "continual_backprop needs an observation: call update(..., observation=observation) with that of observe"
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
    """Runs a utility and checks what it returns; raises a ValueError if that is not one number a unit."""
    utilities = jnp.asarray(score(record), jnp.float32)
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
    """Returns this step's keys: of the utility and of the count for each layer, and of the draws."""
    keys = jax.random.split(jax.random.fold_in(key, step), 2 * layers + 1)
    return keys[:layers], keys[layers:-1], keys[-1]


def _check_number(name: str, value: Any, allowed: str, is_allowed: Callable[[float], bool]) -> None:
    """Checks a concrete hyper-parameter; a traced one passes."""
    if isinstance(value, Tracer):
        return
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, np.number, np.ndarray, jax.Array))
        or np.ndim(value)
    ):
        raise TypeError(f"{name} must be a number in {allowed}, got {value!r}")
    if not is_allowed(float(value)):
        raise ValueError(f"{name} must lie in {allowed}, got {value}")
