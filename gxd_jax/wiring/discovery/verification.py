"""Checking a wiring by intervention: how outputs change when weights of some units are zeroed or re-initialised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from gxd_jax.checks import check_function
from gxd_jax.keys import KeyLike, as_key
from gxd_jax.trees import joined, leaves_by_path
from gxd_jax.types import Params, Path
from gxd_jax.wiring.discovery.finding import find_units
from gxd_jax.wiring.discovery.intervention import TOLERANCE, Draw, Model, differ
from gxd_jax.wiring.layers import ParamAxis, UnitLayer
from gxd_jax.wiring.validation import validate_units

_DRAWS = 3
"""Number of draws of the parameters: a ReLU that is dead in one of them is active in another."""

_FACTOR = -2.0
"""Features, or the weights that read them, are multiplied by this: both must have the same effect."""


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of `verify_units`.

    Attributes:
        problems: What is wrong, each with the layer's name and parameters.
        coupled: Names of the layers that are right but share statistics with their siblings (layer norm, group norm).
        notes: What could not be checked.
    """

    problems: list[str]
    coupled: list[str]
    notes: list[str]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        lines = ["the wiring is right" if self.ok else "the wiring is wrong:", *self.problems]
        lines += [f"layer {name!r}: coupled by a norm, a reset changes its siblings a little" for name in self.coupled]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def verify_units(
    apply: Callable[..., Any],
    params: Params,
    units: Sequence[UnitLayer],
    *example_inputs: Any,
    outputs: Callable[[Any], Any] | None = None,
    key: KeyLike = 0,
) -> Verification:
    """Checks a wiring, from `find_units` or written by hand, by its effect on the model's outputs.

    For some units of each layer, several times, at parameters with a little noise added:

    - With the outgoing slices zeroed, re-initialising the incoming ones must not change the outputs (layers that a norm
      couples to their siblings are reported as such). With the outgoing slices of any one kernel in place, it must.
    - Multiplying the features must change the outputs as multiplying the outgoing slices does.
    - With incoming and own slices zeroed, the features must no longer depend on the input.

    Where the program can be read, differences from the result of `find_units` explain a problem, and name incoming
    kernels and own parameters that are missing.

    Args:
        apply: (params, *example_inputs) -> outputs.
        params: The parameters.
        units: The wiring.
        *example_inputs: Inputs with several, different examples.
        outputs: Selects the real outputs, as in `find_units`.
        key: An int or a JAX key: the seed of the interventions.

    Returns:
        A `Verification`: `.ok`, `.problems`, `.coupled`, `.notes`; `str` is readable.

    Raises:
        TypeError, ValueError: If the wiring does not fit the parameters at all, or there are no examples.
    """
    check_function("apply", apply)
    validate_units(units, params)
    shapes = {path: np.shape(leaf) for path, leaf in leaves_by_path(params).items()}
    units = [_with_plain_axes(layer, shapes) for layer in units]
    rng = np.random.default_rng(np.asarray(jax.random.key_data(as_key(key))))
    model = Model(apply, params, example_inputs, outputs)
    draws = [Draw(params, rng) for _ in range(_DRAWS)]
    reference, read_coupled, notes = _read(apply, params, example_inputs, outputs)
    problems, coupled = [], []
    for layer in units:
        found = _closest(layer, reference)
        differences = _differences(layer, found) if found else []
        leaks, idle = _check_weights(layer, model, draws)
        if found and not differences:
            # Dead units, or a product with a factor that is zeroed too, can hide an effect that the program shows.
            notes += [f"layer {layer.name!r}: {what}, though the program says that it should" for what in idle]
            idle = []
        if leaks and found and not differences and id(found) in read_coupled:
            coupled.append(layer.name)
            leaks = []
        observed = leaks + idle
        if differences and not observed:
            observed = ["the program says otherwise"]
        explained = f" ({'; '.join(differences)})" if differences else ""
        problems += [f"layer {layer.name!r}: {problem}{explained}" for problem in observed]
    if not problems:
        problems, unseen = _check_all_features(units, model, draws, coupled)
        notes += unseen
    return Verification(problems, coupled, notes)


