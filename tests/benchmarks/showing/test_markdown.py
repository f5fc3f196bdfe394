"""Tables for the READMEs: their cells, rows and columns, and folders that are refused."""

import pandas as pd
import pytest

from benchmarks import commands
from benchmarks.running.folder import RefusedError
from benchmarks.showing import markdown, tables
from benchmarks.showing.markdown import Column, CurvesTable
from tests.benchmarks.showing.results import make_results
from tests.benchmarks.showing.test_tables import VIEW, two_methods

LABELS = {"backprop": "backprop", "gxd": "CBP, `gxd`"}


def test_table_by_hand():
    spec = CurvesTable(
        (
            Column("last", "last", ".2f"),
            Column("last_less_baseline", "gain", "+.1f"),
            Column("dead_end", "", error=False),
        ),
        ("gxd", "redo", "backprop"),
    )
    made = markdown.curves_table(spec, VIEW, LABELS, {"": tables.summary(VIEW, two_methods())})
    assert made == (
        "| | relu: last | relu: gain | relu | tanh: last | tanh: gain | tanh |\n"
        "|---|---|---|---|---|---|---|\n"
        "| CBP, `gxd` | 0.60 ± 0.10 | +0.2 ± 0.1 | 0.500 | 0.90 ± 0.10 | +0.2 ± 0.1 | 0.500 |\n"
        "| backprop | 0.40 ± 0.00 | | 0.500 | 0.70 ± 0.00 | | 0.500 |\n"
    )


def test_several_folders_stand_side_by_side(tmp_path):
    assert markdown.distinct_names([tmp_path / "selectors-sgd"]) == [""]
    names = markdown.distinct_names([tmp_path / f"selectors-{name}" for name in ("sgd", "some-norm")])
    assert names == ["sgd", "some-norm"]
    summary = tables.summary(VIEW, two_methods())
    relu = summary[summary["activation"] == "relu"]
    spec = CurvesTable((Column("last", "", ".1f", error=False),))
    made = markdown.curves_table(spec, VIEW, LABELS, {"sgd": summary, "norm": relu})
    assert made.splitlines()[0] == "| | relu, sgd | tanh, sgd | norm |"
    assert made.splitlines()[3] == "| CBP, `gxd` | 0.6 | 0.9 | 0.6 |"


def test_best_setting_is_shown():
    curves = two_methods()
    worse = curves[curves["method"] == "gxd"].assign(setting="rate=1", accuracy=0.0)
    summary = tables.summary(VIEW, pd.concat([worse, curves]))
    spec = CurvesTable((Column("last", "", ".1f", error=False),), ("gxd",))
    assert markdown.curves_table(spec, VIEW, LABELS, {"": summary}).splitlines()[2] == "| CBP, `gxd` | 0.6 | 0.9 |"


def test_the_command_prints_tables_of_a_folder_alone(tmp_path, capsys):
    folder = make_results(tmp_path / "mine")
    commands.main(["permuted-mnist", "--markdown", str(folder)])
    from_curves = capsys.readouterr().out
    assert "<!-- table permuted-mnist main: mine -->\n\n| | relu: first tenth |" in from_curves
    assert "| CBP, `gxd` | 0.300 ± 0.100 | 0.600 ± 0.100 | 0.25 | 0.2 |" in from_curves
    (folder / "curves.csv").unlink()
    commands.main(["permuted-mnist", "--markdown", str(folder)])
    assert capsys.readouterr().out == from_curves, "configuration and summary are enough"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("permuted-mnist --markdown {}/none", "holds no results: its config.json cannot be read"),
        ("permuted-mnist --markdown {}/other", "holds results of reset-cost, not of permuted-mnist"),
        ("reset-cost --markdown {}/other", "summary.csv cannot be read"),
        ("speed --markdown {}/none", "holds neither speed.csv nor growth.csv"),
        ("speed --markdown", "markdown must name at least one folder, got none"),
    ],
)
def test_other_folders_are_refused(tmp_path, arguments, message):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"problem": "reset-cost"}')
    with pytest.raises(SystemExit, match=message):
        commands.main(arguments.format(tmp_path).split())


def test_a_damaged_configuration_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(RefusedError, match="cannot be read"):
        markdown.problem_of(tmp_path)
