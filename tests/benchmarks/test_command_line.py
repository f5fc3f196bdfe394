"""What the command line refuses, each time in one line, and what the scales stand for; nothing is compiled."""

import dataclasses
import json

import pytest

from benchmarks import commands, datasets
from benchmarks.experiment import seed_numbers
from benchmarks.problems import continual_imagenet
from benchmarks.problems import slowly_changing_regression as regression
from benchmarks.reset_cost import settings as reset_cost
from benchmarks.rl import slippery_ant
from benchmarks.running import folder

SCALES = {problem.name: (problem.settings, problem.scales) for problem in commands.PROBLEMS}
SCALES |= {reset_cost.NAME: (reset_cost.Settings, reset_cost.SCALES)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("permuted-mnist --method", "method must name at least one value, got none"),
        ("slowly-changing-regression --step-size", "step_size must name at least one value, got none"),
        ("continual-imagenet --activation", "activation must name at least one value, got none"),
        ("reset-cost --network", "network must name at least one value, got none"),
        ("speed --case", "case must name at least one value, got none"),
        ("offset-cartpole --method ppo ppo", "method must name each value once, got ppo twice"),
        ("permuted-mnist --l2 .1 .2 1e-1", "l2 must name each value once, got 0.1 twice"),
        ("permuted-mnist --seeds 0", "seeds must be 1 or more, got 0"),
        ("reset-cost --seeds -3", "seeds must be 1 or more, got -3"),
        ("slippery-ant --first-seed -1", "first_seed must be 0 or more, got -1"),
        (
            "permuted-mnist --first-seed 3000000000 --seeds 2",
            "first_seed must lie between 0 and 2147483646, as seeds end at 2147483647, got 3000000000",
        ),
        ("permuted-mnist --width 0", "width must be 1 or more, got 0"),
        ("permuted-mnist --layers -1", "layers must be 1 or more, got -1"),
        ("slowly-changing-regression --flip-every 0", "flip_every must be 1 or more, got 0"),
        ("slowly-changing-regression --maturity-threshold -1", "maturity_threshold must be 0 or more, got -1"),
        ("slowly-changing-regression --step-size .1 -1", "step_size must be a positive number, got -1.0"),
        ("reset-cost --step-size nan", "step_size must be a positive number, got nan"),
        ("offset-cartpole --step-size inf", "step_size must be a positive number, got inf"),
        ("permuted-mnist --decay nan", "decay must be a finite number, 0 or more, got nan"),
        ("permuted-mnist --noise-std inf", "noise_std must be a finite number, 0 or more, got inf"),
        ("permuted-mnist --dropout 1", "dropout must be below 1, got 1.0"),
        ("offset-cartpole --offset-std -1", "offset_std must be a finite number, 0 or more, got -1.0"),
    ],
)
def test_impossible_options_are_refused_in_one_line(arguments, message):
    with pytest.raises(SystemExit) as refused:
        commands.main(arguments.split())
    assert refused.value.code == f"error: {message}"


def test_seeds_may_end_at_the_last_one():
    settings = regression.PROBLEM.fill_in(regression.Settings(first_seed=2**31 - 4, seeds=4))
    assert list(seed_numbers(settings)) == [2**31 - 4, 2**31 - 3, 2**31 - 2, 2**31 - 1]
    with pytest.raises(ValueError, match="first_seed must lie between 0 and 2147483618"):
        regression.PROBLEM.fill_in(dataclasses.replace(settings, seeds=None))  # 30 of them


def test_a_folder_of_tensorflow_datasets_needs_the_name_of_a_set(tmp_path):
    with pytest.raises(folder.RefusedError, match=f"data_dir is of --tfds: .* got --data-dir {tmp_path} only"):
        datasets.load(None, tmp_path, None)


def test_results_need_a_place(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for out, message in {
        file: f"{file} is not a folder",
        file / "below": f"cannot write results to {file / 'below'}: Not a directory",
    }.items():
        with pytest.raises(folder.RefusedError, match=f"^{message}$"):
            folder.open_folder(out, {}, resume=False)
        with pytest.raises(SystemExit, match=message):
            commands.main(["speed", "--out", str(out)])


@pytest.mark.parametrize("found", [[1], 3, None, ["problem"]])
def test_folder_of_something_else_is_refused(tmp_path, found):
    (tmp_path / "config.json").write_text(json.dumps(found))
    with pytest.raises(folder.RefusedError, match=r"another configuration: config\.json is no JSON object"):
        folder.open_folder(tmp_path, {"problem": "mine"}, resume=True)


@pytest.mark.parametrize("name", SCALES)
def test_scales_take_effect(name):
    settings, scales = SCALES[name]
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    for scale, preset in scales.items():
        overruled = {option for option in preset if defaults[option] is not None}
        assert not overruled, f"{scale} says what {overruled} are, but the options have values of their own"


def test_smoke_replaces_units():
    settings = continual_imagenet.PROBLEM.fill_in(continual_imagenet.Settings(scale="smoke"))
    steps = settings.tasks * settings.epochs * 2 * settings.train_images // settings.batch
    smallest = 32
    assert smallest * settings.replacement_rate[0] * (steps - settings.maturity_threshold) > 1


def test_reset_cost_studies_all_networks_but_in_the_smoke_scale():
    studied = {scale: len(reset_cost.check(reset_cost.Settings(scale=scale)).network) for scale in reset_cost.SCALES}
    assert studied == {"smoke": 3, "default": 13, "paper": 13}


def test_control_has_the_thresholds_that_its_scales_say():
    paper = slippery_ant.PROBLEM.fill_in(slippery_ant.Settings(scale="paper"))
    assert (paper.maturity_threshold, paper.reset_period) == (10_000, 100)
