"""How the time of a step grows with units, layers, seeds and batch."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from benchmarks.methods import METHODS
from benchmarks.showing.styles import FONTS, STYLES, save_figure
from benchmarks.speed.cases import Case

_INPUTS, _OUTPUTS, _WIDTH, _LAYERS, _BATCH = 64, 10, 128, 2, 16
_STEPS = 20
SIZES = {
    "units": (64, 128, 256, 512, 1024),
    "layers": (1, 2, 4, 8, 16),
    "seeds": (1, 2, 4, 8, 16),
    "batch": (1, 4, 16, 64, 256),
}
"""What grows, and its sizes; units are those of a layer."""
_PANEL_INCHES = (2.6, 2.4)


def _case(units: int = _WIDTH, layers: int = _LAYERS, seeds: int = 1, batch: int = _BATCH) -> Case:
    return Case((_INPUTS, *[units] * layers, _OUTPUTS), batch, seeds, _STEPS, 1e-4)


CASES: dict[str, Case] = {f"{what} {size}": _case(**{what: size}) for what, sizes in SIZES.items() for size in sizes}
"""What grows and its size -> the case, in which the rest stays."""


def slopes_of(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the slopes of log time against log size, one row for what grows, the optimizer and the method.

    A slope of 1 is time in proportion to the size. It is taken over the upper half of the sizes, where what a step
    costs at any size counts least.

    Args:
        table: Rows of `measuring.time_case` for `CASES`.
    """
    what, size = zip(*(name.split() for name in table["case"]), strict=True)
    table = table.assign(what=what, size=np.array(size, int))
    rows = []
    for (what, optimizer, method), part in table.groupby(["what", "optimizer", "method"], sort=False):
        upper = part.sort_values("size").iloc[len(part) // 2 :]
        slope, _ = np.polyfit(np.log(upper["size"]), np.log(upper["us_per_step"]), 1)
        rows.append({"what": what, "optimizer": optimizer, "method": method, "slope": slope})
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Draws time against size, a column of panels for what grows and a row for each optimizer; returns the slopes.

    Args:
        table: Rows of `measuring.time_case` for `CASES`.
        path: The files' path, without the ending.
    """
    optimizers = list(dict.fromkeys(table["optimizer"]))
    size = (_PANEL_INCHES[0] * len(SIZES), _PANEL_INCHES[1] * len(optimizers) + 0.5)
    with plt.rc_context(FONTS):
        figure, axes = plt.subplots(len(optimizers), len(SIZES), figsize=size, squeeze=False, layout="constrained")
        for row, optimizer in zip(axes, optimizers, strict=True):
            for ax, (what, sizes) in zip(row, SIZES.items(), strict=True):
                for method, part in table[table["optimizer"] == optimizer].groupby("method", sort=False):
                    times = part.set_index("case")["us_per_step"]
                    ax.loglog(
                        sizes,
                        [times[f"{what} {size}"] for size in sizes],
                        marker=".",
                        color=STYLES[method].colour,
                        linestyle=STYLES[method].dash,
                        label=METHODS[method].label.replace("`", ""),
                    )
                ax.set(title=f"{what}, {optimizer}", xlabel=what, ylabel="µs per step")
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        save_figure(figure, path)
    return slopes_of(table)
