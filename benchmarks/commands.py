"""The command line: one row for each problem or measurement."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tyro
from rich.console import Console

from benchmarks.experiment import Options
from benchmarks.problem import Problem
from benchmarks.problems import continual_imagenet, label_shuffling, permuted_mnist, slowly_changing_regression
from benchmarks.reset_cost import study
from benchmarks.reset_cost.settings import NAME as RESET_COST
from benchmarks.reset_cost.settings import Settings as ResetCostSettings
from benchmarks.reset_cost.tables import markdown_tables as reset_cost_tables
from benchmarks.rl import offset_cartpole, slippery_ant
from benchmarks.running import processes, runner
from benchmarks.running.folder import RefusedError, refusing_values, write_file
from benchmarks.showing import markdown, plots, report, tables
from benchmarks.speed import measuring as speed
from benchmarks.speed.tables import markdown_tables as speed_tables

PROBLEMS: tuple[Problem, ...] = (
    slowly_changing_regression.PROBLEM,
    continual_imagenet.PROBLEM,
    permuted_mnist.PROBLEM,
    label_shuffling.PROBLEM,
    offset_cartpole.PROBLEM,
    slippery_ant.PROBLEM,
)

_FILE_WIDTH = 120
"""Width of the table where it does not go to a terminal."""
_INTERRUPTED = 130
"""Exit status of a command that was interrupted, as shells expect it."""


class Command(NamedTuple):
    """A subcommand.

    Attributes:
        settings: Its settings, which are its options.
        run: What it does with them.
        tables: Folders of results -> name -> table for a README, as Markdown.
    """

    settings: type
    run: Callable[[Any], None]
    tables: Callable[[Sequence[Path]], dict[str, str]]


def run_problem(problem: Problem, settings: Options) -> None:
    """Runs a problem's experiment and shows its results: files in the folder, the table on the terminal."""
    processes.start(settings)
    with refusing_values():
        experiment = problem.experiment(settings)
    out = settings.out or Path("results") / experiment.problem
    console = Console(width=None if Console().is_terminal else _FILE_WIDTH, quiet=not processes.is_first())
    with report.progress(experiment, console) as on_chunk:
        curves = runner.run_experiment(experiment, out, resume=settings.resume, on_chunk=on_chunk)
    if not processes.is_first():
        return
    summary = tables.summary(experiment.view, curves)
    write_file(out / "curves.csv", curves.to_csv(index=False))
    write_file(out / "summary.csv", summary.to_csv(index=False))
    plots.save_curves(experiment.view, problem.labels, curves, out)
    console.print(report.results_table(experiment, summary))
    for message in report.stopped(experiment, curves):
        console.print(message, highlight=False)
    console.print(f"results in {out}", highlight=False)


def problem_tables(problem: Problem, folders: Sequence[Path]) -> dict[str, str]:
    """Returns the tables of a problem that its folders of results have rows for; several stand side by side."""
    names = markdown.distinct_names(folders)
    read = (markdown.read_summary(problem.name, problem.view, folder) for folder in folders)
    parts = dict(zip(names, read, strict=True))
    found = {
        name: markdown.curves_table(spec, problem.view, problem.labels, parts) for name, spec in problem.tables.items()
    }
    return {name: table for name, table in found.items() if table}


COMMANDS: dict[str, Command] = {
    problem.name: Command(
        problem.settings, functools.partial(run_problem, problem), functools.partial(problem_tables, problem)
    )
    for problem in PROBLEMS
}
COMMANDS |= {
    RESET_COST: Command(ResetCostSettings, study.run, reset_cost_tables),
    "speed": Command(speed.Settings, speed.run, speed_tables),
}


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
    name, command = next(row for row in COMMANDS.items() if row[1].settings is type(settings))
    try:
        if settings.markdown is None:
            command.run(settings)
        else:
            _print_tables(name, command, settings.markdown)
    except RefusedError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("stopped; the same command with --resume continues", file=sys.stderr)
        sys.exit(_INTERRUPTED)


def _print_tables(name: str, command: Command, folders: Sequence[Path]) -> None:
    if not folders:
        raise RefusedError("markdown must name at least one folder, got none")
    for table, text in command.tables(folders).items():
        print(markdown.between_markers(name, table, [folder.name for folder in folders], text))
