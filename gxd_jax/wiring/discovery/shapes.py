"""Rules of operations that move entries: transposing, reshaping, cutting, padding, putting together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from gxd_jax.wiring.discovery.entries import joined_origin
from gxd_jax.wiring.discovery.reader import Reader
from gxd_jax.wiring.discovery.values import Kind, Step, Value, free


def arrange(value: Value, axes: Sequence[np.ndarray], sources: Sequence[Sequence[int]], same: bool, **changes) -> Value:
    """Returns a value with new axes, each made from `sources` among the old ones; `same`: no entry is lost or moved."""
    origin = tuple(frozenset().union(*(value.places(axis) for axis in source)) for source in sources)
    return dataclasses.replace(
        value,
        axes=tuple(axes),
        origin=origin if value.origin else (),
        parameter=value.parameter if same else None,
        products=value.products if same else frozenset(),
        stem=value.stem if same else -1,
        **changes,
    )


def new_axes(shape: Sequence[int]) -> list[np.ndarray]:
    """Returns axes of which nothing is known."""
    return [free(size) for size in shape]


def _no_sources(shape: Sequence[int]) -> list[Sequence[int]]:
    return [()] * len(shape)


def one_to_one(axes: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the sources of axes each of which comes from one old axis."""
    return [(axis,) for axis in axes]


def transpose(reader: Reader, step: Step) -> list[Value]:
    """Axes in another order."""
    (value,), order = step.operands, step.settings["permutation"]
    return [arrange(value, [value.axes[axis] for axis in order], one_to_one(order), same=True)]


def squeeze(reader: Reader, step: Step) -> list[Value]:
    """Axes of length 1 removed; the whole array now depends on their unit."""
    (value,) = step.operands
    gone = [axis % len(value.axes) for axis in step.settings["dimensions"]]
    kept = [axis for axis in range(len(value.axes)) if axis not in gone]
    reduced = value.reduced | reader.reduce(*(value.axes[axis] for axis in gone))
    return [arrange(value, [value.axes[a] for a in kept], one_to_one(kept), same=True, reduced=reduced)]


def broadcast(reader: Reader, step: Step) -> list[Value]:
    """New axes, and axes of length 1 repeated."""
    value, *_ = step.operands
    (shape,) = step.shapes
    axes, sources, reduced = new_axes(shape), _no_sources(shape), value.reduced
    for axis, target in enumerate(step.settings["broadcast_dimensions"]):
        if value.axes[axis].size == shape[target]:
            axes[target], sources[target] = value.axes[axis], (axis,)
        else:
            reduced |= reader.reduce(value.axes[axis])
    result = arrange(value, axes, sources, same=math.prod(value.shape) == math.prod(shape), reduced=reduced)
    return [dataclasses.replace(result, parameter=value.parameter)]


def reshape(reader: Reader, step: Step) -> list[Value]:
    """Axes merged and split in row-major order."""
    value, *_ = step.operands
    (shape,) = step.shapes
    if step.settings.get("dimensions") is not None:
        raise NotImplementedError("reshape with a permutation")
    if 0 in shape:
        raise NotImplementedError("empty arrays")
    axes, sources = new_axes(shape), _no_sources(shape)
    lost, plain = [], True
    for merged, split in _aligned(value.shape, shape):
        if len(split) == 0:
            lost.append(value.axes[merged[0]])
            continue
        parts = reader.labels.split(
            reader.labels.merge([value.axes[axis] for axis in merged]), [shape[a] for a in split]
        )
        if parts is None:
            for axis in merged:
                reader.refuse_labels(value.axes[axis], "is reshaped in a way that is not understood")
            parts = [free(shape[axis]) for axis in split]
        for axis, labels in zip(split, parts, strict=True):
            axes[axis], sources[axis] = labels, merged
        plain &= len(merged) == len(split) == 1
    result = arrange(value, axes, sources, same=True, reduced=value.reduced | reader.reduce(*lost))
    return [result if plain else dataclasses.replace(result, parameter=None)]


