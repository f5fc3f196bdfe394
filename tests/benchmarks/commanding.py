"""What tests of the command line share: tiny problems, started in processes of their own."""

import os
import socket
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
REGRESSION = "slowly-changing-regression --examples 480 --bin 80 --flip-every 80 --method linear gxd"
PERMUTED = "permuted-mnist --width 8 --layers 1 --tasks 8 --examples 160 --probe 9 --method backprop gxd"
PAIRS = "continual-imagenet --tasks 6 --tasks-per-chunk 1 --epochs 1 --method backprop gxd"
CARTPOLE = "offset-cartpole --width 8 --epochs 1 --tasks 4 --method ppo gxd_l2"
ANT = "slippery-ant --width 8 --epochs 1 --steps 4096 --backend c --method ppo gxd_l2"
WRITTEN = ("curves.csv", "summary.csv", "config.json", "curves.svg", "curves.png")


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


def free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]
