"""What was found as tables: of units, sets and shocks, their correlations and summary, and those that are shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table

from benchmarks.networks.small import KINDS
from benchmarks.reset_cost.settings import CHEAPEST, NAME
from benchmarks.showing.markdown import check_folder, distinct_names, markdown, read_table

_HEADINGS = {
    "cost_over_cheapest_mean": "cost / cheapest",
    "cost_over_random_mean": "cost / random",
    "loss_rise_mean": "loss rise",
    "accuracy_drop_mean": "accuracy drop",
    "recovery_steps_mean": "steps to recover",
}
_LABELS = {
    "activation": "`activation`",
    "weight": "`weight`",
    "contribution": "`contribution`",
    "mean_corrected_contribution": "`mean_corrected_contribution`",
    "adaptable_contribution": "`adaptable_contribution`",
    "gradient": "`gradient`",
    "adaptation": "`adaptation`",
    "random": "`random`",
    "gxd_loss": "`gxd`, `loss` (free)",
    "gxd_predicted": "`gxd`, `predicted`",
    "gxd_target": "`gxd`, `target`",
    "gxd_fisher": "`gxd`, `fisher`",
    "gxd": "`gxd`, `logits` (default)",
    "gxd_exact": "`gxd`, `logits_exact`",
    "gxd_fast": "`gxd`, `logits`, decay .9",
    "gxd_exact_fast": "`gxd`, `logits_exact`, decay .9",
    "mean_corrected_contribution_now": "`mean_corrected_contribution` of the held-back images alone",
    "gxd_now": "`gxd`, `logits` of the held-back images alone",
    "gxd_exact_now": "`gxd`, `logits_exact` of the held-back images alone",
}
"""Score -> what the READMEs call it, in their order."""
_SHOWN = ("activation", "contribution", "mean_corrected_contribution", "gradient", "adaptation")
_SHOWN += ("gxd_loss", "gxd", "gxd_exact", "gxd_exact_now")
_SHOWN_NETWORKS = ("relu", "tanh", "sigmoid", "gelu", "elu", "relu_norm_before", "relu_norm_after")
_SHOWN_NETWORKS += ("residual_gelu", "convolutional_relu")
_CLOSER = ("gxd", "gxd_fast", "gxd_exact_fast", "gxd_exact_now")
"""Scores from the default to what comes closest to the cost."""
_DENSE = {
    "without norms": [name for name, kind in KINDS.items() if kind.body == "dense" and kind.norm == "none"],
    "with norms": [name for name, kind in KINDS.items() if kind.body == "dense" and kind.norm != "none"],
}


def tidy(found: list[dict[str, Any]], network: str, seeds: np.ndarray) -> tuple[pd.DataFrame, ...]:
    """Returns what was found as tables: shocks, sets, and units (the last is written last)."""
    shocks, sets, units = [], [], []
    for moment, measures in enumerate(found, start=1):
        for place, seed in enumerate(seeds):
            at = {"network": network, "seed": seed, "moment": moment}
            for score, values in measures["shocks"].items():
                shocks.append(at | {"score": score} | {what: float(v[place]) for what, v in values.items()})
            for layer, values in measures["sets"].items():
                sets += [at | {"layer": layer, "score": name, "cost": float(v[place])} for name, v in values.items()]
            for layer, cost in measures["cost"].items():
                columns = {name: values[layer][place] for name, values in measures["scores"].items()}
                index = {"layer": layer, "unit": np.arange(cost.shape[1])}
                units.append(pd.DataFrame(at | index | {"cost": cost[place]} | columns))
    return pd.DataFrame(shocks), pd.DataFrame(sets), pd.concat(units, ignore_index=True)


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation; ties share their mean rank; NaN where one side is constant."""
    ranks = [pd.Series(values).rank().to_numpy() for values in (a, b)]
    deviations = [r.std() for r in ranks]
    if min(deviations) == 0:
        return float("nan")
    return float(((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())).mean() / (deviations[0] * deviations[1]))


def correlate(units: pd.DataFrame) -> pd.DataFrame:
    """Returns the rank correlation of every score with the cost, within a layer of a seed at a moment."""
    scores = [name for name in units if name not in ("network", "seed", "moment", "layer", "unit", "cost")]
    rows = []
    for key, layer in units.groupby(["network", "seed", "moment", "layer"], sort=False):
        at = dict(zip(("network", "seed", "moment", "layer"), key, strict=True))
        cost = layer["cost"].to_numpy()
        rows += [at | {"score": name, "spearman": spearman(layer[name].to_numpy(), cost)} for name in scores]
    return pd.DataFrame(rows)


