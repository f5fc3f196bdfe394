"""A check-up as a figure. Nothing here is traced: the reports hold NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gxd_jax.checkup.layer_report import STATES, LayerReport, usefulness

if TYPE_CHECKING:
    from jaxtyping import Array
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours of units by the gravest of their states (the darker, the graver), of all other units, and of the examples on
# which an output is 0, which is no fault in itself.
_COLOURS = dict(zip(STATES, ("#1a1a1a", "#8e24aa", "#e65100", "#fbc02d"), strict=True))
_HEALTHY = "#9ecae1"
_SILENT = "#dddddd"
_PANEL_INCHES = (3.1, 2.7)
_GRID_POINTS = 105


def figure(layers: Mapping[str, LayerReport]) -> Figure:
    """Draws the layers of one network, a row a layer.

    The panels: the state of each unit; the share of examples on which it is saturated, responsive, or 0; activity;
    ranks; magnitudes of incoming and outgoing weights; age and utility, or contribution without a resetting member.

    Args:
        layers: Layer name -> its report, NumPy arrays.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ImportError("the figure of a check-up needs matplotlib: pip install matplotlib") from error
    shape = next(iter(layers.values())).dead.shape
    if len(shape) > 1:
        raise ValueError(
            f"the report is one of several networks, masks have shape {shape}: choose one, "
            "jax.tree.map(lambda values: values[0], report)"
        )
    panels = (_draw_states, _draw_responses, _draw_activity, _draw_ranks, _draw_weights, _draw_usefulness)
    size = (_PANEL_INCHES[0] * len(panels), _PANEL_INCHES[1] * len(layers) + 0.5)
    drawn = Figure(figsize=size, layout="constrained")
    axes = drawn.subplots(len(layers), len(panels), squeeze=False)
    for (name, layer), row in zip(layers.items(), axes, strict=True):
        colours = _colours_of(layer)
        for draw, ax in zip(panels, row, strict=True):
            draw(ax, name, layer, colours)
    colours = {"healthy, responsive": _HEALTHY, **dict(reversed(_COLOURS.items())), "output 0": _SILENT}
    patches = [Patch(color=colour, label=state.replace("_", " ")) for state, colour in colours.items()]
    drawn.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
    return drawn


def _colours_of(layer: LayerReport) -> np.ndarray:
    """Returns each unit's colour, that of the gravest of its states."""
    colours = np.full(layer.dead.shape, _HEALTHY, object)
    for state in reversed(STATES):
        colours[getattr(layer, state)] = _COLOURS[state]
    return colours


def _draw_states(ax: Axes, name: str, layer: LayerReport, colours: np.ndarray) -> None:
    columns = math.ceil(math.sqrt(colours.size))
    places = np.arange(colours.size)
    ax.scatter(places % columns, places // columns, c=list(colours), s=(_GRID_POINTS / columns) ** 2, marker="s")
    ax.set(xlim=(-0.7, columns - 0.3), ylim=(columns - 0.3, -0.7), aspect="equal")
    ax.axis("off")
    worn = int((colours != _HEALTHY).sum())
    ax.set_title(f"{name}: {worn} of {colours.size} units worn out", fontweight="bold" if worn else "normal")


def _draw_responses(ax: Axes, name: str, layer: LayerReport, colours: np.ndarray) -> None:
    saturated = layer.saturated_share
    silent = np.minimum(1 - layer.active_share, 1 - saturated)  # 0 may be a bound
    order = np.argsort(saturated + silent, kind="stable")
    parts = np.stack([saturated, 1 - saturated - silent, silent])[:, np.append(order, order[-1])]
    ax.stackplot(np.arange(order.size + 1), *parts, colors=[_COLOURS["saturated"], _HEALTHY, _SILENT], step="post")
    ax.set(title="share of examples", xlabel="unit, sorted", xlim=(0, order.size), ylim=(0, 1))


def _draw_activity(ax: Axes, name: str, layer: LayerReport, colours: np.ndarray) -> None:
    _draw_sorted(ax, layer.activity, colours)
    ax.set(title="mean |h|", xlabel="unit, sorted", ylim=(0, None))


def _draw_ranks(ax: Axes, name: str, layer: LayerReport, colours: np.ndarray) -> None:
    ranks = {"effective": layer.effective_rank, "stable": layer.stable_rank, "approximate": layer.approximate_rank}
    labels = [f"{rank}\n{float(value):.3g}" for rank, value in ranks.items()]
    ax.bar(labels, [float(value) for value in ranks.values()], color="#3182bd")
    ax.set(title=f"ranks, of {int(layer.highest_rank)}", ylim=(0, int(layer.highest_rank)))


def _draw_weights(ax: Axes, name: str, layer: LayerReport, colours: np.ndarray) -> None:
    _draw_units(ax, layer.incoming, layer.outgoing, colours)
    growth = "" if layer.growth is None else f" ({float(layer.growth):.3g} x initial)"
    ax.set(title="weight sizes", xlabel=f"mean |w in|{growth}", ylabel="mean |w out|", xlim=(0, None), ylim=(0, None))


def _draw_usefulness(ax: Axes, name: str, layer: LayerReport, colours: np.ndarray) -> None:
    scores, by = usefulness(layer)
    if layer.ages is None or layer.mature_fraction is None:
        _draw_sorted(ax, scores, colours)
        ax.set(title=by, xlabel="unit, sorted", ylim=(0, None))
        return
    _draw_units(ax, layer.ages, scores, colours)
    oldest = max(int(layer.ages.max()), 1)
    ax.set(title=f"age and {by}", xlabel=f"age in updates ({float(layer.mature_fraction):.0%} mature)", ylabel=by)
    ax.set_xlim(-0.05 * oldest, 1.05 * oldest)


def _draw_sorted(ax: Axes, values: Array, colours: np.ndarray) -> None:
    order = np.argsort(-values, kind="stable")
    _draw_units(ax, np.arange(order.size), values[order], colours[order])


def _draw_units(ax: Axes, x: Array | np.ndarray, y: Array, colours: np.ndarray) -> None:
    ax.scatter(x, y, c=list(colours), s=18, edgecolors="grey", linewidths=0.3, clip_on=False, zorder=3)
