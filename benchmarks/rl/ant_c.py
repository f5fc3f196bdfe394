"""The ant on MuJoCo in C: many ants on the cores of a CPU, and the loop that lets a compiled policy act on them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from benchmarks import extras
from benchmarks.rl import ant
from benchmarks.rl import environment as environments
from benchmarks.rl.ant import Body
from benchmarks.rl.collecting import Returns, Trajectory
from benchmarks.rl.environment import Clock

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Physics:
    """Steps many ants, each under its own friction: a pure function of their bodies.

    `mujoco.rollout` would do the same but does not return where the contact solver has to begin next, without which the
    numbers are not those of an uninterrupted simulation.
    """

    def __init__(self, ants: int, threads: int | None = None):
        """Makes a model for each ant.

        Args:
            ants: Number of ants.
            threads: Threads that share them; by default one for each core.

        Raises:
            RefusedError: If MuJoCo is missing.
        """
        self._mujoco = extras.require_mujoco()
        self._mujoco.set_mju_user_warning(lambda message: None)  # else they go into a file; rewards tell of failures
        self._models = [ant.load_model() for _ in range(ants)]
        self._datas = [self._mujoco.MjData(model) for model in self._models]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._parts = np.array_split(np.arange(ants), min(ants, threads or cores or 1))
        self._pool = ThreadPoolExecutor(len(self._parts))

    def step(self, body: Body, action: Float[np.ndarray, "A 8"], friction: Float[np.ndarray, " A"]) -> Body:
        """Returns the ants after a step of the environment."""
        after = Body(*(np.empty_like(values) for values in body))

        def step_part(numbers: Int[np.ndarray, " part"]) -> None:
            for i in numbers:
                model, data = self._models[i], self._datas[i]
                # A contact has the larger friction of its two geoms: all of them are set.
                model.geom_friction[:, 0] = friction[i]
                data.qpos[:], data.qvel[:], data.qacc_warmstart[:] = (values[i] for values in body)
                data.ctrl[:] = action[i]
                self._mujoco.mj_step(model, data, nstep=ant.FRAME_SKIP)
                for values, now in zip(after, (data.qpos, data.qvel, data.qacc_warmstart), strict=True):
                    values[i] = now

        list(self._pool.map(step_part, self._parts))  # raises what a thread raised
        return after


class Herd(NamedTuple):
    """Where the ants of S seeds and N workers each are.

    Attributes:
        body: The ants, float64 [S, N, ...].
        steps: Steps since their episodes' start [S, N].
        clocks: Where in the schedule they are [S, N].
        returns: Sum of the rewards of their current episodes [S, N].
    """

    body: Body
    steps: Int[np.ndarray, "S N"]
    clocks: Clock
    returns: Float[np.ndarray, "S N"]


def start_herd(body: Body) -> Herd:
    """Starts the first episodes from these bodies."""
    shape = body.positions.shape[:2]
    none = np.zeros(shape, np.int32)
    return Herd(_as_float64(body), none, Clock(none, none), np.zeros(shape))


@np.errstate(invalid="ignore", over="ignore")  # what is not finite stops its seed
def collect(
    physics: Physics,
    act: Callable[[jax.Array, int], jax.Array],
    starts: Body,
    frictions: Float[np.ndarray, "S C"],
    period: int,
    herd: Herd,
) -> tuple[Herd, Trajectory, Returns]:
    """Lets the ants act; what `collecting.collect` does, for all seeds at once, in a loop of NumPy.

    Args:
        physics: Steps S * N ants.
        act: (observations [S, N, 111], number of the step) -> actions [S, N, 8].
        starts: Bodies to begin new episodes with [S, T, N, ...]; T is the number of steps.
        frictions: Frictions of the schedule.
        period: Steps after which the next end of an episode brings the next friction.
        herd: Where the ants are.

    Returns:
        Where they are now, what they experienced [S, T, N, ...], and the returns of each step's ended episodes [S, T].
    """
    seen, returned = [], []
    starts = _as_float64(starts)
    observations = ant.observation(herd.body).astype(np.float32)
    for number in range(starts.positions.shape[1]):
        actions = np.asarray(act(observations, number))
        after = _stepped(physics, herd.body, actions, frictions_now(frictions, herd))
        rewards, terminated = ant.judge(herd.body, after, actions)
        steps = herd.steps + 1
        truncated = steps >= ant.TIME_LIMIT
        next_observations = ant.observation(after).astype(np.float32)
        seen.append((observations, actions, np.float32(rewards), next_observations, terminated, truncated))
        herd, of_ended = _begin_anew(
            Herd(after, steps, herd.clocks, herd.returns + rewards),
            terminated | truncated,
            Body(*(values[:, number] for values in starts)),
            period,
        )
        returned.append(of_ended)
        observations = ant.observation(herd.body).astype(np.float32)
    trajectory = Trajectory(*(np.stack(values, axis=1) for values in zip(*seen, strict=True)))
    return herd, trajectory, Returns(*(np.stack(values, axis=1) for values in zip(*returned, strict=True)))


def frictions_now(frictions: Float[np.ndarray, "S C"], herd: Herd) -> Float[np.ndarray, "S N"]:
    """Returns the friction under each ant."""
    return np.take_along_axis(frictions, herd.clocks.index, axis=1)


def _stepped(
    physics: Physics, body: Body, actions: Float[np.ndarray, "S N 8"], friction: Float[np.ndarray, "S N"]
) -> Body:
    """Steps the ants of all seeds; what is not finite pushes nothing (its reward tells)."""
    shape = friction.shape
    flat = Body(*(values.reshape(-1, values.shape[-1]) for values in body))
    pushes = np.nan_to_num(actions.reshape(-1, ant.MOTORS), nan=0.0, posinf=0.0, neginf=0.0)
    after = physics.step(flat, pushes, friction.reshape(-1))
    return Body(*(values.reshape(*shape, -1) for values in after))


def _begin_anew(
    herd: Herd, ended: Bool[np.ndarray, "S N"], start: Body, period: int
) -> tuple[Herd, tuple[np.ndarray, np.ndarray]]:
    """Begins new episodes where they ended; returns the sum of the ended ones' returns, and their number."""
    body = Body(*(np.where(ended[..., None], new, old) for new, old in zip(start, herd.body, strict=True)))
    clocks = environments.tick(herd.clocks, ended, period)
    total = np.where(ended, herd.returns, 0).sum(-1)
    steps, returns = np.where(ended, 0, herd.steps), np.where(ended, 0, herd.returns)
    return Herd(body, steps, clocks, returns), (total, ended.sum(-1))


def _as_float64(body: Body) -> Body:
    return Body(*(np.asarray(values, np.float64) for values in body))
