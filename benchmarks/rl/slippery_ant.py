"""Ant and slippery ant ([N], Methods): PPO on an ant whose friction changes now and then, without a signal.

`slippery_runs` has the runs with either simulator.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import numpy as np

from benchmarks import extras
from benchmarks.experiment import Experiment, config_of, devices_for, seed_numbers
from benchmarks.problem import Problem
from benchmarks.rl import ant, control, slippery_runs
from benchmarks.rl.methods import METHODS
from benchmarks.showing.markdown import Column, CurvesTable, first_and_last

_NAME = "slippery-ant"
_VIEW = control.view("step", "friction")

_METHODS = tuple(name for name, method in METHODS.items() if not method.fresh)


@dataclasses.dataclass(frozen=True)
class Settings(control.ControlOptions):
    """Slippery ant: return of the ant; its friction changes at an episode's end now and then."""

    method: tuple[Literal[_METHODS], ...] | None = None  # type: ignore[valid-type]
    """Methods to compare."""
    backend: Literal["c", "mjx"] | None = None
    """MuJoCo in C with Gymnasium's physics, or MJX with faster ones; by default C where JAX runs on the CPU."""
    constant_friction: bool = False
    """Whether the friction stays that of the standard ant."""
    steps: int | None = None
    """Environment steps of a seed, a multiple of the bin."""
    bin: int | None = None
    """Environment steps over which returns are averaged, a multiple of the batch; each ends with a checkpoint."""
    period: int | None = None
    """Environment steps of a seed after which the friction changes."""


_REFERENCE = {
    "step_size": 1e-4,
    "width": 256,
    "gain": 1.0,
    "minibatch": 128,
    "entropy": 0.0,
    "reward_scale": 1.0,
    "bootstrap": False,
    "l2": (1e-3,),
    "replacement_rate": (1e-4,),
    "maturity_threshold": 10_000,
    "reset_period": 100,
}
"""What the public code of [N] has."""
_SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        **_REFERENCE,
        "method": ("cbp_l2",),
        "seeds": 2,
        "workers": 1,
        "batch": 1024,
        "steps": 2_048,
        "bin": 1_024,
        "period": 500,
        "width": 64,
        "maturity_threshold": 50,
        "replacement_rate": (1e-2,),
    },
    "default": {
        **_REFERENCE,
        "method": ("ppo", "ppo_l2", "cbp_l2", "gxd_l2"),
        "step_size": 3e-4,
        "l2": (1e-4,),
        "maturity_threshold": 100,
        "seeds": 2,
        "workers": 8,
        "batch": 2048,
        "steps": 307_200,
        "bin": 10_240,
        "period": 100_000,
    },
    "paper": {
        **_REFERENCE,
        "method": ("ppo", "ppo_betas", "ppo_l2", "cbp_l2", "gxd_l2", "gxd_adaptation_l2", "redo_l2"),
        "seeds": 30,
        "workers": 1,
        "batch": 2048,
        "steps": lambda given: 50_073_600 if given.constant_friction else 20_070_400,
        "bin": 102_400,
        "period": 2_000_000,
    },
}


def make_experiment(settings: Settings) -> Experiment:
    """Returns the experiment that the settings, with every value filled in, describe.

    Raises:
        ValueError: If the settings do not fit together.
        RefusedError: If MuJoCo is missing.
    """
    if settings.backend is None:
        backend = "c" if jax.default_backend() == "cpu" else "mjx"
        settings = dataclasses.replace(settings, backend=backend)
    control.check_control(settings)
    shortest = settings.workers * ant.TIME_LIMIT
    if settings.bin % settings.batch or settings.bin < shortest:
        raise ValueError(
            f"bin must be a multiple of the batch of {settings.batch}, and at least {shortest}, so that every worker "
            f"ends an episode in it, got {settings.bin}"
        )
    if settings.steps % settings.bin:
        raise ValueError(f"steps must be a multiple of bin, got {settings.steps} and {settings.bin}")
    if settings.period < settings.workers:
        raise ValueError(f"period must be at least the {settings.workers} workers, got {settings.period}")
    make_run = slippery_runs.BACKENDS[settings.backend](settings)
    return Experiment(
        problem=_NAME,
        config=config_of(_NAME, settings) | {"mujoco": extras.require_mujoco().__version__},
        runs=[make_run(*row) for row in control.rows_of(settings)],
        view=_VIEW,
        seeds=seed_numbers(settings),
        group=settings.group,
        ends=np.arange(settings.bin, settings.steps + 1, settings.bin),
        devices=devices_for(settings.seeds, settings.devices),
    )


PROBLEM = Problem(
    _NAME,
    Settings,
    _SCALES,
    make_experiment,
    _VIEW,
    {
        "main": CurvesTable(
            (
                *first_and_last("quarter", ".0f"),
                Column("dead_last", "dead units, last quarter", ".2f", error=False),
                Column("weight_magnitude_last", "mean weight", error=False),
                Column("replaced", "units replaced", ",.0f", error=False),
            )
        )
    },
    METHODS,
)
