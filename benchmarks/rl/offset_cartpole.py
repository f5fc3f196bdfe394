"""Offset CartPole: a cheap task on which PPO loses plasticity.

Every task adds another constant to what the agent observes, without a signal; the physics stays the same. Environment,
PPO and method are one compiled program.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import methods
from benchmarks.experiment import Experiment, Run, TaskCarry, config_of, devices_for, seed_numbers
from benchmarks.problem import Problem
from benchmarks.rl import cartpole, control
from benchmarks.rl.cartpole import CARTPOLE
from benchmarks.rl.collecting import Returns, Workers, collect, start_workers
from benchmarks.rl.environment import Schedule
from benchmarks.rl.methods import METHODS, ControlMethod
from benchmarks.showing.markdown import Column, CurvesTable, first_and_last
from gxd_jax.training import TrainState

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

_NAME = "offset-cartpole"
_VIEW = control.view("task")

_PROBE_SIZE = 256


@dataclasses.dataclass(frozen=True)
class Settings(control.ControlOptions):
    """Offset CartPole: return in the second half of each task; the offset of the observations changes with the task."""

    method: tuple[Literal[tuple(METHODS)], ...] = (  # type: ignore[valid-type]
        "fresh",
        "ppo",
        "ppo_betas",
        "ppo_l2",
        "cbp",
        "cbp_l2",
        "gxd_l2",
        "gxd_adaptation_l2",
        "redo_l2",
        "random",
    )
    """Methods to compare."""
    tasks: int | None = None
    """Tasks of a run; a checkpoint is written after each."""
    task_steps: int | None = None
    """Environment steps of a task, a multiple of two batches."""
    offset_std: float = 2.0
    """Standard deviation of the offsets."""


_ALL = {
    "step_size": 3e-3,
    "width": 64,
    "gain": math.sqrt(2),
    "workers": 8,
    "batch": 512,
    "minibatch": 64,
    "entropy": 0.01,
    "reward_scale": 0.1,
    "bootstrap": True,
    "l2": (1e-4,),
    "replacement_rate": (1e-4,),
    "maturity_threshold": 500,
    "reset_period": 1000,
    "task_steps": 30_720,
}
_SCALES: dict[str, dict[str, Any]] = {
    "smoke": {**_ALL, "seeds": 2, "tasks": 2, "task_steps": 8_192},
    "default": {**_ALL, "seeds": 6, "tasks": 40},
    "paper": {**_ALL, "seeds": 30, "tasks": 100},
}


def make_experiment(settings: Settings) -> Experiment:
    """Returns the experiment that the settings, with every value filled in, describe.

    Raises:
        ValueError: If the settings do not fit together.
    """
    control.check_control(settings)
    shortest = 2 * settings.workers * cartpole.TIME_LIMIT
    if settings.task_steps % (2 * settings.batch) or settings.task_steps < shortest:
        raise ValueError(
            f"task_steps must be a multiple of two batches, {2 * settings.batch}, and at least {shortest}, so that "
            f"every worker ends an episode in each half, got {settings.task_steps}"
        )
    return Experiment(
        problem=_NAME,
        config=config_of(_NAME, settings),
        runs=[make_run(settings, *row) for row in control.rows_of(settings)],
        view=_VIEW,
        seeds=seed_numbers(settings),
        group=settings.group,
        ends=np.arange(1, settings.tasks + 1),
        devices=devices_for(settings.seeds, settings.devices),
    )


class TaskKeys(NamedTuple):
    """Keys of what is random in a task."""

    offset: PRNGKeyArray
    probe: PRNGKeyArray
    agent: PRNGKeyArray
    workers: PRNGKeyArray
    updates: PRNGKeyArray


def task_keys(key: UInt32[Array, " words"], task: Int[Array, ""]) -> TaskKeys:
    """Returns the keys of a seed's task."""
    return TaskKeys(*jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(key), task), len(TaskKeys._fields)))


def draw_offset(key: PRNGKeyArray, std: float) -> Float[Array, " 4"]:
    """Draws the offset of a task."""
    return std * jax.random.normal(key, (cartpole.STATE_SIZE,))


def make_run(settings: Settings, labels: dict[str, str], method: ControlMethod, setting: methods.Setting) -> Run:
    """Returns the run of one method, a task in a chunk.

    Args:
        settings: Settings with every value filled in.
        labels: The run's labels.
        method: The method.
        setting: Values of the method's own hyper-parameters.
    """
    ppo = control.make_ppo(CARTPOLE.spaces, method, setting, settings)
    steps, updates = settings.batch // settings.workers, settings.task_steps // settings.batch

    def start(seed: Int[Array, ""], data: Any) -> TaskCarry:
        del data
        key, first = jax.random.key_data(jax.random.key(seed)), jnp.int32(0)
        return TaskCarry(key, first, ppo.start(task_keys(key, first).agent))

    def chunk(carry: TaskCarry, data: Any) -> tuple[TaskCarry, dict[str, Array]]:
        del data
        keys = task_keys(carry.key, carry.task)
        offset = draw_offset(keys.offset, settings.offset_std)
        schedule = Schedule(offset[None])
        state = ppo.start(keys.agent) if method.fresh else carry.training
        found = ppo.diagnose(state.params, cartpole.probe(keys.probe, offset, _PROBE_SIZE))

        def learn(carry: tuple[TrainState, Workers], key: PRNGKeyArray) -> tuple[tuple[TrainState, Workers], Returns]:
            state, workers = carry
            collect_key, update_key = jax.random.split(key)
            act = ppo.policy(state.params)
            workers, seen, returns = collect(CARTPOLE, act, schedule, workers, collect_key, steps)
            return (ppo.update(state, seen, update_key), workers), returns

        workers = start_workers(CARTPOLE, schedule, keys.workers, settings.workers)
        (end, _), returns = jax.lax.scan(learn, (state, workers), jax.random.split(keys.updates, updates))
        second_half = jax.tree.map(lambda values: values[updates // 2 :], returns)
        replaced = ppo.replaced(end) - ppo.replaced(state)
        measures = {"return": second_half.mean, "replaced": replaced} | found
        return TaskCarry(carry.key, carry.task + 1, end), measures

    return Run(labels, start, chunk)


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
                Column("rest", "all but the first quarter", ".0f"),
                Column("dead_last", "dead units", ".2f", error=False),
                Column("stable_rank_last", "stable rank, policy", ".2f", error=False),
                Column("weight_magnitude_last", "mean weight", error=False),
                Column("replaced", "units replaced", ",.0f", error=False),
            )
        )
    },
    METHODS,
)
