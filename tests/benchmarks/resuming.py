"""What tests of resuming share: a run that ends early, and one that goes on from there."""

import pytest

from benchmarks.running import runner


class StopError(Exception):
    """Stands for whatever ends a run early."""


def stop_after(chunks):
    """Returns a hook that ends the run after so many saved chunks."""
    seen = iter(range(10_000))

    def on_chunk(run, number, done):
        if next(seen) == chunks:
            raise StopError

    return on_chunk


def written(out):
    """Returns the curves that runs left in a folder, as bytes."""
    return {path.name: path.read_bytes() for path in sorted((out / "runs").iterdir())}


def check_resuming(experiment, folder, chunks):
    """Checks that a run that was interrupted after so many chunks ends with the same bits; returns both curves."""
    whole = runner.run_experiment(experiment, folder / "whole")
    with pytest.raises(StopError):
        runner.run_experiment(experiment, folder / "parts", on_chunk=stop_after(chunks))
    resumed = runner.run_experiment(experiment, folder / "parts", resume=True)
    assert written(folder / "parts") == written(folder / "whole")
    return whole, resumed
