"""The command: measures every network that the folder does not hold yet, and shows the results."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import pandas as pd
from rich.console import Console
from rich.progress import track

from benchmarks import datasets
from benchmarks.experiment import config_of, devices_for, seed_numbers
from benchmarks.problems import classification
from benchmarks.reset_cost import figures, training
from benchmarks.reset_cost.settings import NAME, Settings, check
from benchmarks.reset_cost.tables import correlate, correlation_table, summarise, summary_table, tidy
from benchmarks.running import folder, processes, runner


def run(settings: Settings) -> None:
    """Measures every network that the folder does not hold yet, and shows the results."""
    processes.start(settings)
    settings = check(settings)
    images = classification.load(settings)
    if settings.probe > len(images.test_labels):
        raise folder.RefusedError(f"probe must be at most the {len(images.test_labels)} test images there are")
    out = settings.out or Path("results") / NAME
    with folder.refusing_values():
        config = config_of(NAME, settings) | {"data": {"name": images.name, "digest": images.digest}}
    processes.on_first(functools.partial(folder.open_folder, out, config, resume=settings.resume))
    console = Console(width=None if Console().is_terminal else 140, quiet=not processes.is_first())
    tables = []
    for name in track(settings.network, "networks", console=console, disable=not console.is_terminal):
        tables.append(measure_network(settings, images, name, out))
        if not console.is_terminal:  # where no bar is seen
            console.print(f"measured {name}, {len(tables)} of {len(settings.network)}", highlight=False)
    if not processes.is_first():
        return
    units, sets, shocks = (pd.concat(parts, ignore_index=True) for parts in zip(*tables, strict=True))
    correlations = correlate(units)
    summary = summarise(correlations, sets, shocks)
    for name, table in {"correlations": correlations, "sets": sets, "shocks": shocks, "summary": summary}.items():
        folder.write_file(out / f"{name}.csv", table.to_csv(index=False))
    figures.save(units, correlations, out)
    console.print(correlation_table(correlations))
    console.print(summary_table(summary))
    console.print(f"results in {out}", highlight=False)


def measure_network(settings: Settings, images: datasets.Images, name: str, out: Path) -> tuple[pd.DataFrame, ...]:
    """Returns the tables of units, sets and shocks of one network; computed once, then read from the folder."""
    files = [out / "networks" / f"{name}-{table}.csv" for table in ("shocks", "sets", "units")]
    if not all(file.exists() for file in files):
        found = measure_seeds(settings, images, name)
        for file, table in zip(files, tidy(found, name, seed_numbers(settings)), strict=True):
            processes.on_first(folder.write_file, file, table.to_csv(index=False))
    return tuple(pd.read_csv(file) for file in reversed(files))


def measure_seeds(settings: Settings, images: datasets.Images, name: str) -> list[dict[str, Any]]:
    """Runs a network for all seeds as one program; returns what is found at each moment, arrays [S, ...]."""
    run = training.make_run(settings, images, name)
    mesh = runner.mesh_of(devices_for(settings.seeds, settings.devices))
    data = runner.on_all(training.flat(images), mesh)
    carry = runner.start(run, seed_numbers(settings), data, mesh, None)
    chunk = runner.compile_chunk(run, carry, data, mesh, None)
    found = []
    for _ in range(settings.moments):
        carry, measures = chunk(carry, data)
        found.append(jax.tree.map(processes.gather, measures))
    return found
