"""What a step with continual backprop or GXD costs, next to the plain optimizer's step.

Each timing is one compiled scan over many steps with the state donated, on inputs and labels from a small pool on the
device. The methods take turns, so that whatever else the machine does hits all of them; a ratio is taken within a turn.
ResNet-18 takes seconds a step on a few cores, so that it is timed only where asked for (`--case resnet-18`).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from rich.console import Console
from rich.table import Table

import gxd_jax as gxd
from benchmarks import learners, methods, resnet
from benchmarks.folder import write_file

_POOL = 64
"""Batches in the pool."""
_STEP_SIZE = 0.01
# Of ResNet-18, as in [N].
_MOMENTUM = 0.9
_WEIGHT_DECAY = 5e-4


class Case(NamedTuple):
    """A network and how it is trained.

    Attributes:
        sizes: Layer sizes, input and output included; of ResNet-18 the shape of an image and the outputs.
        batch: Examples per step.
        seeds: Networks trained side by side.
        steps: Steps of one timing.
        replacement_rate: Replacement rate of the resetting methods.
        pytorch_us: Microseconds per step and run of the public PyTorch code of [N] with continual backprop, measured
            once on two cores.
        convolutional: Whether the network is ResNet-18.
    """

    sizes: tuple[int, ...]
    batch: int
    seeds: int
    steps: int
    replacement_rate: float
    pytorch_us: float | None = None
    convolutional: bool = False


CASES: dict[str, Case] = {
    "20-5-1": Case((20, 5, 1), 1, 100, 20_000, 1e-3, pytorch_us=373),
    "784-100x3-10": Case((784, 100, 100, 100, 10), 1, 16, 400, 1e-4, pytorch_us=709),
    "784-256x2-10": Case((784, 256, 256, 10), 32, 8, 100, 1e-4),
    "784-2000x3-10": Case((784, 2000, 2000, 2000, 10), 1, 1, 50, 1e-4),
    "resnet-18": Case((32, 32, 3, 100), 90, 1, 1, 1e-4, convolutional=True),
}
_QUICK = tuple(name for name, case in CASES.items() if not case.convolutional)
_METHODS = ("backprop", "cbp_contribution", "gxd")
_BASELINE = _METHODS[0]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Speed: time of a step with continual backprop and GXD, as a multiple of the plain SGD step."""

    case: tuple[Literal[tuple(CASES)], ...] = _QUICK  # type: ignore[valid-type]
    """Networks to time; resnet-18 takes some minutes."""
    repeats: int = 7
    """Timings of each method; the median counts."""
    maturity_threshold: int = 100
    """Updates before a unit may be replaced; all units are older when the timing begins. 1 for resnet-18."""
    activation: Literal[tuple(learners.ACTIVATIONS)] = "relu"  # type: ignore[valid-type]
    """Activation of the networks."""
    out: Path | None = None
    """Folder for the table as speed.csv."""


class Program(NamedTuple):
    """A method compiled for a case: state -> (state, mean loss), and the state."""

    run: Callable[[Any], tuple[Any, jax.Array]]
    state: Any
    compile_seconds: float


def run(settings: Settings) -> None:
    """Times the cases and shows the table."""
    console = Console()
    rows = []
    for name in settings.case:
        with console.status(f"timing {name}"):
            rows += time_case(name, CASES[name], settings)
    table = pd.DataFrame(rows)
    console.print(speed_table(table))
    if settings.out is not None:
        write_file(settings.out / "speed.csv", table.to_csv(index=False))


def time_case(name: str, case: Case, settings: Settings) -> list[dict[str, Any]]:
    """Returns one row per method.

    Args:
        name: The case's name.
        case: The case.
        settings: How often to time, and the methods' settings.
    """
    programs = {method: compile_program(method, case, settings) for method in _METHODS}
    states = {method: program.state for method, program in programs.items()}
    maturity_threshold = 1 if case.convolutional else settings.maturity_threshold
    warm_up = 1 + math.ceil(maturity_threshold / case.steps)
    seconds: dict[str, list[float]] = {method: [] for method in _METHODS}
    losses = {}
    for turn in range(warm_up + settings.repeats):
        for method, program in programs.items():
            begin = time.perf_counter()
            states[method], losses[method] = jax.block_until_ready(program.run(states[method]))
            if turn >= warm_up:
                seconds[method].append((time.perf_counter() - begin) / case.steps)
    return [
        {
            "case": name,
            "method": method,
            "batch": case.batch,
            "seeds": case.seeds,
            "us_per_step": 1e6 * np.median(seconds[method]),
            "ratio": np.median(np.divide(seconds[method], seconds[_BASELINE])),
            "runs_x_steps_per_second": case.seeds / np.median(seconds[method]),
            "pytorch_runs_x_steps_per_second": 1e6 / case.pytorch_us if case.pytorch_us else np.nan,
            "loss": float(losses[method].mean()),
            "compile_seconds": programs[method].compile_seconds,
        }
        for method in _METHODS
    ]


def compile_program(name: str, case: Case, settings: Settings) -> Program:
    """Builds a method's states for all seeds and compiles its steps."""
    start, learn = (resnet_learner if case.convolutional else dense_learner)(methods.METHODS[name], case, settings)
    state = jax.jit(jax.vmap(start))(jnp.arange(case.seeds)) if case.seeds > 1 else jax.jit(start)(0)
    begin = time.perf_counter()
    compiled = jax.jit(jax.vmap(learn) if case.seeds > 1 else learn, donate_argnums=0).lower(state).compile()
    return Program(compiled, state, time.perf_counter() - begin)


