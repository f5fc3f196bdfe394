"""The curves of an experiment as a tidy table: one row per run, seed and point."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.experiment import Experiment, Run, View
from benchmarks.running.folder import RefusedError


def tidy(experiment: Experiment, run: Run, measures: dict[str, np.ndarray]) -> pd.DataFrame:
    """Returns the tidy curves of one run.

    Args:
        experiment: The experiment.
        run: The run.
        measures: Measure name -> values [S, N].
    """
    seeds, points = len(experiment.seeds), len(experiment.ends)
    columns = {"problem": experiment.problem, **run.labels}
    columns |= {"seed": np.repeat(experiment.seeds, points), experiment.view.axis: np.tile(experiment.ends, seeds)}
    return pd.DataFrame(columns | {name: values.reshape(-1) for name, values in measures.items()})


def read(path: Path, view: View) -> pd.DataFrame:
    """Reads a table of curves, of one run or of several.

    Raises:
        RefusedError: If the file is not what `tidy` made.
    """
    measured = (view.measure, *view.diagnostics)
    try:
        table = pd.read_csv(path, keep_default_na=False, na_values={name: ["", "nan"] for name in measured})
    except (ValueError, pd.errors.ParserError) as error:
        raise _damaged(path) from error
    if not {"seed", view.axis, view.measure} <= set(table):
        raise _damaged(path)
    return table


def read_run(path: Path, experiment: Experiment) -> pd.DataFrame:
    """Reads the curves of a finished run.

    Raises:
        RefusedError: If the file is not what `tidy` made.
    """
    table = read(path, experiment.view)
    if len(table) != len(experiment.seeds) * len(experiment.ends):
        raise _damaged(path)
    return table


def _damaged(path: Path) -> RefusedError:
    return RefusedError(f"{path} is damaged: remove it to compute this run again")


def labels_of(table: pd.DataFrame) -> list[str]:
    """Returns the names of the columns that tell runs apart, which stand before the seed."""
    columns = list(table.columns)
    return columns[columns.index("problem") + 1 : columns.index("seed")]


def by_seed(view: View, run: pd.DataFrame, measure: str) -> np.ndarray:
    """Returns one measure of one run, [S, N]."""
    return run.pivot(index="seed", columns=view.axis, values=measure).to_numpy(np.float64)


def ends_of(view: View, run: pd.DataFrame) -> np.ndarray:
    """Returns where each point of a run ends, int [N]."""
    return np.sort(run[view.axis].unique())


def standard_error(values: np.ndarray | Sequence[float], axis: int = 0) -> np.ndarray:
    """Returns the standard error of the mean over seeds, NaN for a single seed."""
    values = np.asarray(values)
    count = values.shape[axis]
    if count < 2:
        return np.full_like(values.mean(axis), np.nan)
    return values.std(axis, ddof=1) / np.sqrt(count)
