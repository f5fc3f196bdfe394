"""CartPole (Barto, Sutton and Anderson, 1983) in JAX, with an offset of its observations as data.

Numbers and equations are those of Gymnasium's CartPole-v1. The offset changes nothing in the physics; a network whose
offset changes has to learn anew where the pole stands.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.rl.environment import Environment, Spaces, Transition

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray

STATE_SIZE = 4
TIME_LIMIT = 500

_GRAVITY = 9.8
_POLE_MASS = 0.1
_TOTAL_MASS = 1.0 + _POLE_MASS
_HALF_LENGTH = 0.5
_FORCE = 10.0
_SECONDS = 0.02
_LARGEST_PLACE = 2.4
_LARGEST_ANGLE = 12 * math.pi / 180
_LARGEST_START = 0.05
_LARGEST_SPEED = 2.0
"""Speeds on the probe lie within this bound: episodes seldom leave it."""


class CartPoleState(NamedTuple):
    """State of an episode.

    Attributes:
        body: Place and speed of the cart, angle and angular speed of the pole.
        steps: Steps since the episode's start.
    """

    body: Float[Array, " 4"]
    steps: Int[Array, ""]


def reset(key: PRNGKeyArray, offset: Float[Array, " 4"]) -> tuple[CartPoleState, Float[Array, " 4"]]:
    """Starts an episode near the upright position."""
    body = jax.random.uniform(key, (STATE_SIZE,), minval=-_LARGEST_START, maxval=_LARGEST_START)
    return CartPoleState(body, jnp.int32(0)), body + offset


def step(
    key: PRNGKeyArray, state: CartPoleState, action: Int[Array, ""], offset: Float[Array, " 4"]
) -> tuple[CartPoleState, Transition]:
    """Pushes the cart to the left (0) or to the right (1) for a fiftieth of a second (Euler's method)."""
    del key
    place, speed, angle, turning = state.body
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    push = (jnp.where(action == 1, _FORCE, -_FORCE) + _POLE_MASS * _HALF_LENGTH * turning**2 * sine) / _TOTAL_MASS
    inertia = _HALF_LENGTH * (4 / 3 - _POLE_MASS * cosine**2 / _TOTAL_MASS)
    angular_acceleration = (_GRAVITY * sine - cosine * push) / inertia
    acceleration = push - _POLE_MASS * _HALF_LENGTH * angular_acceleration * cosine / _TOTAL_MASS
    change = jnp.stack([speed, acceleration, turning, angular_acceleration])
    after = CartPoleState(state.body + _SECONDS * change, state.steps + 1)
    fell = (jnp.abs(after.body[0]) > _LARGEST_PLACE) | (jnp.abs(after.body[2]) > _LARGEST_ANGLE)
    return after, Transition(after.body + offset, jnp.float32(1), fell, after.steps >= TIME_LIMIT)


def probe(key: PRNGKeyArray, offset: Float[Array, " 4"], size: int) -> Float[Array, "size 4"]:
    """Draws observations evenly from where a pole can be, whatever a policy visits."""
    most = jnp.array([_LARGEST_PLACE, _LARGEST_SPEED, _LARGEST_ANGLE, _LARGEST_SPEED])
    return jax.random.uniform(key, (size, STATE_SIZE), minval=-most, maxval=most) + offset


CARTPOLE = Environment(reset, step, Spaces(STATE_SIZE, 2, "discrete"))
"""CartPole; its params are the offset of the observations."""
