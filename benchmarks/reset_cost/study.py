"""Does a utility predict what a reset costs? Eq. (1) of [G], measured on networks along a continual run.

Networks learn permuted images, task after task. At the end of some tasks every hidden unit is really reset, one at a
time, and the change of the outputs on held-back images of the task is compared with what each utility says: the running
average that continual backprop would rank by at that moment, and the same utility of the held-back images alone. Sets
of units that each utility would choose are reset too, in one layer for their cost, and in all layers for the shock.

[G] Elisii et al., arXiv 2605.06834.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

import gxd_jax as gxd
from benchmarks import (
    classification,
    datasets,
    folder,
    learners,
    methods,
    permuted_mnist,
    processes,
    reset_cost_figures,
    runner,
)
from benchmarks import small_networks as networks
from benchmarks.experiment import Options, Run, TaskCarry, config_of, devices_for, fill_in, seed_numbers
from gxd_jax import costs, drawing, tracking

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray

NAME = "reset-cost"


class Score(NamedTuple):
    """A utility as continual backprop follows it.

    Attributes:
        utility: A name of `gxd_jax.utilities.UTILITIES`.
        readout: Readout of the sensitivities that it reads, or None.
        decay: Decay of its running average; None: that of the settings.
    """

    utility: str
    readout: str | None = None
    decay: float | None = None


SCORES: dict[str, Score] = {
    "activation": Score("activation"),
    "weight": Score("weight"),
    "contribution": Score("contribution"),
    "mean_corrected_contribution": Score("mean_corrected_contribution"),
    "adaptable_contribution": Score("adaptable_contribution"),
    "adaptation": Score("adaptation"),
    "gradient": Score("gradient", "loss"),
    "random": Score("random"),
    "gxd_loss": Score("gxd", "loss"),
    "gxd_predicted": Score("gxd", "predicted"),
    "gxd_target": Score("gxd", "target"),
    "gxd_fisher": Score("gxd", "fisher"),
    "gxd": Score("gxd", "logits"),
    "gxd_exact": Score("gxd", "logits_exact"),
    "gxd_fast": Score("gxd", "logits", 0.9),
    "gxd_exact_fast": Score("gxd", "logits_exact", 0.9),
}
AT_ONCE = ("mean_corrected_contribution", "gxd", "gxd_exact")
"""Scores that are also taken from the held-back images alone: without noise of other images and of older weights."""
NOW = "_now"
"""Ends the names of those."""
CHEAPEST = "cheapest"


@dataclasses.dataclass(frozen=True)
class Settings(classification.DataOptions, methods.Hyperparameters, Options):
    """Reset cost: what a reset changes in a network's outputs, and which utility knows it beforehand."""

    network: tuple[Literal[tuple(networks.KINDS)], ...] | None = None  # type: ignore[valid-type]
    """Networks to study."""
    method: Literal[classification.METHODS] = "backprop"  # type: ignore[valid-type]
    """How the networks are trained; with a method that resets, their units differ in age."""
    optimizer: Literal["sgd", "adam"] = "adam"
    """Optimizer."""
    step_size: float = 0.001
    """Step size of the optimizer."""
    batch: int = 16
    """Examples of a step."""
    steps: int | None = None
    """Steps of a task; the running averages are taken over the last task before each moment."""
    moments: int | None = None
    """How often along the run the costs are measured."""
    tasks_between: int | None = None
    """Tasks from one moment to the next."""
    probe: int | None = None
    """Held-back images on which costs are measured."""
    share: float = 0.1
    """Share of a layer in the sets of units."""
    recovery: int | None = None
    """Steps after a reset within which the network may recover."""
    distance: Literal["norm2", "kl"] = "norm2"
    """Distance of the outputs: the 2-norm of the logits, or the Kullback-Leibler divergence."""
    compensate: bool = True
    """Whether the biases of the next layer take up the mean output of a unit that is reset."""
    redraw: bool = True
    """Whether a reset draws incoming weights anew; if not, it takes the unit's outputs alone."""


