"""The command line: one row for each problem or measurement."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tyro
from rich.console import Console

from benchmarks import (
    continual_imagenet,
    permuted_mnist,
    plots,
    processes,
    report,
    reset_cost,
    runner,
    slowly_changing_regression,
    speed,
    tables,
)
from benchmarks.experiment import Experiment, Options
from benchmarks.folder import RefusedError, refusing_values, write_file
from benchmarks.rl import offset_cartpole, slippery_ant

_FILE_WIDTH = 120
"""Width of the table where it does not go to a terminal."""
_INTERRUPTED = 130
"""Exit status of a command that was interrupted, as shells expect it."""


class Command(NamedTuple):
    """A subcommand: its settings, which are its options, and what it does with them."""

    settings: type
    run: Callable[[Any], None]


def _problem(settings: type[Options], make_experiment: Callable[[Any], Experiment]) -> Command:
    return Command(settings, lambda given: run_problem(given, make_experiment))


COMMANDS: dict[str, Command] = {
    slowly_changing_regression.NAME: _problem(
        slowly_changing_regression.Settings, slowly_changing_regression.make_experiment
    ),
    continual_imagenet.NAME: _problem(continual_imagenet.Settings, continual_imagenet.make_experiment),
    permuted_mnist.NAME: _problem(permuted_mnist.Settings, permuted_mnist.make_experiment),
    offset_cartpole.NAME: _problem(offset_cartpole.Settings, offset_cartpole.make_experiment),
    slippery_ant.NAME: _problem(slippery_ant.Settings, slippery_ant.make_experiment),
    reset_cost.NAME: Command(reset_cost.Settings, reset_cost.run),
    "speed": Command(speed.Settings, speed.run),
}


def run_problem(settings: Options, make_experiment: Callable[[Any], Experiment]) -> None:
    """Runs a problem's experiment and shows its results: files in the folder, the table on the terminal."""
    processes.start(settings)
    with refusing_values():
        experiment = make_experiment(settings)
    out = settings.out or Path("results") / experiment.problem
    console = Console(width=None if Console().is_terminal else _FILE_WIDTH, quiet=not processes.is_first())
    with report.progress(experiment, console) as on_chunk:
        curves = runner.run_experiment(experiment, out, resume=settings.resume, on_chunk=on_chunk)
    if not processes.is_first():
        return
    summary = tables.summary(experiment, curves)
    write_file(out / "curves.csv", curves.to_csv(index=False))
    write_file(out / "summary.csv", summary.to_csv(index=False))
    plots.save_curves(experiment, curves, out)
    console.print(report.results_table(experiment, summary))
    for message in report.stopped(experiment, curves):
        console.print(message, highlight=False)
    console.print(f"results in {out}", highlight=False)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: The arguments; None for those of the process.
    """
    settings = tyro.extras.subcommand_cli_from_dict(
        {name: command.settings for name, command in COMMANDS.items()},
        args=arguments,
        prog="python -m benchmarks",
        description="The experiments of continual backprop and GXD, and the library's speed.",
    )
    command = next(command for command in COMMANDS.values() if command.settings is type(settings))
    try:
        command.run(settings)
    except RefusedError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("stopped; the same command with --resume continues", file=sys.stderr)
        sys.exit(_INTERRUPTED)
