"""A small folder of results that tests share."""

import json

from benchmarks.problems.permuted_mnist import PROBLEM
from benchmarks.showing import tables
from tests.benchmarks.showing.test_tables import two_methods


def make_results(folder):
    """Writes results of permuted MNIST: configuration, curves and summary."""
    curves = two_methods().assign(problem=PROBLEM.name)
    curves.insert(3, "optimizer", "adam")
    curves.insert(4, "step_size", 0.01)
    for name in PROBLEM.view.diagnostics:
        curves[name] = 0.25
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"problem": PROBLEM.name}))
    curves.to_csv(folder / "curves.csv", index=False)
    tables.summary(PROBLEM.view, curves).to_csv(folder / "summary.csv", index=False)
    return folder
