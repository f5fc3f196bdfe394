"""A method on a network: the one train step of every supervised experiment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import optax

import gxd_jax as gxd
from benchmarks import methods
from benchmarks.networks.layers import Network
from gxd_jax.training import Step, TrainState

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray


class Learner(NamedTuple):
    """A method on a network.

    Attributes:
        start: (key of the parameters, key of the method's own draws, key of the steps) -> training state.
        step: (training state, inputs, targets) -> (training state, loss, or (loss, auxiliary outputs)).
        tx: What is applied to the gradients; the keys of a seed are in its state.
        replaced: Training state -> units replaced since the start.
    """

    start: Callable[[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray], TrainState]
    step: Step
    tx: optax.GradientTransformation
    replaced: Callable[[TrainState], jax.Array]


def make_learner(
    network: Network,
    loss: Callable[[Any, Any], jax.Array],
    method: methods.Method,
    setting: methods.Setting,
    hyperparameters: methods.Hyperparameters,
    optimizer: optax.GradientTransformation,
    *,
    has_aux: bool = False,
) -> Learner:
    """Returns what a method's row stands for on a network.

    Args:
        network: The network.
        loss: (outputs, targets) -> scalar.
        method: The method.
        setting: Values of the method's own hyper-parameters.
        hyperparameters: The hyper-parameters that all methods share.
        optimizer: The optimizer underneath.
        has_aux: Whether `apply` returns (outputs, auxiliary outputs), as in `gxd_jax.observe`.
    """

    def transform(key: PRNGKeyArray | int) -> optax.GradientTransformation:
        return method.build(methods.Ingredients(optimizer, network.units, setting, hyperparameters, key))

    if network.units:
        observe = gxd.observe(network.apply, loss, network.units, readout=method.readout, has_aux=has_aux)
    else:
        observe = _without_units(network.apply, loss)
    tx = transform(0)

    def start(params_key: PRNGKeyArray, method_key: PRNGKeyArray, step_key: PRNGKeyArray) -> TrainState:
        return gxd.training.init(network.init(params_key), transform(method_key), step_key)

    def replaced(state: TrainState) -> Int[Array, ""]:
        return method.total_replaced(state.opt_state)

    return Learner(start, gxd.training.make_train_step(observe, tx), tx, replaced)


def _without_units(apply: Callable, loss: Callable) -> Callable:
    """What `gxd_jax.observe` gives, for a network without hidden layers."""

    def observe(params: Any, x: jax.Array, y: jax.Array, *, key: PRNGKeyArray | None = None) -> tuple:
        del key
        value, gradients = jax.value_and_grad(lambda params: loss(apply(params, x), y))(params)
        return value, gradients, gxd.Observation({})

    return observe


def squared_error(outputs: Float[Array, "B K"], targets: Float[Array, "B K"]) -> Float[Array, ""]:
    """Mean squared error, without a half."""
    return ((outputs - targets) ** 2).mean()


def cross_entropy(logits: Float[Array, "B K"], labels: Int[Array, " B"]) -> Float[Array, ""]:
    """Mean softmax cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def accuracy(logits: Float[Array, "B K"], labels: Int[Array, " B"]) -> Float[Array, ""]:
    """Share of the examples whose largest logit is that of their class."""
    return (logits.argmax(-1) == labels).mean()
