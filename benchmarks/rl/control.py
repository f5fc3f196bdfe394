"""What the experiments on control share: options, and PPO with what a method's row stands for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

import gxd_jax as gxd
from benchmarks import methods
from benchmarks.experiment import Options, View
from benchmarks.learner import make_learner
from benchmarks.networks.layers import Network
from benchmarks.rl import ppo
from benchmarks.rl.agents import Agent, make_agent
from benchmarks.rl.collecting import Act, Trajectory
from benchmarks.rl.environment import Spaces
from benchmarks.rl.methods import METHODS, ControlMethod
from gxd_jax.training import TrainState

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

DIAGNOSTICS = ("dead", "stable_rank", "weight_magnitude")


@dataclasses.dataclass(frozen=True)
class ControlOptions(methods.Hyperparameters, Options):
    """Options of every experiment on control."""

    reset_l2: tuple[float, ...] = (1e-4,)
    """Weight decay of the methods that also reset units."""
    maturity_threshold: int | None = None
    """Updates before continual backprop may replace a unit."""
    reset_period: int | None = None
    """Updates between the resets of the methods that reset now and then."""
    step_size: float | None = None
    """Step size of Adam."""
    width: int | None = None
    """Units of a hidden layer."""
    layers: int = 2
    """Hidden layers of each network."""
    gain: float | None = None
    """Gain of the hidden layers' initial weights."""
    workers: int | None = None
    """Environments of a seed, side by side."""
    batch: int | None = None
    """Environment steps between updates, of all workers of a seed together."""
    minibatch: int | None = None
    """Transitions of a gradient step."""
    epochs: int = 10
    """How often an update goes over its batch."""
    discount: float = 0.99
    """Discount of a step."""
    trace_decay: float = 0.95
    """Decay of the traces of the advantages."""
    clip: float = 0.2
    """The ratio of probabilities counts within 1 +- this."""
    entropy: float | None = None
    """Weight of the entropy of the actions."""
    reward_scale: float | None = None
    """Factor on the rewards that the agent learns from."""
    bootstrap: bool | None = None
    """Whether the value of what follows a truncated episode counts."""
    group: int | None = None
    """Seeds that a device computes together."""


def check_control(settings: ControlOptions) -> None:
    """Checks what the settings say about agents and batches.

    Raises:
        ValueError: If they do not fit together, or a share is above 1.
    """
    for name in ("workers", "minibatch"):
        if settings.batch % getattr(settings, name):
            raise ValueError(f"batch must be a multiple of {name}, got {settings.batch} and {getattr(settings, name)}")
    for name in ("discount", "trace_decay", "clip"):
        if not 0 <= getattr(settings, name) <= 1:
            raise ValueError(f"{name} must lie between 0 and 1, got {getattr(settings, name)}")


class PPO(NamedTuple):
    """PPO with a method, on an environment.

    Attributes:
        start: Key -> training state.
        policy: Parameters -> how the agent acts.
        update: (training state, batch, key) -> training state.
        diagnose: (parameters, observations) -> the `DIAGNOSTICS`.
        replaced: Training state -> units replaced since the start.
    """

    start: Callable[[PRNGKeyArray], TrainState]
    policy: Callable[[Any], Act]
    update: Callable[[TrainState, Trajectory, PRNGKeyArray], TrainState]
    diagnose: Callable[[Any, jax.Array], dict[str, jax.Array]]
    replaced: Callable[[TrainState], jax.Array]


def make_ppo(spaces: Spaces, method: ControlMethod, setting: methods.Setting, settings: ControlOptions) -> PPO:
    """Returns PPO with what a method's row stands for.

    Args:
        spaces: What the environment's agents see and do.
        method: The method.
        setting: Values of the method's own hyper-parameters.
        settings: Settings with every value filled in.
    """
    agent = make_agent(spaces, [settings.width] * settings.layers, settings.gain)
    given = ppo.Hyperparameters(
        **{field.name: getattr(settings, field.name) for field in dataclasses.fields(ppo.Hyperparameters)}
    )
    learner = make_learner(
        Network(agent.init, agent.apply, agent.units),
        ppo.make_loss(agent.distribution, given),
        method.method,
        setting,
        settings,
        method.optimizer(settings.step_size, setting),
    )

    def start(key: PRNGKeyArray) -> TrainState:
        return learner.start(*jax.random.split(key, 3))

    def policy(params: Any) -> Act:
        def act(key: PRNGKeyArray, observations: Float[Array, "N O"]) -> Array:
            given = agent.apply(params, observations).policy
            if not method.learns:
                given = jax.tree.map(jnp.zeros_like, given)  # every choice as likely, or a standard normal
            return agent.distribution.sample(key, given)

        return act

    def update(state: TrainState, seen: Trajectory, key: PRNGKeyArray) -> TrainState:
        return ppo.update(agent, learner.step, state, seen, key, given)[0] if method.learns else state

    return PPO(start, policy, update, lambda params, x: diagnose(agent, params, x), learner.replaced)


def diagnose(agent: Agent, params: Any, observations: Float[Array, "B O"]) -> dict[str, Float[Array, ""]]:
    """Looks at an agent: dead units of both networks, stable rank of the policy's last layer, size of the weights."""
    _, features = gxd.capture(agent.apply, params, agent.units, observations)
    dead = sum(gxd.metrics.dead_units(features[layer.name]).sum() for layer in agent.units)
    return {
        "dead": dead / sum(layer.size for layer in agent.units),
        "stable_rank": gxd.metrics.stable_rank(features[agent.policy_units[-1].name]),
        "weight_magnitude": gxd.metrics.mean_weight_magnitude(params),
    }


def view(axis: str, *more: str) -> View:
    """Returns how the curves of control read.

    Args:
        axis: What the points count.
        *more: Diagnostics of the problem's own.
    """
    return View(
        axis,
        "return",
        higher_is_better=True,
        diagnostics=(*DIAGNOSTICS, *more),
        share="quarter",
        baseline="ppo",
    )


def rows_of(settings: ControlOptions) -> Iterator[tuple[dict[str, str], ControlMethod, methods.Setting]]:
    """Yields labels, method and setting of every run that the settings ask for."""
    for name in settings.method:
        for setting in methods.settings_of(METHODS[name].method, settings):
            yield {"method": name, "setting": methods.shown(setting)}, METHODS[name], setting
