"""The stream of slowly-changing regression ([N], Methods): inputs whose distribution drifts, and the target network.

Most input bits are slow: one of them changes every 10,000 examples; the others are fresh coins in every example. The
target network, fixed for a run, is made of linear threshold units.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, NamedTuple

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

SLOW_BITS, COINS = 15, 5
INPUTS = SLOW_BITS + COINS
TARGET_UNITS = 100
TARGET_BETA = 0.7
"""Share of the inputs that a target unit wants to agree with its weights, before it switches on."""
EXAMPLES_PER_WORD = 4
"""A random 32-bit word holds one byte, and so up to eight coins, for each of four examples."""


class Target(NamedTuple):
    """A network of linear threshold units; its weights are +-1.

    Attributes:
        kernel: Incoming weights, the constant input's last [INPUTS + 1, TARGET_UNITS].
        threshold: A unit is on when its input exceeds this [TARGET_UNITS].
        outgoing: Output weights [TARGET_UNITS].
    """

    kernel: Float[Array, "inputs_and_constant units"]
    threshold: Float[Array, " units"]
    outgoing: Float[Array, " units"]


class StreamState(NamedTuple):
    """Where a stream is.

    Attributes:
        key: Raw key of all later draws.
        slow: The slow bits of the next example, before a change that may be due, 0 or 1 [SLOW_BITS].
        examples: Number of examples given so far.
        target: The target network.
    """

    key: UInt32[Array, " words"]
    slow: Float[Array, " slow"]
    examples: Int[Array, ""]
    target: Target


@dataclasses.dataclass(frozen=True)
class Stream:
    """The stream's pure functions: what a seed's examples are depends on its key only.

    Attributes:
        flip: "one": one slow bit, drawn at random, flips at a change ([N], text); "all": every slow bit is drawn again,
            as the default configuration of the public code does.
        flip_every: Examples between changes, a multiple of 4.
    """

    flip: Literal["one", "all"] = "one"
    flip_every: int = 10_000

    def init(self, key: PRNGKeyArray) -> StreamState:
        """Draws the target network and the first slow bits."""
        target_key, slow_key, later_key = jax.random.split(key, 3)
        return StreamState(
            key=jax.random.key_data(later_key),
            slow=_bits(slow_key),
            examples=jnp.int32(0),
            target=draw_target(target_key),
        )

    def sample(self, state: StreamState) -> tuple[StreamState, tuple[Float[Array, "1 20"], Float[Array, "1 1"]]]:
        """Draws one example: inputs and target output."""
        state = self._change(state)
        place = state.examples % EXAMPLES_PER_WORD
        coins = _coins(state, jnp.array([state.examples // EXAMPLES_PER_WORD]))[place][None]
        x = jnp.concatenate([state.slow[None], coins], axis=1)
        return state._replace(examples=state.examples + 1), (x, target_output(state.target, x))

    def sample_block(
        self, state: StreamState, size: int
    ) -> tuple[StreamState, tuple[Float[Array, "size 20"], Float[Array, "size 1"]]]:
        """Draws the next `size` examples at once, the same as `sample` would.

        Args:
            state: Where the stream is: at a multiple of `size` examples.
            size: A multiple of 4 that divides `flip_every`.
        """
        if size % EXAMPLES_PER_WORD or self.flip_every % size:
            raise ValueError(f"size must be a multiple of 4 that divides flip_every = {self.flip_every}, got {size}")
        state = self._change(state)
        words = state.examples // EXAMPLES_PER_WORD + jnp.arange(size // EXAMPLES_PER_WORD)
        slow = jnp.broadcast_to(state.slow, (size, SLOW_BITS))
        x = jnp.concatenate([slow, _coins(state, words)], axis=1)
        return state._replace(examples=state.examples + size), (x, target_output(state.target, x))

    def _change(self, state: StreamState) -> StreamState:
        """Changes the slow bits if the next example is the first after `flip_every` others."""
        key, _ = _draw_keys(state)
        key = jax.random.fold_in(key, state.examples // self.flip_every)
        if self.flip == "one":
            flipped = jnp.arange(SLOW_BITS) == jax.random.randint(key, (), 0, SLOW_BITS)
            changed = jnp.where(flipped, 1 - state.slow, state.slow)
        else:
            changed = _bits(key)
        due = (state.examples > 0) & (state.examples % self.flip_every == 0)
        return state._replace(slow=jnp.where(due, changed, state.slow))


def draw_target(key: PRNGKeyArray) -> Target:
    """Draws a target network: all weights +-1; threshold (INPUTS + 1) beta - S, S the number of negative weights."""
    kernel_key, outgoing_key = jax.random.split(key)
    kernel = jax.random.rademacher(kernel_key, (INPUTS + 1, TARGET_UNITS), jnp.float32)
    return Target(
        kernel=kernel,
        threshold=(INPUTS + 1) * TARGET_BETA - (kernel < 0).sum(0),
        outgoing=jax.random.rademacher(outgoing_key, (TARGET_UNITS,), jnp.float32),
    )


def target_output(target: Target, x: Float[Array, "B inputs"]) -> Float[Array, "B 1"]:
    """Returns the target network's outputs for inputs without the constant 1."""
    weighted = x @ target.kernel[:-1] + target.kernel[-1]
    on = (weighted > target.threshold).astype(x.dtype)
    return on @ target.outgoing[:, None]


def _draw_keys(state: StreamState) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """Returns the parent keys of the changes of the slow bits and of the coins."""
    change_key, coin_key = jax.random.split(jax.random.wrap_key_data(state.key))
    return change_key, coin_key


def _bits(key: PRNGKeyArray) -> Float[Array, " slow"]:
    return jax.random.bernoulli(key, 0.5, (SLOW_BITS,)).astype(jnp.float32)


def _coins(state: StreamState, words: Int[Array, " W"]) -> Float[Array, "W*4 coins"]:
    """Returns the coins of the examples whose bits are in these words of the stream."""
    _, key = _draw_keys(state)
    drawn = jax.vmap(lambda word: jax.random.bits(jax.random.fold_in(key, word)))(words)
    of_example = jax.lax.bitcast_convert_type(drawn, jnp.uint8).reshape(-1, 1)
    return (of_example >> jnp.arange(COINS, dtype=jnp.uint8) & 1).astype(jnp.float32)
