"""Several processes and devices: the same bits, runs that move, and options that have to fit."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import jax
import pytest

from benchmarks.experiment import devices_for, seeds_together
from benchmarks.running import folder, processes, runner
from tests.benchmarks.commanding import REGRESSION, REPOSITORY, WRITTEN, command, finished, free_port
from tests.benchmarks.resuming import written
from tests.benchmarks.tiny import TINY, random_walks

WALK = """
import dataclasses
import pathlib
import sys

from benchmarks.running import processes, runner
from tests.benchmarks import tiny
from tests.benchmarks.resuming import StopError, stop_after

devices, chunks, out, *together = sys.argv[1:]
options = {"devices": int(devices), "group": 1, "seeds": 8}
if together:
    port, process = together
    options |= {"distributed": True, "coordinator": "localhost:" + port, "processes": 2, "process": int(process)}
processes.start(dataclasses.replace(tiny.TINY, **options))
walks = tiny.random_walks(**options)
try:
    runner.run_experiment(walks, pathlib.Path(out), resume=True, on_chunk=stop_after(int(chunks)))
except StopError:
    pass
"""


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
        for name in WRITTEN:
            assert (folder_of_results / name).read_bytes() == (one / name).read_bytes(), name
    refused = [finished(process) for process in two_processes(two, *sizes, "2")]
    assert [status for status, _ in refused] == [1, 1]
    assert all("already holds results" in output for _, output in refused)


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
