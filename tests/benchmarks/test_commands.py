"""The command line from end to end: the files that it writes, and resuming after it was killed."""

import json
import signal
import time

import pandas as pd
import pytest

from benchmarks import extras
from tests.benchmarks.commanding import ANT, CARTPOLE, PAIRS, PERMUTED, REGRESSION, WRITTEN, command, finished


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
    for name in WRITTEN:
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(extras, "EXTRAS", {"no_such_package": "no_such_package"})
    with pytest.raises(SystemExit, match=r'no_such_package: pip install "gxd_jax\[experiments\]"'):
        extras.require_extras()
