"""Learning curves: one panel per condition, one line per method, shaded standard errors; diagnostics by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchmarks.experiment import View
from benchmarks.running.curves import by_seed, ends_of, labels_of, standard_error
from benchmarks.showing.styles import FONTS, STYLES, save_figure
from benchmarks.showing.tables import conditions

_COLUMNS = 3
_LEGEND_INCHES = 2.4
_PANEL_INCHES = {1: (5.2, 3.6), 2: (3.2, 3.2), 3: (2.8, 2.4)}
"""Columns of panels -> width and height of one."""
_LINE_INCHES = 0.19
"""Height of a line of the legend: with many methods the figure is as high as the legend."""
_SHADE = 0.12
_WIDTHS = {True: 2.2, False: 1.4}
"""Widths of the lines of GXD and of the others."""
_OUTLIERS = 4.0
"""A panel leaves out what lies so many times the range of the middle half of its values beyond that half."""


def save_curves(view: View, labels: Mapping[str, str], table: pd.DataFrame, out: Path) -> None:
    """Draws the measure into `curves.png` and `.svg`, and what diagnostics there are into `diagnostics.png` and `.svg`.

    Where a method ran with several settings in a panel, its best one (by the mean over the run) is drawn.

    Args:
        view: How the curves read.
        labels: Method -> label.
        table: Curves of the runs.
        out: Folder of the results.
    """
    panels = conditions(view, table, everywhere=True)
    measured = [(title, view.measure, part) for title, part in panels.items()]
    _save(view, labels, measured, out / "curves")
    diagnostics = [(title, name, part) for title, part in panels.items() for name in view.diagnostics]
    diagnostics = [(title, name, part) for title, name, part in diagnostics if np.nan_to_num(part[name]).any()]
    if diagnostics:
        _save(view, labels, diagnostics, out / "diagnostics")


def _save(view: View, labels: Mapping[str, str], panels: list[tuple[str, str, pd.DataFrame]], path: Path) -> None:
    """Draws panels (title, measure, curves) with one legend beside them."""
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width, height = _PANEL_INCHES[columns]
    methods = {method for _, _, part in panels for method in part["method"]}
    with plt.rc_context(FONTS):
        figure, axes = plt.subplots(
            rows,
            columns,
            figsize=(width * columns + _LEGEND_INCHES, max(height * rows, _LINE_INCHES * (len(methods) + 1))),
            squeeze=False,
            layout="constrained",
        )
        lines = {}
        for ax, (title, measure, part) in zip(axes.flat, panels, strict=False):
            lines |= _draw(ax, view, labels, measure, part)
            ax.set(title=title, xlabel=view.axis, ylabel=measure.replace("_", " "))
            ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            ax.ticklabel_format(axis="x", style="sci", scilimits=(-3, 4))
        for ax in axes.flat[len(panels) :]:
            ax.set_visible(False)
        figure.legend(lines.values(), lines.keys(), loc="outside right center", frameon=False)
        save_figure(figure, path)


def _draw(ax: Axes, view: View, labels: Mapping[str, str], measure: str, panel: pd.DataFrame) -> dict[str, object]:
    """Draws the methods of a panel, GXD on top; returns label -> line in the order of the methods."""
    lines, means = {}, []
    for method, runs in panel.groupby("method", sort=False):
        best, style, is_gxd = _best(view, runs), STYLES[method], method.startswith("gxd")
        ends, values = ends_of(view, best), by_seed(view, best, measure)
        mean, error = values.mean(0), np.nan_to_num(standard_error(values))
        level = 3 if is_gxd else 2
        label = labels[method].replace("`", "")
        (lines[label],) = ax.plot(
            ends, mean, color=style.colour, linestyle=style.dash, linewidth=_WIDTHS[is_gxd], zorder=level
        )
        ax.fill_between(
            ends, mean - error, mean + error, color=style.colour, alpha=_SHADE, linewidth=0, zorder=level - 1
        )
        means.append(mean)
    _leave_out(ax, np.concatenate(means))
    return lines


def _leave_out(ax: Axes, values: np.ndarray) -> None:
    """Lets the vertical axis end before values far away from the others."""
    values = values[np.isfinite(values)]
    if not len(values):
        return
    low, high = np.percentile(values, (25, 75))
    reach = _OUTLIERS * (high - low)
    bottom, top = ax.get_ylim()
    if reach > 0:
        ax.set_ylim(max(bottom, low - reach), min(top, high + reach))


def _best(view: View, runs: pd.DataFrame) -> pd.DataFrame:
    """Returns the curves of the setting with the best measure; one that diverged comes last."""
    settings = runs.groupby(labels_of(runs), sort=False)[view.measure]
    sign = -1 if view.higher_is_better else 1
    best = settings.apply(lambda values: sign * values.mean(skipna=False)).fillna(np.inf).idxmin()
    return runs.groupby(labels_of(runs), sort=False).get_group(best)
