"""The folder of an experiment's results: who may write into it, and how files appear in it."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class RefusedError(Exception):
    """What was asked for cannot be done; the message says why, in one line."""


@contextlib.contextmanager
def refusing_values() -> Iterator[None]:
    """Turns a ValueError about the settings into a refusal."""
    try:
        yield
    except ValueError as error:
        raise RefusedError(str(error)) from error


def make_folder(out: Path) -> None:
    """Makes a folder for results, if there is none.

    Raises:
        RefusedError: If it cannot be made, or not be written to.
    """
    try:
        if out.exists() and not out.is_dir():
            raise RefusedError(f"{out} is not a folder")
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out, suffix=".tmp"):
            pass
    except OSError as error:
        raise RefusedError(f"cannot write results to {out}: {error.strerror}") from error


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a file that appears whole or not at all, whenever the process dies."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def as_json(config: Mapping[str, Any]) -> str:
    """Returns JSON text with one order of keys and one spelling of values."""
    return json.dumps(config, indent=2, sort_keys=True) + "\n"


def open_folder(out: Path, config: Mapping[str, Any], *, resume: bool) -> None:
    """Takes a folder for an experiment: a new or empty one, or with `resume` the one that it was interrupted in.

    Args:
        out: The folder.
        config: Everything that decides the numbers.
        resume: Whether to continue.

    Raises:
        RefusedError: If the folder holds something else, or cannot be written to.
    """
    make_folder(out)
    config_file = out / "config.json"
    if config_file.exists():
        if not resume:
            raise RefusedError(f"{out} already holds results: continue them with --resume, or choose another --out")
        _check_config(config_file, json.loads(as_json(config)))
        return
    # A process killed while it wrote the very first file leaves a temporary one.
    if any(entry.suffix != ".tmp" for entry in out.iterdir()):
        raise RefusedError(f"{out} is not empty and holds no config.json: choose another --out")
    write_file(config_file, as_json(config))


def _check_config(config_file: Path, config: dict[str, Any]) -> None:
    try:
        found = json.loads(config_file.read_text())
    except ValueError as error:
        raise RefusedError(f"{config_file} is damaged: {error}") from error
    differences = list(_differences(found, config)) if isinstance(found, dict) else ["config.json is no JSON object"]
    if differences:
        raise RefusedError(f"{config_file.parent} holds results of another configuration: {'; '.join(differences)}")


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> Any:
    for key in sorted({*found, *wanted}):
        old, new = found.get(key), wanted.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key} is {old!r} there and {new!r} now"
