"""Reading a program: one pass over its equations, in which axes are unified and the use of parameters is noted."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gxd_jax.wiring.discovery.labels import INPUT, Labels
from gxd_jax.wiring.discovery.tracing import is_literal, live_equations, open_program
from gxd_jax.wiring.discovery.values import Kind, Place, Step, Value, constant, free

Rule = Callable[["Reader", Step], list[Value]]

NOT_UNDERSTOOD = "primitive {} is not understood"


@dataclasses.dataclass(frozen=True)
class Reading:
    """A kernel that reads an activation along one of its axes.

    Attributes:
        place: The kernel and its axis.
        feeds: The other axes of the kernel, which become axes of the product.
        stem: The `Value.stem` of what is read.
    """

    place: Place
    feeds: frozenset[Place]
    stem: int


class Reader:
    """Reads a program once.

    Attributes:
        labels: The labels. The next reader goes on with them.
        roles: Parameter axis -> how it is used: "read" (an activation's units are contracted with it), "feed" (the
            other axis of such a kernel), "unit" (one entry a unit), "looked up".
        fed: Parameter axes in the order in which they first feed or are looked up.
        readings: Every kernel that reads an activation.
        biases: Product -> index of the parameter that is its bias.
        products: Product -> the axes of its kernel.
        refused: Class of labels -> why its units cannot be replaced.
        coupled: Classes that share statistics with their siblings (norms).
        nonlinear: Classes that pass something non-linear.
    """

    def __init__(self, labels: Labels, rules: dict[str, Rule]):
        self.labels = labels
        self.roles: dict[Place, set[str]] = collections.defaultdict(set)
        self.fed: dict[Place, None] = {}
        self.readings: list[Reading] = []
        self.biases: dict[int, int | None] = {}
        self.products: list[frozenset[Place]] = []
        self.refused: dict[int, str] = {}
        self.coupled: set[int] = set()
        self.nonlinear: set[int] = set()
        self._rules = rules
        self._groups: list[np.ndarray] = []
        self._group_numbers: dict[bytes, int] = {}
        self._stems = itertools.count()

    # --- Running ---------------------------------------------------------------------------------------------------

    def run(self, program: Any, operands: Sequence[Value], needed: tuple[bool, ...]) -> list[Value]:
        """Reads a (sub-)program and returns its results; those that are not needed are returned as constants."""
        program = open_program(program)
        equations = live_equations(program, needed)
        known = dict(zip(program.invars, operands, strict=True))
        known |= {variable: constant(variable.aval.shape) for variable in getattr(program, "constvars", ())}
        uses = collections.Counter(v for equation in equations for v in equation.invars if not is_literal(v))
        uses.update(out for out, need in zip(program.outvars, needed, strict=True) if need and not is_literal(out))

        def look_up(variable):
            if is_literal(variable) or variable not in known:
                return constant(variable.aval.shape)
            value = known[variable]
            # A bias that is added to one of several copies is not the bias of the product.
            return value if uses[variable] <= 1 else dataclasses.replace(value, products=frozenset())

        live = {v for equation in equations for v in equation.invars if not is_literal(v)}
        live.update(out for out in program.outvars if not is_literal(out))
        for equation in equations:
            step = Step(
                name=equation.primitive.name,
                settings=equation.params,
                operands=[look_up(variable) for variable in equation.invars],
                shapes=[tuple(variable.aval.shape) for variable in equation.outvars],
                needed=tuple(variable in live for variable in equation.outvars),
            )
            known.update(zip(equation.outvars, self._results(step), strict=True))
        results = [look_up(variable) for variable in program.outvars]
        return [value if need else constant(value.shape) for value, need in zip(results, needed, strict=True)]

    def _results(self, step: Step) -> list[Value]:
        if all(value.kind == Kind.CONSTANT for value in step.operands):
            return [constant(shape) for shape in step.shapes]
        reason = NOT_UNDERSTOOD.format(step.name)
        if step.name not in self._rules:
            return self.give_up(step, reason)
        try:
            results = self._rules[step.name](self, step)
            fits = [value.shape for value in results] == step.shapes
        except Exception:  # The settings of primitives change between releases: what is not understood is refused.
            fits = False
        return [self.new(value) for value in results] if fits else self.give_up(step, reason)

    def give_up(self, step: Step, reason: str) -> list[Value]:
        """Refuses all units that an equation depends on; its results have no units."""
        for value in step.operands:
            self.refuse(value, reason)
        kind = max(value.kind for value in step.operands)
        return [dataclasses.replace(constant(shape), kind=kind) for shape in step.shapes]

    def new(self, value: Value) -> Value:
        """Gives a value a stem, and determines the units on which it depends as a whole."""
        if value.kind == Kind.ACTIVATION and value.stem < 0:
            value = dataclasses.replace(value, stem=next(self._stems))
        return self._meet(value) if value.reduced else value

    def _meet(self, value: Value) -> Value:
        """Marks units as coupled where their reduced axis is combined with the axis itself: a norm, a softmax."""
        present = self.labels.closure(itertools.chain.from_iterable(self.labels.unit_roots(a) for a in value.axes))
        met = {group for group in value.reduced if not present.isdisjoint(self.closure_of(group))}
        for group in met:
            if value.kind == Kind.PARAMETER:
                self.refuse_labels(self._groups[group], "is transformed before use (reparametrised)")
            else:
                self.coupled.update(self.closure_of(group))
        return dataclasses.replace(value, reduced=value.reduced - met)

    # --- Notes -----------------------------------------------------------------------------------------------------

    def reduce(self, *axes: np.ndarray) -> frozenset[int]:
        """Returns the groups of units on which an array depends as a whole after a reduction of these axes."""
        groups = set()
        for labels in axes:
            roots = self.labels.unit_roots(labels)
            if roots.size:
                number = self._group_numbers.setdefault(roots.tobytes(), len(self._groups))
                if number == len(self._groups):
                    self._groups.append(roots)
                groups.add(number)
        return frozenset(groups)

    def closure_of(self, group: int) -> set[int]:
        """Returns the classes of a group, with those of their parts."""
        return self.labels.closure(self._groups[group])

    def refuse(self, value: Value, reason: str) -> None:
        """Notes that no unit on which an array depends can be replaced."""
        for labels in (*value.axes, *(self._groups[group] for group in value.reduced)):
            self.refuse_labels(labels, reason)

    def refuse_labels(self, labels: np.ndarray, reason: str) -> None:
        """Notes that none of these units can be replaced."""
        for root in self.labels.closure(self.labels.unit_roots(labels)):
            self.refused.setdefault(root, reason)

    def mark_nonlinear(self, value: Value) -> None:
        """Marks the units of an activation as non-linear."""
        for labels in value.axes:
            self.nonlinear.update(self.labels.closure(self.labels.unit_roots(labels)))

    def note(self, places: Iterable[Place], role: str) -> None:
        """Notes how parameter axes are used."""
        for place in places:
            self.roles[place].add(role)
            if role in ("feed", "looked up"):
                self.fed.setdefault(place)

    def join(self, operands: Sequence[Value], role: str = "unit") -> Kind:
        """Notes the parameters that act on activations entry by entry, and returns the kind of the result."""
        kind = max(value.kind for value in operands)
        if kind == Kind.ACTIVATION:
            for value in operands:
                for places in value.origin:
                    self.note(places, role)
        return kind

    def unify(self, axes: Sequence[np.ndarray], refine: bool = True) -> np.ndarray:
        """Makes the labels of axes of equal length equal, as `Labels.unify`."""
        result = free(axes[0].size)
        for labels in axes:
            result = self.labels.unify(result, labels, refine)
        return result

    def blur(self, labels: np.ndarray, size: int) -> np.ndarray:
        """Returns labels for an axis whose indices were mixed."""
        return np.full(size, INPUT if (self.labels.roots(labels) == INPUT).any() else -1)
