"""Slowly-changing regression ([N], Methods): a small network tracks a large one on inputs whose distribution drifts.

Most input bits are slow: one of them changes every 10,000 examples; the others are fresh coins in every example. The
target network, fixed for a run, is made of linear threshold units and is far larger than the learner, so the best the
learner can do changes with the slow bits: it has to keep learning for ever. Stream, target and learner are one program.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gxd_jax as gxd
from benchmarks import learners, methods
from benchmarks.experiment import EVERY, Experiment, Options, Run, config_of, devices_for, fill_in, seed_numbers

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

NAME = "slowly-changing-regression"

SLOW_BITS, COINS = 15, 5
INPUTS = SLOW_BITS + COINS
TARGET_UNITS = 100
TARGET_BETA = 0.7
"""Share of the inputs that a target unit wants to agree with its weights, before it switches on."""
HIDDEN_UNITS = 5

_BLOCK = 1000
"""Examples that are drawn at once: enough that drawing costs little, few enough that they fit the cache."""
_CPU_GROUP = 25
"""Seeds computed together on CPU: more of them make the step several times slower."""
_EXAMPLES_PER_WORD = 4
"""A random 32-bit word holds one byte, and so up to eight coins, for each of four examples."""


# --- The stream ----------------------------------------------------------------------------------------------------


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
        flip: "one": one slow bit, drawn at random, flips at a change ([N], text); "all": every slow bit is drawn anew,
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
        place = state.examples % _EXAMPLES_PER_WORD
        coins = _coins(state, jnp.array([state.examples // _EXAMPLES_PER_WORD]))[place][None]
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
        if size % _EXAMPLES_PER_WORD or self.flip_every % size:
            raise ValueError(f"size must be a multiple of 4 that divides flip_every = {self.flip_every}, got {size}")
        state = self._change(state)
        words = state.examples // _EXAMPLES_PER_WORD + jnp.arange(size // _EXAMPLES_PER_WORD)
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


# --- The experiment ------------------------------------------------------------------------------------------------

_METHODS = tuple(name for name, method in methods.METHODS.items() if method.is_for_numbers)
_DEFAULT_METHODS = (
    "linear",
    "backprop",
    "l2",
    "shrink_and_perturb",
    "l2_init",
    "spectral_regularization",
    "weight_clipping",
    "utility_gated_noise",
    "redo",
    "regrama",
    "self_normalized_resets",
    "selective_weight_reinitialization",
    "cbp_contribution",
    "cbp_mean_corrected_contribution",
    "cbp_adaptable_contribution",
    "cbp_random",
    "gxd",
    "gxd_adaptation",
)


@dataclasses.dataclass(frozen=True)
class Settings(methods.Hyperparameters, Options):
    """Slowly-changing regression: squared error of a 20-5-1 learner, one example a step."""

    method: tuple[Literal[_METHODS], ...] = _DEFAULT_METHODS  # type: ignore[valid-type]
    """Methods to compare."""
    activation: tuple[Literal[tuple(learners.ACTIVATIONS)], ...] | None = None  # type: ignore[valid-type]
    """Activations of the learner."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimizer of the learner."""
    step_size: tuple[float, ...] | None = None
    """Step sizes of the optimizer."""
    examples: int | None = None
    """Examples of a run, a multiple of the bin."""
    bin: int | None = None
    """Examples over which the error is averaged; a checkpoint is written after each bin."""
    flip: Literal["one", "all"] = "one"
    """What changes: one slow bit flips, or all of them are drawn anew."""
    flip_every: int = 10_000
    """Examples between changes of the slow bits."""
    group: int | None = None
    """Seeds that a device computes together; by default at most 25 on CPU, where a few are fastest, else all."""


_GRID_1E_6_TO_1 = tuple(10.0**e for e in range(-6, 1))
_ONE_SETTING = {
    "step_size": (0.01,),
    "l2": (1e-3,),
    "perturb_l2": (1e-3,),
    "noise_std": (1e-3,),
    "replacement_rate": (1e-3,),
}
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {**_ONE_SETTING, "seeds": 4, "examples": 40_000, "bin": 4_000, "activation": ("tanh",)},
    "default": {**_ONE_SETTING, "seeds": 30, "examples": 1_000_000, "bin": 40_000, "activation": ("relu", "tanh")},
    "paper": {
        "seeds": 100,
        "examples": 3_000_000,
        "bin": 40_000,
        "activation": ("sigmoid", "tanh", "elu", "leaky_relu", "relu", "swish"),
        "step_size": (0.01, 0.003, 0.001),
        "l2": _GRID_1E_6_TO_1,
        "perturb_l2": (1e-2,),
        "noise_std": _GRID_1E_6_TO_1[:-1],
        "replacement_rate": _GRID_1E_6_TO_1[:-2],
    },
}


