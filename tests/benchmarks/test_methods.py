"""The table of methods: their settings, and what they support."""

import dataclasses

from benchmarks import methods
from benchmarks.problems import slowly_changing_regression as regression
from benchmarks.rl import methods as control_methods
from benchmarks.showing.styles import STYLES
from tests.benchmarks.tiny import TINY


def test_settings_of_methods():
    settings = regression.PROBLEM.fill_in(dataclasses.replace(TINY, perturb_l2=(0.1, 0.2), noise_std=(0.3,)))
    found = list(methods.settings_of(methods.METHODS["shrink_and_perturb"], settings))
    assert found == [{"perturb_l2": 0.1, "noise_std": 0.3}, {"perturb_l2": 0.2, "noise_std": 0.3}]
    assert list(methods.settings_of(methods.METHODS["backprop"], settings)) == [{}]
    assert methods.shown(found[0]) == "perturb_l2=0.1 noise_std=0.3"


def test_methods_that_support_regression_need_no_classes_batches_or_tasks():
    without = {name for name, method in methods.METHODS.items() if not method.supports_regression}
    assert without == {
        "dropout",
        "layer_norm",
        "batch_norm",
        "head_reset",
        "gxd_predicted",
        "gxd_target",
        "gxd_fisher",
    }


def test_every_method_has_a_label_and_a_style_of_its_own():
    for rows in (methods.METHODS, control_methods.METHODS):
        assert len({row.label for row in rows.values()}) == len(rows)
        assert len({STYLES[name] for name in rows}) == len(rows)
