"""What an experiment is: runs of the same shape, each a pure program over one seed, and how they are to be shown."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np

from benchmarks.checks import check_options
from gxd_jax.training import TrainState

if TYPE_CHECKING:
    from jaxtyping import Array, Int, UInt32

Scale = Literal["smoke", "default", "paper"]
Label = str | float

_NOT_DECIDING = ("out", "resume", "markdown", "data_dir", "devices", "group")
_NOT_DECIDING += ("distributed", "coordinator", "processes", "process")
"""Settings that change no number, or only through the seeds that are computed together."""

EVERY = "all"
"""Label of a run that does not depend on the labelled condition: it is drawn in every panel."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of every problem. None stands for what the scale says."""

    scale: Scale = "default"
    """smoke ends in a minute on two cores, default in a quarter of an hour, paper is the size of the paper."""
    seeds: int | None = None
    """Number of seeds, run side by side."""
    first_seed: int = 0
    """The seeds are first_seed, first_seed + 1, ...; everything random of a seed depends on its number only."""
    out: Path | None = None
    """Folder of the results; by default results/PROBLEM."""
    resume: bool = False
    """Continue what an earlier call with the same options left in the folder."""
    markdown: tuple[Path, ...] | None = None
    """Compute nothing: print the tables of these folders of results, side by side, as Markdown for a README."""
    devices: int | None = None
    """Devices (of each process) to spread the seeds over; by default one per CPU core, or every accelerator."""
    distributed: bool = False
    """Compute together with other processes, each started with this option; the first one writes the results."""
    coordinator: str | None = None
    """Address and port of the first process, HOST:PORT; by default what the cluster says (Slurm, Kubernetes, TPU)."""
    processes: int | None = None
    """Number of processes; by default what the cluster says."""
    process: int | None = None
    """Number of this process, from 0; by default what the cluster says."""


class Run(NamedTuple):
    """One method under one set of conditions, for one seed; the runner maps it over the seeds.

    Attributes:
        labels: The conditions and the method, in the order of the table's columns.
        start: (seed, data) -> carry, a pytree of arrays.
        chunk: (carry, data) -> (carry, measure name -> values of this chunk, one for each of its points).
        mapped: Whether these are pure functions of one seed. False: they take all seeds at once, along a first axis,
            and the carry may hold NumPy arrays; what they compile, they compile themselves.
    """

    labels: Mapping[str, Label]
    start: Callable[[jax.Array, Any], Any]
    chunk: Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]]
    mapped: bool = True

    @property
    def name(self) -> str:
        """A name for files: the labels, joined."""
        return "-".join(str(value) for value in self.labels.values() if value != "").replace("/", "_").replace(" ", "_")


class TaskCarry(NamedTuple):
    """What one seed's run carries from task to task.

    Attributes:
        key: Raw key, from which everything random of a task is derived.
        task: Number of the next task.
        training: Parameters and state of the method, its keys among it.
    """

    key: UInt32[Array, " words"]
    task: Int[Array, ""]
    training: TrainState


class View(NamedTuple):
    """How the curves of a problem read, and what is shown of them.

    Attributes:
        axis: What the points count, the horizontal axis of the plots ("example", "task").
        measure: The measure that is plotted and compared.
        totals: Measures that the summary adds up over the points.
        panels: Labels of which every combination gets its own panel in the plot.
        higher_is_better: Which way the measure is good.
        diagnostics: Measures that have a figure of their own.
        share: The share of a run whose first and last the summary compares.
        baseline: The method that the summary compares the others with, seed by seed.
    """

    axis: str
    measure: str
    totals: tuple[str, ...] = ("replaced",)
    panels: tuple[str, ...] = ()
    higher_is_better: bool = False
    diagnostics: tuple[str, ...] = ()
    share: Literal["tenth", "quarter"] = "tenth"
    baseline: str = "backprop"


