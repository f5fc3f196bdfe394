"""Sub-programs: calls and loops over data are read through; branches and loops of unknown length are refused."""

from __future__ import annotations

import dataclasses

from gxd_jax.wiring.discovery.labels import INPUT
from gxd_jax.wiring.discovery.products import STACKED
from gxd_jax.wiring.discovery.reader import Reader, Rule
from gxd_jax.wiring.discovery.tracing import open_program
from gxd_jax.wiring.discovery.values import Kind, Step, Value, free

_PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def call(reader: Reader, step: Step) -> list[Value]:
    """A function of the same operands: jit, remat, custom derivatives."""
    program = next(step.settings[name] for name in _PROGRAMS if name in step.settings)
    return reader.run(program, step.operands, step.needed)


def scan(reader: Reader, step: Step) -> list[Value]:
    """A loop over the leading axis of some operands, with a carry.

    Which operands are constant, carried or scanned follows from their ranks: scanned ones have one axis less inside.
    """
    program = step.settings["jaxpr"]
    body = open_program(program)
    same_rank = [len(shape) == len(out.aval.shape) for shape, out in zip(step.shapes, body.outvars, strict=True)]
    carried = sum(same_rank)
    constants = sum(len(v.axes) == len(i.aval.shape) for v, i in zip(step.operands, body.invars, strict=True)) - carried
    fixed, carry, scanned = _cut(step.operands, constants, carried)
    for value in scanned:
        if value.kind == Kind.PARAMETER:
            reader.refuse(value, STACKED)
    steps = scanned[0].axes[0] if scanned else free(0)
    scanned = [dataclasses.replace(v, axes=v.axes[1:], origin=v.origin[1:], parameter=None, stem=-1) for v in scanned]
    scanned = [reader.new(value) for value in scanned]
    # Zeros at the start look like constants: what is carried is an activation. Its labels are those of every iteration.
    reader.join([*carry, Value((), Kind.ACTIVATION)])
    carry = [reader.new(Value(value.axes, Kind.ACTIVATION, value.reduced)) for value in carry]
    needed = (True,) * carried + step.needed[carried:]
    while True:
        results = reader.run(program, [*fixed, *carry, *scanned], needed)
        unions = reader.labels.unions
        new = [_united(reader, old, result) for old, result in zip(carry, results[:carried], strict=True)]
        if unions == reader.labels.unions and all(_covers(old, now) for old, now in zip(carry, new, strict=True)):
            break
        carry = new
    outputs = [Value(value.axes, Kind.ACTIVATION, value.reduced) for value in new]
    length = [reader.blur(steps, shape[0]) for shape in step.shapes[carried:]]
    collected = zip(length, results[carried:], strict=True)
    outputs += [Value((labels, *value.axes), Kind.ACTIVATION, value.reduced) for labels, value in collected]
    return outputs


def _cut(operands: list[Value], constants: int, carried: int) -> tuple[list[Value], list[Value], list[Value]]:
    return operands[:constants], operands[constants : constants + carried], operands[constants + carried :]


def _united(reader: Reader, old: Value, result: Value) -> Value:
    axes = tuple(reader.unify(pair) for pair in zip(old.axes, result.axes, strict=True))
    return dataclasses.replace(old, axes=axes, reduced=old.reduced | result.reduced)


def _covers(old: Value, new: Value) -> bool:
    """Whether another iteration would change nothing."""
    free_before = sum(int((labels < INPUT).sum()) for labels in old.axes)
    free_now = sum(int((labels < INPUT).sum()) for labels in new.axes)
    return free_before == free_now and old.reduced == new.reduced


def refuse_branches(reader: Reader, step: Step) -> list[Value]:
    """Branches and loops of unknown length."""
    return reader.give_up(step, f"is used inside {step.name}, which is not understood")


CALLS: dict[str, Rule] = {
    **dict.fromkeys(
        ("jit", "pjit", "closed_call", "core_call", "call", "eval_jaxpr", "remat", "remat2", "checkpoint"), call
    ),
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"), call),
    "scan": scan,
    "cond": refuse_branches,
    "while": refuse_branches,
}
