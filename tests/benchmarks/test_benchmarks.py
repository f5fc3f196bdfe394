"""The experiments: the stream's numbers, the table of methods, resuming, and the files that a run leaves."""

import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

from benchmarks import (
    checkpoints,
    extras,
    folder,
    learners,
    methods,
    processes,
    runner,
    tables,
)
from benchmarks import slowly_changing_regression as regression
from benchmarks.experiment import Run, devices_for, fill_in, seeds_together
from tests.benchmarks.resuming import StopError, check_resuming, stop_after, written

TINY = regression.Settings(
    scale="smoke", seeds=2, examples=480, bin=80, flip_every=80, method=("backprop", "gxd"), devices=1
)
REPOSITORY = Path(__file__).parents[2]


def tiny(**changes):
    return regression.make_experiment(dataclasses.replace(TINY, **changes))


def random_walks(**changes):
    """An experiment of the tiny one's shape that compiles in a moment: two random walks a seed."""

    def start(seed, data):
        del data
        return jax.random.key(seed), jnp.float32(0)

    def chunk(carry, data):
        del data
        key, place = carry
        key, step_key = jax.random.split(key)
        place += jax.random.normal(step_key)
        return (key, place), {"error": place, "replaced": jnp.int32(1)}

    runs = [Run({"method": name}, start, chunk) for name in ("first", "second")]
    return tiny(**changes)._replace(runs=runs, panels=())


# --- The stream ----------------------------------------------------------------------------------------------------


def test_threshold_unit_by_hand():
    # A unit with all weights +1 has threshold 21 * 0.7 = 14.7: with the constant, 14 ones on its inputs switch it on,
    # 13 do not. One with k negative weights has threshold 14.7 - k.
    kernel = jnp.ones((21, 2)).at[:3, 1].set(-1.0)
    target = regression.Target(kernel, 21 * 0.7 - (kernel < 0).sum(0), jnp.array([1.0, -1.0]))
    x = jnp.zeros((4, 20))
    x = x.at[0, :14].set(1.0)  # unit 0: 15 > 14.7; unit 1: -3 + 11 + 1 = 9, not above 11.7
    x = x.at[1, :13].set(1.0)  # unit 0: 14; unit 1: 8
    x = x.at[2, 3:14].set(1.0)  # unit 0: 12; unit 1: 12 > 11.7
    x = x.at[3, 3:].set(1.0)  # both: 18
    np.testing.assert_array_equal(regression.target_output(target, x)[:, 0], [1.0, 0.0, -1.0, 0.0])


def test_drawn_target():
    target = regression.draw_target(jax.random.key(0))
    assert target.kernel.shape == (21, 100)
    assert set(np.unique(target.kernel)) == set(np.unique(target.outgoing)) == {-1.0, 1.0}
    np.testing.assert_allclose(target.threshold, 14.7 - (np.asarray(target.kernel) == -1).sum(0), rtol=1e-6)


@pytest.mark.parametrize("flip", ["one", "all"])
def test_block_equals_single_examples(flip):
    stream = regression.Stream(flip, flip_every=16)
    state = one_by_one = stream.init(jax.random.key(3))
    sample, sample_block = jax.jit(stream.sample), jax.jit(stream.sample_block, static_argnums=1)
    for _ in range(6):
        state, (xs, ys) = sample_block(state, 8)
        for x, y in zip(xs, ys, strict=True):
            one_by_one, (single_x, single_y) = sample(one_by_one)
            np.testing.assert_array_equal(single_x[0], x)
            np.testing.assert_array_equal(single_y[0], y)


