"""The ant: its model, observations, rewards and ends of episodes, for arrays of NumPy and of JAX.

Observations are the 111 numbers of Ant-v3 under MuJoCo 2 and later: height, orientation and joint angles, velocities,
and 84 zeros where contact forces once stood, which keep the size of the network's first layer. The reward is the speed
along x, 1 for each step that it is healthy, minus half of the squared norm of the action as it was chosen: the motors
clip it, the cost does not. The episode ends when the torso is not between 0.2 and 1 m high, and is truncated after
1,000 steps of 0.05 s. Contacts cost nothing.

Differs from: Gymnasium's speed, which reads the torso's place from kinematics that lag the state by a part of a step.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import extras
from benchmarks.rl.environment import Spaces

if TYPE_CHECKING:
    import mujoco
    from jaxtyping import Array, Bool, Float, PRNGKeyArray

POSITIONS, VELOCITIES, MOTORS = 15, 14, 8
FRAME_SKIP = 5
"""Steps of the simulator in a step of the environment."""
TIME_LIMIT = 1000
SLIPPERIEST, ROUGHEST = 0.02, 2.0
"""Bounds of the friction that slippery ant draws from ([N], Methods)."""

_CONTACT_FORCES = 84
_HIDDEN_POSITIONS = 2
"""x and y are not observed."""
SPACES = Spaces(POSITIONS - _HIDDEN_POSITIONS + VELOCITIES + _CONTACT_FORCES, MOTORS, "continuous")

_STEP_SECONDS = 0.05
_LOWEST, _HIGHEST = 0.2, 1.0
_CONTROL_COST = 0.5
_RESET_NOISE = 0.1
START = np.array([0, 0, 0.75, 1, 0, 0, 0, 0, 1, 0, -1, 0, -1, 0, 1.0])
"""Positions at the start: place, orientation as a quaternion, hips and ankles in turn."""
_HIP, _ANKLE_MIDDLE, _ANKLE_SPREAD = math.radians(30), math.radians(50), math.radians(20)
_ANKLE_SIGNS = np.array([1, -1, -1, 1])
START[8::2] = _ANKLE_SIGNS


class Body(NamedTuple):
    """What the simulator needs to know of an ant.

    Attributes:
        positions: Place, orientation, joint angles [..., 15].
        velocities: Their velocities [..., 14].
        warm_start: Where the contact solver begins: the last accelerations [..., 14].
    """

    positions: Any
    velocities: Any
    warm_start: Any


def load_model(*, fast: bool = False) -> mujoco.MjModel:
    """Returns the ant's model.

    Args:
        fast: False: Gymnasium's options, a Runge-Kutta step of the fourth order and up to 100 iterations of the contact
            solver. True: semi-implicit Euler steps and 8 iterations of 8 line-search steps, which suit MJX; the same
            ant in slightly other physics.

    Raises:
        RefusedError: If MuJoCo is missing.
    """
    mujoco = extras.require_mujoco()
    model = mujoco.MjModel.from_xml_path(str(Path(__file__).parent / "ant.xml"))
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET  # what is not finite shall be seen
    if fast:
        model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
        model.opt.iterations = model.opt.ls_iterations = 8
    return model


def observation(body: Body) -> Any:
    """Returns the observations of ants [..., 111]."""
    xp = body.positions.__array_namespace__()
    no_forces = xp.zeros((*body.positions.shape[:-1], _CONTACT_FORCES), dtype=body.positions.dtype)
    return xp.concat([body.positions[..., _HIDDEN_POSITIONS:], body.velocities, no_forces], axis=-1)


def judge(before: Body, after: Body, action: Any) -> tuple[Any, Any]:
    """Returns reward [...] and whether the episode ends [...] of a step; what is not finite ends it, too."""
    xp = after.positions.__array_namespace__()
    height = after.positions[..., 2]
    finite = xp.isfinite(after.positions).all(-1) & xp.isfinite(after.velocities).all(-1)
    healthy = finite & (height >= _LOWEST) & (height <= _HIGHEST)
    speed = (after.positions[..., 0] - before.positions[..., 0]) / _STEP_SECONDS
    return speed + healthy - _CONTROL_COST * (action**2).sum(-1), ~healthy


def draw_start(key: PRNGKeyArray) -> Body:
    """Draws the start of an episode: the standing ant with some noise."""
    position_key, velocity_key = jax.random.split(key)
    noise = jax.random.uniform(position_key, (POSITIONS,), minval=-_RESET_NOISE, maxval=_RESET_NOISE)
    velocities = _RESET_NOISE * jax.random.normal(velocity_key, (VELOCITIES,))
    return Body(jnp.float32(START) + noise, velocities, jnp.zeros(VELOCITIES))


def draw_frictions(key: PRNGKeyArray, count: int) -> Float[Array, " count"]:
    """Draws frictions, evenly in their logarithm."""
    logs = jax.random.uniform(key, (count,), minval=math.log(SLIPPERIEST), maxval=math.log(ROUGHEST))
    return jnp.exp(logs)


def probe(key: PRNGKeyArray, size: int) -> Float[Array, "size 111"]:
    """Draws observations of ants in all healthy heights and poses, whatever a policy visits."""
    keys = jax.random.split(key, 5)
    height = jax.random.uniform(keys[0], (size, 1), minval=_LOWEST, maxval=_HIGHEST)
    turn = jnp.array([1.0, 0, 0, 0]) + 0.5 * jax.random.normal(keys[1], (size, 4))
    turn /= jnp.linalg.norm(turn, axis=1, keepdims=True)
    hips = jax.random.uniform(keys[2], (size, 4), minval=-_HIP, maxval=_HIP)
    bends = jax.random.uniform(keys[3], (size, 4), minval=-_ANKLE_SPREAD, maxval=_ANKLE_SPREAD)
    joints = jnp.stack([hips, _ANKLE_SIGNS * (_ANKLE_MIDDLE + bends)], axis=-1).reshape(size, MOTORS)
    positions = jnp.concatenate([jnp.zeros((size, 2)), height, turn, joints], axis=1)
    velocities = jax.random.normal(keys[4], (size, VELOCITIES))
    return observation(Body(positions, velocities, jnp.zeros_like(velocities)))


def is_finite(values: Any) -> Bool[Array, ""]:
    """Whether a tree of arrays holds nothing but finite numbers."""
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(values)]).all()
