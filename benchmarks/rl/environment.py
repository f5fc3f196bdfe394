"""What an environment is: two pure functions, with what changes between tasks (friction, an offset) as data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

NEVER = np.iinfo(np.int32).max
"""Period of a schedule that stays at its first conditions."""


class Transition(NamedTuple):
    """What a step led to.

    Attributes:
        observation: Observation after the step, before a new episode begins [O].
        reward: Reward of the step.
        terminated: Whether the episode ended in a state without a future.
        truncated: Whether its time was up.
    """

    observation: Float[Array, " O"]
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


class Spaces(NamedTuple):
    """What an agent sees and does.

    Attributes:
        observation_size: Numbers of an observation O.
        action_size: Choices, or numbers, of an action A.
        actions: Whether an action is one of A choices or A real numbers.
    """

    observation_size: int
    action_size: int
    actions: Literal["discrete", "continuous"]


class Environment(NamedTuple):
    """An environment.

    Attributes:
        reset: (key, params) -> (state, observation) at the start of an episode.
        step: (key, state, action, params) -> (state, `Transition`).
        spaces: What an agent sees and does.
    """

    reset: Callable[[jax.Array, Any], tuple[Any, jax.Array]]
    step: Callable[[jax.Array, Any, jax.Array, Any], tuple[Any, Transition]]
    spaces: Spaces


class Schedule(NamedTuple):
    """The conditions that an environment goes through: they change between episodes.

    Attributes:
        table: `params` of the environment, stacked along a first axis of the changes.
        period: Steps after which the next end of an episode brings the next conditions.
    """

    table: Any
    period: int = NEVER

    def params(self, clock: Clock) -> Any:
        """Returns the environment's params at this moment; the last of the table stay."""
        return jax.tree.map(lambda values: values[clock.index], self.table)


class Clock(NamedTuple):
    """Where in its schedule one worker is.

    Attributes:
        index: Row of the table.
        steps: Steps since the last change.
    """

    index: Int[Array, ""]
    steps: Int[Array, ""]


def start_clock(*shape: int) -> Clock:
    """Returns clocks at the start of the schedule."""
    return Clock(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32))


def tick(clock: Clock, ended: Bool[Array, "..."], period: int) -> Clock:
    """Returns the clock one step later: it changes at the first end of an episode after more than `period` steps."""
    steps = clock.steps + 1
    due = ended & (steps > period)
    return Clock(clock.index + due, steps * ~due)
