"""Learning curves: one panel per condition (and diagnostic), one line per method, shaded standard errors."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

from benchmarks.experiment import EVERY, Experiment
from benchmarks.folder import write_file
from benchmarks.tables import by_seed, labels_of, standard_error

mpl.use("Agg")
import matplotlib.pyplot as plt  # after the choice of Agg, which needs no display

_COLUMNS = 3
_PANEL_INCHES = (4.6, 3.4)
_SHADE = 0.2
_COLOURS = ("C0", "C1", "C2", "C3", "C4", "C5", "C9", "black", "C8", "C6")
_COLOURS += ("navy", "gold", "darkgreen", "darkred", "indigo", "tan", "teal", "grey", "olive", "deeppink")
"""Matplotlib's own, with black for its grey, and as many more."""
_DPI, _DPI_WITH_DIAGNOSTICS = 150, 70


def save_curves(experiment: Experiment, table: pd.DataFrame, out: Path) -> None:
    """Draws the curves of an experiment into `curves.png` and `curves.svg`.

    Where a method ran with several settings in a panel, its best one (by the mean over the run) is drawn. With
    diagnostics, a condition is a row of panels: the measure, and the diagnostics beside it.

    Args:
        experiment: The experiment.
        table: Curves of its runs.
        out: Folder of the results.
    """
    measures = (experiment.measure, *experiment.diagnostics)
    panels = [(title, part, name) for title, part in _panels(experiment, table).items() for name in measures]
    columns = len(measures) if experiment.diagnostics else min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    colours = dict(zip(dict.fromkeys(table["method"]), itertools.cycle(_COLOURS), strict=False))
    for ax, (title, panel, measure) in zip(axes.flat, panels, strict=False):
        for method, runs in panel.groupby("method", sort=False):
            best = _best(experiment, runs)
            values = by_seed(experiment, best, measure)
            mean, error = values.mean(0), np.nan_to_num(standard_error(values))
            colour = colours[method]
            ax.plot(experiment.ends, mean, color=colour, label=method)
            ax.fill_between(experiment.ends, mean - error, mean + error, color=colour, alpha=_SHADE, linewidth=0)
        ax.set(title=title, xlabel=experiment.axis, ylabel=measure.replace("_", " "))
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    handles, names = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    dpi = _DPI_WITH_DIAGNOSTICS if experiment.diagnostics else _DPI
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        # No date, and ids that depend on the drawing only: equal results give equal files.
        with mpl.rc_context({"svg.hashsalt": experiment.problem}):
            figure.savefig(buffer, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
        write_file(out / f"curves.{kind}", buffer.getvalue())
    plt.close(figure)


def _panels(experiment: Experiment, table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Splits the curves by the conditions; a run that does not depend on a condition goes into all of its panels."""
    panels = {"": table}
    for label in experiment.panels:
        split = {}
        for title, part in panels.items():
            values = [value for value in dict.fromkeys(part[label]) if value != EVERY] or [EVERY]
            for value in values:
                shown = str(value) if isinstance(value, str) else f"{label} {value:g}"
                split[f"{title}, {shown}" if title else shown] = part[part[label].isin([value, EVERY])]
        panels = split
    return panels


def _best(experiment: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Returns the curves of the setting with the best measure; one that diverged comes last."""
    settings = runs.groupby(labels_of(experiment), sort=False)[experiment.measure]
    sign = -1 if experiment.higher_is_better else 1
    best = settings.apply(lambda values: sign * values.mean(skipna=False)).fillna(np.inf).idxmin()
    return runs.groupby(labels_of(experiment), sort=False).get_group(best)
