"""The ant on MJX, MuJoCo in JAX: an environment that can be compiled with everything around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import extras
from benchmarks.rl import ant
from benchmarks.rl.ant import Body
from benchmarks.rl.environment import Environment, Transition

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray


class AntState(NamedTuple):
    """State of an episode.

    Attributes:
        body: The ant.
        steps: Steps since the episode's start.
    """

    body: Body
    steps: Int[Array, ""]


def make_environment() -> Environment:
    """Returns the ant; its params are the friction of all contacts, which is data of the compiled program.

    Raises:
        RefusedError: If MuJoCo is missing.
    """
    mjx = extras.require_mjx()
    model = mjx.put_model(ant.load_model(fast=True))
    template = mjx.make_data(model)

    def simulate(body: Body, action: Float[Array, " 8"], friction: Float[Array, ""]) -> Body:
        # A contact has the larger friction of its two geoms: all of them are set.
        slippery = model.replace(geom_friction=model.geom_friction.at[:, 0].set(friction))

        def substep(body: Body, _: None) -> tuple[Body, None]:
            data = template.replace(
                qpos=body.positions, qvel=body.velocities, qacc_warmstart=body.warm_start, ctrl=action
            )
            data = mjx.step(slippery, data)
            return Body(data.qpos, data.qvel, data.qacc_warmstart), None

        return jax.lax.scan(substep, body, length=ant.FRAME_SKIP)[0]

    def reset(key: PRNGKeyArray, friction: Float[Array, ""]) -> tuple[AntState, Float[Array, " 111"]]:
        del friction
        body = ant.draw_start(key)
        return AntState(body, jnp.int32(0)), ant.observation(body)

    def step(
        key: PRNGKeyArray, state: AntState, action: Float[Array, " 8"], friction: Float[Array, ""]
    ) -> tuple[AntState, Transition]:
        del key
        after = AntState(simulate(state.body, action, friction), state.steps + 1)
        reward, terminated = ant.judge(state.body, after.body, action)
        truncated = after.steps >= ant.TIME_LIMIT
        return after, Transition(ant.observation(after.body), reward, terminated, truncated)

    return Environment(reset, step, ant.SPACES)
