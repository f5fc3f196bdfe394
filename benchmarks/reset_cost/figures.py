"""Figures of the study of reset costs: predicted against true cost, and rank correlations."""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import NullFormatter

from benchmarks.showing.styles import FONTS, STYLES, save_figure

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
_LAYER_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
"""Colours of layers, one after the other; those of Okabe and Ito."""
_PANEL_INCHES = 1.8
"""Height and width of a panel of the scatter."""
_ROW_INCHES = 0.8
"""Height of a network among the bars."""


def save(units: pd.DataFrame, correlations: pd.DataFrame, out: Path) -> None:
    """Draws `scatter` and `correlations`, as PNG and SVG."""
    with plt.rc_context(FONTS):
        save_figure(_scatter(units), out / "scatter")
        save_figure(_bars(correlations), out / "correlations")


def _colour(score: str) -> str:
    """Returns the colour of the method that replaces units by this score."""
    return STYLES[score if score in STYLES else f"cbp_{score}"].colour


def _scatter(units: pd.DataFrame) -> plt.Figure:
    """One row per network, one column per utility; every unit of the first seed at the last moment, by layer."""
    shown = units[(units.seed == units.seed.min()) & (units.moment == units.moment.max())]
    names = list(dict.fromkeys(shown.network))
    size = (_PANEL_INCHES * len(SCATTERED), _PANEL_INCHES * len(names))
    figure, axes = plt.subplots(len(names), len(SCATTERED), figsize=size, squeeze=False, layout="constrained")
    for row, name in zip(axes, names, strict=True):
        network = shown[shown.network == name]
        for ax, score in zip(row, SCATTERED, strict=True):
            layers = network.groupby("layer", sort=False)
            for (layer, part), colour in zip(layers, itertools.cycle(_LAYER_COLOURS), strict=False):
                positive = part[(part[score] > 0) & (part.cost > 0)]
                ax.scatter(positive[score], positive.cost, s=4, label=layer, color=colour)
            ax.set(xscale="log", yscale="log")
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_minor_formatter(NullFormatter())
            ax.tick_params(labelsize=6)
            ax.set_title(score.replace("mean_corrected_", "mean-corrected\n"), fontsize=8)
        row[0].set_ylabel(f"{name.replace('_', ' ')}\ncost")
        row[0].legend(fontsize=6)
    return figure


def _bars(correlations: pd.DataFrame) -> plt.Figure:
    """Mean rank correlation by network and utility, with standard errors over the seeds."""
    of_seeds = correlations.groupby(["network", "score", "seed"], sort=False).spearman.mean()
    found = of_seeds.groupby(["network", "score"], sort=False).agg(["mean", "sem"])
    names = list(dict.fromkeys(correlations.network))
    figure, ax = plt.subplots(figsize=(8, _ROW_INCHES * len(names) + 0.8), layout="constrained")
    width = 0.8 / len(BARS)
    for place, score in enumerate(BARS):
        rows = found.loc[[(name, score) for name in names]]
        heights = np.arange(len(names)) + (place + 0.5) * width - 0.4
        ax.barh(heights, rows["mean"], width, xerr=rows["sem"], label=score, color=_colour(score))
    ax.set_yticks(np.arange(len(names)), [name.replace("_", " ") for name in names])
    ax.invert_yaxis()
    ax.axvline(0, color="black", linewidth=0.5)
    ax.set_xlabel("rank correlation with the reset cost")
    figure.legend(loc="outside right center", frameon=False)
    return figure