class Experiment(NamedTuple):
    """The runs of one call.

    Attributes:
        problem: Name of the problem.
        config: Every setting that decides the numbers, as JSON data.
        runs: What to run, in this order.
        view: How their curves read.
        seeds: Seed numbers, int [S].
        group: Seeds that are computed together (see `runner.compile_chunk`), or None for all.
        ends: Where on the view's axis each point of the curves ends, int [N].
        devices: Devices that the seeds are spread over.
        points: Points of the curves in a chunk, a divisor of N.
        data: Pytree of arrays that all runs and seeds share.
    """

    problem: str
    config: Mapping[str, Any]
    runs: list[Run]
    view: View
    seeds: np.ndarray
    group: int | None
    ends: np.ndarray
    devices: list[jax.Device]
    points: int = 1
    data: Any = ()


def fill_in(settings: Any, presets: Mapping[str, Mapping[str, Any]]) -> Any:
    """Returns the settings with every None that the scale has a value for filled in.

    Args:
        settings: The settings given.
        presets: Scale -> option -> value, or a function from the settings given to the value.

    Raises:
        ValueError: If a value is impossible.
    """
    preset = {k: v for k, v in presets[settings.scale].items() if getattr(settings, k) is None}
    filled = dataclasses.replace(settings, **{k: v(settings) if callable(v) else v for k, v in preset.items()})
    check_options(filled)
    return filled


def config_of(problem: str, settings: Options) -> dict[str, Any]:
    """Returns everything that decides the numbers of an experiment, as JSON data."""
    deciding = {k: v for k, v in dataclasses.asdict(settings).items() if k not in _NOT_DECIDING}
    share = settings.seeds // len(devices_for(settings.seeds, settings.devices))
    together = seeds_together(share, getattr(settings, "group", None))
    return {
        "problem": problem,
        "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in deciding.items()},
        "environment": {
            "jax": jax.__version__,
            "backend": jax.default_backend(),
            # XLA compiles a loop over groups to other sums than a single group: both decide the last bits.
            "seeds_together": together,
            "several_groups": together < share,
        },
    }


def cpu_cores() -> int:
    """Returns the cores that this process may use."""
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()) or 1


def prepare_devices(devices: int | None) -> None:
    """Splits the CPU into one JAX device per core, or `devices` of them; to be called before JAX computes anything."""
    cores = cpu_cores()
    count = devices or cores
    jax.config.update("jax_num_cpu_devices", count)
    # A running device holds a thread of XLA's pool, of one thread a core, and waits there for others of the same pool:
    # as many devices as threads can wait for ever.
    os.environ.setdefault("PJRT_NPROC", str(2 * max(count, cores)))


def devices_for(seeds: int, most: int | None) -> list[jax.Device]:
    """Returns the devices that the seeds are spread over: of each process as many as divide them evenly.

    Args:
        seeds: Number of seeds.
        most: At most so many devices of each process.

    Raises:
        ValueError: If the processes cannot share them evenly.
    """
    everywhere = [[device for device in jax.devices() if device.process_index == p] for p in range(jax.process_count())]
    share, left = divmod(seeds, len(everywhere))
    if left:
        raise ValueError(f"seeds must be a multiple of the processes ({len(everywhere)}), got {seeds}")
    count = _largest_divisor(share, min(len(devices[:most]) for devices in everywhere))
    return [device for devices in everywhere for device in devices[:count]]


def seeds_together(seeds: int, group: int | None) -> int:
    """Returns how many of a device's seeds are computed at once; the last bits of a result depend on it.

    Args:
        seeds: Seeds of the device.
        group: The most at once, or None for all.
    """
    return _largest_divisor(seeds, seeds if group is None else group)


def _largest_divisor(number: int, most: int) -> int:
    return max(n for n in range(1, most + 1) if number % n == 0)


def seed_numbers(settings: Options) -> np.ndarray:
    """Returns the seeds' numbers."""
    return (settings.first_seed + np.arange(settings.seeds)).astype(np.int32)
