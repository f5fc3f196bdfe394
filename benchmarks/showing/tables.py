"""The numbers of an experiment as tidy tables: curves, one row per run, seed and point; and their summary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.experiment import Experiment, Run
from benchmarks.folder import RefusedError

SHARES = {"tenth": 0.1, "quarter": 0.25}
"""Shares of a run whose first and last the summary can compare."""


def curves(experiment: Experiment, run: Run, measures: dict[str, np.ndarray]) -> pd.DataFrame:
    """Returns the tidy curves of one run.

    Args:
        experiment: The experiment.
        run: The run.
        measures: Measure name -> values [S, N].
    """
    seeds, points = len(experiment.seeds), len(experiment.ends)
    columns = {"problem": experiment.problem, **run.labels}
    columns |= {"seed": np.repeat(experiment.seeds, points), experiment.axis: np.tile(experiment.ends, seeds)}
    return pd.DataFrame(columns | {name: values.reshape(-1) for name, values in measures.items()})


def read_curves(path: Path, experiment: Experiment) -> pd.DataFrame:
    """Reads the curves of a finished run.

    Raises:
        RefusedError: If the file is not what `curves` made.
    """
    rows = len(experiment.seeds) * len(experiment.ends)
    measured = (experiment.measure, *experiment.diagnostics)
    try:
        table = pd.read_csv(path, keep_default_na=False, na_values={name: ["", "nan"] for name in measured})
        whole = len(table) == rows and experiment.measure in table
    except (ValueError, pd.errors.ParserError):
        whole = False
    if not whole:
        raise RefusedError(f"{path} is damaged: remove it to compute this run again")
    return table


def labels_of(experiment: Experiment) -> list[str]:
    """Returns the names of the label columns."""
    return list(experiment.runs[0].labels)


def summary(experiment: Experiment, table: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per run: mean and standard error over the seeds.

    Columns `first`, `last` and `change` speak of the measure in the first share of the run (the experiment's `share`),
    in the last, and of their difference within a seed; the totals are sums over the whole run.

    Args:
        experiment: The experiment.
        table: Curves of its runs.
    """
    labels = labels_of(experiment)
    first, last = share_weights(experiment.ends, SHARES[experiment.share])
    rows = []
    for key, run in table.groupby(labels, sort=False):
        values = by_seed(experiment, run, experiment.measure)
        per_seed = {"first": values @ first, "last": values @ last, "change": values @ last - values @ first}
        per_seed |= {name: by_seed(experiment, run, name).sum(1) for name in experiment.totals}
        row = dict(zip(labels, key, strict=True)) | {"seeds": len(values)}
        for name, value in per_seed.items():
            row |= {f"{name}_mean": value.mean(), f"{name}_se": standard_error(value)}
        rows.append(row)
    return pd.DataFrame(rows)


def by_seed(experiment: Experiment, run: pd.DataFrame, measure: str) -> np.ndarray:
    """Returns one measure of one run, [S, N]."""
    return run.pivot(index="seed", columns=experiment.axis, values=measure).to_numpy(np.float64)


def share_weights(ends: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the weights [N] of the mean over the first and over the last share; a point may belong in part."""
    starts, total = np.concatenate([[0], ends[:-1]]), ends[-1]
    share *= total
    first = np.clip(share - starts, 0, ends - starts)
    last = np.clip(ends - (total - share), 0, ends - starts)
    return first / share, last / share


def standard_error(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Returns the standard error of the mean over seeds, NaN for a single seed."""
    count = values.shape[axis]
    if count < 2:
        return np.full_like(values.mean(axis), np.nan)
    return values.std(axis, ddof=1) / np.sqrt(count)
