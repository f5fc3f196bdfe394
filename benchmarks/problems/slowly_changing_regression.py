"""Slowly-changing regression ([N], Methods): a small network tracks a large one on inputs whose distribution drifts.

Most input bits are slow: one of them changes every 10,000 examples; the others are fresh coins in every example. The
target network, fixed for a run, is made of linear threshold units and is far larger than the one that learns, so the
best that this one can do changes with the slow bits: it has to keep learning for ever. Stream, target
and network are one program.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import gxd_jax as gxd
from benchmarks import methods
from benchmarks.experiment import EVERY, Experiment, Options, Run, View, config_of, devices_for, seed_numbers
from benchmarks.learner import make_learner, squared_error
from benchmarks.networks import mlp
from benchmarks.networks.layers import ACTIVATIONS
from benchmarks.problem import Problem
from benchmarks.problems.slow_bits import EXAMPLES_PER_WORD, INPUTS, Stream, StreamState
from benchmarks.showing.markdown import CurvesTable, first_and_last

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int

_NAME = "slowly-changing-regression"
_VIEW = View(axis="example", measure="error", panels=("activation", "step_size"))

HIDDEN_UNITS = 5
_BLOCK = 1000
"""Examples that are drawn at once: enough that drawing costs little, few enough that they fit the cache."""
_CPU_GROUP = 25
"""Seeds computed together on CPU: more of them make the step several times slower."""

_METHODS = tuple(name for name, method in methods.METHODS.items() if method.supports_regression)
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
    """Slowly-changing regression: squared error of a 20-5-1 network, one example a step."""

    method: tuple[Literal[_METHODS], ...] = _DEFAULT_METHODS  # type: ignore[valid-type]
    """Methods to compare."""
    activation: tuple[Literal[tuple(ACTIVATIONS)], ...] | None = None  # type: ignore[valid-type]
    """Activations of the network."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimizer of the network."""
    step_size: tuple[float, ...] | None = None
    """Step sizes of the optimizer."""
    examples: int | None = None
    """Examples of a run, a multiple of the bin."""
    bin: int | None = None
    """Examples over which the error is averaged; a checkpoint is written after each bin."""
    flip: Literal["one", "all"] = "one"
    """What changes: one slow bit flips, or all of them are drawn again."""
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
_SCALES: dict[str, dict[str, Any]] = {
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
    """Returns the experiment that the settings, with every value filled in, describe.

    Raises:
        ValueError: If the settings do not fit together.
    """
    if settings.group is None and jax.default_backend() == "cpu":
        settings = dataclasses.replace(settings, group=_CPU_GROUP)
    if settings.examples % settings.bin:
        raise ValueError(f"examples must be a multiple of bin, got {settings.examples} and {settings.bin}")
    block_size(settings)
    return Experiment(
        problem=_NAME,
        config=config_of(_NAME, settings),
        runs=list(_runs(settings)),
        view=_VIEW,
        seeds=seed_numbers(settings),
        group=settings.group,
        ends=np.arange(settings.bin, settings.examples + 1, settings.bin),
        devices=devices_for(settings.seeds, settings.devices),
    )


def block_size(settings: Settings) -> int:
    """Returns the examples to draw at once: a divisor of the bin and of the time between changes.

    Raises:
        ValueError: If there is none.
    """
    size = math.gcd(_BLOCK, settings.bin, settings.flip_every)
    if size % EXAMPLES_PER_WORD:
        raise ValueError(f"bin and flip_every must be multiples of 4, got {settings.bin} and {settings.flip_every}")
    return size


class Carry(NamedTuple):
    """What one seed's run carries from chunk to chunk.

    Attributes:
        stream: State of the stream.
        training: Parameters and state of the method, its keys among it.
    """

    stream: StreamState
    training: gxd.training.TrainState


def _runs(settings: Settings) -> Iterator[Run]:
    for activation in (EVERY, *settings.activation):
        for step_size in settings.step_size:
            for name in settings.method:
                method = methods.METHODS[name]
                if method.hidden is (activation == EVERY):
                    continue  # a linear network has no activation: it runs once
                for setting in methods.settings_of(method, settings):
                    labels = {"activation": activation, "method": name, "step_size": step_size}
                    labels["setting"] = methods.shown(setting)
                    yield make_run(settings, labels, method, setting)


def make_run(settings: Settings, labels: dict[str, Any], method: methods.Method, setting: methods.Setting) -> Run:
    """Returns the run of one method, which sees the stream of its seed once.

    Args:
        settings: Settings with every value filled in.
        labels: The run's labels, with its activation and step size.
        method: The method.
        setting: Values of the method's own hyper-parameters.
    """
    stream, block = Stream(settings.flip, settings.flip_every), block_size(settings)
    sizes = (INPUTS, HIDDEN_UNITS, 1) if method.hidden else (INPUTS, 1)
    activation = labels["activation"] if method.hidden else "relu"  # a network without hidden layers applies none
    network = mlp.make(sizes, activation)
    optimizer = methods.OPTIMIZERS[settings.optimizer](labels["step_size"])
    learner = make_learner(network, squared_error, method, setting, settings, optimizer)

    def start(seed: Int[Array, ""], data: Any) -> Carry:
        del data
        stream_key, params_key, method_key, step_key = jax.random.split(jax.random.key(seed), 4)
        return Carry(stream.init(stream_key), learner.start(params_key, method_key, step_key))

    def learn_block(carry: Carry, _: None) -> tuple[Carry, Float[Array, ""]]:
        stream_state, examples = stream.sample_block(carry.stream, block)

        def next_example(place: Int[Array, ""]) -> tuple[Int[Array, ""], tuple[Array, Array]]:
            return place + 1, jax.tree.map(lambda drawn: jax.lax.dynamic_slice_in_dim(drawn, place, 1), examples)

        state, _, errors = gxd.training.train_task(learner.step, carry.training, next_example, jnp.int32(0), block)
        return Carry(stream_state, state), errors.mean()

    def chunk(carry: Carry, data: Any) -> tuple[Carry, dict[str, Array]]:
        del data
        end, errors = jax.lax.scan(learn_block, carry, length=settings.bin // block)
        before, after = (learner.replaced(c.training) for c in (carry, end))
        return end, {"error": errors.mean(), "replaced": after - before}

    return Run(labels, start, chunk)


_ENDS = first_and_last("tenth")
PROBLEM = Problem(
    _NAME,
    Settings,
    _SCALES,
    make_experiment,
    _VIEW,
    {
        "main": CurvesTable(
            _ENDS,
            (
                "linear",
                "backprop",
                "l2",
                "shrink_and_perturb",
                "cbp_contribution",
                "cbp_mean_corrected_contribution",
                "cbp_adaptable_contribution",
                "gxd",
                "cbp_random",
            ),
        ),
        "remedies": CurvesTable(
            _ENDS,
            (
                "l2_init",
                "spectral_regularization",
                "weight_clipping",
                "utility_gated_noise",
                "redo",
                "regrama",
                "self_normalized_resets",
                "selective_weight_reinitialization",
                "gxd_adaptation",
            ),
        ),
        "selectors": CurvesTable(_ENDS, ("cbp_adaptation", "gxd_adaptation_rank")),
    },
)
