"""How many processes run the tests: two for the whole suite, none besides pytest's own for a single file."""

from pathlib import Path


def pytest_xdist_auto_num_workers(config):
    """Answers `-n auto`, which stands in `pyproject.toml`."""
    paths = [Path(argument.split("::")[0]) for argument in config.args]
    return 0 if len(paths) == 1 and paths[0].is_file() else 2
