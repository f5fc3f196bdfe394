"""What the experiments need beyond the library, checked before anything else is imported."""

import importlib.util

EXTRAS = ("matplotlib", "pandas", "rich", "tyro")


def require_extras() -> None:
    """Checks that the packages of the `experiments` extra are there.

    Raises:
        SystemExit: If one is missing, with the command that installs it.
    """
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f'error: the benchmarks need {", ".join(missing)}: pip install "gxd_jax[experiments]"')
