"""The traced program of a model, with the places where features could be captured as further outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
from flax.linen.module import InterceptorContext
from jax.core import Tracer

from gxd_jax.checks import check_function
from gxd_jax.observing.sites import CONSUMERS, Site, current_trace, listening
from gxd_jax.trees import leaves_by_path
from gxd_jax.types import Params, Path


@dataclasses.dataclass(frozen=True)
class Program:
    """A traced model.

    Attributes:
        traced: What `jax.make_jaxpr` returns.
        parameters: The initial parameters, in the order of the program's first inputs.
        inputs: Number of further inputs.
        selected: For each output whether the caller asked for it.
        sites: Sites (names of taps, paths of Flax modules) whose values are the last outputs, in this order.
    """

    traced: Any
    parameters: dict[Path, Any]
    inputs: int
    selected: tuple[bool, ...]
    sites: tuple[Site, ...]


class _Sites:
    """A set that contains every name: all taps are recorded, since the unit layers are not known yet."""

    def __contains__(self, name: object) -> bool:
        return True


class _SiteRecorder:
    """Collects the values of all taps and the inputs of all Flax modules that are known to be consumers."""

    taps = _Sites()

    def __init__(self):
        self.captured: dict[Site, Any] = {}
        self._unfit: set[Site] = set()
        self._trace = current_trace()

    def record(self, site: Site, values: Any) -> Any:
        if site in self.captured or site in self._unfit or current_trace() != self._trace:
            self._unfit.add(site)
            self.captured.pop(site, None)
        else:
            self.captured[site] = values
        return values

    def intercept(self, call: Callable, args: tuple, kwargs: dict, context: InterceptorContext) -> Any:
        if context.method_name == "__call__" and isinstance(context.module, CONSUMERS):
            self.record(tuple(context.module.path), args[0] if args else kwargs["inputs"])
        return call(*args, **kwargs)


def trace_program(
    apply: Callable[..., Any], params: Params, example_inputs: tuple, outputs: Callable[[Any], Any] | None
) -> Program:
    """Traces a model on the shapes of its parameters and inputs; nothing is computed.

    Raises:
        TypeError: If `apply` or `outputs` is no function, or a parameter is not an array with values.
    """
    check_function("apply", apply)
    if outputs is not None:
        check_function("outputs", outputs)
    parameters = leaves_by_path(params)
    for path, leaf in parameters.items():
        if isinstance(leaf, (Tracer, jax.ShapeDtypeStruct)) or not hasattr(leaf, "shape"):
            raise TypeError(f"parameter {path} must be an array with its initial values, got {leaf!r}")
    sites: list[Site] = []
    selected: list[bool] = []

    def run(params, inputs):
        recorder = _SiteRecorder()
        with listening(recorder):
            everything = apply(params, *inputs)
        chosen = everything if outputs is None else outputs(everything)
        wanted = {id(leaf) for leaf in jax.tree.leaves(chosen)}
        others = [leaf for leaf in jax.tree.leaves(everything) if id(leaf) not in wanted]
        sites[:] = recorder.captured
        selected[:] = [True] * len(jax.tree.leaves(chosen)) + [False] * len(others)
        return chosen, others, list(recorder.captured.values())

    traced = jax.make_jaxpr(run)(params, example_inputs)
    inputs = len(jax.tree.leaves(example_inputs))
    return Program(traced, parameters, inputs, tuple(selected), tuple(sites))


def open_program(program: Any) -> Any:
    """Returns a (sub-)program without its constants; some releases of JAX have one class for both."""
    return getattr(program, "jaxpr", program)


def live_equations(program: Any, needed: tuple[bool, ...]) -> list[Any]:
    """Returns the equations on which the needed outputs depend, in order."""
    wanted = {out for out, need in zip(program.outvars, needed, strict=True) if need and not is_literal(out)}
    live = []
    for equation in reversed(program.eqns):
        if any(out in wanted for out in equation.outvars):
            live.append(equation)
            wanted.update(v for v in equation.invars if not is_literal(v))
    return live[::-1]


def is_literal(variable: Any) -> bool:
    """Whether an operand is a number in the program."""
    return isinstance(variable, jax.extend.core.Literal)
