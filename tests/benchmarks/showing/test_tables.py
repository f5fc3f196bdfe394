"""The summary of an experiment, by hand."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.experiment import View
from benchmarks.running import curves
from benchmarks.showing import tables
from tests.benchmarks.tiny import tiny


def test_tenths_may_end_inside_a_chunk():
    first, last, rest = tables.share_weights(np.array([40, 80, 120, 160]), 0.1)
    np.testing.assert_allclose(first, [1, 0, 0, 0])
    np.testing.assert_allclose(last, [0, 0, 0, 1])
    np.testing.assert_allclose(rest, [24 / 144, 40 / 144, 40 / 144, 40 / 144])
    first, last, _ = tables.share_weights(np.arange(4, 101, 4), 0.1)
    np.testing.assert_allclose(first[:4], [0.4, 0.4, 0.2, 0])
    np.testing.assert_allclose(last[-4:], [0, 0.2, 0.4, 0.4])


def test_summary_by_hand():
    experiment = tiny(method=("gxd",), examples=800)
    ramp = np.arange(10, dtype=np.float32)
    measures = {"error": np.stack([ramp, ramp + 2]), "replaced": np.tile([[1], [3]], 10)}
    summary = tables.summary(experiment.view, curves.tidy(experiment, experiment.runs[0], measures)).iloc[0]
    assert (summary["first_mean"], summary["last_mean"], summary["change_mean"]) == (1.0, 10.0, 9.0)
    assert (summary["first_se"], summary["change_se"]) == (1.0, 0.0)
    assert (summary["replaced_mean"], summary["replaced_se"]) == (20.0, 10.0)
    assert summary["rest_mean"] == pytest.approx(6.0)
    assert np.isnan(summary["last_less_baseline_mean"]), "there is no baseline"


VIEW = View("task", "accuracy", panels=("activation",), higher_is_better=True, diagnostics=("dead",), share="quarter")


def two_methods():
    """Curves of two methods and seeds under two conditions: four tasks, and one diagnostic."""
    rows = []
    for activation, offset in (("relu", 0.0), ("tanh", 0.3)):
        for method, gain in (("backprop", (0.0, 0.0)), ("gxd", (0.1, 0.3))):
            for seed in (0, 1):
                for task in (1, 2, 3, 4):
                    at = {"problem": "p", "method": method, "activation": activation, "setting": "", "seed": seed}
                    accuracy = 0.1 * task + offset + gain[seed]
                    rows.append(at | {"task": task, "accuracy": accuracy, "dead": task / 8, "replaced": seed})
    return pd.DataFrame(rows)


def test_differences_to_the_baseline_are_paired_by_seed_and_condition():
    summary = tables.summary(VIEW, two_methods()).set_index(["activation", "method"])
    for activation in ("relu", "tanh"):
        row = summary.loc[(activation, "gxd")]
        assert row["last_less_baseline_mean"] == pytest.approx(0.2)
        assert row["last_less_baseline_se"] == pytest.approx(0.1)
        assert np.isnan(summary.loc[(activation, "backprop"), "last_less_baseline_mean"])
    row = summary.loc[("relu", "backprop")]
    assert (row["dead_last_mean"], row["dead_end_mean"], row["dead_end_se"]) == (0.5, 0.5, 0.0)
    assert row["rest_mean"] == pytest.approx(0.3)
    assert row["replaced_mean"] == 2.0


def test_conditions_that_vary_split_a_table():
    curves = two_methods().assign(optimizer="sgd")
    view = VIEW._replace(panels=("optimizer", "activation"))
    everywhere = pd.concat([curves, curves.assign(method="linear", activation="all")])
    for shown, counts in ((True, (24, 24)), (False, (24, 8))):
        parts = tables.conditions(view, everywhere[everywhere["seed"] == 0], everywhere=shown)
        assert list(parts) == ["relu", "tanh"]
        assert tuple(len(part) for part in parts.values()) == counts
