"""From labels to classes: which labels are units, which parameter entries belong to them, and why some are refused."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gxd_jax.wiring.discovery.labels import INPUT, Labels
from gxd_jax.wiring.discovery.reader import Reader
from gxd_jax.wiring.discovery.rules import RULES
from gxd_jax.wiring.discovery.tracing import Program
from gxd_jax.wiring.discovery.values import Kind, Place, Value, free

IS_INPUT = "is an axis of an input: inputs are not hidden units"
IS_OUTPUT = "is an axis of an output: select the real outputs (outputs=) or pass it as state"
LEAKS = "an output depends on it through a reduction, not through an outgoing kernel"
NO_INCOMING = "no incoming kernel"
NO_OUTGOING = "no outgoing kernel"
TIED = "both feeds and reads the unit (tied weights)"
FACTOR = "a kernel reads or feeds only a factor of this unit"
LINEAR = "nothing non-linear between producer and consumer"
STATE = "state is read but never written: tie it to its output (scan over the steps)"


@dataclasses.dataclass(frozen=True)
class UnitClasses:
    """The classes of labels of a program; a class is a candidate for a unit.

    Attributes:
        program: The program.
        reader: The last reader, in whose labels nothing changes any more.
        labels: Labels of every axis of every parameter, as classes.
        sites: Site -> the value there.
        outputs: Classes on axes of the outputs.
        leaks: Classes that outputs depend on as a whole.
        states: Stems of the inputs after the first.
    """

    program: Program
    reader: Reader
    labels: list[list[np.ndarray]]
    sites: dict[Any, Value]
    outputs: set[int]
    leaks: set[int]
    states: set[int]

    def shape(self, place: Place) -> tuple[int, ...]:
        """Returns the shape of the parameter at a place."""
        return tuple(axis.size for axis in self.labels[place[0]])


@dataclasses.dataclass(frozen=True)
class Group:
    """Units that use the same parameter axes in the same way.

    Attributes:
        classes: The units' classes, in the order of the first parameter axis that feeds them.
        tables: Place -> for each unit its positions there, int [U, P].
        reason: Why they cannot be replaced, or None.
        coupled: Whether they share statistics with their siblings.
    """

    classes: tuple[int, ...]
    tables: dict[Place, np.ndarray]
    reason: str | None
    coupled: bool


def read_classes(program: Program) -> UnitClasses:
    """Reads a program until its labels do not change any more.

    Raises:
        ValueError: If no parameter is used.
    """
    labels = Labels()
    leaves = list(program.parameters.values())
    own = [[labels.fresh(size) for size in np.shape(leaf)] for leaf in leaves]
    unions = -1
    while unions != labels.unions:
        unions = labels.unions
        labels.settle()
        reader = Reader(labels, RULES)
        parameters = [_parameter(number, leaf, own[number]) for number, leaf in enumerate(leaves)]
        inner = program.traced.jaxpr
        inputs = [_input(variable.aval.shape) for variable in inner.invars[len(leaves) :]]
        inputs = [reader.new(value) for value in inputs]
        needed = (*program.selected, *(True for _ in program.sites))
        results = reader.run(program.traced, [*parameters, *inputs], needed)
    outputs = [value for value, selected in zip(results, program.selected, strict=False) if selected]
    used = [value for value in outputs if value.kind != Kind.CONSTANT]
    if not reader.roles or not used:
        raise ValueError(
            "no parameter is used: apply must compute its outputs from the params that it is given, not from ones that "
            "it closes over"
        )
    return UnitClasses(
        program=program,
        reader=reader,
        labels=[[labels.roots(axis) for axis in axes] for axes in own],
        sites=dict(zip(program.sites, results[len(program.selected) :], strict=True)),
        outputs=labels.closure(np.concatenate([labels.unit_roots(a) for v in outputs for a in v.axes] or [free(0)])),
        leaks={root for value in outputs for group in value.reduced for root in reader.closure_of(group)},
        states={value.stem for value in inputs[1:]},
    )


def _parameter(number: int, leaf: Any, labels: Sequence[np.ndarray]) -> Value:
    if not np.issubdtype(leaf.dtype, np.inexact) and leaf.dtype.name != "bfloat16":
        return _input(np.shape(leaf))
    origin = tuple(frozenset({(number, axis)}) for axis in range(len(labels)))
    return Value(tuple(labels), Kind.PARAMETER, origin=origin, parameter=number, keeps_zeros=True)


def _input(shape: tuple[int, ...]) -> Value:
    return Value(tuple(np.full(size, INPUT) for size in shape), Kind.ACTIVATION)


def group_units(classes: UnitClasses, linear: bool) -> list[Group]:
    """Groups the units by the parameter axes that they use, in the order in which they are fed.

    Args:
        classes: The classes of the program.
        linear: Whether units with nothing non-linear between their kernels count as units.
    """
    tables: dict[int, dict[Place, list[int]]] = collections.defaultdict(dict)
    direct: dict[int, set[Place]] = collections.defaultdict(set)
    closures: dict[int, set[int]] = {}
    for parameter, axes in enumerate(classes.labels):
        for axis, roots in enumerate(axes):
            place = (parameter, axis)
            if not classes.reader.roles.get(place):
                continue
            for position, root in enumerate(roots.tolist()):
                if root not in closures:
                    closures[root] = classes.reader.labels.closure([root])
                direct[root].add(place)
                for member in closures[root]:
                    tables[member].setdefault(place, []).append(position)
    groups: dict[Any, list[int]] = collections.defaultdict(list)
    reader = classes.reader
    for root, places in tables.items():
        parts = reader.labels.closure([root]) - {root}
        reason = _reason(classes, root, parts, places, direct, linear)
        coupled = not reader.coupled.isdisjoint({root, *parts})
        widths = tuple(sorted((place, len(positions)) for place, positions in places.items()))
        groups[widths, reason, coupled, bool(parts)].append(root)
    found = [
        _group(classes, family, key, tables) for key, members in groups.items() for family in _families(members, tables)
    ]
    order = {place: number for number, place in enumerate(reader.fed)}
    return sorted(found, key=lambda group: min((order[p] for p in group.tables if p in order), default=len(order)))


def _families(members: list[int], tables: dict[int, dict[Place, list[int]]]) -> list[list[int]]:
    """Divides classes that claim the same position (heads and channels of one axis) into families that do not."""
    families: list[tuple[list[int], set[tuple[Place, int]]]] = []
    for root in sorted(members):
        claimed = {(place, position) for place, positions in tables[root].items() for position in positions}
        for family, taken in families:
            if taken.isdisjoint(claimed):
                family.append(root)
                taken |= claimed
                break
        else:
            families.append(([root], claimed))
    return [family for family, _ in families]


def _group(classes: UnitClasses, members: list[int], key: Any, tables: dict[int, dict[Place, list[int]]]) -> Group:
    _, reason, coupled, _ = key
    places = list(tables[members[0]])
    first = min(places, key=lambda place: (*_rank(classes, place), place))
    members = sorted(members, key=lambda root: tables[root][first])
    return Group(
        classes=tuple(members),
        tables={place: np.array([tables[root][place] for root in members]) for place in places},
        reason=reason,
        coupled=coupled,
    )


def _rank(classes: UnitClasses, place: Place) -> tuple[int, int]:
    """Rank of a place: the order in which places feed units; others last."""
    order = list(classes.reader.fed)
    return (0, order.index(place)) if place in classes.reader.fed else (1, 0)


def _reason(
    classes: UnitClasses,
    root: int,
    parts: set[int],
    places: dict[Place, list[int]],
    direct: dict[int, set[Place]],
    linear: bool,
) -> str | None:
    """Returns the reason why a class is no unit that can be replaced, or None."""
    reader = classes.reader
    every = {root, *parts}
    roles = {place: reader.roles[place] for place in places}
    used = set().union(*roles.values())
    refused = [reader.refused[label] for label in (root, *sorted(parts)) if label in reader.refused]
    if refused:
        return refused[0]
    if not classes.outputs.isdisjoint(every):
        return IS_OUTPUT
    if not used & {"feed", "looked up"}:
        return NO_INCOMING
    if any("read" in some and len(some) > 1 for some in roles.values()):
        return TIED
    if not classes.leaks.isdisjoint(every):
        return LEAKS
    if "read" not in used:
        return NO_OUTGOING
    if any(direct[part] for part in parts):
        return FACTOR
    if reader.nonlinear.isdisjoint(every) and not linear:
        return LINEAR
    if _is_loose_state(classes, places):
        return STATE
    return None


def _is_loose_state(classes: UnitClasses, places: dict[Place, list[int]]) -> bool:
    """Whether a kernel turns an input, as wide as the layer, into its units beside another kernel: a recurrent step."""
    feeding = {place for place in places if "feed" in classes.reader.roles[place]}
    for reading in classes.reader.readings:
        if reading.stem not in classes.states:
            continue
        width = classes.shape(reading.place)[reading.place[1]]
        mine = {place for place in feeding if place in reading.feeds}
        for parameter, axis in mine:
            units = classes.shape((parameter, axis))[axis] // max(len(places[parameter, axis]), 1)
            if units == width and {place[0] for place in feeding} - {reading.place[0]}:
                return True
    return False
