"""How saturated units are, whatever their activation function, found by changing their incoming weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from gxd_jax.batches import unit_means
from gxd_jax.observing.observation import capture
from gxd_jax.trees import leaves_by_path, replace_leaves
from gxd_jax.types import Params
from gxd_jax.wiring import axes
from gxd_jax.wiring.layers import UnitLayer

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

_REST, _STRONGER = 0.0, 2.0


def saturated_share(
    apply: Callable[[Params, Any], Any],
    params: Params,
    units: Sequence[UnitLayer],
    inputs: Any,
    *,
    epsilon: float = 0.05,
) -> dict[str, Float[Array, " U"]]:
    """On which share of the examples a unit is saturated, found by intervention, whatever its activation function.

    The incoming weights and own parameters (bias, norm scale) of a unit are doubled, and set to 0. It is saturated on
    an example (and position) where

        abs(h(doubled) - h) <= epsilon x abs(h - h(0)),  h other than h(0):

    doubling the pre-activation changes the output by almost nothing, compared with the pre-activation itself. For tanh
    that is abs(h) above 1 / (1 + epsilon), about within epsilon of a bound as in `saturated_units`; for sigmoid about
    within epsilon / 2. A relu unit is never saturated: its output is 0 or linear.

    Half of a layer's units are doubled while the others are at 0, then the other half, so that a norm between weights
    and activation (layer, RMS, group norm) does not undo the doubling. Two cases give wrong results: with a norm
    *after* the activation, whose outputs change with all of its units, no unit is found saturated; a batch norm without
    scale before the activation undoes every doubling, and all units are.

    Args:
        apply: (params, inputs) -> outputs.
        params: The parameters.
        units: The unit layers.
        inputs: The probe set.
        epsilon: Relative change that counts as none.

    Returns:
        Shares [U] by layer, in [0, 1]. Costs two runs of the network a layer, one after the other.

    Raises:
        ValueError: As `capture`.
    """
    leaves = leaves_by_path(params)
    only_features = functools.partial(capture, outputs=lambda everything: ())
    _, features = only_features(apply, params, units, inputs)

    def run(index: Int[Array, ""], parity: int) -> dict[str, Array]:
        scaled = leaves
        for i, layer in enumerate(units):
            gains = jnp.where(jnp.arange(layer.size) % 2 == parity, _STRONGER, _REST)
            scaled = axes.scale_units(layer, scaled, jnp.where(i == index, gains, 1.0))
        return only_features(apply, replace_leaves(params, scaled), units, inputs)[1]

    def shares(index: Int[Array, ""]) -> dict[str, Array]:
        even, odd = run(index, 0), run(index, 1)  # which of the units are doubled
        result = {}
        for name, values in features.items():
            is_even = jnp.arange(values.shape[-1]) % 2 == 0
            doubled = jnp.where(is_even, even[name], odd[name])
            at_rest = jnp.where(is_even, odd[name], even[name])
            result[name] = _share(values, doubled, at_rest, epsilon)
        return result

    rows = jax.lax.map(shares, jnp.arange(len(units)))  # [layer whose units were changed, U]
    return {layer.name: rows[layer.name][i] for i, layer in enumerate(units)}


def _share(values: Float[Array, "B *P U"], doubled: Array, at_rest: Array, epsilon: float) -> Float[Array, " U"]:
    drive = jnp.abs(values - at_rest)
    return unit_means((jnp.abs(doubled - values) <= epsilon * drive) & (drive > 0))
