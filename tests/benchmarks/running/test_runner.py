"""Running an experiment: resuming to the same bits, finished runs, folders in use."""

import pandas as pd
import pytest

from benchmarks.running import folder, runner
from tests.benchmarks.resuming import check_resuming
from tests.benchmarks.tiny import random_walks, tiny


@pytest.mark.parametrize(
    ("make", "chunks"),
    [
        (random_walks, 0),
        (random_walks, 3),
        (random_walks, 7),
        (random_walks, 9),
        pytest.param(tiny, 11, marks=pytest.mark.slow),
    ],
)
def test_interrupted_run_resumes_to_the_same_bits(tmp_path, make, chunks):
    experiment = make()
    whole, resumed = check_resuming(experiment, tmp_path, chunks)
    pd.testing.assert_frame_equal(resumed, whole)


def test_finished_run_is_not_computed_again(tmp_path):
    experiment = random_walks()
    runner.run_experiment(experiment, tmp_path)

    def refuse(seed):
        raise AssertionError("computed again")

    runs = [run._replace(start=refuse) for run in experiment.runs]
    again = runner.run_experiment(experiment._replace(runs=runs), tmp_path, resume=True)
    assert len(again) == 2 * 2 * 6


def test_folder_in_use_is_refused(tmp_path):
    experiment = random_walks()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(folder.RefusedError, match="not empty"):
        runner.run_experiment(experiment, tmp_path, resume=True)
    (tmp_path / "notes.txt").unlink()
    (tmp_path / ".config.json-x.tmp").write_text("left by a killed process")
    runner.run_experiment(experiment, tmp_path)
    with pytest.raises(folder.RefusedError, match="--resume"):
        runner.run_experiment(experiment, tmp_path)
    with pytest.raises(folder.RefusedError, match=r"settings\.seeds is 2 there and 4 now"):
        runner.run_experiment(random_walks(seeds=4), tmp_path, resume=True)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(folder.RefusedError, match="damaged"):
        runner.run_experiment(experiment, tmp_path, resume=True)