def summarise(correlations: pd.DataFrame, sets: pd.DataFrame, shocks: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per network and score: means over seeds, layers and moments, standard errors over seeds.

    The cost of a set is divided by that of the cheapest units, and of random ones, summed over layers and moments.
    """
    rows = []
    for (network, score), part in shocks.groupby(["network", "score"], sort=False):
        mine = sets[(sets.network == network) & (sets.score == score)].groupby("seed").cost.sum()
        row = {"network": network, "score": score}
        for other in (CHEAPEST, "random"):
            theirs = sets[(sets.network == network) & (sets.score == other)].groupby("seed").cost.sum()
            row |= with_error(f"cost_over_{other}", mine / theirs)
        found = correlations[(correlations.network == network) & (correlations.score == score)]
        if len(found):
            row |= with_error("spearman", found.groupby("seed").spearman.mean())
        for what in ("loss_rise", "accuracy_drop", "recovery_steps"):
            row |= with_error(what, part.groupby("seed")[what].mean())
        rows.append(row)
    return pd.DataFrame(rows)


def with_error(name: str, of_seeds: pd.Series) -> dict[str, float]:
    """Returns mean and standard error as two columns."""
    return {f"{name}_mean": of_seeds.mean(), f"{name}_se": of_seeds.sem()}


def correlation_table(correlations: pd.DataFrame) -> Table:
    """Returns the rank correlations, a row per score and a column per network, as a table for the terminal."""
    table = Table(
        title="rank correlation of utility and reset cost, mean over seeds, layers and moments", box=box.SIMPLE
    )
    means = correlations.groupby(["score", "network"], sort=False).spearman.mean().unstack(sort=False)
    table.add_column("utility")
    for network in means:
        table.add_column(str(network), justify="right", overflow="fold")
    for score, row in means.iterrows():
        table.add_row(str(score), *(f"{value:.2f}" for value in row))
    return table


def summary_table(summary: pd.DataFrame) -> Table:
    """Returns costs of sets and shocks, averaged over the networks, as a table for the terminal."""
    table = Table(title="the lowest units of each utility, reset together; mean over networks", box=box.SIMPLE)
    table.add_column("utility")
    for heading in _HEADINGS.values():
        table.add_column(heading, justify="right")
    for score, row in summary.groupby("score", sort=False)[list(_HEADINGS)].mean().iterrows():
        table.add_row(str(score), *(f"{value:.3g}" for value in row))
    return table


def markdown_tables(folders: Sequence[Path]) -> dict[str, str]:
    """Returns the tables for a README: a row for each score; several folders stand side by side.

    `correlations` has a column for each network that the README shows, `all-correlations` for every one; `closer` has
    the range over dense networks without and with norms; `sets` has means over the networks.

    Raises:
        RefusedError: If a folder holds no results of this study.
    """
    wide, closer, costs = [], [], []
    for name, folder in zip(distinct_names(folders), folders, strict=True):
        check_folder(NAME, folder)
        summary = read_table(folder / "summary.csv")
        correlations = summary.pivot(index="score", columns="network", values="spearman_mean")
        correlations = correlations[list(dict.fromkeys(summary["network"]))]
        wide.append(_cells(correlations, ".2f").rename(columns=lambda network, name=name: _joined(network, name)))
        closer.append(pd.DataFrame({_joined(title, name): _ranges(correlations, v) for title, v in _DENSE.items()}))
        means = summary.groupby("score")[list(_HEADINGS)].mean()
        costs.append(_cells(means, ".3g").rename(columns=lambda column, name=name: _joined(_HEADINGS[column], name)))
    everything = pd.concat(wide, axis=1)
    shown = [name for name in everything if str(name).split(",")[0] in _SHOWN_NETWORKS]
    return {
        "correlations": _markdown_table(everything[shown], _SHOWN),
        "all-correlations": _markdown_table(everything, tuple(_LABELS)),
        "closer": _markdown_table(pd.concat(closer, axis=1), _CLOSER),
        "sets": _markdown_table(pd.concat(costs, axis=1), tuple(_LABELS)),
    }


def _cells(table: pd.DataFrame, form: str) -> pd.DataFrame:
    return table.map(lambda value: "" if pd.isna(value) else format(value, form))


def _ranges(correlations: pd.DataFrame, networks: Sequence[str]) -> pd.Series:
    """Returns the least and the largest value over those of the networks that there are, as text."""
    found = correlations[[name for name in networks if name in correlations]]
    least, most = (_cells(values.to_frame(), ".2f").iloc[:, 0] for values in (found.min(axis=1), found.max(axis=1)))
    return least.where(least == most, least + " to " + most)


def _markdown_table(cells: pd.DataFrame, scores: Sequence[str]) -> str:
    rows = [[_LABELS[score], *cells.loc[score]] for score in scores if score in cells.index]
    headings = (str(name).replace("_", " ") for name in cells)
    return markdown(["", *headings], [row for row in rows if any(row[1:])])


def _joined(heading: str, folder: str) -> str:
    return f"{heading}, {folder}" if folder else heading