def test_one_slow_bit_flips_at_each_change():
    stream = regression.Stream("one", flip_every=8)
    draw = jax.jit(lambda state: jax.lax.scan(lambda s, _: stream.sample_block(s, 8), state, length=300))
    _, (xs, ys) = draw(stream.init(jax.random.key(1)))
    slow = np.asarray(xs)[:, :, :15]
    assert (slow == slow[:, :1]).all(), "slow bits are constant between changes"
    flips = slow[1:, 0] != slow[:-1, 0]
    assert (flips.sum(1) == 1).all()
    # 299 flips over 15 bits: 19.9 each, standard deviation 4.3.
    assert (np.abs(flips.sum(0) - 299 / 15) < 4.5 * 4.3).all()
    assert ((xs == 0) | (xs == 1)).all()
    assert len(np.unique(ys)) > 3


def test_flips_come_every_ten_thousand_examples():
    stream = regression.Stream()
    draw = jax.jit(lambda state: jax.lax.scan(lambda s, _: stream.sample_block(s, 1000), state, length=30))
    _, (xs, _) = draw(stream.init(jax.random.key(5)))
    slow = np.asarray(xs).reshape(30_000, 20)[:, :15]
    changed = np.flatnonzero((slow[1:] != slow[:-1]).any(1)) + 1
    np.testing.assert_array_equal(changed, [10_000, 20_000])


def test_all_slow_bits_are_drawn_anew():
    stream = regression.Stream("all", flip_every=8)
    draw = jax.jit(lambda state: jax.lax.scan(lambda s, _: stream.sample_block(s, 8), state, length=300))
    _, (xs, _) = draw(stream.init(jax.random.key(1)))
    changed = np.asarray(xs)[1:, 0, :15] != np.asarray(xs)[:-1, 0, :15]
    # 299 x 15 fair coins: mean 1/2, standard deviation 0.0075.
    assert abs(changed.mean() - 0.5) < 4.5 * 0.0075


def test_coins_are_fair_and_independent():
    stream = regression.Stream()
    _, (xs, _) = jax.jit(stream.sample_block, static_argnums=1)(stream.init(jax.random.key(2)), 10_000)
    coins = np.asarray(xs)[:, 15:]
    # Standard deviation of a mean of 10,000 coins: 0.005; of a correlation: 0.01.
    assert (np.abs(coins.mean(0) - 0.5) < 0.0225).all()
    correlations = np.corrcoef(np.concatenate([coins[:-1], coins[1:]], 1).T)
    assert np.abs(correlations[~np.eye(10, dtype=bool)]).max() < 0.05


def test_block_size_must_fit():
    with pytest.raises(ValueError, match="multiple of 4"):
        regression.Stream().sample_block(regression.Stream().init(jax.random.key(0)), 30)
    with pytest.raises(ValueError, match="multiples of 4"):
        tiny(examples=30, bin=30)
    with pytest.raises(ValueError, match="multiple of bin"):
        tiny(examples=100)
    with pytest.raises(ValueError, match="seeds"):
        tiny(seeds=0)


# --- Learner and methods -------------------------------------------------------------------------------------------


def test_initial_weights():
    params = learners.init(jax.random.key(0), (20, 5000, 1), "tanh")
    hidden = np.asarray(params["hidden_1"]["kernel"])
    bound = 5 / 3 * np.sqrt(3 / 20)
    assert np.abs(hidden).max() <= bound
    np.testing.assert_allclose(hidden.std(), bound / np.sqrt(3), rtol=0.01)
    assert np.abs(params["output"]["kernel"]).max() <= np.sqrt(3 / 5000)
    assert not params["hidden_1"]["bias"].any()
    assert not params["output"]["bias"].any()


def test_every_method_sees_the_same_streams_and_initial_weights():
    runs = tiny(method=regression._METHODS, activation=("relu",), seeds=3).runs
    # Not jitted: the methods then share the small programs of single operations.
    carries = {run.labels["method"]: jax.vmap(run.start, in_axes=(0, None))(jnp.arange(3), ()) for run in runs}
    assert set(carries) == set(regression._METHODS)
    for name, carry in carries.items():
        jax.tree.map(np.testing.assert_array_equal, carry.stream, carries["backprop"].stream)
        if name != "linear":
            jax.tree.map(np.testing.assert_array_equal, carry.learner.params, carries["backprop"].learner.params)


