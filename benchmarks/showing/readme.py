"""Keeps the tables of the READMEs equal to the results in `benchmarks/evidence`.

    python -m benchmarks.showing.readme                    # writes the tables between their markers
    python -m benchmarks.showing.readme --check            # tells which are not what the results say
    python -m benchmarks.showing.readme --keep DIR ...     # first copies what the tables need of folders of results

A table stands between `<!-- table COMMAND NAME: FOLDER ... -->` and `<!-- end of table -->`; the folders are those of
`benchmarks/evidence`. `python -m benchmarks COMMAND --markdown DIR ...` prints tables with their markers.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import tyro

from benchmarks.commands import COMMANDS, PROBLEMS
from benchmarks.running.folder import RefusedError, make_folder, write_file
from benchmarks.showing import markdown

REPOSITORY = Path(__file__).parents[2]
READMES = (REPOSITORY / "README.md", REPOSITORY / "benchmarks" / "README.md")
EVIDENCE = REPOSITORY / "benchmarks" / "evidence"
_TABLE = re.compile(r"<!-- table (\S+) (\S+): ([^>]*?) -->\n.*?<!-- end of table -->\n", re.DOTALL)
_COPIED = ("config.json", "summary.csv", "speed.csv", "growth.csv")


def with_tables(text: str, evidence: Path = EVIDENCE) -> str:
    """Returns a README's text with every table as the results say.

    Raises:
        RefusedError: If a marker names a command, a table or a folder that is not there.
    """
    return _TABLE.sub(lambda found: _table_of(*found.groups(), evidence), text)


def _table_of(command: str, table: str, folders: str, evidence: Path) -> str:
    if command not in COMMANDS:
        raise RefusedError(f"a marker names {command}, which is no command")
    names = folders.split()
    made = COMMANDS[command].tables([evidence / name for name in names])
    if table not in made:
        raise RefusedError(f"{command} has no table {table} of {folders}: it has {', '.join(made)}")
    return markdown.between_markers(command, table, names, made[table])


def keep_results(folder: Path, evidence: Path = EVIDENCE) -> None:
    """Copies what the tables need of a folder of results; a summary is made from its curves."""
    out = evidence / folder.name
    make_folder(out)
    for name in _COPIED:
        if (folder / name).exists():
            shutil.copy(folder / name, out / name)
    if (folder / "curves.csv").exists():
        problem = next(p for p in PROBLEMS if p.name == markdown.problem_of(folder))
        summary = markdown.read_summary(problem.name, problem.view, folder)
        write_file(out / "summary.csv", summary.to_csv(index=False))


def main(check: bool = False, keep: tuple[Path, ...] = ()) -> None:
    """Writes the tables of the READMEs from the results that the repository keeps.

    Args:
        check: Change nothing; fail where a table is not what the results say.
        keep: Folders of results of which the repository is to keep what the tables need.
    """
    try:
        for folder in keep:
            keep_results(folder)
        for readme in READMES:
            text = readme.read_text(encoding="utf-8")
            wanted = with_tables(text)
            if check and wanted != text:
                raise RefusedError(f"the tables of {readme.relative_to(REPOSITORY)} are not what the results say")
            if wanted != text:
                write_file(readme, wanted)
    except RefusedError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    tyro.cli(main)
