"""Proximal policy optimisation as one pure update: advantages, loss, epochs of shuffled mini-batches.

Advantages are standardised over the whole batch and returns computed once, as in the public code of [N]; no gradient
clipping, value clipping or early stop.

References:
    Schulman et al., "Proximal policy optimization algorithms", arXiv 1707.06347; Schulman et al., "High-dimensional
    continuous control using generalized advantage estimation", arXiv 1506.02438.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.rl.agents import Agent, Distribution, Outputs
from benchmarks.rl.collecting import Trajectory
from gxd_jax.training import Step, TrainState

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, PRNGKeyArray

_EPSILON = 1e-8
"""Added to the standard deviation of the advantages."""


@dataclasses.dataclass(frozen=True)
class Hyperparameters:
    """Hyper-parameters of PPO.

    Attributes:
        discount: Discount of a step, gamma.
        trace_decay: Decay of the advantages' traces, lambda.
        clip: The ratio of probabilities counts within 1 +- this.
        entropy: Weight of the entropy of the actions.
        epochs: How often the update goes over the batch.
        minibatch: Transitions of a gradient step.
        reward_scale: Factor on the rewards.
        bootstrap: Whether the value of what follows a truncated episode counts; else its end counts as its death.
    """

    discount: float
    trace_decay: float
    clip: float
    entropy: float
    epochs: int
    minibatch: int
    reward_scale: float
    bootstrap: bool


class Targets(NamedTuple):
    """What the loss compares the outputs with, for each transition.

    Attributes:
        actions: The actions [B] or [B, A].
        log_probs: Their log probabilities at the parameters that they were drawn from [B].
        advantages: Standardised advantages [B].
        returns: Targets of the value [B].
    """

    actions: Array
    log_probs: Float[Array, " B"]
    advantages: Float[Array, " B"]
    returns: Float[Array, " B"]


def advantages(
    rewards: Float[Array, "T N"],
    values: Float[Array, "T N"],
    next_values: Float[Array, "T N"],
    terminated: Bool[Array, "T N"],
    truncated: Bool[Array, "T N"],
    given: Hyperparameters,
) -> Float[Array, "T N"]:
    """Generalised advantage estimates (arXiv 1506.02438, eq. 16).

    Args:
        rewards: Rewards.
        values: Values of the observations.
        next_values: Values of what followed them, before a new episode began.
        terminated: Where the episode ended without a future.
        truncated: Where its time was up.
        given: Hyper-parameters.
    """
    ended = terminated | truncated
    dead = terminated if given.bootstrap else ended
    errors = rewards + given.discount * jnp.where(dead, 0, next_values) - values

    def add(later: Float[Array, " N"], now: tuple[Array, Array]) -> tuple[Array, Array]:
        error, ended = now
        estimate = error + given.discount * given.trace_decay * jnp.where(ended, 0, later)
        return estimate, estimate

    return jax.lax.scan(add, jnp.zeros_like(values[0]), (errors, ended), reverse=True)[1]


def make_targets(
    agent: Agent, params: Any, seen: Trajectory, given: Hyperparameters
) -> tuple[Float[Array, "T*N O"], Targets]:
    """Returns a batch's observations and targets, at the parameters that collected it."""
    flat = jax.tree.map(lambda values: values.reshape(-1, *values.shape[2:]), seen)
    now, later = agent.apply(params, flat.observations), agent.apply(params, flat.next_observations)
    shape = seen.rewards.shape
    estimates = advantages(
        given.reward_scale * seen.rewards,
        now.value.reshape(shape),
        later.value.reshape(shape),
        seen.terminated,
        seen.truncated,
        given,
    ).reshape(-1)
    standardised = (estimates - estimates.mean()) / (estimates.std() + _EPSILON)
    log_probs = agent.distribution.log_prob(now.policy, flat.actions)
    return flat.observations, Targets(flat.actions, log_probs, standardised, estimates + now.value)


def loss(outputs: Outputs, targets: Targets, *, distribution: Distribution, given: Hyperparameters) -> Float[Array, ""]:
    """The clipped objective (arXiv 1707.06347, eq. 7), squared error of the value, and entropy."""
    ratios = jnp.exp(distribution.log_prob(outputs.policy, targets.actions) - targets.log_probs)
    clipped = jnp.clip(ratios, 1 - given.clip, 1 + given.clip)
    objective = jnp.minimum(ratios * targets.advantages, clipped * targets.advantages).mean()
    value_error = ((outputs.value - targets.returns) ** 2).mean()
    return value_error - objective - given.entropy * distribution.entropy(outputs.policy).mean()


def update(
    agent: Agent, step: Step, state: TrainState, seen: Trajectory, key: PRNGKeyArray, given: Hyperparameters
) -> tuple[TrainState, Float[Array, "epochs minibatches"]]:
    """Learns from a batch.

    Args:
        agent: The networks.
        step: A gradient step on a mini-batch, from `gxd_jax.training.make_train_step` with `loss`.
        state: State before.
        seen: The batch; its size is a multiple of the mini-batch.
        key: Key of the shuffling.
        given: Hyper-parameters.

    Returns:
        The state after, and the losses.
    """
    batch = make_targets(agent, state.params, seen, given)
    size = seen.rewards.size

    def learn(state: TrainState, indices: Array) -> tuple[TrainState, Array]:
        return step(state, *jax.tree.map(lambda values: values[indices], batch))

    def epoch(state: TrainState, key: PRNGKeyArray) -> tuple[TrainState, Array]:
        order = jax.random.permutation(key, size).reshape(-1, given.minibatch)
        return jax.lax.scan(learn, state, order)

    return jax.lax.scan(epoch, state, jax.random.split(key, given.epochs))


def make_loss(distribution: Distribution, given: Hyperparameters) -> Any:
    """Returns the loss of outputs and targets alone."""
    return functools.partial(loss, distribution=distribution, given=given)
