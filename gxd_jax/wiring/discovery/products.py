"""Products and convolutions: they contract the axis along which units are read, and produce new units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gxd_jax.wiring.discovery.reader import Reader, Reading
from gxd_jax.wiring.discovery.values import Kind, Place, Step, Value

TRANSFORMED = "is transformed before use (reparametrised)"
BATCHED = "has a batch axis (ensembled): use separate modules or an explicit wiring"
STACKED = "has a leading layer axis (scanned or indexed layers): use separate modules or an explicit wiring"
GROUPED = "is read by a grouped convolution"


def multiply(reader: Reader, step: Step) -> list[Value]:
    """`dot_general`."""
    left, right = step.operands
    (left_sums, right_sums), (left_batch, right_batch) = step.settings["dimension_numbers"]
    left_free = [axis for axis in range(len(left.axes)) if axis not in (*left_sums, *left_batch)]
    right_free = [axis for axis in range(len(right.axes)) if axis not in (*right_sums, *right_batch)]
    batch = [reader.unify([left.axes[a], right.axes[b]]) for a, b in zip(left_batch, right_batch, strict=True)]
    summed = [
        reader.unify([left.axes[a], right.axes[b]], refine=False) for a, b in zip(left_sums, right_sums, strict=True)
    ]
    axes = (*batch, *(left.axes[axis] for axis in left_free), *(right.axes[axis] for axis in right_free))
    reduced = left.reduced | right.reduced
    if left.kind == right.kind == Kind.ACTIVATION:
        result = Value(axes, Kind.ACTIVATION, reduced | reader.reduce(*summed))
        reader.mark_nonlinear(result)
        return [result]
    if Kind.ACTIVATION not in (left.kind, right.kind):
        for value in (left, right):
            if value.kind == Kind.PARAMETER:
                reader.refuse(value, TRANSFORMED)
        return [Value(axes, Kind.PARAMETER, reduced | reader.reduce(*summed))]
    swapped = right.kind == Kind.ACTIVATION
    activation, kernel = (right, left) if swapped else (left, right)
    if kernel.kind == Kind.CONSTANT:
        return [Value(axes, Kind.ACTIVATION, reduced | reader.reduce(*summed))]
    kernel_sums, kernel_batch, kernel_free = (
        (left_sums, left_batch, left_free) if swapped else (right_sums, right_batch, right_free)
    )
    products = _read(reader, activation, kernel, kernel_sums, kernel_free, kernel_batch)
    return [Value(axes, Kind.ACTIVATION, reduced, products=products)]


def _read(
    reader: Reader,
    activation: Value,
    kernel: Value,
    sums: Sequence[int],
    outputs: Sequence[int],
    batch: Sequence[int] = (),
) -> frozenset[int]:
    """Notes that a kernel reads an activation; returns the index of the product."""
    read = frozenset().union(*(kernel.places(axis) for axis in sums))
    kernels = {parameter for parameter, _ in read}
    made = frozenset().union(*(kernel.places(axis) for axis in outputs))
    feeds = frozenset(place for place in made if place[0] in kernels)
    reader.note(read, "read")
    reader.note(sorted(feeds), "feed")
    reader.note(made - feeds, "unit")
    for axis in batch:
        reader.note(kernel.places(axis), "unit")
    if any(kernel.axes[axis].size > 1 for axis in batch):
        for axis in (*sums, *outputs):
            reader.refuse_labels(kernel.axes[axis], BATCHED)
    if kernel.reduced:
        for axis in (*sums, *outputs):
            reader.refuse_labels(kernel.axes[axis], STACKED)
    if not kernel.keeps_zeros:
        for axis in sums:
            reader.refuse_labels(kernel.axes[axis], TRANSFORMED)
    reader.readings += [Reading(place, feeds, activation.stem) for place in sorted(read)]
    reader.products.append(read | feeds)
    return frozenset({len(reader.products) - 1})


def convolve(reader: Reader, step: Step) -> list[Value]:
    """`conv_general_dilated`."""
    image, kernel = step.operands
    (shape,) = step.shapes
    numbers, groups = step.settings["dimension_numbers"], step.settings["feature_group_count"]
    image_batch, image_channels, *image_positions = numbers.lhs_spec
    kernel_outputs, kernel_inputs, *kernel_window = numbers.rhs_spec
    out_batch, out_channels, *out_positions = numbers.out_spec
    if image.kind != Kind.ACTIVATION or kernel.kind == Kind.ACTIVATION or step.settings["batch_group_count"] != 1:
        raise NotImplementedError("a convolution of parameters, or with an activation, or in batch groups")
    reduced = image.reduced | kernel.reduced | reader.reduce(*(image.axes[axis] for axis in image_positions))
    axes: list[np.ndarray] = [np.empty(0)] * len(shape)
    axes[out_batch] = image.axes[image_batch]
    axes[out_channels] = kernel.axes[kernel_outputs]
    for position, target in zip(image_positions, out_positions, strict=True):
        axes[target] = reader.blur(image.axes[position], shape[target])
    inputs = image.axes[image_channels]
    products: frozenset[int] = frozenset()
    if groups == 1:
        summed = reader.unify([inputs, kernel.axes[kernel_inputs]], refine=False)
        if kernel.kind == Kind.PARAMETER:
            products = _read(reader, image, kernel, [kernel_inputs], [kernel_outputs])
        else:
            reduced |= reader.reduce(summed)
    elif groups == inputs.size == shape[out_channels]:  # depthwise: channels are not mixed
        axes[out_channels] = reader.unify([inputs, kernel.axes[kernel_outputs]])
        reader.note(kernel.places(kernel_outputs), "unit")
    else:
        reader.refuse_labels(inputs, GROUPED)
        for labels in (kernel.axes[kernel_inputs], *(kernel.axes[axis] for axis in kernel_window)):
            reader.refuse_labels(labels, GROUPED)
        _note_group_outputs(reader, kernel.places(kernel_outputs))
    return [Value(tuple(axes), Kind.ACTIVATION, reduced, products=products)]


def _note_group_outputs(reader: Reader, places: frozenset[Place]) -> None:
    """Notes that the outputs of a grouped convolution are new units."""
    reader.note(sorted(places), "feed")
