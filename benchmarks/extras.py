"""What the experiments need beyond the library, checked before anything else is imported."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
from types import ModuleType

from benchmarks.running.folder import RefusedError

EXTRAS = {
    "PIL": "pillow",
    "array_record": "array_record",
    "matplotlib": "matplotlib",
    "orbax.checkpoint": "orbax-checkpoint",
    "pandas": "pandas",
    "rich": "rich",
    "sklearn": "scikit-learn",
    "tensorflow_datasets": "tensorflow-datasets",
    "tyro": "tyro",
}
"""Module -> package."""


def require_extras() -> None:
    """Checks that the packages of the `experiments` extra are there.

    Raises:
        SystemExit: If one is missing, with the command that installs it.
    """
    missing = [package for module, package in EXTRAS.items() if not _is_there(module)]
    if missing:
        raise SystemExit(f'error: the benchmarks need {", ".join(missing)}: pip install "gxd_jax[experiments]"')


def require_mujoco() -> ModuleType:
    """Returns MuJoCo, which only some problems need.

    Raises:
        RefusedError: If it is missing, with the command that installs it.
    """
    return _import_mujoco("mujoco")


def require_mjx() -> ModuleType:
    """Returns MJX, MuJoCo in JAX.

    Raises:
        RefusedError: If it is missing, with the command that installs it.
    """
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return _import_mujoco("mujoco.mjx")  # says that it does without Warp, which nothing here needs


def _import_mujoco(module: str) -> ModuleType:
    if not _is_there(module):
        raise RefusedError(f'this problem needs {module}: pip install "gxd_jax[experiments,mujoco]"')
    return importlib.import_module(module)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False
