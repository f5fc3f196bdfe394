"""What the terminal shows: progress with the time left, and the table of results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pandas as pd
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.experiment import EVERY, Experiment, Run
from benchmarks.running.curves import labels_of
from benchmarks.running.runner import OnChunk

_MEMORY_SECONDS = 600.0
"""The time left is estimated from the speed of the last minutes."""


@contextlib.contextmanager
def progress(experiment: Experiment, console: Console) -> Iterator[OnChunk]:
    """Shows how far an experiment is; yields the function that the runner is to call after every chunk."""
    points = len(experiment.ends)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        speed_estimate_period=_MEMORY_SECONDS,
    )
    task = bar.add_task("", total=points * len(experiment.runs))

    def on_chunk(run: Run, number: int, done: int) -> None:
        bar.start()  # not before there is something to show: the call may be refused
        bar.update(task, description=run.name, completed=number * points + done)

    try:
        yield on_chunk
    finally:
        if bar.live.is_started:
            bar.stop()


def results_table(experiment: Experiment, summary: pd.DataFrame) -> Table:
    """Returns the summary as a table for the terminal, with the label columns that it takes to tell its rows apart."""
    labels = list(experiment.runs[0].labels)
    columns, view = labels, experiment.view
    title = f"{experiment.problem}: {view.measure}"
    for label in reversed(labels):
        others = [column for column in columns if column != label]
        if others and label != "method" and not summary.duplicated(others).any():
            columns = others
            values = {value for value in summary[label] if value not in ("", EVERY)}
            title += f", {label} {values.pop()}" if len(values) == 1 else ""
    table = Table(title=f"{title} (mean ± standard error of {len(experiment.seeds)} seeds)", box=box.SIMPLE)
    for label in columns:
        table.add_column(label, overflow="fold")
    measures = {name: f"{name} {view.share}" for name in ("first", "last")} | {"change": "change"}
    measures |= {name: name for name in view.totals}
    for heading in measures.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for _, row in summary.iterrows():
        cells = [_with_error(row[f"{name}_mean"], row[f"{name}_se"], name in view.totals) for name in measures]
        table.add_row(*(str(row[label]) for label in columns), *cells)
    return table


def stopped(experiment: Experiment, table: pd.DataFrame) -> list[str]:
    """Returns a line for each seed of a run whose measure ended before the run: it diverged, or was stopped."""
    view, lines = experiment.view, []
    for labels, run in table.groupby([*labels_of(table), "seed"], sort=False):
        there = run.loc[run[view.measure].notna(), view.axis].max()
        if not there == experiment.ends[-1]:
            name = " ".join(str(label) for label in labels[:-1] if label not in ("", EVERY))
            until = "the start" if pd.isna(there) else f"{view.axis} {there:g}"
            lines.append(f"{name}, seed {labels[-1]}: stopped after {until}, from where on something was not finite")
    return lines


def _with_error(mean: float, error: float, whole: bool) -> str:
    digits = 0 if whole else 3
    return f"{mean:.{digits}f}" if pd.isna(error) else f"{mean:.{digits}f} ± {error:.{digits}f}"
