"""Times a step with continual backprop or GXD, next to the plain optimizer's step.

Each timing is one compiled scan over many steps with the state donated, on inputs and labels from a small pool on the
device. The methods take turns, so that whatever else the machine does hits all of them; a ratio is taken within a turn.
A comparison (a network and an optimizer) has a process of its own, so that none finds the memory of another in use.
ResNet-18 takes seconds a step on a few cores, so that it is timed only where asked for (`--case resnet-18`).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import multiprocessing
import time
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import pandas as pd
from rich.console import Console

from benchmarks import methods
from benchmarks.checks import check_options
from benchmarks.networks.layers import ACTIVATIONS
from benchmarks.running.folder import make_folder, refusing_values, write_file
from benchmarks.speed import growth, peer
from benchmarks.speed.cases import CASES, OPTIMIZERS, Case
from benchmarks.speed.programs import Setup, compile_program
from benchmarks.speed.tables import BASELINE, ratio_table, slope_table, speed_table

_QUICK = tuple(name for name, case in CASES.items() if case.kind != "resnet-18")
_TABLE_WIDTH = 180
"""Width of the table where it does not go to a terminal."""
_WITHOUT_VALUE = {"l2", "perturb_l2", "noise_std", "dropout"}
"""Hyper-parameters that only an experiment gives a value, or a network of its own."""
_TIMED = tuple(
    name
    for name, method in methods.METHODS.items()
    if method.hidden and method.normalization == "none" and not method.resets_head
    if not _WITHOUT_VALUE & set(method.own)
)
_GXD = ("gxd", "gxd_exact", "gxd_predicted", "gxd_target", "gxd_fisher", "gxd_loss")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Speed: time of a step with continual backprop, GXD and ReDo, as a multiple of the plain optimizer's step."""

    case: tuple[Literal[tuple(CASES)], ...] = _QUICK  # type: ignore[valid-type]
    """Networks to time; resnet-18 takes some minutes."""
    method: tuple[Literal[_TIMED], ...] = (BASELINE, "cbp_contribution", *_GXD, "redo")  # type: ignore[valid-type]
    """Methods to time; backprop, which they are compared with, always is. A network of one output has no classes, and
    so not every readout."""
    optimizer: tuple[Literal[tuple(OPTIMIZERS)], ...] = tuple(OPTIMIZERS)  # type: ignore[valid-type]
    """Optimizers underneath."""
    repeats: int = 7
    """Timings of each method; the median counts."""
    maturity_threshold: int = 100
    """Updates before a unit may be replaced; all units are older when the timing begins. 1 for networks of images and
    the transformer's block."""
    activation: Literal[tuple(ACTIVATIONS)] = "relu"  # type: ignore[valid-type]
    """Activation of the networks."""
    growth: bool = False
    """Instead of the cases: how the time grows with units, layers, seeds and batch, as growth.csv and growth.png."""
    peer: Path | None = None
    """A checkout of github.com/shibhansh/loss-of-plasticity: time its networks and methods too, on the same data."""
    peer_python: str | None = None
    """Python that has torch; by default the one that runs this."""
    out: Path | None = None
    """Folder for the table as speed.csv; of --growth by default results/speed."""
    markdown: tuple[Path, ...] | None = None
    """Compute nothing: print the tables of these folders, together, as Markdown for a README."""


def run(settings: Settings) -> None:
    """Times the cases and shows the table.

    Raises:
        RefusedError: If a setting is impossible, or the peer's code cannot run.
    """
    with refusing_values():
        check_options(settings)
    if settings.peer is not None:
        peer.check(settings.peer, settings.peer_python, settings.activation)
    console = Console(width=None if Console().is_terminal else _TABLE_WIDTH)
    cases = growth.CASES if settings.growth else {name: CASES[name] for name in settings.case}
    out = settings.out or (Path("results") / "speed" if settings.growth else None)
    file = "growth.csv" if settings.growth else "speed.csv"
    if out is not None:
        make_folder(out)
    rows: list[dict[str, Any]] = []
    for name, case in cases.items():
        for optimizer in settings.optimizer:
            with console.status(f"timing {name}, {optimizer}"):
                rows += _in_process(name, case, optimizer, settings)
            if out is not None:  # after each comparison: all of them take a while
                write_file(out / file, pd.DataFrame(rows).to_csv(index=False))
    table = pd.DataFrame(rows)
    if settings.growth:
        slopes = growth.draw(table, out / "growth")
        console.print(slope_table(slopes))
        console.print(f"results in {out}", highlight=False)
        return
    console.print(speed_table(table))
    console.print(ratio_table(table))