def _with_plain_axes(layer: UnitLayer, shapes: dict[Path, tuple[int, ...]]) -> UnitLayer:
    """Replaces negative axes by the axes counted from the first."""

    def plain(axis: ParamAxis) -> ParamAxis:
        return axis._replace(path=tuple(axis.path), axis=axis.axis % len(shapes[tuple(axis.path)]))

    return layer._replace(
        incoming=tuple(map(plain, layer.incoming)),
        own=tuple((plain(axis), value) for axis, value in layer.own),
        outgoing=tuple(map(plain, layer.outgoing)),
    )


# --- By the weights -------------------------------------------------------------------------------------------------


def _check_weights(layer: UnitLayer, model: Model, draws: Sequence[Draw]) -> tuple[list[str], list[str]]:
    """Zeroes and re-initialises slices of some units and compares outputs; returns leaks and other problems."""
    mine = _feeding(layer)
    leaking: dict[str, None] = {}
    idle_in = {_shown(axis): axis for axis in layer.incoming}
    idle_out = {_shown(axis): axis for axis in layer.outgoing}
    for draw in draws:
        mask = draw.some(layer)
        zeroed = draw.multiplied(layer.outgoing, mask, 0.0)
        before = model.outputs(zeroed)
        if differ(before, model.outputs(draw.redrawn(zeroed, mine, mask, besides=layer.outgoing))):
            for axis in mine:
                if differ(before, model.outputs(draw.redrawn(zeroed, [axis], mask, besides=layer.outgoing))):
                    leaking.setdefault(_shown(axis))
        plain = model.outputs(draw.leaves)
        for shown, axis in list(idle_in.items()):
            if differ(plain, model.outputs(draw.redrawn(draw.leaves, [axis], mask))):
                del idle_in[shown]
        for shown, axis in list(idle_out.items()):
            alone = draw.multiplied([other for other in layer.outgoing if other is not axis], mask, 0.0)
            if differ(model.outputs(alone), model.outputs(draw.redrawn(alone, mine, mask, besides=layer.outgoing))):
                del idle_out[shown]
    leaks = []
    if leaking:
        leaks.append(
            f"with its outgoing slices {', '.join(map(_shown, layer.outgoing))} zeroed, drawing {', '.join(leaking)} "
            "anew still changes the outputs"
        )
    problems = [f"drawing incoming {shown} anew changes no output" for shown in idle_in]
    problems += [f"outgoing {shown} does not read these units" for shown in idle_out]
    return leaks, problems


def _feeding(layer: UnitLayer) -> list[ParamAxis]:
    return [*layer.incoming, *(axis for axis, _ in layer.own)]


# --- By the features ------------------------------------------------------------------------------------------------


