"""A train step and the loop over a task: pure functions, for `jit`, `scan` and `vmap`. The caller maps over seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gxd_jax.checks import check_whole
from gxd_jax.keys import KeyLike, as_key, implementation, key_data, step_key
from gxd_jax.types import Params

if TYPE_CHECKING:
    from jaxtyping import Array, Float, UInt32

Step = Callable[["TrainState", Any, Any], tuple["TrainState", Any]]


class TrainState(NamedTuple):
    """Everything that one training run carries from step to step.

    Attributes:
        params: The parameters.
        opt_state: The optimizer's state.
        key: Raw data of the key from which the key of every step is derived.
        count: Number of steps so far, uint32.
    """

    params: Params
    opt_state: Any
    key: UInt32[Array, " words"]
    count: UInt32[Array, ""]


def init(params: Params, tx: optax.GradientTransformation, key: KeyLike) -> TrainState:
    """Returns the state before the first step.

    Args:
        params: Initial parameters.
        tx: The optimizer.
        key: An int or a JAX key, for readouts that draw at random.
    """
    return TrainState(params=params, opt_state=tx.init(params), key=key_data(key), count=jnp.zeros((), jnp.uint32))


def make_train_step(observe: Callable, tx: optax.GradientTransformation, *, key: KeyLike = 0) -> Step:
    """Builds a pure train step.

    Args:
        observe: From `gxd_jax.observe`.
        tx: The optimizer, with or without a resetting member.
        key: Any key of the implementation (threefry, rbg) that `init` was given; only the implementation matters.

    Returns:
        A function (state, inputs, targets) -> (state, first result of `observe`: the loss, or (loss, aux)). It raises a
        ValueError if the state's key is of another implementation.
    """
    tx = optax.with_extra_args_support(tx)
    key_implementation = implementation(key)
    key_shape = jax.random.key_data(as_key(key)).shape

    def step(state: TrainState, inputs: Any, targets: Any) -> tuple[TrainState, Any]:
        if state.key.shape != key_shape:
            raise ValueError(
                f"the state's key has shape {state.key.shape}, not {key_shape}: give make_train_step a key of the "
                "implementation that init was given"
            )
        readout_key = step_key(state.key, key_implementation, state.count)
        loss, gradients, observation = observe(state.params, inputs, targets, key=readout_key)
        updates, opt_state = tx.update(gradients, state.opt_state, state.params, observation=observation)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params=params, opt_state=opt_state, key=state.key, count=state.count + 1), loss

    return step


def train_task(
    step: Step,
    state: TrainState,
    sample: Callable[[Any], tuple[Any, tuple[Any, Any]]],
    stream_state: Any,
    num_steps: int,
) -> tuple[TrainState, Any, Float[Array, " num_steps"]]:
    """Trains for `num_steps` steps on a stream, as one `lax.scan`.

    Args:
        step: From `make_train_step`.
        state: State before the first step.
        sample: Pure function from the stream's state to its next state and a batch (inputs, targets).
        stream_state: State of the stream.
        num_steps: Number of steps, 0 or more, static.

    Returns:
        The states of training and stream after the last step, and the losses (or other results of the step), stacked.
    """
    check_whole("num_steps", num_steps, 0)

    def body(carry, _):
        state, stream_state = carry
        stream_state, (inputs, targets) = sample(stream_state)
        state, loss = step(state, inputs, targets)
        return (state, stream_state), loss

    (state, stream_state), losses = jax.lax.scan(body, (state, stream_state), None, length=num_steps)
    return state, stream_state, losses
