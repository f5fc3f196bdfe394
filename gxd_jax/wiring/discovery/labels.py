"""Labels: which indices of which axes carry the same hidden unit.

Every index of every axis of every array has a label. Two indices with equal labels belong to the same unit: the unit's
parameters influence only entries that have its label on some axis. `FREE` means that nothing is known of an index
(constants), `INPUT` that it belongs to the data (examples, positions, input features).

When an axis is split in two, [h * d] -> [h, d], both parts get labels; the label of an index of the whole axis is then
a composite of two of them. Merging the parts again, also elsewhere, gives the same label.
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from collections.abc import Iterable, Sequence

import numpy as np

FREE = -1
INPUT = 0


class Labels:
    """A union-find of labels with composites."""

    def __init__(self):
        self._parent = np.zeros(1024, dtype=np.int64)
        self._count = 1
        self._parts: dict[int, tuple[int, int]] = {}
        self._composites: dict[tuple[int, ...], int] = {}
        self.unions = 0

    def fresh(self, count: int) -> np.ndarray:
        """Returns new labels."""
        labels = np.arange(self._count, self._count + count)
        self._count += count
        if self._count > self._parent.size:
            self._parent = np.resize(self._parent, 2 * self._count)
        self._parent[labels] = labels
        return labels

    def roots(self, labels: np.ndarray) -> np.ndarray:
        """Returns one label for each class of equal labels; FREE stays FREE."""
        labels = np.asarray(labels)
        known = np.maximum(labels, 0)
        while True:
            parents = self._parent[known]
            if np.array_equal(parents, known):
                return np.where(labels >= 0, known, labels)
            known = parents

    def unit_roots(self, labels: np.ndarray) -> np.ndarray:
        """Returns the distinct classes among labels, without FREE and INPUT."""
        roots = np.unique(self.roots(labels))
        return roots[roots > INPUT]

    def unify(self, first: np.ndarray, second: np.ndarray, refine: bool = True) -> np.ndarray:
        """Makes the labels of two axes equal, index by index.

        FREE is equal to everything. With `refine`, where one axis repeats a label at indices that have different labels
        on the other axis, those become composites of it (a mean of each group of channels, repeated for the channels).
        A part and its whole are not made equal; the whole is returned for both.
        """
        if refine:
            self._refine(first, second)
            self._refine(second, first)
        united = np.where(first >= 0, first, second)
        roots, others = self.roots(first), self.roots(second)
        for place in np.flatnonzero((roots >= 0) & (others >= 0) & (roots != others)):
            one, other = int(roots[place]), int(others[place])
            if self._is_part(one, other):
                united[place] = other
            elif not self._is_part(other, one):
                self._link(one, other)
        return united

    def _refine(self, coarse: np.ndarray, fine: np.ndarray) -> None:
        """Makes labels at the indices of a repeated label composites of it."""
        roots, others = self.roots(coarse), self.roots(fine)
        if np.unique(roots).size == roots.size:
            return
        beside: dict[int, dict[int, None]] = {}
        for root, other in zip(roots.tolist(), others.tolist(), strict=True):
            if root > INPUT and other > INPUT and root != other:
                beside.setdefault(root, {}).setdefault(other)
        fine_once = collections.Counter(label for labels in beside.values() for label in labels)
        repeated = {
            root: list(labels)
            for root, labels in beside.items()
            if len(labels) > 1 and all(fine_once[label] == 1 and label not in self._parts for label in labels)
        }
        ranks = self.fresh(max(map(len, repeated.values()), default=0))
        for root, labels in repeated.items():
            for rank, label in zip(ranks.tolist(), labels, strict=False):
                if not self._is_part(label, root):
                    self._define(label, (root, rank))

    def _is_part(self, one: int, other: int) -> bool:
        return bool(self._parts) and one in self.closure([other])

    def _link(self, one: int, other: int) -> None:
        one, other = sorted(self.roots(np.array([one, other])).tolist())
        if one == other:
            return
        self.unions += 1
        self._parent[other] = one
        if other in self._parts:
            parts = self._parts.pop(other)
            mine = (INPUT, INPUT) if one == INPUT else self._parts.setdefault(one, parts)
            for part, its in zip(mine, parts, strict=True):
                self._link(part, its)

    def settle(self) -> None:
        """Makes composites of equal parts equal; to be called before the program is read again."""
        composites = self._composites.values()
        self._composites = {}
        for label in composites:
            root = self._root(label)
            known = self._composites.setdefault(self._atoms(root), root)
            self._link(known, root)

    def _root(self, label: int) -> int:
        return int(self.roots(np.array([label]))[0])

    def _atoms(self, label: int) -> tuple[int, ...]:
        """Returns the parts of a class that have no parts, sorted: their order and nesting do not matter."""
        atoms: list[int] = []
        todo, seen = [self._root(label)], set()
        while todo:
            root = todo.pop()
            if root in self._parts and root not in seen:
                seen.add(root)
                todo.extend(map(self._root, self._parts[root]))
            else:
                atoms.append(root)
        return tuple(sorted(atoms))

    def _composite(self, parts: Sequence[int]) -> int:
        """Returns the label of an index that belongs to several units at once, one of each part."""
        if len(parts) == 1:
            return parts[0]
        atoms = tuple(sorted(atom for part in parts for atom in self._atoms(part)))
        if atoms not in self._composites:
            (label,) = self.fresh(1).tolist()
            self._composites[atoms] = label
            self._parts[label] = (parts[0], self._composite(parts[1:]))
        return self._root(self._composites[atoms])

    def _define(self, label: int, parts: tuple[int, int]) -> None:
        """Makes a class that has no parts a composite."""
        self._parts[label] = parts
        self._composites.setdefault(self._atoms(label), label)

    def merge(self, axes: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the labels of the axis into which several neighbouring axes are flattened."""
        if len(axes) == 1:
            return axes[0]
        right = self.merge(axes[1:])
        left, right = np.repeat(axes[0], right.size), np.tile(right, axes[0].size)
        left_roots, right_roots = self.roots(left), self.roots(right)
        left_unit, right_unit = left_roots > INPUT, right_roots > INPUT
        merged = np.where(left_unit, left, np.where(right_unit, right, np.maximum(left, right)))
        for place in np.flatnonzero(left_unit & right_unit & (left_roots != right_roots)):
            merged[place] = self._composite((int(left_roots[place]), int(right_roots[place])))
        return merged

    def split(self, labels: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray] | None:
        """Returns the labels of the axes into which an axis is split; None where that is not understood."""
        if len(sizes) == 1:
            return [labels]
        halves = self._halve(labels, sizes[0], labels.size // sizes[0])
        tail = None if halves is None else self.split(halves[1], sizes[1:])
        return None if halves is None or tail is None else [halves[0], *tail]

    def _halve(self, labels: np.ndarray, first: int, rest: int) -> tuple[np.ndarray, np.ndarray] | None:
        roots = self.roots(labels).reshape(first, rest)
        if (roots <= INPUT).all():
            return np.full(first, roots.max()), np.full(rest, roots.max())
        if (roots == roots[:1]).all():
            return np.full(first, FREE), labels[:rest]
        if (roots == roots[:, :1]).all():
            return labels[::rest], np.full(rest, FREE)
        if roots.min() <= INPUT:
            return None
        flat = roots.ravel().tolist()
        if any(label in self._parts for label in flat):
            return self._halve_composites(roots)
        if len(set(flat)) < len(flat):
            return None
        left, right = self.fresh(first), self.fresh(rest)
        for place, label in enumerate(flat):
            self._define(label, (int(left[place // rest]), int(right[place % rest])))
        return left, right

    def _halve_composites(self, roots: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Splits composites into the part that a row shares and the part that a column shares."""
        atoms = [[collections.Counter(self._atoms(label)) for label in row] for row in roots.tolist()]
        rows = [functools.reduce(operator.and_, row) for row in atoms]
        columns = [functools.reduce(operator.and_, column) for column in zip(*atoms, strict=True)]
        fits = all(
            row + column == atoms[i][j] and row and column
            for i, row in enumerate(rows)
            for j, column in enumerate(columns)
        )
        if not fits:
            return None
        left, right = ([self._composite(sorted(some.elements())) for some in half] for half in (rows, columns))
        return np.array(left), np.array(right)

    def closure(self, roots: Iterable[int]) -> set[int]:
        """Returns classes together with the classes of their parts, single ones and several at once."""
        found = {int(root) for root in roots if root > INPUT}
        for root in list(found) if self._parts else ():
            atoms = self._atoms(root)
            for count in range(1, len(atoms)):
                for some in itertools.combinations(atoms, count):
                    label = some[0] if count == 1 else self._composites.get(some)
                    if label is not None and label > INPUT:
                        found.add(self._root(label))
        return found