def _check_all_features(
    units: Sequence[UnitLayer], model: Model, draws: Sequence[Draw], coupled: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Returns what is wrong with the features of all layers, and what could not be checked."""
    problems, notes, seen = [], [], []
    for layer in units:
        try:
            model.watch([layer], draws[0].leaves)
            seen.append(layer)
        except ValueError as error:
            notes.append(f"features not checked: {error}")
    if seen:
        model.watch(seen, draws[0].leaves)
    for layer in seen:
        unread, loud = _check_features(layer, model, draws)
        if unread and len(layer.outgoing) == 1:
            problems.append(f"layer {layer.name!r}: its features are not the values that its outgoing weights read")
        elif unread:
            notes.append(f"layer {layer.name!r}: its features are not what all of its consumers read")
        if loud and layer.name not in coupled:
            problems.append(
                f"layer {layer.name!r}: with its incoming and own slices zeroed, its features still follow the input: "
                "an incoming kernel is missing"
            )
    return problems, notes


def _check_features(layer: UnitLayer, model: Model, draws: Sequence[Draw]) -> tuple[bool, bool]:
    """Multiplies the features of some units, and zeroes their incoming and own slices.

    Returns:
        Whether the first differs from multiplying the outgoing slices; whether the features still follow the input.
    """
    unread = loud = False
    for draw in draws:
        mask = draw.some(layer)
        by_features, _ = model.watched(draw.leaves, model.factors(layer, mask, _FACTOR))
        by_weights, _ = model.watched(draw.multiplied(layer.outgoing, mask, _FACTOR), {})
        unread |= differ(by_features, by_weights)
        silenced = model.features(draw.multiplied(_feeding(layer), mask, 0.0), layer)
        loud |= bool(np.ptp(silenced[..., mask], axis=0).max() > TOLERANCE * np.abs(silenced).max())
    return unread, loud


# --- By reading the program -----------------------------------------------------------------------------------------


def _read(
    apply: Callable[..., Any], params: Params, inputs: tuple, outputs: Callable[[Any], Any] | None
) -> tuple[list[UnitLayer], set[int], list[str]]:
    """Returns the layers that `find_units` finds, the `id` of coupled ones, and a note where it cannot say."""
    layers: list[UnitLayer] = []
    coupled: set[int] = set()
    try:
        for linear in (False, True):
            units = find_units(apply, params, *inputs, outputs=outputs, linear=linear)
            layers += units
            coupled |= {id(layer) for layer in units if layer.name in units.coupled}
    except (TypeError, ValueError) as error:
        return layers, coupled, [f"the program could not be read: {error}"]
    return layers, coupled, []


_ROLES = ("incoming", "own", "outgoing")


def _axes(layer: UnitLayer, role: str) -> dict[tuple, ParamAxis]:
    axes = [axis for axis, _ in layer.own] if role == "own" else getattr(layer, role)
    # One parameter may be listed in parts with different reset values.
    return {(*axis.path, *([number] if axis in axes[:number] else [])): axis for number, axis in enumerate(axes)}


def _closest(layer: UnitLayer, reference: Sequence[UnitLayer]) -> UnitLayer | None:
    """Returns the layer of the program that shares most parameters, in the same roles and along the same axes."""

    def likeness(other: UnitLayer) -> tuple[int, int, int]:
        pairs = [
            (axis, _axes(other, role)[path])
            for role in _ROLES
            for path, axis in _axes(layer, role).items()
            if path in _axes(other, role)
        ]
        along_same = [(mine, its) for mine, its in pairs if mine.axis == its.axis]
        same = sum(_same_positions(mine, its, layer.size) for mine, its in along_same if layer.size == other.size)
        return same, len(along_same), len(pairs)

    best = max(reference, key=likeness, default=None)
    return best if best is not None and best.size == layer.size and likeness(best) > (0, 0, 0) else None


def _differences(layer: UnitLayer, found: UnitLayer) -> list[str]:
    """Describes how a layer differs from the layer that was found in the program."""
    differences = []
    for role in _ROLES:
        mine, its = _axes(layer, role), _axes(found, role)
        differences += [f"{role} {_shown(axis)} is missing" for path, axis in its.items() if path not in mine]
        differences += [f"{role} {_shown(axis)} is not the layer's" for path, axis in mine.items() if path not in its]
        for path in mine.keys() & its.keys():
            if mine[path].axis != its[path].axis:
                differences.append(f"{role} {_shown(mine[path])} should be axis {its[path].axis}")
            elif not _same_positions(mine[path], its[path], layer.size):
                differences.append(f"{role} {_shown(mine[path])}: the units have other positions there")
    return differences


def _same_positions(mine: ParamAxis, its: ParamAxis, size: int) -> bool:
    def table(axis: ParamAxis) -> np.ndarray:
        return np.arange(size)[:, None] if axis.index is None else np.sort(axis.index, axis=1)

    return np.array_equal(table(mine), table(its))


def _shown(param_axis: ParamAxis) -> str:
    return f"{joined(param_axis.path)}[{param_axis.axis}]"
