"""What the experiments need beyond the library, checked before anything else is imported."""

import importlib.util

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


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False
