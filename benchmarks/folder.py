"""The folder of an experiment's results: who may write into it, and how files appear in it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class RefusedError(Exception):
    """What was asked for cannot be done; the message says why, in one line."""


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
        RefusedError: If the folder holds something else.
    """
    if out.exists() and not out.is_dir():
        raise RefusedError(f"{out} is not a folder")
    config_file = out / "config.json"
    if config_file.exists():
        if not resume:
            raise RefusedError(f"{out} already holds results: continue them with --resume, or choose another --out")
        _check_config(config_file, json.loads(as_json(config)))
        return
    # A process killed while it wrote the very first file leaves a temporary one.
    if out.exists() and any(entry.suffix != ".tmp" for entry in out.iterdir()):
        raise RefusedError(f"{out} is not empty and holds no config.json: choose another --out")
    write_file(config_file, as_json(config))


def _check_config(config_file: Path, config: dict[str, Any]) -> None:
    try:
        found = json.loads(config_file.read_text())
        differences = list(_differences(found, config))
    except (ValueError, AttributeError) as error:
        raise RefusedError(f"{config_file} is damaged: {error}") from error
    if differences:
        raise RefusedError(f"{config_file.parent} holds results of another configuration: {'; '.join(differences)}")


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> Any:
    for key in sorted({*found, *wanted}):
        old, new = found.get(key), wanted.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key} is {old!r} there and {new!r} now"
