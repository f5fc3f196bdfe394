"""The tables of the READMEs are those that the results in `benchmarks/evidence` say."""

import pytest

from benchmarks.problems.permuted_mnist import PROBLEM
from benchmarks.running.folder import RefusedError
from benchmarks.showing import readme
from benchmarks.showing.markdown import between_markers
from tests.benchmarks.showing.results import make_results


@pytest.mark.parametrize("path", readme.READMES, ids=lambda path: str(path.relative_to(readme.REPOSITORY)))
def test_tables_are_what_the_results_say(path):
    text = path.read_text(encoding="utf-8")
    assert readme.with_tables(text) == text, "python -m benchmarks.showing.readme writes them anew"


def test_evidence_is_small():
    for file in readme.EVIDENCE.glob("*/*"):
        assert file.name in ("config.json", "summary.csv", "speed.csv", "growth.csv")
        assert file.stat().st_size < 80_000, file


def test_a_table_that_was_changed_by_hand_is_made_anew(tmp_path):
    folder, evidence = make_results(tmp_path / "mine"), tmp_path / "evidence"
    readme.keep_results(folder, evidence)
    assert {file.name for file in (evidence / "mine").iterdir()} == {"config.json", "summary.csv"}
    assert (evidence / "mine" / "summary.csv").read_bytes() == (folder / "summary.csv").read_bytes()
    changed = "# Mine\n\n" + between_markers(PROBLEM.name, "last", ["mine"], "| by | hand |\n") + "\nThe end.\n"
    made = readme.with_tables(changed, evidence)
    assert made.startswith("# Mine\n\n<!-- table permuted-mnist last: mine -->\n\n| | relu | tanh |\n")
    assert "| CBP, `gxd` | 0.600 | 0.900 |\n\n<!-- end of table -->\n\nThe end.\n" in made
    assert readme.with_tables(made, evidence) == made


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("no-such main: mine", "a marker names no-such, which is no command"),
        ("permuted-mnist no-such: mine", "permuted-mnist has no table no-such of mine: it has main, accuracy, last"),
        ("permuted-mnist main: yours", "yours holds no results"),
    ],
)
def test_markers_of_what_is_not_there_are_refused(tmp_path, marker, message):
    evidence = tmp_path / "evidence"
    readme.keep_results(make_results(tmp_path / "mine"), evidence)
    with pytest.raises(RefusedError, match=message):
        readme.with_tables(f"<!-- table {marker} -->\n\n<!-- end of table -->\n", evidence)
