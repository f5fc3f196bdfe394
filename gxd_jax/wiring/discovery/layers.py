"""From groups of units to `UnitLayer`s: names, roles, reset values, biases and where features are captured."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np

from gxd_jax.observing import sites
from gxd_jax.trees import joined
from gxd_jax.types import Path
from gxd_jax.wiring.discovery.classes import Group, UnitClasses
from gxd_jax.wiring.discovery.reader import Reading
from gxd_jax.wiring.discovery.values import Place, Value
from gxd_jax.wiring.layers import ParamAxis, UnitLayer

OVERLAPS = "overlaps layer {!r}, which has the same weights: heads or their channels, not both"


def choose(groups: Sequence[Group], classes: UnitClasses) -> tuple[list[Group], dict[int, int]]:
    """Chooses among groups of units that share weights: those with more parameters win, then the finer ones.

    Returns:
        The chosen groups in their order, and for each other one (by its index) the index of the one that it overlaps.
    """
    valid = [number for number, group in enumerate(groups) if group.reason is None]
    chosen: list[int] = []
    overlaps: dict[int, int] = {}
    for number in sorted(valid, key=lambda number: (-len(groups[number].tables), -len(groups[number].classes), number)):
        rival = next((other for other in chosen if _overlap(groups[number], groups[other], classes)), None)
        if rival is None:
            chosen.append(number)
        else:
            overlaps[number] = rival
    return [groups[number] for number in sorted(chosen)], overlaps


def _overlap(group: Group, other: Group, classes: UnitClasses) -> bool:
    """Whether two groups claim the same entries of a parameter in the same role."""
    for place, table in group.tables.items():
        for other_place, other_table in other.tables.items():
            if place[0] != other_place[0]:
                continue
            if place == other_place and not np.isin(table, other_table).any():
                continue
            if place == other_place or classes.reader.roles[place] & classes.reader.roles[other_place]:
                return True
    return False


def name_groups(groups: Sequence[Group], classes: UnitClasses) -> list[str]:
    """Names layers by the module that produces them, and by its kernel too where one module produces several."""
    producers = [_producer(group, classes) for group in groups]
    modules = [joined(path[:-1] or path) for path in producers]
    counts = collections.Counter(modules)
    names = []
    for module, path in zip(modules, producers, strict=True):
        name = module if counts[module] == 1 else joined(path)
        while name in names:
            name += "'"
        names.append(name)
    return names


def _producer(group: Group, classes: UnitClasses) -> Path:
    fed = next((place for place in classes.reader.fed if place in group.tables), next(iter(group.tables)))
    path = list(classes.program.parameters)[fed[0]]
    return path[1:] if path[:1] == ("params",) and len(path) > 1 else path


def build_layer(name: str, group: Group, classes: UnitClasses) -> UnitLayer:
    """Builds the wiring of a group of units, features still to be found."""
    incoming, own, outgoing, biases = [], [], [], []
    roles = classes.reader.roles
    order = {place: number for number, place in enumerate([*classes.reader.fed, *roles])}
    for place in sorted(group.tables, key=lambda place: order[place]):
        table = group.tables[place]
        param_axis = _param_axis(place, table, classes)
        if "read" in roles[place]:
            outgoing.append(param_axis)
            biases.append(_bias(place, classes))
        elif roles[place] & {"feed", "looked up"}:
            incoming.append(param_axis)
        else:
            parts = _reset_values(place, table, classes)
            own += parts or []
            incoming += [] if parts else [param_axis]
    return UnitLayer(name, len(group.classes), tuple(incoming), tuple(own), tuple(outgoing), tuple(biases))


def _param_axis(place: Place, table: np.ndarray, classes: UnitClasses) -> ParamAxis:
    number, axis = place
    whole = table.shape == (classes.shape(place)[axis], 1) and np.array_equal(table[:, 0], np.arange(len(table)))
    return ParamAxis(list(classes.program.parameters)[number], axis, None if whole else table)


def _reset_values(place: Place, table: np.ndarray, classes: UnitClasses) -> list[tuple[ParamAxis, float]] | None:
    """Returns a parameter's initial values, by the columns of the table that share one; None if units differ."""
    number, axis = place
    leaf = np.moveaxis(np.asarray(list(classes.program.parameters.values())[number]), axis, 0)
    columns: dict[float, list[int]] = collections.defaultdict(list)
    for column in range(table.shape[1]):
        values = leaf[table[:, column]].ravel()
        if (values != values[0]).any():
            return None
        columns[float(values[0])].append(column)
    return [(_param_axis(place, table[:, some], classes), value) for value, some in columns.items()]


