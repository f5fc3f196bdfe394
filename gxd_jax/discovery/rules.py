"""What each primitive does to labels, but for products (`products.py`) and sub-programs (`calls.py`).

A rule takes the reader and a step and returns the step's results. A rule that raises, or whose results do not have the
step's shapes, is as good as no rule: the units concerned are refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from gxd_jax.discovery.calls import CALLS
from gxd_jax.discovery.products import convolve, multiply
from gxd_jax.discovery.reader import Reader, Rule
from gxd_jax.discovery.values import Kind, Step, Value, free

# --- Entry by entry -------------------------------------------------------------------------------------------------

_SAME = {
    "convert_element_type",
    "copy",
    "copy_p",
    "reduce_precision",
    "name",
    "sharding_constraint",
    "pvary",
    "stop_gradient",
}
_SUMS = {"add", "add_any"}
_LINEAR = {*_SAME, *_SUMS, "sub", "neg", "real", "imag", "conj"}
_NONLINEAR = set(
    "abs acos acosh and asin asinh atan atan2 atanh cbrt ceil clamp complex cos cosh digamma eq erf erf_inv erfc exp "
    "exp2 expm1 floor ge gt integer_pow is_finite le lgamma log log1p logistic lt max min ne nextafter not or pow rem "
    "round rsqrt shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square tan tanh xor".split()
)
_PRODUCTS = {"mul", "div", "select_n"}


def combine(reader: Reader, step: Step) -> list[Value]:
    """Operations on one entry at a time, with scalars and axes of length 1 repeated."""
    (shape,) = step.shapes
    operands = step.operands
    axes, lost = [], []
    for axis, size in enumerate(shape):
        here = [value.axes[axis] for value in operands if value.axes]
        axes.append(reader.unify([free(size), *(labels for labels in here if labels.size == size)]))
        lost += [labels for labels in here if labels.size != size]
    kind = reader.join(operands)
    result = Value(
        axes=tuple(axes),
        kind=kind,
        reduced=reader.reduce(*lost).union(*(value.reduced for value in operands)),
        origin=_joined_origin(operands, len(shape)) if kind == Kind.PARAMETER else (),
        parameter=operands[0].parameter if step.name in _SAME else None,
        keeps_zeros=kind == Kind.PARAMETER and _keeps_zeros(step),
        products=_sum_of_products(reader, step),
        stem=operands[0].stem if step.name in _SAME else -1,
    )
    if kind == Kind.ACTIVATION and not _is_linear(step):
        reader.bend(result)
    return [result]


def _is_linear(step: Step) -> bool:
    if step.name in _LINEAR:
        return True
    active = [value.kind == Kind.ACTIVATION for value in step.operands]
    if step.name == "select_n":
        return not active[0]
    return step.name in _PRODUCTS and sum(active) == 1 and (step.name == "mul" or active[0])


def _keeps_zeros(step: Step) -> bool:
    from_parameters = [value.keeps_zeros for value in step.operands if value.kind == Kind.PARAMETER]
    if step.name in _SUMS or step.name == "sub":
        return len(from_parameters) == len(step.operands) and all(from_parameters)
    if step.name == "mul":
        return any(from_parameters)
    return (step.name in _SAME or step.name in ("neg", "div")) and step.operands[0].keeps_zeros


def _joined_origin(operands: Sequence[Value], rank: int) -> tuple[frozenset, ...]:
    joined = [value for value in operands if value.origin]
    return tuple(frozenset().union(*(value.origin[axis] for value in joined)) for axis in range(rank))


def _sum_of_products(reader: Reader, step: Step) -> frozenset[int]:
    """Returns the products that a sum is made of, and notes the bias of each."""
    if step.name in _SAME:
        return step.operands[0].products
    if step.name not in _SUMS:
        return frozenset()
    products = frozenset().union(*(value.products for value in step.operands))
    known = [reader.biases[product] for product in sorted(products) if product in reader.biases]
    known += [
        value.parameter for value in step.operands if value.kind == Kind.PARAMETER and value.parameter is not None
    ]
    for product in products if known else ():
        reader.biases.setdefault(product, known[-1])
    return products


# --- Shapes ---------------------------------------------------------------------------------------------------------


def _arrange(
    value: Value, axes: Sequence[np.ndarray], sources: Sequence[Sequence[int]], same: bool, **changes
) -> Value:
    """Returns a value with new axes, each made from `sources` among the old ones; `same`: no entry is gone or moved."""
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


def _new_axes(shape: Sequence[int]) -> list[np.ndarray]:
    return [free(size) for size in shape]


def _no_sources(shape: Sequence[int]) -> list[Sequence[int]]:
    return [()] * len(shape)


def _one_to_one(axes: Sequence[int]) -> list[tuple[int, ...]]:
    return [(axis,) for axis in axes]


def transpose(reader: Reader, step: Step) -> list[Value]:
    """Axes in another order."""
    (value,), order = step.operands, step.settings["permutation"]
    return [_arrange(value, [value.axes[axis] for axis in order], _one_to_one(order), same=True)]


def squeeze(reader: Reader, step: Step) -> list[Value]:
    """Axes of length 1 go; what depends on their unit depends on it everywhere now."""
    (value,) = step.operands
    gone = [axis % len(value.axes) for axis in step.settings["dimensions"]]
    kept = [axis for axis in range(len(value.axes)) if axis not in gone]
    reduced = value.reduced | reader.reduce(*(value.axes[axis] for axis in gone))
    return [_arrange(value, [value.axes[a] for a in kept], _one_to_one(kept), same=True, reduced=reduced)]


def broadcast(reader: Reader, step: Step) -> list[Value]:
    """New axes, and axes of length 1 repeated."""
    value, *_ = step.operands
    (shape,) = step.shapes
    axes, sources, reduced = _new_axes(shape), _no_sources(shape), value.reduced
    for axis, target in enumerate(step.settings["broadcast_dimensions"]):
        if value.axes[axis].size == shape[target]:
            axes[target], sources[target] = value.axes[axis], (axis,)
        else:
            reduced |= reader.reduce(value.axes[axis])
    result = _arrange(value, axes, sources, same=math.prod(value.shape) == math.prod(shape), reduced=reduced)
    return [dataclasses.replace(result, parameter=value.parameter)]


def reshape(reader: Reader, step: Step) -> list[Value]:
    """Axes merged and split in row-major order."""
    value, *_ = step.operands
    (shape,) = step.shapes
    if step.settings.get("dimensions") is not None:
        raise NotImplementedError("reshape with a permutation")
    if 0 in shape:
        raise NotImplementedError("empty arrays")
    axes, sources = _new_axes(shape), _no_sources(shape)
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
    result = _arrange(value, axes, sources, same=True, reduced=value.reduced | reader.reduce(*lost))
    return [result if plain else dataclasses.replace(result, parameter=None)]


def _aligned(old_shape: Sequence[int], new_shape: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Pairs the axes of two shapes of one array in row-major order.

    Axes of length 1 are paired with their like between the same neighbours, the last with the last; an old one without
    a partner is paired with nothing, a new one is left out.
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
    return [_arrange(value, axes, _one_to_one(range(len(axes))), same=False)]


def cut(reader: Reader, step: Step) -> list[Value]:
    """`slice`."""
    (value,) = step.operands
    starts, limits = step.settings["start_indices"], step.settings["limit_indices"]
    strides = step.settings["strides"] or (1,) * len(starts)
    bounds = zip(value.axes, starts, limits, strides, strict=True)
    axes = [labels[start:limit:stride] for labels, start, limit, stride in bounds]
    return [_arrange(value, axes, _one_to_one(range(len(axes))), same=False)]


def split(reader: Reader, step: Step) -> list[Value]:
    """One axis cut into several results."""
    (value,), axis = step.operands, step.settings["axis"]
    parts = np.split(value.axes[axis], np.cumsum(step.settings["sizes"])[:-1])
    sources = _one_to_one(range(len(value.axes)))
    return [_arrange(value, [*value.axes[:axis], part, *value.axes[axis + 1 :]], sources, same=False) for part in parts]


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
    result = _arrange(value, axes, _one_to_one(range(len(axes))), same=False, reduced=value.reduced | filling.reduced)
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
            origin=_joined_origin(operands, rank) if kind == Kind.PARAMETER else (),
            keeps_zeros=kind == Kind.PARAMETER and all(v.keeps_zeros or v.kind == Kind.CONSTANT for v in operands),
        )
    ]


def same(reader: Reader, step: Step) -> list[Value]:
    """Gives back its operands."""
    return list(step.operands)


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
    result = _arrange(value, axes, _one_to_one(range(len(axes))), same=False, reduced=reduced)
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
    origin = _joined_origin([value, update], len(axes)) if kind == Kind.PARAMETER else ()
    return [Value(tuple(axes), kind, reduced, origin)]


def look_up(reader: Reader, step: Step) -> list[Value]:
    """`gather`: rows of a table, by numbers that may depend on the data."""
    table, numbers = step.operands
    (shape,) = step.shapes
    spec, sizes = step.settings["dimension_numbers"], step.settings["slice_sizes"]
    dropped = {*spec.collapsed_slice_dims, *getattr(spec, "operand_batching_dims", ())}
    whole = [axis for axis in range(len(sizes)) if axis not in dropped]
    axes, origin = _new_axes(shape), [frozenset()] * len(shape)
    for target, axis in zip(spec.offset_dims, whole, strict=True):
        if sizes[axis] == table.axes[axis].size:
            axes[target], origin[target] = table.axes[axis], table.places(axis)
        else:
            axes[target] = reader.blur(table.axes[axis], shape[target])
            dropped.add(axis)
    others = [axis for axis in range(len(shape)) if axis not in spec.offset_dims]
    for target, labels in zip(others, numbers.axes[:-1], strict=True):
        axes[target] = labels
    # The rows of a parameter belong to nobody; those of an activation are mixed.
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
    """Axes reduced away: sums, maxima, their places."""
    value = step.operands[0]
    gone = [axis % len(value.axes) for axis in step.settings["axes"]]
    kept = [axis for axis in range(len(value.axes)) if axis not in gone]
    reduced = value.reduced | reader.reduce(*(value.axes[axis] for axis in gone))
    result = _arrange(value, [value.axes[axis] for axis in kept], _one_to_one(kept), same=False, reduced=reduced)
    result = dataclasses.replace(result, keeps_zeros=False)
    if step.name != "reduce_sum" and value.kind == Kind.ACTIVATION:
        reader.bend(result)
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
            reader.bend(result)
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
        reader.bend(result)
    return [result]


def _table(rule: Callable[..., list[Value]], names: Sequence[str]) -> dict[str, Rule]:
    return dict.fromkeys(names, rule)


RULES: dict[str, Rule] = {
    **_table(combine, [*_LINEAR, *_NONLINEAR, *_PRODUCTS]),
    **_table(reduce_axes, [f"reduce_{name}" for name in ("sum", "max", "min", "prod", "and", "or", "xor")]),
    **_table(reduce_axes, ["argmax", "argmin"]),
    **_table(mix_along("axis"), ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"]),
    **_table(mix_along("dimension"), ["sort"]),
    **_table(reduce_windows, ["reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"]),
    **_table(same, ["optimization_barrier"]),
    "transpose": transpose,
    "squeeze": squeeze,
    "broadcast_in_dim": broadcast,
    "reshape": reshape,
    "rev": reverse,
    "slice": cut,
    "split": split,
    "pad": pad,
    "concatenate": concatenate,
    "dynamic_slice": cut_at,
    "dynamic_update_slice": write_at,
    "gather": look_up,
    "dot_general": multiply,
    "conv_general_dilated": convolve,
    **CALLS,
}
"""Primitive -> rule. What is not here is not understood."""
