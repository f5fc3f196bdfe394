"""Tables for the READMEs, as GitHub's Markdown, from the summaries of result folders alone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from benchmarks.experiment import View
from benchmarks.running import curves
from benchmarks.running.folder import RefusedError
from benchmarks.showing.tables import conditions, summary


class Column(NamedTuple):
    """A column of a table, one for each condition.

    Attributes:
        quantity: What of the summary it shows: the columns QUANTITY_mean and QUANTITY_se.
        heading: Its heading; empty where the condition says it all.
        form: Format of a number.
        error: Whether the standard error is shown.
    """

    quantity: str
    heading: str
    form: str = ".3f"
    error: bool = True

    def cell(self, row: Mapping[str, float]) -> str:
        """Returns what a row of the summary says; empty where it says nothing."""
        mean, error = row[f"{self.quantity}_mean"], row[f"{self.quantity}_se"]
        if pd.isna(mean):
            return ""
        shown = format(mean, self.form)
        return f"{shown} ± {format(error, self.form.lstrip('+'))}" if self.error and not pd.isna(error) else shown


class CurvesTable(NamedTuple):
    """A table with a row for each method and columns for each condition.

    Attributes:
        columns: The columns of a condition.
        methods: The methods to show, in this order; None: all that there are.
    """

    columns: tuple[Column, ...]
    methods: tuple[str, ...] | None = None


def first_and_last(share: str, form: str = ".3f") -> tuple[Column, Column]:
    """Returns the columns that most tables begin with."""
    return Column("first", f"first {share}", form), Column("last", f"last {share}", form)


def read_summary(problem: str, view: View, folder: Path) -> pd.DataFrame:
    """Returns the summary of a folder: made from its curves where it has them, else as it was written.

    Raises:
        RefusedError: If the folder holds no results of the problem.
    """
    check_folder(problem, folder)
    if (folder / "curves.csv").exists():
        return summary(view, curves.read(folder / "curves.csv", view))
    return read_table(folder / "summary.csv")


def check_folder(problem: str, folder: Path) -> None:
    """Checks that a folder holds results of a problem.

    Raises:
        RefusedError: If it does not.
    """
    found = problem_of(folder)
    if found != problem:
        raise RefusedError(f"{folder} holds results of {found}, not of {problem}")


def problem_of(folder: Path) -> str:
    """Returns the problem whose results a folder holds.

    Raises:
        RefusedError: If its configuration cannot be read.
    """
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))["problem"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedError(f"{folder} holds no results: its config.json cannot be read") from error


def read_table(path: Path) -> pd.DataFrame:
    """Reads a table of results.

    Raises:
        RefusedError: If it is not there or damaged.
    """
    try:
        return pd.read_csv(path)
    except (OSError, ValueError, pd.errors.ParserError) as error:
        raise RefusedError(f"{path} cannot be read: {error}") from error


def curves_table(spec: CurvesTable, view: View, labels: Mapping[str, str], parts: Mapping[str, pd.DataFrame]) -> str:
    """Returns a table of methods by conditions, empty where no method of it ran.

    Where a method ran with several settings, its best one (by the last share) is shown.

    Args:
        spec: The table.
        view: How the curves read.
        labels: Method -> label.
        parts: Name of a folder -> its summary; several stand side by side.
    """
    ran = dict.fromkeys(method for part in parts.values() for method in part["method"])
    methods = [name for name in (spec.methods or ran) if name in ran]
    if not methods:
        return ""
    header, cells = [""], {method: [labels[method]] for method in methods}
    for folder, part in parts.items():
        for condition, rows in conditions(view, part, everywhere=False).items():
            title = ", ".join(word for word in (condition, folder) if word)
            for column in spec.columns:
                header.append(": ".join(word for word in (title, column.heading) if word))
                for method in methods:
                    cells[method].append(_best_cell(column, view, rows[rows["method"] == method]))
    return markdown(header, list(cells.values()))


def _best_cell(column: Column, view: View, rows: pd.DataFrame) -> str:
    if rows.empty:
        return ""
    ordered = rows.sort_values("last_mean", ascending=not view.higher_is_better, na_position="last", kind="stable")
    return column.cell(ordered.iloc[0])


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table; its rows are as long as the header."""
    separator = "|---" * len(header) + "|"
    first, *others = ("|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|" for line in (header, *rows))
    return "\n".join([first, separator, *others, ""])


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Returns what tells the folders' names apart: nothing for one, else their names without the common beginning."""
    if len(folders) == 1:
        return [""]
    names = [folder.name for folder in folders]
    common = os.path.commonprefix(names)
    common = common[: common.rfind("-") + 1]
    return [name.removeprefix(common) for name in names]


def between_markers(command: str, table: str, folders: Sequence[str], text: str) -> str:
    """Returns a table between its markers, which say what it is made from.

    Args:
        command: A name of `commands.COMMANDS`.
        table: The table's name.
        folders: Names of the folders of results.
        text: The table.
    """
    return f"<!-- table {command} {table}: {' '.join(folders)} -->\n\n{text}\n<!-- end of table -->\n"