def make_experiment(settings: Settings) -> Experiment:
    """Returns the experiment that the settings describe.

    Raises:
        ValueError: If the settings do not fit together.
    """
    settings = fill_in(settings, SCALES)
    if settings.group is None and jax.default_backend() == "cpu":
        settings = dataclasses.replace(settings, group=_CPU_GROUP)
    if settings.examples % settings.bin:
        raise ValueError(f"examples must be a multiple of bin, got {settings.examples} and {settings.bin}")
    block_size(settings)
    return Experiment(
        problem=NAME,
        config=config_of(NAME, settings),
        runs=list(_runs(settings)),
        seeds=seed_numbers(settings),
        group=settings.group,
        axis="example",
        ends=np.arange(settings.bin, settings.examples + 1, settings.bin),
        measure="error",
        totals=("replaced",),
        panels=("activation", "step_size"),
        devices=devices_for(settings.seeds, settings.devices),
    )


def block_size(settings: Settings) -> int:
    """Returns the examples to draw at once: a divisor of the bin and of the time between changes.

    Raises:
        ValueError: If there is none.
    """
    size = math.gcd(_BLOCK, settings.bin, settings.flip_every)
    if size % _EXAMPLES_PER_WORD:
        raise ValueError(f"bin and flip_every must be multiples of 4, got {settings.bin} and {settings.flip_every}")
    return size


class Carry(NamedTuple):
    """What one seed's run carries from chunk to chunk.

    Attributes:
        stream: State of the stream.
        learner: Parameters and state of the method, its keys among it.
    """

    stream: StreamState
    learner: gxd.training.TrainState


def _runs(settings: Settings) -> Iterator[Run]:
    for activation in (EVERY, *settings.activation):
        for step_size in settings.step_size:
            for name in settings.method:
                method = methods.METHODS[name]
                if method.hidden is (activation == EVERY):
                    continue  # the linear learner has no activation: it runs once
                for setting in methods.settings_of(method, settings):
                    labels = {"activation": activation, "method": name, "step_size": step_size}
                    labels["setting"] = methods.shown(setting)
                    yield make_run(settings, labels, method, setting)


def make_run(settings: Settings, labels: dict[str, Any], method: methods.Method, setting: methods.Setting) -> Run:
    """Returns the run of one method: a learner that sees the stream of its seed once.

    Args:
        settings: Settings with every value filled in.
        labels: The run's labels, with its activation and step size.
        method: The method.
        setting: Values of the method's own hyper-parameters.
    """
    stream, block = Stream(settings.flip, settings.flip_every), block_size(settings)
    sizes = (INPUTS, HIDDEN_UNITS, 1) if method.hidden else (INPUTS, 1)
    activation = labels["activation"] if method.hidden else "relu"  # a network without hidden layers applies none
    apply = learners.make_apply(sizes, activation)
    observe, units = learners.make_observe(apply, learners.squared_error, sizes, readout=method.readout)
    optimizer = methods.OPTIMIZERS[settings.optimizer](labels["step_size"])

    def transform(key: PRNGKeyArray | int) -> optax.GradientTransformation:
        return method.build(methods.Ingredients(optimizer, units, setting, settings, key))

    step = gxd.training.make_train_step(observe, transform(0))  # the keys of a seed are in its state

    def start(seed: Int[Array, ""], data: Any) -> Carry:
        del data
        stream_key, params_key, method_key, step_key = jax.random.split(jax.random.key(seed), 4)
        params = learners.init(params_key, sizes, activation)
        return Carry(stream.init(stream_key), gxd.training.init(params, transform(method_key), step_key))

    def learn_block(carry: Carry, _: None) -> tuple[Carry, Float[Array, ""]]:
        stream_state, examples = stream.sample_block(carry.stream, block)

        def next_example(place: Int[Array, ""]) -> tuple[Int[Array, ""], tuple[Array, Array]]:
            return place + 1, jax.tree.map(lambda drawn: jax.lax.dynamic_slice_in_dim(drawn, place, 1), examples)

        learner, _, errors = gxd.training.train_task(step, carry.learner, next_example, jnp.int32(0), block)
        return Carry(stream_state, learner), errors.mean()

    def chunk(carry: Carry, data: Any) -> tuple[Carry, dict[str, Array]]:
        del data
        end, errors = jax.lax.scan(learn_block, carry, length=settings.bin // block)
        before, after = (method.total_replaced(c.learner.opt_state) for c in (carry, end))
        return end, {"error": errors.mean(), "replaced": after - before}

    return Run(labels, start, chunk)