def dense_learner(method: methods.Method, case: Case, settings: Settings) -> tuple[Callable, Callable]:
    """Returns the functions that start a dense network from a seed and train it for the steps of one timing."""
    loss, targets = (learners.squared_error, _numbers) if case.sizes[-1] == 1 else (learners.cross_entropy, _labels)
    apply = learners.make_apply(case.sizes, settings.activation)
    observe, units = learners.make_observe(apply, loss, case.sizes, readout=method.readout)
    input_key, target_key = jax.random.split(jax.random.key(0))
    inputs = jax.random.normal(input_key, (_POOL, case.batch, case.sizes[0]))
    pool = (inputs, targets(target_key, (_POOL, case.batch), case.sizes[-1]))

    def sample(place: jax.Array) -> tuple[jax.Array, Any]:
        return place + 1, jax.tree.map(lambda values: values[place % _POOL], pool)

    def transform(key: jax.Array | int) -> optax.GradientTransformation:
        return _build(method, optax.sgd(_STEP_SIZE), units, case, settings.maturity_threshold, key)

    def start(seed: jax.Array) -> gxd.training.TrainState:
        params_key, method_key, step_key = jax.random.split(jax.random.key(seed), 3)
        params = learners.init(params_key, case.sizes, settings.activation)
        return gxd.training.init(params, transform(method_key), step_key)

    step = gxd.training.make_train_step(observe, transform(0))  # the keys of a seed are in its state

    def learn(learner: gxd.training.TrainState) -> tuple[gxd.training.TrainState, jax.Array]:
        learner, _, losses = gxd.training.train_task(step, learner, sample, jnp.int32(0), case.steps)
        return learner, losses.mean()

    return start, learn


class Images(NamedTuple):
    """A run of ResNet-18: its training state, batch norm's statistics, and the one batch that it sees."""

    training: gxd.training.TrainState
    statistics: Any
    batch: tuple[jax.Array, jax.Array]


def resnet_learner(method: methods.Method, case: Case, settings: Settings) -> tuple[Callable, Callable]:
    """Returns the functions that start ResNet-18 from a seed, on random images, and take one step.

    The wiring is found, not written. Replaced units get their running statistics back.
    """
    del settings
    *image, outputs = case.sizes
    network = resnet.ResNet18(outputs)
    images = jnp.zeros((2, *image))
    fresh = jax.jit(lambda key: network.init(key, images, True))(jax.random.key(0))
    optimizer = optax.chain(optax.add_decayed_weights(_WEIGHT_DECAY), optax.sgd(_STEP_SIZE, momentum=_MOMENTUM))

    def apply(params: Any, images: jax.Array, statistics: Any) -> tuple[jax.Array, Any]:
        variables = {"params": params, "batch_stats": statistics}
        logits, changed = network.apply(variables, images, True, mutable="batch_stats")
        return logits, changed["batch_stats"]

    units = gxd.find_units(apply, fresh["params"], images, fresh["batch_stats"], outputs=lambda results: results[0])
    tx = _build(method, optimizer, units, case, 1, 0)
    observe = gxd.observe(
        lambda params, inputs: apply(params, *inputs),
        learners.cross_entropy,
        units,
        readout=method.readout,
        has_aux=True,
    )
    step = gxd.training.make_train_step(observe, tx)

    def start(seed: jax.Array) -> Images:
        image_key, label_key, step_key = jax.random.split(jax.random.key(seed), 3)
        batch = jax.random.normal(image_key, (case.batch, *image)), _labels(label_key, (case.batch,), outputs)
        return Images(gxd.training.init(fresh["params"], tx, step_key), fresh["batch_stats"], batch)

    def learn(run: Images) -> tuple[Images, jax.Array]:
        images, labels = run.batch
        training, (loss, statistics) = step(run.training, (images, run.statistics), labels)
        if method.resets:
            replaced = gxd.reset_info(training.opt_state).replaced
            statistics = gxd.reset_collection(statistics, fresh["batch_stats"], units, replaced)
        return Images(training, statistics, run.batch), loss

    return start, learn


def _build(
    method: methods.Method,
    optimizer: optax.GradientTransformation,
    units: list[gxd.UnitLayer],
    case: Case,
    maturity_threshold: int,
    key: jax.Array | int,
) -> optax.GradientTransformation:
    hyperparameters = methods.Hyperparameters(maturity_threshold=maturity_threshold)
    setting = {"replacement_rate": case.replacement_rate}
    return method.build(methods.Ingredients(optimizer, units, setting, hyperparameters, key))


def _numbers(key: jax.Array, shape: tuple[int, int], outputs: int) -> jax.Array:
    return jax.random.normal(key, (*shape, outputs))


def _labels(key: jax.Array, shape: tuple[int, ...], outputs: int) -> jax.Array:
    return jax.random.randint(key, shape, 0, outputs)


def speed_table(table: pd.DataFrame) -> Table:
    """Returns the timings as a table for the terminal."""
    headings = {
        "case": "network",
        "method": "method",
        "batch": "batch",
        "seeds": "seeds",
        "us_per_step": "µs per step",
        "ratio": "ratio to SGD",
        "runs_x_steps_per_second": "runs x steps / s",
        "pytorch_runs_x_steps_per_second": "public PyTorch code",
        "loss": "loss",
        "compile_seconds": "compile s",
    }
    formats = {"us_per_step": ".1f", "ratio": ".2f", "loss": ".4f", "compile_seconds": ".1f"}
    formats |= {"runs_x_steps_per_second": ",.0f", "pytorch_runs_x_steps_per_second": ",.0f"}
    shown = Table(title="Time of a step (medians, methods in turns)")
    for column, heading in headings.items():
        shown.add_column(heading, justify="left" if column in ("case", "method") else "right")
    for _, row in table.iterrows():
        cells = ("" if pd.isna(row[column]) else format(row[column], formats.get(column, "")) for column in headings)
        shown.add_row(*cells)
    return shown
