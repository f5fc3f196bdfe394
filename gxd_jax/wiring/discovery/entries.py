"""Rules of operations on one entry at a time, with scalars and axes of length 1 repeated."""

from __future__ import annotations

from collections.abc import Sequence

from gxd_jax.wiring.discovery.reader import Reader
from gxd_jax.wiring.discovery.values import Kind, Step, Value, free

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
LINEAR = {*_SAME, *_SUMS, "sub", "neg", "real", "imag", "conj"}
NONLINEAR = set(
    "abs acos acosh and asin asinh atan atan2 atanh cbrt ceil clamp complex cos cosh digamma eq erf erf_inv erfc exp "
    "exp2 expm1 floor ge gt integer_pow is_finite le lgamma log log1p logistic lt max min ne nextafter not or pow rem "
    "round rsqrt shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square tan tanh xor".split()
)
PRODUCTS = {"mul", "div", "select_n"}


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
        origin=joined_origin(operands, len(shape)) if kind == Kind.PARAMETER else (),
        parameter=operands[0].parameter if step.name in _SAME else None,
        keeps_zeros=kind == Kind.PARAMETER and _keeps_zeros(step),
        products=_sum_of_products(reader, step),
        stem=operands[0].stem if step.name in _SAME else -1,
    )
    if kind == Kind.ACTIVATION and not _is_linear(step):
        reader.mark_nonlinear(result)
    return [result]


def _is_linear(step: Step) -> bool:
    if step.name in LINEAR:
        return True
    active = [value.kind == Kind.ACTIVATION for value in step.operands]
    if step.name == "select_n":
        return not active[0]
    return step.name in PRODUCTS and sum(active) == 1 and (step.name == "mul" or active[0])


def _keeps_zeros(step: Step) -> bool:
    from_parameters = [value.keeps_zeros for value in step.operands if value.kind == Kind.PARAMETER]
    if step.name in _SUMS or step.name == "sub":
        return len(from_parameters) == len(step.operands) and all(from_parameters)
    if step.name == "mul":
        return any(from_parameters)
    return (step.name in _SAME or step.name in ("neg", "div")) and step.operands[0].keeps_zeros


def joined_origin(operands: Sequence[Value], rank: int) -> tuple[frozenset, ...]:
    """Returns for each axis the parameter axes from which those of the operands come."""
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
