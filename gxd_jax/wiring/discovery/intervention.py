"""What `verify_units` does to a model: it draws, zeroes and scales the weights and features of some units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gxd_jax.batches import broadcast_to_rank
from gxd_jax.observing import sites
from gxd_jax.trees import leaves_by_path, replace_leaves
from gxd_jax.types import Params, Path
from gxd_jax.wiring.layers import ParamAxis, UnitLayer

if TYPE_CHECKING:
    from jaxtyping import Array, Bool

TOLERANCE = 1e-4
"""Relative difference, in float32, below which two results count as equal."""


Leaves = dict[Path, np.ndarray]


class Model:
    """A model with inputs, run on changed parameters.

    Attributes:
        sites: Shapes of the values at the sites of the watched layers.
    """

    def __init__(self, apply: Callable[..., Any], params: Params, inputs: tuple, outputs: Callable[[Any], Any] | None):
        self._apply, self._params, self._inputs = apply, params, inputs
        self._select = outputs or (lambda everything: everything)
        self._run = jax.jit(apply)
        self._run_watched: Callable | None = None
        self.sites: dict[Any, jax.ShapeDtypeStruct] = {}

    def outputs(self, leaves: Leaves) -> np.ndarray:
        """Returns all outputs as one vector."""
        flat = _flat(self._select(self._run(replace_leaves(self._params, leaves), *self._inputs)))
        if not flat.size:
            raise ValueError("the outputs are empty: give inputs with several examples")
        return flat

    def watch(self, units: Sequence[UnitLayer], leaves: Leaves) -> None:
        """Captures the features of these layers from now on.

        Raises:
            ValueError: If some cannot be captured.
        """
        places: list[sites.Site] = []

        # Lists go in and come out: names of taps and paths of modules cannot be sorted together as keys of a pytree.
        def run(leaves, factors):
            given = dict(zip(self.sites, factors, strict=True))
            with sites.recording(units, given, _Scaler) as recorder:
                outputs = self._apply(replace_leaves(self._params, leaves), *self._inputs)
            places[:] = recorder.captured
            return self._select(outputs), list(recorder.captured.values())

        self.sites = {}
        shapes = jax.eval_shape(run, leaves, [])[1]
        self.sites = dict(zip(places, shapes, strict=True))
        zeros: dict[Any, Any] = {site: np.zeros(values.shape) for site, values in self.sites.items()}
        sites.features_by_layer(units, leaves, self.sites, {}, zeros)
        self._run_watched = jax.jit(run)

    def watched(self, leaves: Leaves, factors: dict[Any, np.ndarray]) -> tuple[np.ndarray, dict[Any, Any]]:
        """Returns all outputs as one vector, and the values at the sites, which are multiplied by `factors`."""
        ones = {site: np.ones(values.shape[-1], np.float32) for site, values in self.sites.items()}
        if self._run_watched is None:
            raise ValueError("watch some layers first")
        outputs, captured = self._run_watched(leaves, list({**ones, **factors}.values()))
        return _flat(outputs), dict(zip(self.sites, map(np.asarray, captured), strict=True))

    def features(self, leaves: Leaves, layer: UnitLayer) -> np.ndarray:
        """Returns the features of a layer [B, ..., U]."""
        _, captured = self.watched(leaves, {})
        return np.asarray(sites.features_by_layer([layer], leaves, self.sites, {}, captured)[layer.name])

    def factors(self, layer: UnitLayer, mask: Bool[np.ndarray, " U"], factor: float) -> dict[Any, np.ndarray]:
        """Returns for every site of a layer the factors that multiply the features of some units."""
        tap = layer.feature or layer.name
        if tap in self.sites:
            places = [(tap, layer.outgoing[0])]
        else:
            places = list(zip(sites.consumer_sites(layer), layer.outgoing, strict=True))
        factors = {}
        for site, axis in places:
            width = self.sites[site].shape[-1]
            axis = axis._replace(index=None) if width == layer.size else axis
            mine = _entries_of(axis._replace(axis=0), mask, (width,))
            factors[site] = np.where(mine, np.float32(factor), np.float32(1))
        return factors


class Draw:
    """Parameters with a little noise, so that no weight is hidden by zeros or ones, and changes to them."""

    def __init__(self, params: Params, rng: np.random.Generator):
        self._rng = rng
        self.leaves = {path: self._moved(np.asarray(leaf)) for path, leaf in leaves_by_path(params).items()}

    def _moved(self, leaf: np.ndarray) -> np.ndarray:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        return leaf + (0.1 * _spread(leaf) * self._rng.normal(size=leaf.shape)).astype(leaf.dtype)

    def some(self, layer: UnitLayer) -> Bool[np.ndarray, " U"]:
        """Chooses about half of a layer's units."""
        mask = np.zeros(layer.size, bool)
        mask[self._rng.permutation(layer.size)[: max(1, layer.size // 2)]] = True
        return mask

    def multiplied(self, axes: Iterable[ParamAxis], mask: Bool[np.ndarray, " U"], factor: float) -> Leaves:
        """Returns the parameters with the slices of some units multiplied."""
        changed = dict(self.leaves)
        for axis in axes:
            leaf = changed[axis.path]
            where = _entries_of(axis, mask, leaf.shape)
            changed[axis.path] = np.where(where, (factor * leaf).astype(leaf.dtype), leaf)
        return changed

    def redrawn(
        self, leaves: Leaves, axes: Iterable[ParamAxis], mask: Bool[np.ndarray, " U"], besides: Iterable[ParamAxis] = ()
    ) -> Leaves:
        """Returns `leaves` with the slices of some units re-initialised, except for entries of `besides`."""
        changed = dict(leaves)
        for axis in axes:
            leaf = leaves[axis.path]
            noise = self._rng.normal(size=leaf.shape)
            # Parameters with one entry a unit may have to keep their sign, as variances do.
            fresh = (leaf * np.exp(noise) if leaf.ndim == 1 else _spread(leaf) * noise).astype(leaf.dtype)
            where = _entries_of(axis, mask, leaf.shape)
            for kept in besides:
                if kept.path == axis.path:
                    where = where & ~_entries_of(kept, mask, leaf.shape)
            changed[axis.path] = np.where(where, fresh, changed[axis.path])
        return changed


class _Scaler(sites.Recorder):
    """Multiplies the value at a site, instead of adding to it."""

    def record(self, site: sites.Site, values: Array) -> Array:
        factors, self.zeros = self.zeros or {}, None
        values = super().record(site, values)
        self.zeros = factors
        if site not in factors:
            return values
        return values * broadcast_to_rank(factors[site].astype(values.dtype), values.ndim)


def _entries_of(param_axis: ParamAxis, mask: Bool[np.ndarray, " U"], shape: tuple[int, ...]) -> np.ndarray:
    """Returns which entries of a parameter belong to some units, as a mask that broadcasts against it."""
    axis = param_axis.axis % len(shape)
    entries = np.zeros(shape[axis], bool)
    entries[np.flatnonzero(mask) if param_axis.index is None else np.asarray(param_axis.index)[mask].ravel()] = True
    return entries.reshape([-1 if i == axis else 1 for i in range(len(shape))])


def _spread(leaf: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(leaf.astype(np.float32))))) or 1.0


def _flat(outputs: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(outputs)])


def differ(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two results differ by more than rounding."""
    finite = np.isfinite(first)
    if not np.array_equal(finite, np.isfinite(second)):
        return True
    first, second = first[finite], second[finite]
    scale = max(np.abs(first).max(initial=0.0), np.abs(second).max(initial=0.0))
    return bool(np.abs(first - second).max(initial=0.0) > TOLERANCE * scale)
