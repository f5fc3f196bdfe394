"""The library under the strict configurations of JAX that people run with, and without assertions and docstrings."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import gxd_jax as gxd
from tests.library.programs import LONG, OTHERS, PARTS, RESETS, RESETTING, enable_x64, run

# Together where a failure names its cause.
CONFIGURATIONS = {
    "promotion and debugging": [
        lambda: jax.numpy_rank_promotion("raise"),
        lambda: jax.numpy_dtype_promotion("strict"),
        lambda: jax.debug_nans(True),
        lambda: jax.debug_infs(True),
    ],
    "checks and rbg keys": [
        lambda: jax.enable_checks(True),
        jax.checking_leaks,
        lambda: jax.default_prng_impl("rbg"),
    ],
    "64 bits": [lambda: enable_x64(True)],
    "without jit": [jax.disable_jit],
}
CASES = [
    (configuration, part)
    for configuration in CONFIGURATIONS
    for part in PARTS
    if part not in LONG or configuration == "promotion and debugging"
]


def check(part, finite, counts):
    assert finite
    if part in RESETS:
        assert counts
        assert min(counts) > 0
    else:
        assert not counts


@pytest.mark.parametrize(("configuration", "part"), CASES)
def test_every_part_runs(configuration, part):
    with contextlib.ExitStack() as stack:
        for setting in CONFIGURATIONS[configuration]:
            stack.enter_context(setting())
        check(part, *run(part))


def test_every_part_runs_without_assertions_and_docstrings(tmp_path):
    """Under `python -OO`; warnings are errors there too."""
    file = tmp_path / "found.json"
    command = [sys.executable, "-OO", "-W", "error", "-m", "tests.library.programs", str(file)]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True)
    found = json.loads(file.read_text(encoding="utf-8"))
    assert set(found) == set(PARTS) - LONG
    for part, (finite, counts) in found.items():
        check(part, finite, counts)


def test_the_parts_cover_every_method():
    covered = {"continual_backprop", "Injection", "injected", *RESETTING, *OTHERS, *PARTS}
    assert set(gxd.methods.__all__) <= covered