def _in_process(name: str, case: Case, optimizer: str, settings: Settings) -> list[dict[str, Any]]:
    """Times a comparison in a new process, and then the peer's code, which has a process of its own too."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        rows = pool.submit(time_case, name, case, optimizer, settings).result()
        # Also in that process: this one is not to take hold of an accelerator.
        timings = pool.submit(peer_timings, case, optimizer, settings).result()
    return [row | timings.get(row["method"], {}) for row in rows]


def time_case(name: str, case: Case, optimizer: str, settings: Settings) -> list[dict[str, Any]]:
    """Returns one row per method.

    Args:
        name: The case's name.
        case: The case.
        optimizer: A name of `OPTIMIZERS`.
        settings: How often to time, and the methods' settings.
    """
    names = _methods_for(case, settings)
    setup = Setup(optimizer, settings.activation, _maturity(case, settings))
    programs = {method: compile_program(method, case, setup) for method in names}
    states = {method: program.state for method, program in programs.items()}
    warm_up = _warm_up(case, settings)
    seconds: dict[str, list[float]] = {method: [] for method in names}
    losses = {}
    for turn in range(warm_up + settings.repeats):
        for method, program in programs.items():
            begin = time.perf_counter()
            states[method], losses[method] = jax.block_until_ready(program.run(states[method]))
            if turn >= warm_up:
                seconds[method].append((time.perf_counter() - begin) / case.steps)
    plain = programs[BASELINE]
    return [
        {
            "case": name,
            "optimizer": optimizer,
            "method": method,
            "batch": case.batch,
            "seeds": case.seeds,
            "us_per_step": 1e6 * np.median(seconds[method]),
            "ratio": np.median(np.divide(seconds[method], seconds[BASELINE])),
            "runs_x_steps_per_second": case.seeds / np.median(seconds[method]),
            "loss": float(losses[method].mean()),
            "compile_seconds": program.compile_seconds,
            "peak_mb": program.peak_bytes / 1e6,
            "bytes_per_unit": (program.state_bytes - plain.state_bytes) / program.units,
            "bytes_per_parameter": program.state_bytes / program.parameters,
        }
        for method, program in programs.items()
    ]


def _methods_for(case: Case, settings: Settings) -> list[str]:
    """Returns the methods that the case allows, the baseline first."""
    names = [name for name in settings.method if name != BASELINE]
    return [BASELINE, *(name for name in names if case.sizes[-1] > 1 or methods.METHODS[name].supports_regression)]


def _maturity(case: Case, settings: Settings) -> int:
    return settings.maturity_threshold if case.maturity_threshold is None else case.maturity_threshold


def _warm_up(case: Case, settings: Settings) -> int:
    return 1 + math.ceil(_maturity(case, settings) / case.steps)


def peer_timings(case: Case, optimizer: str, settings: Settings) -> dict[str, dict[str, float]]:
    """Returns what the peer's code does with the same data and steps, for the methods that it has."""
    if settings.peer is None or case.kind != "dense":
        return {}
    task = peer.Task(
        sizes=case.sizes,
        activation=settings.activation,
        optimizer=optimizer,
        replacement_rate=case.replacement_rate,
        maturity_threshold=_maturity(case, settings),
        steps=case.steps,
        warm_up=_warm_up(case, settings),
        repeats=settings.repeats,
    )
    timed = [name for name in _methods_for(case, settings) if name in peer.METHODS]
    return {name: peer.measure(task, name, case, settings.peer, settings.peer_python) for name in timed}
