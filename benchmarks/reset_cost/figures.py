"""Figures of the study of reset costs: predicted against true cost, and rank correlations."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

from benchmarks.folder import write_file

mpl.use("Agg")
import matplotlib.pyplot as plt  # after the choice of Agg, which needs no display
from matplotlib.ticker import NullFormatter

SCATTERED = ("activation", "contribution", "mean_corrected_contribution", "gradient", "gxd", "gxd_exact")
BARS = (
    "activation",
    "contribution",
    "mean_corrected_contribution",
    "adaptation",
    "gradient",
    "gxd_loss",
    "gxd",
    "gxd_exact",
)
_DPI = 80
_PANEL = 2.2
"""Height and width of a panel of the scatter, inches."""


def save(units: pd.DataFrame, correlations: pd.DataFrame, out: Path) -> None:
    """Draws `scatter` and `correlations`, as PNG and SVG."""
    _save(_scatter(units), out / "scatter")
    _save(_bars(correlations), out / "correlations")


def _save(figure: plt.Figure, path: Path) -> None:
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        with mpl.rc_context({"svg.hashsalt": path.name}):  # equal results give equal files
            figure.savefig(buffer, format=kind, dpi=_DPI, metadata={"Date": None} if kind == "svg" else None)
        write_file(path.with_suffix(f".{kind}"), buffer.getvalue())
    plt.close(figure)


def _scatter(units: pd.DataFrame) -> plt.Figure:
    """One row per network, one column per utility; every unit of the first seed at the last moment, by layer."""
    shown = units[(units.seed == units.seed.min()) & (units.moment == units.moment.max())]
    names = list(dict.fromkeys(shown.network))
    size = (_PANEL * len(SCATTERED), _PANEL * len(names))
    figure, axes = plt.subplots(len(names), len(SCATTERED), figsize=size, squeeze=False, layout="constrained")
    for row, name in zip(axes, names, strict=True):
        network = shown[shown.network == name]
        for ax, score in zip(row, SCATTERED, strict=True):
            for layer, part in network.groupby("layer", sort=False):
                positive = part[(part[score] > 0) & (part.cost > 0)]
                ax.scatter(positive[score], positive.cost, s=4, label=layer)
            ax.set(xscale="log", yscale="log")
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_minor_formatter(NullFormatter())
            ax.tick_params(labelsize=5)
            ax.set_title(score, fontsize=7)
        row[0].set_ylabel(f"{name}\ncost", fontsize=7)
        row[0].legend(fontsize=5)
    return figure


def _bars(correlations: pd.DataFrame) -> plt.Figure:
    """Mean rank correlation by network and utility, with standard errors over the seeds."""
    of_seeds = correlations.groupby(["network", "score", "seed"], sort=False).spearman.mean()
    spread = of_seeds.groupby(["network", "score"], sort=False).agg(["mean", "sem"])
    names = list(dict.fromkeys(correlations.network))
    figure, ax = plt.subplots(figsize=(1.2 * len(names) + 1, 4), layout="constrained")
    width = 0.8 / len(BARS)
    for place, score in enumerate(BARS):
        found = spread.loc[[(name, score) for name in names]]
        ax.bar(
            np.arange(len(names)) + (place + 0.5) * width - 0.4, found["mean"], width, yerr=found["sem"], label=score
        )
    ax.set_xticks(np.arange(len(names)), [name.replace("_", "\n") for name in names], fontsize=8)
    ax.axhline(0, color="black", linewidth=0.5)
    ax.set_ylabel("rank correlation with the reset cost")
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return figure
