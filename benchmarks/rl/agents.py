"""The two networks of an agent, separate from each other, and the distribution that its actions are drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

import gxd_jax as gxd
from benchmarks.networks import mlp
from benchmarks.networks.layers import OUTPUT
from benchmarks.rl.environment import Spaces

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

POLICY, VALUE, LOG_STD = "policy", "value", "log_std"
_ACTIVATION = "relu"


class Distribution(NamedTuple):
    """A family of distributions over actions, given by its parameters [..., A].

    Attributes:
        sample: (key, parameters) -> action.
        log_prob: (parameters, action) -> log probability or density [...].
        entropy: Parameters -> entropy [...].
    """

    sample: Callable[[jax.Array, Any], jax.Array]
    log_prob: Callable[[Any, jax.Array], jax.Array]
    entropy: Callable[[Any], jax.Array]


class Gaussian(NamedTuple):
    """Parameters of independent normal distributions.

    Attributes:
        mean: Means [..., A].
        log_std: Logarithms of the standard deviations [..., A].
    """

    mean: Float[Array, "... A"]
    log_std: Float[Array, "... A"]


def _categorical_log_prob(logits: Float[Array, "... A"], action: Array) -> Float[Array, "..."]:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def _categorical_entropy(logits: Float[Array, "... A"]) -> Float[Array, "..."]:
    log_probs = jax.nn.log_softmax(logits)
    return -(jnp.exp(log_probs) * log_probs).sum(-1)


def _gaussian_sample(key: PRNGKeyArray, given: Gaussian) -> Float[Array, "... A"]:
    return given.mean + jnp.exp(given.log_std) * jax.random.normal(key, given.mean.shape)


def _gaussian_log_prob(given: Gaussian, action: Float[Array, "... A"]) -> Float[Array, "..."]:
    scaled = (action - given.mean) * jnp.exp(-given.log_std)
    return -(0.5 * scaled**2 + given.log_std + 0.5 * math.log(2 * math.pi)).sum(-1)


def _gaussian_entropy(given: Gaussian) -> Float[Array, "..."]:
    return (given.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


DISTRIBUTIONS = {
    "discrete": Distribution(jax.random.categorical, _categorical_log_prob, _categorical_entropy),
    "continuous": Distribution(_gaussian_sample, _gaussian_log_prob, _gaussian_entropy),
}


class Outputs(NamedTuple):
    """What the two networks say about observations; GXD's readout is over all of it.

    Attributes:
        policy: Parameters of the distribution of actions [B, A].
        value: Expected discounted return [B].
    """

    policy: Any
    value: Float[Array, " B"]


class Agent(NamedTuple):
    """A policy and a value network.

    Attributes:
        init: Key -> parameters {"policy", "value"} and, for continuous actions, "log_std".
        apply: (parameters, observations [B, O]) -> `Outputs`.
        units: The hidden layers of both.
        policy_units: Those of the policy network.
        distribution: Of the actions.
    """

    init: Callable[[PRNGKeyArray], dict[str, Any]]
    apply: Callable[[Any, jax.Array], Outputs]
    units: list[gxd.UnitLayer]
    policy_units: list[gxd.UnitLayer]
    distribution: Distribution


def make_agent(spaces: Spaces, hidden: Sequence[int], gain: float) -> Agent:
    """Returns an agent.

    Args:
        spaces: What it sees and does.
        hidden: Sizes of the hidden layers of both networks.
        gain: Gain of their initial weights; that of the output layers is 1.
    """
    continuous = spaces.actions == "continuous"
    outputs = {POLICY: spaces.action_size, VALUE: 1}
    sizes = {name: (spaces.observation_size, *hidden, size) for name, size in outputs.items()}
    run = {name: mlp.make_apply(sizes[name], _ACTIVATION, scope=f"{name}/") for name in sizes}

    def init(key: PRNGKeyArray) -> dict[str, Any]:
        keys = jax.random.split(key, len(sizes))
        params: dict[str, Any] = {
            name: mlp.init(net_key, sizes[name], _ACTIVATION, gain=gain)
            for name, net_key in zip(sizes, keys, strict=True)
        }
        return params | ({LOG_STD: jnp.zeros(spaces.action_size)} if continuous else {})

    def apply(params: dict[str, Any], observations: Float[Array, "B O"]) -> Outputs:
        policy, value = (run[name](params[name], observations) for name in (POLICY, VALUE))
        if continuous:
            policy = Gaussian(policy, jnp.broadcast_to(params[LOG_STD], policy.shape))
        return Outputs(policy, value[:, 0])

    shapes = jax.eval_shape(init, jax.random.key(0))
    units = {
        name: gxd.sequential_units(shapes, [(name, layer) for layer in (*mlp.hidden_names(sizes[name]), OUTPUT)])
        for name in sizes
    }
    return Agent(init, apply, [*units[POLICY], *units[VALUE]], units[POLICY], DISTRIBUTIONS[spaces.actions])
