"""Unit layers as a table to read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gxd_jax.observing import sites
from gxd_jax.tables import aligned
from gxd_jax.trees import joined
from gxd_jax.types import Path
from gxd_jax.wiring.layers import ParamAxis, UnitLayer


def describe(units: Sequence[UnitLayer]) -> str:
    """Returns a table of unit layers, and of what `find_units` left out with the reasons.

    A parameter axis is shown as path[axis], with "x P" where P positions belong to each unit.

    Args:
        units: Unit layers, from `find_units` or written by hand.
    """
    rows = [["layer", "units", "incoming", "own = reset value", "outgoing", "outgoing bias", "features", "coupled"]]
    coupled, untapped = getattr(units, "coupled", None), getattr(units, "untapped", ())
    for layer in units:
        cells = [
            [layer.name],
            [str(layer.size)],
            [_shown(axis) for axis in layer.incoming],
            [f"{_shown(axis)} = {value:g}" for axis, value in layer.own],
            [_shown(axis) for axis in layer.outgoing],
            [_shown_bias(bias) for bias in layer.outgoing_bias],
            _shown_features(layer, layer.name in untapped),
            ["?" if coupled is None else "by a norm" if layer.name in coupled else "no"],
        ]
        height = max(map(len, cells))
        rows += [[cell[line] if line < len(cell) else "" for cell in cells] for line in range(height)]
    text = aligned(rows)
    left_out = getattr(units, "left_out", [])
    if left_out:
        rows = [[f"{joined(entry.parameter)}[{entry.axis}]", entry.reason] for entry in left_out]
        text += "\n\nleft out:\n" + aligned(rows)
    return text


def _shown(param_axis: ParamAxis) -> str:
    positions = "" if param_axis.index is None else f" x {np.shape(param_axis.index)[1]}"
    return f"{joined(param_axis.path)}[{param_axis.axis}]{positions}"


def _shown_bias(bias: Path | ParamAxis | None) -> str:
    return "none" if bias is None else joined(bias.path if isinstance(bias, ParamAxis) else bias)


def _shown_features(layer: UnitLayer, must_tap: bool) -> list[str]:
    if must_tap:
        return [f"needs gxd_jax.tap({layer.feature!r}, ...)"]
    if layer.feature is not None:
        return [f"tap {layer.feature!r}"]
    return [f"input of {joined(site)}" for site in sites.consumer_sites(layer)]