_ALL = {"network": tuple(networks.KINDS), "replacement_rate": (1e-3,)}
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        **_ALL,
        "network": ("tanh", "relu_norm_before", "residual_gelu"),
        "seeds": 2,
        "steps": 60,
        "moments": 1,
        "tasks_between": 2,
        "probe": 64,
        "recovery": 10,
    },
    "default": {
        **_ALL,
        "seeds": 10,
        "steps": 200,
        "moments": 3,
        "tasks_between": 5,
        "probe": 256,
        "recovery": 50,
    },
    "paper": {
        **_ALL,
        "seeds": 30,
        "steps": 1000,
        "moments": 5,
        "tasks_between": 20,
        "probe": 1000,
        "recovery": 200,
    },
}


def run(settings: Settings) -> None:
    """Measures every network that the folder does not hold yet, and shows the results."""
    processes.start(settings)
    settings = check(settings)
    images = classification.load(settings)
    if settings.probe > len(images.test_labels):
        raise folder.RefusedError(f"probe must be at most the {len(images.test_labels)} test images there are")
    out = settings.out or Path("results") / NAME
    with folder.refusing_values():
        config = config_of(NAME, settings) | {"data": {"name": images.name, "digest": images.digest}}
    processes.on_first(functools.partial(folder.open_folder, out, config, resume=settings.resume))
    console = Console(width=None if Console().is_terminal else 140, quiet=not processes.is_first())
    tables = []
    for name in track(settings.network, "networks", console=console, disable=not console.is_terminal):
        tables.append(measure_network(settings, images, name, out))
        if not console.is_terminal:  # where no bar is seen
            console.print(f"measured {name}, {len(tables)} of {len(settings.network)}", highlight=False)
    if not processes.is_first():
        return
    units, sets, shocks = (pd.concat(parts, ignore_index=True) for parts in zip(*tables, strict=True))
    correlations = correlate(units)
    summary = summarise(correlations, sets, shocks)
    for name, table in {"correlations": correlations, "sets": sets, "shocks": shocks, "summary": summary}.items():
        folder.write_file(out / f"{name}.csv", table.to_csv(index=False))
    reset_cost_figures.save(units, correlations, out)
    console.print(correlation_table(correlations))
    console.print(summary_table(summary))
    console.print(f"results in {out}", highlight=False)


def check(settings: Settings) -> Settings:
    """Returns the settings with every value filled in.

    Raises:
        RefusedError: If a value is impossible.
    """
    with folder.refusing_values():
        settings = fill_in(settings, SCALES)
    if not 0 < settings.share < 1:
        raise folder.RefusedError(f"share must lie between 0 and 1, got {settings.share}")
    if len(settings.replacement_rate) != 1:
        raise folder.RefusedError(f"one replacement_rate is needed, got {settings.replacement_rate}")
    return settings


# --- One network ---------------------------------------------------------------------------------------------------


def measure_network(settings: Settings, images: datasets.Images, name: str, out: Path) -> tuple[pd.DataFrame, ...]:
    """Returns the tables of units, sets and shocks of one network; computed once, then read from the folder."""
    files = [out / "networks" / f"{name}-{table}.csv" for table in ("shocks", "sets", "units")]
    if not all(file.exists() for file in files):
        found = measure_seeds(settings, images, name)
        for file, table in zip(files, tidy(found, name, seed_numbers(settings)), strict=True):
            processes.on_first(folder.write_file, file, table.to_csv(index=False))
    return tuple(pd.read_csv(file) for file in reversed(files))


def measure_seeds(settings: Settings, images: datasets.Images, name: str) -> list[dict[str, Any]]:
    """Runs a network for all seeds as one program; returns what is found at each moment, arrays [S, ...]."""
    study = make_run(settings, images, name)
    mesh = runner.mesh_of(devices_for(settings.seeds, settings.devices))
    train, test = (values.reshape(len(values), -1) for values in (images.images, images.test_images))
    data = runner.on_all((train, images.labels, test, images.test_labels), mesh)
    carry = runner.start(study, seed_numbers(settings), data, mesh, None)
    chunk = runner.compile_chunk(study, carry, data, mesh, None)
    found = []
    for _ in range(settings.moments):
        carry, measures = chunk(carry, data)
        found.append(jax.tree.map(processes.gather, measures))
    return found


