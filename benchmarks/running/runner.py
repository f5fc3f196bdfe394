"""Runs an experiment: every run over all seeds, one compiled program each, stopped and resumed at chunk boundaries."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pandas as pd
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.experiment import Experiment, Run, seeds_together
from benchmarks.running import checkpoints, curves, folder, processes

OnChunk = Callable[[Run, int, int], None]
"""Called with the run, its number, and how many points of its curves are on disk."""

_SEEDS = PartitionSpec("seeds")


def _nothing(run: Run, number: int, points: int) -> None:
    del run, number, points


def run_experiment(
    experiment: Experiment, out: Path, *, resume: bool = False, on_chunk: OnChunk = _nothing
) -> pd.DataFrame:
    """Runs everything of an experiment that `out` does not hold yet.

    A finished run is a table there and is not computed again; an interrupted one continues from its last chunk. However
    often it was interrupted, by whatever means, the results are the same to the bit. Several processes compute it
    together, on a folder that all of them see; the first one writes.

    Args:
        experiment: What to run.
        out: Folder of the results.
        resume: Continue what is there.
        on_chunk: Hears of each chunk after it was saved.

    Returns:
        The curves of all runs, one row per run, seed and chunk.

    Raises:
        folder.RefusedError: If the folder holds other or damaged results, or several processes cannot compute it.
    """
    names = [run.name for run in experiment.runs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise folder.RefusedError(f"two runs have the name {twice}: choose values that differ in six digits")
    if jax.process_count() > 1 and not all(run.mapped for run in experiment.runs):
        raise folder.RefusedError(f"{experiment.problem} steps its environments in one process, not with --distributed")
    processes.on_first(functools.partial(folder.open_folder, out, experiment.config, resume=resume))
    mesh = mesh_of(experiment.devices)
    experiment = experiment._replace(data=on_all(experiment.data, mesh))
    tables = []
    for number, run in enumerate(experiment.runs):
        finished, checkpoint = out / "runs" / f"{run.name}.csv", out / "runs" / f"{run.name}.checkpoint"
        if not finished.exists():
            with checkpoints.open_manager(checkpoint) as manager:
                measures = _run(experiment, run, mesh, manager, lambda points, r=run, n=number: on_chunk(r, n, points))
            processes.on_first(folder.write_file, finished, curves.tidy(experiment, run, measures).to_csv(index=False))
        processes.on_first(functools.partial(shutil.rmtree, checkpoint, ignore_errors=True))
        on_chunk(run, number, len(experiment.ends))
        tables.append(curves.read_run(finished, experiment))
    return pd.concat(tables, ignore_index=True)


def _run(
    experiment: Experiment,
    run: Run,
    mesh: jax.sharding.Mesh,
    manager: ocp.CheckpointManager,
    on_chunk: Callable[[int], None],
) -> dict[str, np.ndarray]:
    """Runs one run to its end and returns its measures [S, N]."""
    carry = start(run, experiment.seeds, experiment.data, mesh, experiment.group)
    measures: dict[str, np.ndarray] = {}
    config = {**experiment.config, "run": dict(run.labels)}
    if manager.latest_step() is not None:
        carry, measures = checkpoints.load(manager, config, carry)
    done = min((values.shape[1] for values in measures.values()), default=0)
    on_chunk(done)
    chunk = compile_chunk(run, carry, experiment.data, mesh, experiment.group) if run.mapped else run.chunk
    for finished in range(done + experiment.points, len(experiment.ends) + 1, experiment.points):
        carry, new = chunk(carry, experiment.data)
        for name, values in new.items():
            earlier = [measures[name]] if name in measures else []
            measures[name] = np.concatenate(
                [*earlier, processes.gather(values).reshape(len(experiment.seeds), -1)], axis=1
            )
        checkpoints.save(manager, config, carry, measures)
        on_chunk(finished)
    return measures


def mesh_of(devices: list[jax.Device]) -> jax.sharding.Mesh:
    """Returns the devices as a mesh over which the seeds are spread."""
    return jax.make_mesh((len(devices),), ("seeds",), devices=devices)


def on_all(data: Any, mesh: jax.sharding.Mesh) -> Any:
    """Puts arrays on every device."""
    return jax.device_put(data, NamedSharding(mesh, PartitionSpec()))


def start(run: Run, seeds: np.ndarray, data: Any, mesh: jax.sharding.Mesh, group: int | None) -> Any:
    """Returns the carries of a run for all seeds, spread over the devices if the run is mapped over them."""
    if not run.mapped:
        return run.start(seeds, data)
    return jax.jit(_over_seeds(run.start, mesh, group))(jax.device_put(seeds, NamedSharding(mesh, _SEEDS)), data)


def compile_chunk(
    run: Run, carry: Any, data: Any, mesh: jax.sharding.Mesh, group: int | None
) -> Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]]:
    """Compiles a run's chunk for all seeds, once for the whole run; the carry is donated.

    The devices share the seeds evenly. A device computes `group` seeds at a time, one group after the other: XLA
    compiles a loop whose step touches little memory to one piece of machine code on CPU, several times faster than the
    loop over a step of many seeds.
    """
    return jax.jit(_over_seeds(run.chunk, mesh, group), donate_argnums=0).lower(carry, data).compile()


def _over_seeds(function: Callable, mesh: jax.sharding.Mesh, group: int | None) -> Callable:
    def on_device(values: Any, data: Any) -> Any:
        seeds = jax.tree.leaves(values)[0].shape[0]
        together = seeds_together(seeds, group)
        if together == seeds:
            return jax.vmap(function, in_axes=(0, None))(values, data)
        return jax.lax.map(lambda value: function(value, data), values, batch_size=together)

    specs = (_SEEDS, PartitionSpec())
    return jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=_SEEDS, check_vma=False)