def _aligned(old_shape: Sequence[int], new_shape: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Pairs the axes of two shapes of one array in row-major order.

    Axes of length 1 are paired with axes of length 1 between the same neighbours, beginning with the last ones; an old
    one without a partner is paired with nothing, a new one is left out.
    """
    old, new = list(enumerate(old_shape)), list(enumerate(new_shape))
    pairs = []
    while old:
        (axis, left), right = old.pop(), 1
        if left == 1:
            pairs.append(([axis], [new.pop()[0]] if new and new[-1][1] == 1 else []))
            continue
        merged, split = [axis], []
        while new and new[-1][1] == 1:
            new.pop()
        while left != right:
            if left < right:
                axis, size = old.pop()
                merged.insert(0, axis)
                left *= size
            else:
                target, size = new.pop()
                split.insert(0, target)
                right *= size
        pairs.append((merged, split))
    return pairs


def reverse(reader: Reader, step: Step) -> list[Value]:
    """`rev`."""
    (value,) = step.operands
    axes = [labels[::-1] if axis in step.settings["dimensions"] else labels for axis, labels in enumerate(value.axes)]
    return [arrange(value, axes, one_to_one(range(len(axes))), same=False)]


def cut(reader: Reader, step: Step) -> list[Value]:
    """`slice`."""
    (value,) = step.operands
    starts, limits = step.settings["start_indices"], step.settings["limit_indices"]
    strides = step.settings["strides"] or (1,) * len(starts)
    bounds = zip(value.axes, starts, limits, strides, strict=True)
    axes = [labels[start:limit:stride] for labels, start, limit, stride in bounds]
    return [arrange(value, axes, one_to_one(range(len(axes))), same=False)]


def split(reader: Reader, step: Step) -> list[Value]:
    """One axis cut into several results."""
    (value,), axis = step.operands, step.settings["axis"]
    parts = np.split(value.axes[axis], np.cumsum(step.settings["sizes"])[:-1])
    sources = one_to_one(range(len(value.axes)))
    return [arrange(value, [*value.axes[:axis], part, *value.axes[axis + 1 :]], sources, same=False) for part in parts]


def pad(reader: Reader, step: Step) -> list[Value]:
    """Entries of no unit put around and between."""
    value, filling = step.operands
    axes = []
    for labels, (low, high, between) in zip(value.axes, step.settings["padding_config"], strict=True):
        spread = free(labels.size + max(labels.size - 1, 0) * between)
        spread[:: between + 1] = labels
        padded = np.concatenate([free(max(low, 0)), spread, free(max(high, 0))])
        axes.append(padded[max(-low, 0) : padded.size - max(-high, 0)])
    kind = reader.join(step.operands)
    result = arrange(value, axes, one_to_one(range(len(axes))), same=False, reduced=value.reduced | filling.reduced)
    return [dataclasses.replace(result, kind=kind, origin=result.origin if kind == Kind.PARAMETER else ())]


def concatenate(reader: Reader, step: Step) -> list[Value]:
    """Operands put one behind the other along an axis."""
    operands, along = step.operands, step.settings["dimension"]
    rank = len(operands[0].axes)
    kind = reader.join(operands)
    return [
        Value(
            axes=tuple(
                (np.concatenate if axis == along else reader.unify)([value.axes[axis] for value in operands])
                for axis in range(rank)
            ),
            kind=kind,
            reduced=frozenset().union(*(value.reduced for value in operands)),
            origin=joined_origin(operands, rank) if kind == Kind.PARAMETER else (),
            keeps_zeros=kind == Kind.PARAMETER and all(v.keeps_zeros or v.kind == Kind.CONSTANT for v in operands),
        )
    ]


def same(reader: Reader, step: Step) -> list[Value]:
    """Gives back its operands."""
    return list(step.operands)