def make_run(settings: Settings, images: datasets.Images, name: str) -> Run:
    """Returns the run of one seed: a chunk learns the tasks up to the next moment and measures there."""
    kind = networks.KINDS[name]
    shape = images.images.shape[1:]
    network = networks.make(kind, shape, images.classes)
    units, apply = network.units, network.apply
    method = methods.METHODS[settings.method]
    setting = next(methods.settings_of(method, settings))

    def transform(key: PRNGKeyArray | int) -> optax.GradientTransformation:
        optimizer = methods.OPTIMIZERS[settings.optimizer](settings.step_size)
        return method.build(methods.Ingredients(optimizer, units, setting, settings, key))

    tx = transform(0)
    observe = {
        readout: gxd.observe(apply, learners.cross_entropy, units, readout=readout)
        for readout in {method.readout, *(score.readout for score in SCORES.values())}
    }
    step = gxd.training.make_train_step(observe[method.readout], tx)

    def tracker_of(score: Score, key: PRNGKeyArray | int) -> optax.GradientTransformationExtraArgs:
        """Returns what follows a utility; at a rate of 0 it replaces nobody."""
        decay = score.decay or settings.decay
        return gxd.continual_backprop(units, utility=score.utility, replacement_rate=0.0, decay=decay, key=key)

    trackers = {name: tracker_of(score, 0) for name, score in SCORES.items()}  # the keys of a seed are in its states

    def start(seed: Int[Array, ""], data: Any) -> TaskCarry:
        del data
        stream_key, params_key, method_key, step_key = jax.random.split(jax.random.key(seed), 4)
        learner = gxd.training.init(network.init(params_key), transform(method_key), step_key)
        return TaskCarry(jax.random.key_data(stream_key), jnp.int32(0), learner)

    def follow(states: dict[str, Any], params: Any, x: Array, y: Array, key: PRNGKeyArray) -> dict[str, Any]:
        """Lets a batch enter the running utilities."""
        readouts = {SCORES[score].readout for score in states}
        observations = {readout: observe[readout](params, x, y, key=key)[2] for readout in readouts}
        nothing = jax.tree.map(jnp.zeros_like, params)
        return {
            score: trackers[score].update(nothing, state, params, observation=observations[SCORES[score].readout])[1]
            for score, state in states.items()
        }

    def learn_task(carry: TaskCarry, data: Any, trackers_of: dict[str, Any] | None) -> tuple[TaskCarry, Any]:
        """Learns the next task, and follows the utilities if given their trackers."""
        train, labels, *_ = data
        examples = settings.steps * settings.batch
        task = draw_task(carry, len(labels), examples)

        def learn(state: tuple, place: Int[Array, ""]) -> tuple[tuple, None]:
            learner, states = state
            numbers = jax.lax.dynamic_slice_in_dim(task.order, place * settings.batch, settings.batch)
            x, y = classification.as_inputs(train[numbers[:, None], task.permutation]), labels[numbers]
            if states is not None:
                states = follow(states, learner.params, x, y, jax.random.fold_in(task.dropout_key, place))
            learner, _ = step(learner, x, y)
            return (learner, states), None

        (learner, states), _ = jax.lax.scan(learn, (carry.learner, trackers_of), jnp.arange(settings.steps))
        return TaskCarry(carry.key, carry.task + 1, learner), states

    def draw_task(carry: TaskCarry, images: int, examples: int) -> permuted_mnist.Task:
        rounds = -(-examples // images)  # a small set is seen several times in a task
        task = permuted_mnist.draw_task(carry.key, carry.task, int(np.prod(shape)), images, min(images, examples))
        return task._replace(order=jnp.tile(task.order, rounds)[:examples])

    def chunk(carry: TaskCarry, data: Any) -> tuple[TaskCarry, dict[str, Any]]:
        def next_task(carry: TaskCarry, _: None) -> tuple[TaskCarry, None]:
            return learn_task(carry, data, None)[0], None

        carry, _ = jax.lax.scan(next_task, carry, length=settings.tasks_between - 1)
        # The images of the next task, held back for the cost, and some of those learned once more, for the recovery.
        train, labels, test, test_labels = data
        task = draw_task(carry, len(labels), settings.recovery * settings.batch)
        draw_key, noise_key, order_key, utility_key = jax.random.split(task.dropout_key, 4)
        fresh = {name: tracker_of(score, utility_key).init(carry.learner.params) for name, score in SCORES.items()}
        carry, states = learn_task(carry, data, fresh)
        held_back = jax.random.permutation(order_key, len(test_labels))[: settings.probe]
        x = classification.as_inputs(test[held_back[:, None], task.permutation])
        y = test_labels[held_back]
        params = carry.learner.params
        now = follow({score: fresh[score] for score in AT_ONCE}, params, x, y, noise_key)
        scores = {name: gxd.reset_info(state).utilities for name, state in states.items()}
        scores |= {name + NOW: gxd.reset_info(state).utilities for name, state in now.items()}
        again = classification.as_inputs(train[task.order[:, None], task.permutation]), labels[task.order]
        batches = jax.tree.map(lambda a: a.reshape(settings.recovery, settings.batch, *a.shape[1:]), again)
        return carry, measure(params, scores, (x, y), batches, draw_key)

    def measure(params: Any, scores: dict, probe: tuple, batches: Any, key: PRNGKeyArray) -> dict[str, Any]:
        cost_key, set_key, shock_key = jax.random.split(key, 3)
        cost = functools.partial(
            gxd.metrics.reset_cost,
            apply,
            params,
            units,
            probe[0],
            distance=settings.distance,
            compensate=settings.compensate,
            redraw=settings.redraw,
            kernel_init=initializer(kind),
        )
        single = cost(key=cost_key)
        ranked = scores | {CHEAPEST: single}
        chosen = {
            name: {layer.name: lowest(score[layer.name], settings.share) for layer in units}
            for name, score in ranked.items()
        }
        sets = {layer.name: jnp.stack([numbers[layer.name] for numbers in chosen.values()]) for layer in units}
        set_costs = cost(sets=sets, key=set_key)
        shocks = shocks_of(params, sets, probe, batches, shock_key)
        places = {name: place for place, name in enumerate(chosen)}
        return {
            "cost": single,
            "scores": scores,
            "sets": {
                layer: {name: values[place] for name, place in places.items()} for layer, values in set_costs.items()
            },
            "shocks": {name: {what: v[place] for what, v in shocks.items()} for name, place in places.items()},
        }

    def shocks_of(params: Any, sets: dict, probe: tuple, batches: Any, key: PRNGKeyArray) -> dict[str, Array]:
        """Resets each set of units, of all layers at once, and trains on until the loss is back."""
        x, y = probe
        before, features = gxd.capture(apply, params, units, x)
        references = {name: tracking.feature_means(values, None) for name, values in features.items()}
        initializers = drawing.resolve_initializers(initializer(kind), units)
        loss, accuracy = learners.cross_entropy(before, y), classification.accuracy(before, y)

        def learn(state: gxd.training.TrainState, batch: tuple) -> tuple[gxd.training.TrainState, Array]:
            state, _ = step(state, *batch)
            return state, learners.cross_entropy(apply(state.params, x), y) <= loss

        def of_set(numbers: dict[str, Int[Array, " k"]]) -> dict[str, Array]:
            reset = costs.reset_units(
                units,
                params,
                numbers,
                references,
                key,
                initializers,
                compensate=settings.compensate,
                redraw=settings.redraw,
            )
            after = apply(reset, x)
            _, recovered = jax.lax.scan(learn, gxd.training.init(reset, tx, key), batches)
            return {
                "loss_rise": learners.cross_entropy(after, y) - loss,
                "accuracy_drop": accuracy - classification.accuracy(after, y),
                "recovery_steps": jnp.where(recovered.any(), recovered.argmax() + 1, settings.recovery),
            }

        return jax.lax.map(of_set, sets)

    return Run({"network": name}, start, chunk)


def initializer(kind: networks.Kind) -> Callable[..., Array]:
    """Returns the initializer of the hidden layers."""
    gain = learners.ACTIVATIONS[kind.activation].gain
    return lambda key, shape, dtype: learners.kaiming_uniform(key, shape, gain).astype(dtype)


def lowest(score: Float[Array, " U"], share: float) -> Int[Array, " k"]:
    """Returns the numbers of the units of lowest score."""
    return jnp.argsort(score)[: max(1, round(share * score.size))].astype(jnp.int32)


# --- Tables --------------------------------------------------------------------------------------------------------


def tidy(found: list[dict[str, Any]], network: str, seeds: np.ndarray) -> tuple[pd.DataFrame, ...]:
    """Returns what was found as tables: shocks, sets, and units (the last is written last)."""
    shocks, sets, units = [], [], []
    for moment, measures in enumerate(found, start=1):
        for place, seed in enumerate(seeds):
            at = {"network": network, "seed": seed, "moment": moment}
            for score, values in measures["shocks"].items():
                shocks.append(at | {"score": score} | {what: float(v[place]) for what, v in values.items()})
            for layer, values in measures["sets"].items():
                sets += [at | {"layer": layer, "score": name, "cost": float(v[place])} for name, v in values.items()]
            for layer, cost in measures["cost"].items():
                columns = {name: values[layer][place] for name, values in measures["scores"].items()}
                index = {"layer": layer, "unit": np.arange(cost.shape[1])}
                units.append(pd.DataFrame(at | index | {"cost": cost[place]} | columns))
    return pd.DataFrame(shocks), pd.DataFrame(sets), pd.concat(units, ignore_index=True)


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation; ties share their mean rank; NaN where one side is constant."""
    ranks = [pd.Series(values).rank().to_numpy() for values in (a, b)]
    spreads = [r.std() for r in ranks]
    if min(spreads) == 0:
        return float("nan")
    return float(((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())).mean() / (spreads[0] * spreads[1]))


def correlate(units: pd.DataFrame) -> pd.DataFrame:
    """Returns the rank correlation of every score with the cost, within a layer of a seed at a moment."""
    scores = [name for name in units if name not in ("network", "seed", "moment", "layer", "unit", "cost")]
    rows = []
    for key, layer in units.groupby(["network", "seed", "moment", "layer"], sort=False):
        at = dict(zip(("network", "seed", "moment", "layer"), key, strict=True))
        cost = layer["cost"].to_numpy()
        rows += [at | {"score": name, "spearman": spearman(layer[name].to_numpy(), cost)} for name in scores]
    return pd.DataFrame(rows)


def summarise(correlations: pd.DataFrame, sets: pd.DataFrame, shocks: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per network and score: means over seeds, layers and moments, standard errors over seeds.

    The cost of a set is divided by that of the cheapest units, and of random ones, summed over layers and moments.
    """
    rows = []
    for (network, score), part in shocks.groupby(["network", "score"], sort=False):
        mine = sets[(sets.network == network) & (sets.score == score)].groupby("seed").cost.sum()
        row = {"network": network, "score": score}
        for other in (CHEAPEST, "random"):
            theirs = sets[(sets.network == network) & (sets.score == other)].groupby("seed").cost.sum()
            row |= spread(f"cost_over_{other}", mine / theirs)
        found = correlations[(correlations.network == network) & (correlations.score == score)]
        if len(found):
            row |= spread("spearman", found.groupby("seed").spearman.mean())
        for what in ("loss_rise", "accuracy_drop", "recovery_steps"):
            row |= spread(what, part.groupby("seed")[what].mean())
        rows.append(row)
    return pd.DataFrame(rows)


def spread(name: str, of_seeds: pd.Series) -> dict[str, float]:
    """Returns mean and standard error as two columns."""
    return {f"{name}_mean": of_seeds.mean(), f"{name}_se": of_seeds.sem()}


def correlation_table(correlations: pd.DataFrame) -> Table:
    """Returns the rank correlations, a row per score and a column per network, as a table for the terminal."""
    table = Table(
        title="rank correlation of utility and reset cost, mean over seeds, layers and moments", box=box.SIMPLE
    )
    means = correlations.groupby(["score", "network"], sort=False).spearman.mean().unstack(sort=False)
    table.add_column("utility")
    for network in means:
        table.add_column(str(network), justify="right", overflow="fold")
    for score, row in means.iterrows():
        table.add_row(str(score), *(f"{value:.2f}" for value in row))
    return table


def summary_table(summary: pd.DataFrame) -> Table:
    """Returns costs of sets and shocks, averaged over the networks, as a table for the terminal."""
    headings = {
        "cost_over_cheapest_mean": "cost / cheapest",
        "cost_over_random_mean": "cost / random",
        "loss_rise_mean": "loss rise",
        "accuracy_drop_mean": "accuracy drop",
        "recovery_steps_mean": "steps to recover",
    }
    table = Table(title="the lowest units of each utility, reset together; mean over networks", box=box.SIMPLE)
    table.add_column("utility")
    for heading in headings.values():
        table.add_column(heading, justify="right")
    for score, row in summary.groupby("score", sort=False)[list(headings)].mean().iterrows():
        table.add_row(str(score), *(f"{value:.3g}" for value in row))
    return table