def test_a_seed_depends_on_its_number_only():
    run = tiny().runs[1]
    start = jax.jit(jax.vmap(run.start, in_axes=(0, None)))
    all_seeds, one_seed = start(jnp.arange(4), ()), start(jnp.array([2]), ())
    jax.tree.map(lambda several, one: np.testing.assert_array_equal(several[2], one[0]), all_seeds, one_seed)


def test_settings_of_methods():
    settings = fill_in(dataclasses.replace(TINY, perturb_l2=(0.1, 0.2), noise_std=(0.3,)), regression.SCALES)
    found = list(methods.settings_of(methods.METHODS["shrink_and_perturb"], settings))
    assert found == [{"perturb_l2": 0.1, "noise_std": 0.3}, {"perturb_l2": 0.2, "noise_std": 0.3}]
    assert list(methods.settings_of(methods.METHODS["backprop"], settings)) == [{}]
    assert methods.shown(found[0]) == "perturb_l2=0.1 noise_std=0.3"


def test_linear_learner_runs_once_and_paper_scale_has_its_grid():
    runs = regression.make_experiment(regression.Settings(scale="paper", devices=1)).runs
    labels = pd.DataFrame([run.labels for run in runs])
    counts = labels.groupby(["method", "step_size"]).size().unstack()[0.01]
    expected = {"linear": 1, "backprop": 6, "l2": 6 * 7, "shrink_and_perturb": 6 * 6, "gxd": 6 * 5}
    assert {name: counts[name] for name in expected} == expected


def test_chunk_equals_plain_sgd_by_hand():
    run = tiny(method=("backprop",), bin=40, flip_every=40, examples=40).runs[0]
    carry = run.start(jnp.int32(7), ())
    end, measures = jax.jit(run.chunk)(carry, ())
    stream, state, params, errors = regression.Stream("one", 40), carry.stream, carry.learner.params, []

    def error(params, x, y):
        hidden = jnp.tanh(x @ params["hidden_1"]["kernel"] + params["hidden_1"]["bias"])
        return (hidden @ params["output"]["kernel"] + params["output"]["bias"] - y)[0, 0] ** 2

    sample, error_and_gradients = jax.jit(stream.sample), jax.jit(jax.value_and_grad(error))
    for _ in range(40):
        state, (x, y) = sample(state)
        value, gradients = error_and_gradients(params, x, y)
        params = optax.apply_updates(params, jax.tree.map(lambda g: -0.01 * g, gradients))
        errors.append(value)
    np.testing.assert_allclose(measures["error"], np.mean(errors), rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), end.learner.params, params)


def test_replaced_units_are_counted():
    settings = {"method": ("cbp_contribution",), "replacement_rate": (1.0,), "maturity_threshold": 9}
    run = tiny(**settings, bin=40, flip_every=40).runs[0]
    _, measures = jax.jit(run.chunk)(run.start(jnp.int32(0), ()), ())
    # At rate 1 and maturity 9 all five units go at updates 10, 20, 30 and 40.
    assert measures["replaced"] == 20


# --- Resuming ------------------------------------------------------------------------------------------------------


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


def interrupted(tmp_path):
    experiment = random_walks()
    with pytest.raises(StopError):
        runner.run_experiment(experiment, tmp_path, on_chunk=stop_after(3))
    (checkpoint,) = (tmp_path / "runs").glob("*.checkpoint")
    return experiment, checkpoint


