"""How the time of a step grows with units, layers, seeds and batch."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

from benchmarks.running.folder import write_file
from benchmarks.speed.cases import Case

mpl.use("Agg")
import matplotlib.pyplot as plt  # after the choice of Agg, which needs no display

_INPUTS, _OUTPUTS, _WIDTH, _LAYERS, _BATCH = 64, 10, 128, 2, 16
_STEPS = 20
SIZES = {
    "units": (64, 128, 256, 512, 1024),
    "layers": (1, 2, 4, 8, 16),
    "seeds": (1, 2, 4, 8, 16),
    "batch": (1, 4, 16, 64, 256),
}
"""What grows, and its sizes; units are those of a layer."""
_PANEL_INCHES = (3.4, 3.0)
_DPI = 80


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


def save_figure(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Draws time against size, a column of panels for what grows and a row for each optimizer; returns the slopes."""
    slopes = slopes_of(table)
    optimizers = list(dict.fromkeys(table["optimizer"]))
    size = (_PANEL_INCHES[0] * len(SIZES), _PANEL_INCHES[1] * len(optimizers))
    figure, axes = plt.subplots(len(optimizers), len(SIZES), figsize=size, squeeze=False, layout="constrained")
    for row, optimizer in zip(axes, optimizers, strict=True):
        for ax, (what, sizes) in zip(row, SIZES.items(), strict=True):
            chosen = slopes[(slopes["what"] == what) & (slopes["optimizer"] == optimizer)]
            for method, slope in zip(chosen["method"], chosen["slope"], strict=True):
                part = table[(table["optimizer"] == optimizer) & (table["method"] == method)]
                times = part.set_index("case")["us_per_step"]
                label = f"{method} ({slope:.2f})"
                ax.loglog(sizes, [times[f"{what} {size}"] for size in sizes], marker=".", label=label)
            ax.set(title=f"{what}, {optimizer}", xlabel=what, ylabel="µs per step")
            ax.legend(fontsize="xx-small", title="slope", title_fontsize="xx-small", frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    plt.close(figure)
    write_file(path, buffer.getvalue())
    return slopes