def _bias(place: Place, classes: UnitClasses) -> Path | ParamAxis | None:
    """Returns the bias of the products in which a kernel reads units along an axis, if all have the same one."""
    reader, labels = classes.reader, classes.labels
    products = [number for number, places in enumerate(reader.products) if place in places]
    found = {reader.biases.get(number) for number in products}
    bias = found.pop() if len(found) == 1 else None
    if bias is None or len(labels[bias]) != 1:
        return None
    paths = list(classes.program.parameters)
    number, unit_axis = place
    for axis, roots in enumerate(labels[number]):
        if axis != unit_axis and (number, axis) in reader.fed and np.array_equal(roots, labels[bias][0]):
            usual = axis == (1 - unit_axis if len(labels[number]) == 2 else len(labels[number]) - 1)
            return paths[bias] if usual else ParamAxis(paths[bias], axis)
    return None


# --- Features -------------------------------------------------------------------------------------------------------


def find_feature(layer: UnitLayer, group: Group, classes: UnitClasses) -> tuple[UnitLayer, bool]:
    """Finds where a layer's features are captured: at a tap, at the inputs of its Flax consumers, or at a new tap.

    Returns:
        The layer with `feature` set, and whether the model must still be tapped.
    """
    readings = [reading for reading in classes.reader.readings if reading.place in group.tables]
    for site, value in classes.sites.items():
        if isinstance(site, str) and _is_feature(site, layer, group, value, readings, classes):
            return layer._replace(feature=site), False
    if _captured_by_modules(layer, readings, classes):
        return layer, False
    return layer._replace(feature=layer.name), True


def _is_feature(
    site: str, layer: UnitLayer, group: Group, value: Value, readings: Sequence[Reading], classes: UnitClasses
) -> bool:
    """Whether a tapped value has the units along its last axis, and is read by a kernel or has the layer's name."""
    if not value.axes or (site != layer.name and value.stem not in {reading.stem for reading in readings}):
        return False
    roots = classes.reader.labels.roots(value.axes[-1])
    if roots.size == layer.size:
        return np.array_equal(roots, group.classes)
    return _reads_in_order(roots, layer.outgoing[0], classes)


def _captured_by_modules(layer: UnitLayer, readings: Sequence[Reading], classes: UnitClasses) -> bool:
    """Whether the inputs of the consumers' Flax modules are what their kernels read, with one common batch axis."""
    batch_sizes = set()
    paths = list(classes.program.parameters)
    for site, axis in zip(sites.consumer_sites(layer), layer.outgoing, strict=True):
        value = classes.sites.get(site)
        stems = {reading.stem for reading in readings if paths[reading.place[0]] == axis.path}
        if value is None or stems != {value.stem}:
            return False
        if not _reads_in_order(classes.reader.labels.roots(value.axes[-1]), axis, classes):
            return False
        batch_sizes.add(value.shape[0])
    return len(batch_sizes) == 1


def _reads_in_order(roots: np.ndarray, param_axis: ParamAxis, classes: UnitClasses) -> bool:
    number = list(classes.program.parameters).index(param_axis.path)
    return np.array_equal(roots, classes.labels[number][param_axis.axis])
