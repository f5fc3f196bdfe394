"""The public PyTorch code of [N] as a peer: its networks and methods, from the user's own checkout, on the same data.

It runs in a process of its own, on one network a process, which is how its experiments run.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.networks.layers import ACTIVATIONS
from benchmarks.running.folder import RefusedError
from benchmarks.speed.cases import STEP_SIZES, Case, pool_of

METHODS = ("backprop", "cbp_contribution")
"""The methods of the speed table that the peer has too."""
_FILES = ("lop/algos/bp.py", "lop/algos/cbp.py", "lop/nets/ffnn.py", "lop/nets/deep_ffnn.py")
_PROGRAM = Path(__file__).parent / "peer_program.py"
_ACTIVATIONS = tuple(name for name in ACTIVATIONS if name != "gelu")
"""Those that the peer has too."""
_DECAY = 0.99


@dataclasses.dataclass(frozen=True)
class Task:
    """What the peer is to do: a network, a method's settings, and how often to time how many steps."""

    sizes: tuple[int, ...]
    activation: str
    optimizer: str
    replacement_rate: float
    maturity_threshold: int
    steps: int
    warm_up: int
    repeats: int


def check(checkout: Path, python: str | None, activation: str) -> None:
    """Checks that the peer can run, before anything is timed.

    Raises:
        RefusedError: If the folder is not a checkout of the code, torch is missing, or the peer lacks the activation.
    """
    missing = [name for name in _FILES if not (checkout / name).is_file()]
    if missing:
        raise RefusedError(
            f"--peer {checkout} is no checkout of github.com/shibhansh/loss-of-plasticity: {missing[0]} is missing"
        )
    if activation not in _ACTIVATIONS:
        raise RefusedError(f"--peer has no activation {activation}: choose one of {', '.join(_ACTIVATIONS)}")
    _run(python, "-c", "import torch, numpy")


def measure(task: Task, method: str, case: Case, checkout: Path, python: str | None) -> dict[str, float]:
    """Times one method of the peer's code in a new process.

    Args:
        task: What to do.
        method: One of `METHODS`.
        case: The case, whose pool of inputs and targets the peer sees in the same order.
        checkout: The checkout.
        python: Python that has torch; None for the one that runs this.

    Returns:
        Columns of the speed table.

    Raises:
        RefusedError: If the program fails.
    """
    inputs, targets = pool_of(case)
    given = dataclasses.asdict(task) | {"method": method, "step_size": STEP_SIZES[task.optimizer], "decay": _DECAY}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        np.savez(data, inputs=np.asarray(inputs), targets=np.asarray(targets))
        output = _run(python, str(_PROGRAM), str(checkout.absolute()), str(data), json.dumps(given))
    found = json.loads(output.splitlines()[-1])
    return {"pytorch_runs_x_steps_per_second": 1 / found["seconds_per_step"], "pytorch_loss": found["loss"]}


def _run(python: str | None, *arguments: str) -> str:
    """Returns what a Python program prints."""
    command = [python or sys.executable, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise RefusedError(f"--peer cannot start {command[0]}: {error.strerror}") from error
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise RefusedError(f"--peer failed in {command[0]} (it needs torch and numpy; see --peer-python): {reason[0]}")
    return done.stdout