def test_damaged_checkpoint_is_refused(tmp_path):
    experiment, checkpoint = interrupted(tmp_path)
    for name in ("_CHECKPOINT_METADATA", "default/_METADATA", "default/manifest.ocdbt", "default/d/*"):
        (file,) = checkpoint.glob(f"*/{name}")
        good = file.read_bytes()
        flipped = bytearray(good)
        flipped[len(good) // 2] ^= 128
        for bad in (b"", good[: len(good) // 2], bytes(flipped)):
            file.write_bytes(bad)
            with pytest.raises(folder.RefusedError, match=f"{re.escape(str(checkpoint))} is damaged"):
                runner.run_experiment(experiment, tmp_path, resume=True)
        file.write_bytes(good)
    runner.run_experiment(experiment, tmp_path, resume=True)


def test_foreign_checkpoint_is_refused(tmp_path):
    experiment, checkpoint = interrupted(tmp_path / "mine")
    (tmp_path / "other").mkdir()
    other, others = random_walks(first_seed=9), tmp_path / "other"
    with pytest.raises(StopError):
        runner.run_experiment(other, others, on_chunk=stop_after(3))
    (theirs,) = (others / "runs").glob("*.checkpoint")
    shutil.rmtree(checkpoint)
    shutil.copytree(theirs, checkpoint)
    with pytest.raises(folder.RefusedError, match="another configuration"):
        runner.run_experiment(experiment, tmp_path / "mine", resume=True)


def test_checkpoint_keeps_keys_dtypes_and_sharding(tmp_path):
    mesh = jax.make_mesh((1,), ("seeds",))
    sharding = jax.NamedSharding(mesh, jax.P("seeds"))
    carry = {
        "key": jax.device_put(jax.random.split(jax.random.key(3), 2), sharding),
        "n": jnp.int32(4),
        "empty": jnp.zeros((0, 2)),
        "mask": jax.device_put(jnp.array([True, False]), sharding),
    }
    with checkpoints.open_manager(tmp_path / "c") as manager:
        checkpoints.save(manager, {"a": 1}, carry, {"error": np.ones((2, 3), np.float32)})
    with checkpoints.open_manager(tmp_path / "c") as manager:
        loaded, measures = checkpoints.load(manager, {"a": 1}, carry)
        for other in ({**carry, "n": jnp.float32(4)}, {**carry, "more": jnp.int32(4)}, {"n": carry["n"]}):
            with pytest.raises(folder.RefusedError, match="another configuration"):
                checkpoints.load(manager, {"a": 1}, other)
        with pytest.raises(folder.RefusedError, match="another configuration"):
            checkpoints.load(manager, {"a": 2}, carry)
    for name, leaf in carry.items():
        assert (loaded[name].dtype, loaded[name].sharding) == (leaf.dtype, leaf.sharding)
    np.testing.assert_array_equal(jax.random.key_data(loaded["key"]), jax.random.key_data(carry["key"]))
    for name in ("n", "empty", "mask"):
        np.testing.assert_array_equal(loaded[name], carry[name])
    np.testing.assert_array_equal(measures["error"], np.ones((2, 3), np.float32), strict=True)


def test_only_the_latest_checkpoint_is_kept(tmp_path):
    _, checkpoint = interrupted(tmp_path)
    assert [entry.name for entry in checkpoint.iterdir()] == ["3"]


# --- Tables --------------------------------------------------------------------------------------------------------


def test_tenths_may_end_inside_a_chunk():
    first, last = tables.share_weights(np.array([40, 80, 120, 160]), 0.1)
    np.testing.assert_allclose(first, [1, 0, 0, 0])
    np.testing.assert_allclose(last, [0, 0, 0, 1])
    first, last = tables.share_weights(np.arange(4, 101, 4), 0.1)
    np.testing.assert_allclose(first[:4], [0.4, 0.4, 0.2, 0])
    np.testing.assert_allclose(last[-4:], [0, 0.2, 0.4, 0.4])


def test_summary_by_hand():
    experiment = tiny(method=("gxd",), examples=800)
    ramp = np.arange(10, dtype=np.float32)
    measures = {"error": np.stack([ramp, ramp + 2]), "replaced": np.tile([[1], [3]], 10)}
    summary = tables.summary(experiment, tables.curves(experiment, experiment.runs[0], measures)).iloc[0]
    assert (summary["first_mean"], summary["last_mean"], summary["change_mean"]) == (1.0, 10.0, 9.0)
    assert (summary["first_se"], summary["change_se"]) == (1.0, 0.0)
    assert (summary["replaced_mean"], summary["replaced_se"]) == (20.0, 10.0)


# --- The command line ----------------------------------------------------------------------------------------------


REGRESSION = "slowly-changing-regression --examples 480 --bin 80 --flip-every 80 --method linear gxd"
PERMUTED = "permuted-mnist --width 8 --layers 1 --tasks 8 --examples 160 --probe 9 --method backprop gxd"
PAIRS = "continual-imagenet --tasks 6 --tasks-per-chunk 1 --epochs 1 --method backprop gxd"
CARTPOLE = "offset-cartpole --width 8 --epochs 1 --tasks 4 --method ppo gxd_l2"
ANT = "slippery-ant --width 8 --epochs 1 --steps 4096 --backend c --method ppo gxd_l2"


def command(out, *more, problem=REGRESSION):
    """Starts the command line on a tiny problem; returns the process."""
    arguments = [*problem.split(), "--scale", "smoke", "--seeds", "2", "--devices", "2", "--out", str(out), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process):
    """Waits for a process; returns its exit status and what it printed."""
    output, _ = process.communicate()
    return process.returncode, output


@pytest.mark.slow
def test_command_writes_its_files(tmp_path):
    out = tmp_path / "out"
    status, output = finished(command(out))
    assert status == 0, output
    assert "gxd" in output
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "curves.svg").read_text()
    assert json.loads((out / "config.json").read_text())["settings"]["seeds"] == 2
    curves = pd.read_csv(out / "curves.csv")
    identifying = ["problem", "activation", "method", "step_size", "setting", "seed", "example"]
    assert list(curves.columns) == [*identifying, "error", "replaced"]
    assert len(curves) == 2 * 2 * 6
    assert not curves.duplicated(identifying).any()
    assert list(pd.read_csv(out / "summary.csv")["method"]) == ["linear", "gxd"]
    status, output = finished(command(out))
    assert status == 1
    assert output.startswith("error: ")
    assert output.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("problem", [REGRESSION, PERMUTED, PAIRS, CARTPOLE, ANT])
def test_killed_command_resumes_to_the_same_bits(tmp_path, problem):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert finished(command(whole, problem=problem))[0] == 0
    process = command(parts, problem=problem)
    deadline = time.monotonic() + 120
    # It may be too quick to be caught in the act; what it left must be whole all the same.
    while not list((parts / "runs").glob("*gxd*.checkpoint/[0-9]")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    finished(process)
    status, output = finished(command(parts, "--resume", problem=problem))
    assert status == 0, output
    for name in ("curves.csv", "summary.csv", "config.json", "curves.svg", "curves.png"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name


def free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def two_processes(out, *more, problem=REGRESSION):
    """Starts a distributed run of two processes on this machine, each with half of the devices that it takes in all."""
    together = ("--distributed", "--coordinator", f"localhost:{free_port()}", "--processes", "2")
    return [command(out, *together, "--process", str(number), *more, problem=problem) for number in range(2)]


@pytest.mark.slow
def test_two_processes_give_the_bits_of_one(tmp_path):
    sizes = ("--seeds", "8", "--group", "1", "--devices")
    one, two, moved = tmp_path / "one", tmp_path / "two", tmp_path / "moved"
    assert finished(command(one, *sizes, "4"))[0] == 0
    (status, output), (other_status, other_output) = map(finished, two_processes(two, *sizes, "2"))
    assert (status, other_status) == (0, 0), output + other_output
    assert "results in" in output
    assert "results in" not in other_output, "the first process talks"
    # Half of a run on four devices of two processes, the other half on one device of one process.
    running = two_processes(moved, *sizes, "2")
    deadline = time.monotonic() + 120
    while not list((moved / "runs").glob("*gxd*.checkpoint/[0-9]")) and running[0].poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    for process in running:
        process.send_signal(signal.SIGKILL)
        finished(process)
    for other, message in {
        ("1", "--group", "2"): "seeds_together is 1 there and 2 now",
        ("8",): "several_groups",
    }.items():
        status, output = finished(command(moved, *sizes, *other, "--resume"))
        assert status == 1
        assert f"environment.{message}" in output
    status, output = finished(command(moved, *sizes, "1", "--resume"))
    assert status == 0, output
    for folder_of_results in (two, moved):
        for name in ("curves.csv", "summary.csv", "config.json", "curves.svg", "curves.png"):
            assert (folder_of_results / name).read_bytes() == (one / name).read_bytes(), name
    refused = [finished(process) for process in two_processes(two, *sizes, "2")]
    assert [status for status, _ in refused] == [1, 1]
    assert all("already holds results" in output for _, output in refused)


WALK = """
import pathlib
import sys

import tests.benchmarks.test_benchmarks as t
from benchmarks import processes, runner

devices, chunks, out, *together = sys.argv[1:]
options = {"devices": int(devices), "group": 1, "seeds": 8}
if together:
    port, process = together
    options |= {"distributed": True, "coordinator": "localhost:" + port, "processes": 2, "process": int(process)}
processes.start(t.dataclasses.replace(t.TINY, **options))
walks = t.random_walks(**options)
try:
    runner.run_experiment(walks, pathlib.Path(out), resume=True, on_chunk=t.stop_after(int(chunks)))
except t.StopError:
    pass
"""


def walk(*arguments):
    """Starts random walks in a process of their own: the number of devices is fixed when JAX starts."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen([sys.executable, "-c", WALK, *map(str, arguments)], cwd=REPOSITORY, env=environment)


def test_run_moves_from_two_processes_to_other_devices(tmp_path):
    port = free_port()
    processes = [walk(2, 3, tmp_path / "moved", port, number) for number in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert list((tmp_path / "moved" / "runs").glob("*.checkpoint/3")), "stopped after three chunks"
    assert walk(2, 9999, tmp_path / "moved").wait() == 0
    runner.run_experiment(random_walks(seeds=8, group=1), tmp_path / "whole")
    assert written(tmp_path / "moved") == written(tmp_path / "whole")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"process": 0}, "process can be given with --distributed only"),
        ({"distributed": True, "processes": 2}, "given together, got processes only"),
        (
            {"distributed": True, "coordinator": "localhost:1", "processes": 2, "process": 2},
            "between 0 and 1 for 2 processes, got 2",
        ),
        ({"devices": 0}, "devices must be 1 or more, got 0"),
    ],
)
def test_options_of_processes_must_fit(given, message):
    with pytest.raises(folder.RefusedError, match=message):
        processes.start(dataclasses.replace(TINY, **given))


def test_seeds_must_fit_the_groups_and_processes(monkeypatch):
    assert [seeds_together(30, group) for group in (None, 25, 15, 7, 1)] == [30, 15, 15, 6, 1]

    class Device(NamedTuple):
        process_index: int
        number: int

    devices = [Device(process, number) for process in range(2) for number in range(4)]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    # Twelve seeds: six a process, on three of its devices; at most two devices: three seeds each.
    assert [device.number for device in devices_for(12, None)] == [0, 1, 2, 0, 1, 2]
    assert [device.process_index for device in devices_for(12, 2)] == [0, 0, 1, 1]
    with pytest.raises(ValueError, match=r"multiple of the processes \(2\), got 7"):
        devices_for(7, None)


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(extras, "EXTRAS", {"no_such_package": "no_such_package"})
    with pytest.raises(SystemExit, match=r'no_such_package: pip install "gxd_jax\[experiments\]"'):
        extras.require_extras()
