"""The tables of speed, for the terminal and for the READMEs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.table import Table

from benchmarks import methods
from benchmarks.running.folder import RefusedError
from benchmarks.showing.markdown import markdown, read_table
from benchmarks.speed.growth import SIZES, slopes_of

BASELINE = "backprop"
_OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}
_FORMATS = {
    "us_per_step": ".1f",
    "ratio": ".2f",
    "runs_x_steps_per_second": ",.0f",
    "pytorch_runs_x_steps_per_second": ",.0f",
    "loss": ".4f",
    "pytorch_loss": ".4f",
    "compile_seconds": ".1f",
    "peak_mb": ",.1f",
    "bytes_per_unit": ".0f",
    "bytes_per_parameter": ".1f",
}
_HEADINGS = {
    "runs_x_steps_per_second": "runs x steps / s",
    "pytorch_runs_x_steps_per_second": "public PyTorch code",
    "loss": "loss",
    "pytorch_loss": "its loss",
    "compile_seconds": "compile s",
    "peak_mb": "peak MB",
    "bytes_per_unit": "bytes / unit",
    "bytes_per_parameter": "bytes / parameter",
}
_PEER = ("runs_x_steps_per_second", "pytorch_runs_x_steps_per_second", "loss", "pytorch_loss")
_DETAILED = ("backprop", "cbp_contribution", "gxd", "gxd_loss", "redo")
"""Methods of the README's table of losses, compilation and memory."""


def speed_table(table: pd.DataFrame) -> Table:
    """Returns the timings as a table for the terminal."""
    headings = {"case": "network", "optimizer": "optimizer", "method": "method", "batch": "batch", "seeds": "seeds"}
    headings |= {"us_per_step": "µs per step", "ratio": "ratio to plain"} | _HEADINGS
    shown = Table(title="Time of a step (medians, methods in turns)")
    headings = {column: heading for column, heading in headings.items() if column in table}
    for column, heading in headings.items():
        named = column in ("case", "optimizer", "method")
        shown.add_column(heading, justify="left" if named else "right", no_wrap=named)
    for _, row in table.iterrows():
        cells = ("" if pd.isna(row[column]) else format(row[column], _FORMATS.get(column, "")) for column in headings)
        shown.add_row(*cells)
    return shown


def ratio_table(table: pd.DataFrame) -> Table:
    """Returns the ratios to the plain step alone, a row for a comparison and a column for a method."""
    wide = table.pivot_table(index=["case", "optimizer"], columns="method", values="ratio", sort=False)
    plain = table[table["method"] == BASELINE].set_index(["case", "optimizer"])["us_per_step"]
    shown = Table(title="Time of a step as a multiple of the plain step")
    for heading in ("network", "optimizer"):
        shown.add_column(heading, no_wrap=True)
    methods_timed = [name for name in wide if name != BASELINE]
    for heading in ("plain, µs", *methods_timed):
        shown.add_column(heading, justify="right")
    for place, row in wide.iterrows():
        ratios = ("" if pd.isna(row[name]) else f"{row[name]:.2f}" for name in methods_timed)
        shown.add_row(*place, f"{plain[place]:,.0f}", *ratios)
    return shown


def slope_table(slopes: pd.DataFrame) -> Table:
    """Returns the slopes as a table for the terminal."""
    shown = Table(title="Slope of log time against log size, over the upper half of the sizes")
    for heading in ("optimizer", "method"):
        shown.add_column(heading)
    for what in SIZES:
        shown.add_column(what, justify="right")
    wide = slopes.pivot(index=["optimizer", "method"], columns="what", values="slope")
    for (optimizer, method), row in wide.iterrows():
        shown.add_row(optimizer, method, *(f"{row[what]:.2f}" for what in SIZES))
    return shown


def markdown_tables(folders: Sequence[Path]) -> dict[str, str]:
    """Returns the tables for a README, by names that end with the optimizer: the rows of all folders together.

    `ratios` are times as multiples of the plain step, `details` everything else, `peer` the public code's numbers
    where they were taken, `growth` the slopes of a folder with `growth.csv`.

    Raises:
        RefusedError: If the folders hold neither.
    """
    timed = [read_table(folder / "speed.csv") for folder in folders if (folder / "speed.csv").exists()]
    grown = [read_table(folder / "growth.csv") for folder in folders if (folder / "growth.csv").exists()]
    if not timed and not grown:
        raise RefusedError(f"{folders[0]} holds neither speed.csv nor growth.csv")
    found = {}
    table = pd.concat(timed, ignore_index=True) if timed else pd.DataFrame({"optimizer": []})
    for optimizer, rows in table.groupby("optimizer", sort=False):
        found[f"ratios-{optimizer}"] = _ratios(rows)
        found[f"details-{optimizer}"] = _details(rows[rows["method"].isin(_DETAILED)], str(optimizer))
        if set(_PEER) <= set(rows):
            found[f"peer-{optimizer}"] = _peer(rows.dropna(subset=list(_PEER)), str(optimizer))
    if grown:
        found["growth"] = _growth(pd.concat(grown, ignore_index=True))
    return found


def _ratios(rows: pd.DataFrame) -> str:
    names = [name for name in dict.fromkeys(rows["method"]) if name != BASELINE]
    lines = []
    for case, part in rows.groupby("case", sort=False):
        ratios = part.set_index("method")["ratio"]
        plain = part[part["method"] == BASELINE].iloc[0]
        line = [f"{case}, {plain['batch']} x {plain['seeds']}", format(plain["us_per_step"], ",.0f")]
        lines.append([*line, *(format(ratios[name], ".2f") if name in ratios else "" for name in names)])
    return markdown(["network, batch x seeds", "plain step, µs", *map(_label, names)], lines)


def _details(rows: pd.DataFrame, optimizer: str) -> str:
    columns = [column for column in _HEADINGS if not column.startswith("pytorch")]
    lines = [[row["case"], _label(row["method"], optimizer), *_cells(row, columns)] for _, row in rows.iterrows()]
    return markdown(["network", "method", *(_HEADINGS[column] for column in columns)], lines)


def _peer(rows: pd.DataFrame, optimizer: str) -> str:
    lines = []
    for _, row in rows.iterrows():
        batch = f", batch {row['batch']}" if row["batch"] > 1 else ""
        seeds = f", {row['seeds']} seed{'s' if row['seeds'] > 1 else ''}"
        lines.append([f"{row['case']}{batch}{seeds}", _label(row["method"], optimizer), *_cells(row, _PEER)])
    return markdown(["network", "method", *(_HEADINGS[column] for column in _PEER)], lines)


def _growth(rows: pd.DataFrame) -> str:
    wide = slopes_of(rows).pivot(index=["optimizer", "method"], columns="what", values="slope")
    lines = [
        [optimizer, _label(method), *(format(row[what], ".2f") for what in SIZES)]
        for (optimizer, method), row in wide.iterrows()
    ]
    return markdown(["optimizer", "method", *SIZES], lines)


def _cells(row: pd.Series, columns: Sequence[str]) -> list[str]:
    return [format(row[column], _FORMATS[column]) for column in columns]


def _label(method: str, plain: str | None = None) -> str:
    """Returns a method's label; the plain step is called by its optimizer, where that is given."""
    if method == BASELINE and plain is not None:
        return _OPTIMIZERS[plain]
    return methods.METHODS[method].label
