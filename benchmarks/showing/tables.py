"""The summary of an experiment: one row per run, means and standard errors over the seeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.experiment import EVERY, View
from benchmarks.running.curves import by_seed, ends_of, labels_of, standard_error

SHARES = {"tenth": 0.1, "quarter": 0.25}
"""Shares of a run whose first and last the summary can compare."""
_NOT_CONDITIONS = ("method", "setting")


class Weights(NamedTuple):
    """Weights [N] of means over parts of a run; a point may belong to a part in part.

    Attributes:
        first: Of the first share.
        last: Of the last share.
        rest: Of all that follows the first share.
    """

    first: np.ndarray
    last: np.ndarray
    rest: np.ndarray


def summary(view: View, table: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per run; each quantity is a column of means and one of standard errors.

    `first`, `last` and `change` speak of the measure in the first share of the run (the view's `share`), in the last,
    and of their difference within a seed; the totals are sums over the whole run. `rest` is all that follows the first
    share, `last_less_baseline` the difference to the baseline method under the same conditions, by seed. Of a
    diagnostic there are its mean over the last share (`dead_last`) and its last point (`dead_end`).

    Args:
        view: How the curves read.
        table: The curves.
    """
    labels, rows = labels_of(table), []
    baselines = _baselines(view, table, labels)
    for key, run in table.groupby(labels, sort=False):
        name = dict(zip(labels, key, strict=True))
        weights = share_weights(ends_of(view, run), SHARES[view.share])
        values = by_seed(view, run, view.measure)
        first, last = values @ weights.first, values @ weights.last
        per_seed = {"first": first, "last": last, "change": last - first}
        per_seed |= {total: by_seed(view, run, total).sum(1) for total in view.totals}
        per_seed["rest"] = values @ weights.rest
        baseline = baselines.get(_conditions(name))
        if name["method"] == view.baseline or baseline is None or len(baseline) != len(last):
            baseline = np.full_like(last, np.nan)
        per_seed["last_less_baseline"] = last - baseline
        for diagnostic in view.diagnostics:
            found = by_seed(view, run, diagnostic)
            per_seed |= {f"{diagnostic}_last": found @ weights.last, f"{diagnostic}_end": found[:, -1]}
        row = name | {"seeds": len(values)}
        for quantity, value in per_seed.items():
            row |= {f"{quantity}_mean": value.mean(), f"{quantity}_se": standard_error(value)}
        rows.append(row)
    return pd.DataFrame(rows)


def _baselines(view: View, table: pd.DataFrame, labels: list[str]) -> dict[tuple, np.ndarray]:
    """Returns the baseline's last share, [S], by conditions."""
    found = {}
    for key, run in table[table["method"] == view.baseline].groupby(labels, sort=False):
        last = share_weights(ends_of(view, run), SHARES[view.share]).last
        found[_conditions(dict(zip(labels, key, strict=True)))] = by_seed(view, run, view.measure) @ last
    return found


def _conditions(labels: dict[str, object]) -> tuple:
    return tuple(value for name, value in labels.items() if name not in _NOT_CONDITIONS)


def share_weights(ends: np.ndarray, share: float) -> Weights:
    """Returns the weights of the means over the first share, over the last one, and over all but the first."""
    starts, total = np.concatenate([[0], ends[:-1]]), ends[-1]
    share *= total
    first = np.clip(share - starts, 0, ends - starts)
    last = np.clip(ends - (total - share), 0, ends - starts)
    return Weights(first / share, last / share, (ends - starts - first) / (total - share))


def conditions(view: View, table: pd.DataFrame, *, everywhere: bool) -> dict[str, pd.DataFrame]:
    """Splits curves or a summary by those labels of the view's panels that vary; returns title -> part.

    Args:
        view: How the curves read.
        table: Curves or summary.
        everywhere: Whether a run that does not depend on a label goes into every part, or into the first one only.
    """
    found = {"": table}
    for label in view.panels:
        values = [value for value in dict.fromkeys(table[label]) if value != EVERY]
        if len(values) < 2:
            continue
        split = {}
        for title, part in found.items():
            for value in values:
                shown = value if isinstance(value, str) else f"{label.replace('_', ' ')} {value:g}"
                mine = part[label].isin([value, EVERY] if everywhere or value == values[0] else [value])
                split[f"{title}, {shown}" if title else shown] = part[mine]
        found = split
    return found
