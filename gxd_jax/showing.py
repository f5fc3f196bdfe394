"""A check-up as text and as a figure. Nothing here is traced: reports come in with their values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.core import Tracer

from gxd_jax.discover import aligned

if TYPE_CHECKING:
    from jaxtyping import Array
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gxd_jax.checkup import LayerReport, Report

# Masks from the gravest on, with the colour of their units, and the colour of all others: dark is worn out. The last is
# that of examples on which an output is 0, which is no fault in itself.
_STATES = {"dead": "#1a1a1a", "saturated": "#8e24aa", "dormant": "#e65100", "low_activity": "#fbc02d"}
_HEALTHY = "#9ecae1"
_SILENT = "#dddddd"
_LEAST_USEFUL = 5
_MOST_NUMBERS = 12
_PANEL_INCHES = (3.1, 2.7)
_GRID_POINTS = 105


def table(report: Report) -> str:
    """Returns a report as text: a row a layer, and for a single network which units are worn out."""
    if any(isinstance(leaf, (Tracer, jax.ShapeDtypeStruct)) for leaf in jax.tree.leaves(report)):
        return repr(report)
    report = jax.tree.map(np.asarray, report)
    head = ["layer", "units", "dead", "dormant", "saturated", "low activity", "saturation"]
    head += ["effective", "stable", "approximate rank", "mean |h|", "mean |w in|", "mean |w out|", "w in / initial"]
    head += ["mature", "mean age"]
    networks = report.layers[0].dead.ndim > 1
    rows = [head] + [_row(name, layer) for name, layer in zip(report.names, report.layers, strict=True)]
    text = aligned(rows)
    if networks:
        return f"{text}\n\nmeans over {report.layers[0].effective_rank.size} networks"
    rows = [row for name, layer in zip(report.names, report.layers, strict=True) for row in _units(name, layer)]
    return f"{text}\n\nunits by their numbers:\n{aligned(rows)}"


def _row(name: str, layer: LayerReport) -> list[str]:
    size = layer.dead.shape[-1]
    counts = [layer.dead, layer.dormant, layer.saturated, layer.low_activity]
    ranks = [layer.effective_rank, layer.stable_rank]
    sizes = [layer.activity, layer.incoming, layer.outgoing]
    return [
        name,
        str(size),
        *(f"{mask.sum(-1).mean().round(1):g}" for mask in counts),
        f"{layer.saturated_share.mean():.0%}",
        *(f"{rank.mean():.2f}" for rank in ranks),
        f"{layer.approximate_rank.mean().round(1):g} of {layer.highest_rank.mean():.0f}",
        *(f"{values.mean():.3g}" for values in sizes),
        "-" if layer.growth is None else f"{layer.growth.mean():.3g}",
        "-" if layer.mature_fraction is None else f"{layer.mature_fraction.mean():.0%}",
        "-" if layer.ages is None else f"{layer.ages.mean():.0f}",
    ]


def _units(name: str, layer: LayerReport) -> list[list[str]]:
    """Lists the units of each mask, and those of the lowest utility (or contribution, where no utility is known)."""
    states = [(state.replace("_", " "), _numbers(np.flatnonzero(getattr(layer, state)))) for state in _STATES]
    scores, by = _usefulness(layer)
    least = np.argsort(scores, kind="stable")[:_LEAST_USEFUL]
    states.append((f"lowest {by}", ", ".join(map(str, least))))
    return [[name if i == 0 else "", *pair] for i, pair in enumerate(states)]


def _usefulness(layer: LayerReport) -> tuple[Array, str]:
    return (layer.contribution, "contribution") if layer.utilities is None else (layer.utilities, "utility")


def _numbers(numbers: np.ndarray) -> str:
    """Writes ascending numbers as "0, 3-7, 9"."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if numbers.size else []
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(texts[:_MOST_NUMBERS] + ["..."] * (len(texts) > _MOST_NUMBERS)) or "none"


# --- The figure ----------------------------------------------------------------------------------------------------


def figure(report: Report) -> Figure:
    """Draws a report of one network, a row a layer.

    The panels: units by state; on which share of the examples each is saturated, responds, gives 0; activity; ranks;
    weights in and out; age and utility, or contribution where those are not known.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ImportError("the figure of a check-up needs matplotlib: pip install matplotlib") from error
    report = jax.tree.map(np.asarray, report)
    if report.layers[0].dead.ndim > 1:
        raise ValueError(
            f"the report is one of several networks, masks have shape {report.layers[0].dead.shape}: choose one, "
            "jax.tree.map(lambda values: values[0], report)"
        )
    panels = (_draw_states, _draw_responses, _draw_activity, _draw_ranks, _draw_weights, _draw_usefulness)
    size = (_PANEL_INCHES[0] * len(panels), _PANEL_INCHES[1] * len(report.layers) + 0.5)
    drawn = Figure(figsize=size, layout="constrained")
    axes = drawn.subplots(len(report.layers), len(panels), squeeze=False)
    for name, layer, row in zip(report.names, report.layers, axes, strict=True):
        colours = _colours(layer)
        for draw, ax in zip(panels, row, strict=True):
            draw(ax, name, layer, colours)
    colours = {"healthy, responsive": _HEALTHY, **dict(reversed(_STATES.items())), "output 0": _SILENT}
    patches = [Patch(color=colour, label=state.replace("_", " ")) for state, colour in colours.items()]
    drawn.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
    return drawn


def _colours(layer: LayerReport) -> np.ndarray:
    """Returns each unit's colour, that of the gravest state it is in."""
    colours = np.full(layer.dead.shape, _HEALTHY, object)
    for state in reversed(_STATES):
        colours[getattr(layer, state)] = _STATES[state]
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
    ax.stackplot(np.arange(order.size + 1), *parts, colors=[_STATES["saturated"], _HEALTHY, _SILENT], step="post")
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
    scores, by = _usefulness(layer)
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
