"""Collecting experience: several workers act side by side; their episodes go on from one batch to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.rl import environment as environments
from benchmarks.rl.environment import Clock, Environment, Schedule

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, PRNGKeyArray


class Trajectory(NamedTuple):
    """Experience of N workers over T steps.

    Attributes:
        observations: What an action was chosen on [T, N, O].
        actions: The actions [T, N] or [T, N, A].
        rewards: Their rewards [T, N].
        next_observations: What they led to, before a new episode began [T, N, O].
        terminated: Whether the episode ended in a state without a future [T, N].
        truncated: Whether its time was up [T, N].
    """

    observations: Float[Array, "T N O"]
    actions: Array
    rewards: Float[Array, "T N"]
    next_observations: Float[Array, "T N O"]
    terminated: Bool[Array, "T N"]
    truncated: Bool[Array, "T N"]


class Returns(NamedTuple):
    """Returns of the episodes that ended.

    Attributes:
        total: Sum of their returns.
        episodes: Their number.
    """

    total: Float[Array, "..."]
    episodes: Float[Array, "..."]

    @property
    def mean(self) -> Float[Array, ""]:
        """Mean return over everything that was counted; NaN if no episode ended."""
        return self.total.sum() / self.episodes.sum()


class Workers(NamedTuple):
    """Where N workers are.

    Attributes:
        states: States of their environments.
        observations: What they see [N, O].
        clocks: Where in the schedule they are [N].
        returns: Sum of the rewards of their current episodes [N].
    """

    states: Any
    observations: Float[Array, "N O"]
    clocks: Clock
    returns: Float[Array, " N"]


Act = Callable[["PRNGKeyArray", "Float[Array, 'N O']"], "Array"]
"""A policy: (key, observations) -> actions."""


def start_workers(environment: Environment, schedule: Schedule, key: PRNGKeyArray, count: int) -> Workers:
    """Starts the first episode of `count` workers."""
    clocks = environments.start_clock(count)
    states, observations = jax.vmap(environment.reset)(jax.random.split(key, count), jax.vmap(schedule.params)(clocks))
    return Workers(states, observations, clocks, jnp.zeros(count))


def collect(
    environment: Environment, act: Act, schedule: Schedule, workers: Workers, key: PRNGKeyArray, steps: int
) -> tuple[Workers, Trajectory, Returns]:
    """Lets the workers act for `steps` steps; one `lax.scan`.

    Args:
        environment: The environment.
        act: The policy.
        schedule: The conditions of the environment.
        workers: Where they are.
        key: Random key.
        steps: Steps of each worker T, static.

    Returns:
        Where the workers are now, what they experienced, and the returns of each step's ended episodes [T].
    """
    count = len(workers.returns)

    def next_step(workers: Workers, key: PRNGKeyArray) -> tuple[Workers, tuple[Trajectory, Returns]]:
        act_key, step_key, reset_key = jax.random.split(key, 3)
        actions = act(act_key, workers.observations)
        params = jax.vmap(schedule.params)(workers.clocks)
        states, found = jax.vmap(environment.step)(jax.random.split(step_key, count), workers.states, actions, params)
        ended = found.terminated | found.truncated
        clocks = environments.tick(workers.clocks, ended, schedule.period)
        fresh = jax.vmap(environment.reset)(jax.random.split(reset_key, count), jax.vmap(schedule.params)(clocks))
        states, observations = jax.tree.map(
            lambda new, old: jnp.where(ended.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            fresh,
            (states, found.observation),
        )
        returns = workers.returns + found.reward
        seen = Trajectory(
            workers.observations, actions, found.reward, found.observation, found.terminated, found.truncated
        )
        of_ended = Returns((returns * ended).sum(), ended.sum(dtype=jnp.float32))
        return Workers(states, observations, clocks, jnp.where(ended, 0, returns)), (seen, of_ended)

    workers, (trajectory, returns) = jax.lax.scan(next_step, workers, jax.random.split(key, steps))
    return workers, trajectory, returns
