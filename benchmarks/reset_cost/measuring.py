"""What resetting units really changes: the cost of single units and of sets, and the shock of resetting all layers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

import gxd_jax as gxd
from benchmarks.learner import Learner, accuracy, cross_entropy
from benchmarks.networks.layers import ACTIVATIONS, Network, kaiming_uniform
from benchmarks.networks.small import Kind
from benchmarks.reset_cost.settings import CHEAPEST, Settings
from gxd_jax.batches import unit_means
from gxd_jax.metrics import costs

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray


class Subject(NamedTuple):
    """What is measured.

    Attributes:
        kind: What the network is made of.
        network: The network.
        learner: How it is trained.
    """

    kind: Kind
    network: Network
    learner: Learner


def measure(
    settings: Settings,
    subject: Subject,
    params: Any,
    scores: dict[str, dict[str, Array]],
    probe: tuple[Array, Array],
    batches: tuple[Array, Array],
    key: PRNGKeyArray,
) -> dict[str, Any]:
    """Returns the costs of single units and of sets, the shocks, and the scores, by layer and score.

    Args:
        settings: Settings with every value filled in.
        subject: What is measured.
        params: Parameters of the network.
        scores: Score -> layer -> what it says [U].
        probe: Held-back images and labels.
        batches: Images and labels within which the network may recover [R, B, ...].
        key: Key of the fresh weights.
    """
    units = subject.network.units
    cost_key, set_key, shock_key = jax.random.split(key, 3)
    cost = functools.partial(
        gxd.metrics.reset_cost,
        subject.network.apply,
        params,
        units,
        probe[0],
        distance=settings.distance,
        compensate=settings.compensate,
        redraw=settings.redraw,
        kernel_init=initializer(subject.kind),
    )
    single = cost(key=cost_key)
    ranked = scores | {CHEAPEST: single}
    chosen = {
        name: {layer.name: lowest(score[layer.name], settings.share) for layer in units}
        for name, score in ranked.items()
    }
    sets = {layer.name: jnp.stack([indices[layer.name] for indices in chosen.values()]) for layer in units}
    set_costs = cost(sets=sets, key=set_key)
    shocks = _shocks(settings, subject, params, sets, probe, batches, shock_key)
    places = {name: place for place, name in enumerate(chosen)}
    return {
        "cost": single,
        "scores": scores,
        "sets": {layer: {name: values[place] for name, place in places.items()} for layer, values in set_costs.items()},
        "shocks": {name: {what: v[place] for what, v in shocks.items()} for name, place in places.items()},
    }


def _shocks(
    settings: Settings,
    subject: Subject,
    params: Any,
    sets: dict[str, Int[Array, "sets k"]],
    probe: tuple[Array, Array],
    batches: tuple[Array, Array],
    key: PRNGKeyArray,
) -> dict[str, Float[Array, " sets"]]:
    """Resets each set of units, of all layers at once, and trains on until the loss is back."""
    apply, units, learner = subject.network.apply, subject.network.units, subject.learner
    x, y = probe
    before, features = gxd.capture(apply, params, units, x)
    references = {name: unit_means(values) for name, values in features.items()}
    loss, right = cross_entropy(before, y), accuracy(before, y)

    def learn(state: gxd.training.TrainState, batch: tuple) -> tuple[gxd.training.TrainState, Array]:
        state, _ = learner.step(state, *batch)
        return state, cross_entropy(apply(state.params, x), y) <= loss

    def of_set(indices: dict[str, Int[Array, " k"]]) -> dict[str, Array]:
        reset = costs.reset_units(
            units,
            params,
            indices,
            references,
            key,
            initializer(subject.kind),
            compensate=settings.compensate,
            redraw=settings.redraw,
        )
        after = apply(reset, x)
        _, recovered = jax.lax.scan(learn, gxd.training.init(reset, learner.tx, key), batches)
        return {
            "loss_rise": cross_entropy(after, y) - loss,
            "accuracy_drop": right - accuracy(after, y),
            "recovery_steps": jnp.where(recovered.any(), recovered.argmax() + 1, settings.recovery),
        }

    return jax.lax.map(of_set, sets)


def initializer(kind: Kind) -> Callable[..., Array]:
    """Returns the initializer of the hidden layers."""
    gain = ACTIVATIONS[kind.activation].gain
    return lambda key, shape, dtype: kaiming_uniform(key, shape, gain).astype(dtype)


def lowest(score: Float[Array, " U"], share: float) -> Int[Array, " k"]:
    """Returns the indices of the units of lowest score."""
    return jnp.argsort(score)[: max(1, round(share * score.size))].astype(jnp.int32)
