"""Rules of operations that mix entries: indexing by data, reductions, sorting, pooling."""

from __future__ import annotations

import dataclasses

import numpy as np

from gxd_jax.wiring.discovery.entries import joined_origin
from gxd_jax.wiring.discovery.reader import Reader, Rule
from gxd_jax.wiring.discovery.shapes import arrange, new_axes, one_to_one
from gxd_jax.wiring.discovery.values import Kind, Step, Value

# --- Indexing -------------------------------------------------------------------------------------------------------


def cut_at(reader: Reader, step: Step) -> list[Value]:
    """`dynamic_slice`: an axis that is not taken whole is mixed."""
    value, *starts = step.operands
    (shape,) = step.shapes
    mixed = [axis for axis, size in enumerate(shape) if size != value.axes[axis].size]
    axes = [reader.blur(labels, shape[axis]) if axis in mixed else labels for axis, labels in enumerate(value.axes)]
    reduced = reader.reduce(*(value.axes[axis] for axis in mixed)).union(
        *(operand.reduced for operand in step.operands)
    )
    kind = reader.join(step.operands)
    result = arrange(value, axes, one_to_one(range(len(axes))), same=False, reduced=reduced)
    return [dataclasses.replace(result, kind=kind, origin=result.origin if kind == Kind.PARAMETER else ())]


def write_at(reader: Reader, step: Step) -> list[Value]:
    """`dynamic_update_slice`: an axis that is not written whole must carry no units."""
    value, update, *_ = step.operands
    axes = []
    for labels, written in zip(value.axes, update.axes, strict=True):
        if labels.size == written.size:
            axes.append(reader.unify([labels, written]))
            continue
        for some in (labels, written):
            reader.refuse_labels(some, "is written to a place that is not known")
        axes.append(reader.blur(np.concatenate([labels, written]), labels.size))
    kind = reader.join(step.operands)
    reduced = frozenset().union(*(operand.reduced for operand in step.operands))
    origin = joined_origin([value, update], len(axes)) if kind == Kind.PARAMETER else ()
    return [Value(tuple(axes), kind, reduced, origin)]


def look_up(reader: Reader, step: Step) -> list[Value]:
    """`gather`: rows of a table, by indices that may depend on the data."""
    table, numbers = step.operands
    (shape,) = step.shapes
    spec, sizes = step.settings["dimension_numbers"], step.settings["slice_sizes"]
    dropped = {*spec.collapsed_slice_dims, *getattr(spec, "operand_batching_dims", ())}
    whole = [axis for axis in range(len(sizes)) if axis not in dropped]
    axes, origin = new_axes(shape), [frozenset()] * len(shape)
    for target, axis in zip(spec.offset_dims, whole, strict=True):
        if sizes[axis] == table.axes[axis].size:
            axes[target], origin[target] = table.axes[axis], table.places(axis)
        else:
            axes[target] = reader.blur(table.axes[axis], shape[target])
            dropped.add(axis)
    others = [axis for axis in range(len(shape)) if axis not in spec.offset_dims]
    for target, labels in zip(others, numbers.axes[:-1], strict=True):
        axes[target] = labels
    # The rows of a parameter belong to no unit; those of an activation are mixed.
    lost = [table.axes[axis] for axis in dropped]
    if table.kind == Kind.PARAMETER:
        for labels in lost:
            reader.refuse_labels(labels, "is looked up by the data")
    reduced = table.reduced | numbers.reduced | reader.reduce(numbers.axes[-1])
    if table.kind == Kind.ACTIVATION:
        reduced |= reader.reduce(*lost)
    if table.kind == Kind.PARAMETER:
        for places in origin:
            reader.note(places, "looked up")
    kind = max(table.kind, numbers.kind)
    still_parameter = kind == Kind.PARAMETER
    return [Value(tuple(axes), kind, reduced, tuple(origin) if still_parameter else ())]


# --- Reductions -----------------------------------------------------------------------------------------------------


def reduce_axes(reader: Reader, step: Step) -> list[Value]:
    """Axes reduced away: sums, maxima, indices of maxima."""
    value = step.operands[0]
    gone = [axis % len(value.axes) for axis in step.settings["axes"]]
    kept = [axis for axis in range(len(value.axes)) if axis not in gone]
    reduced = value.reduced | reader.reduce(*(value.axes[axis] for axis in gone))
    result = arrange(value, [value.axes[axis] for axis in kept], one_to_one(kept), same=False, reduced=reduced)
    result = dataclasses.replace(result, keeps_zeros=False)
    if step.name != "reduce_sum" and value.kind == Kind.ACTIVATION:
        reader.mark_nonlinear(result)
    return [result] * len(step.shapes)


def mix_along(setting: str) -> Rule:
    """Operations along one axis that keep the shape: cumulative ones, sorting."""

    def rule(reader: Reader, step: Step) -> list[Value]:
        along = step.settings[setting]
        rank = len(step.shapes[0])
        axes = [reader.unify([value.axes[axis] for value in step.operands]) for axis in range(rank)]
        kind = reader.join(step.operands)
        reduced = reader.reduce(axes[along]).union(*(value.reduced for value in step.operands))
        axes[along] = reader.blur(axes[along], axes[along].size)
        result = Value(tuple(axes), kind, reduced)
        if step.name != "cumsum" and kind == Kind.ACTIVATION:
            reader.mark_nonlinear(result)
        return [result] * len(step.shapes)

    return rule


def reduce_windows(reader: Reader, step: Step) -> list[Value]:
    """Pooling: axes with a window are mixed."""
    value = step.operands[0]
    (shape,) = step.shapes
    windows = step.settings["window_dimensions"]
    rank = len(shape)
    ones, no_padding = (1,) * rank, ((0, 0),) * rank
    trivial = zip(
        windows,
        step.settings.get("window_strides") or ones,
        step.settings.get("base_dilation") or ones,
        step.settings.get("padding") or no_padding,
        strict=True,
    )
    kept = [setting == (1, 1, 1, (0, 0)) for setting in ((w, s, d, tuple(p)) for w, s, d, p in trivial)]
    axes = [
        labels if keep else reader.blur(labels, shape[axis])
        for axis, (labels, keep) in enumerate(zip(value.axes, kept, strict=True))
    ]
    mixed = [labels for labels, keep in zip(value.axes, kept, strict=True) if not keep]
    result = Value(
        axes=tuple(axes),
        kind=reader.join(step.operands),
        reduced=reader.reduce(*mixed).union(*(operand.reduced for operand in step.operands)),
    )
    if step.name != "reduce_window_sum" and result.kind == Kind.ACTIVATION:
        reader.mark_nonlinear(result)
    return [result]
