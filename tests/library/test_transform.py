"""The whole update against the slow NumPy reference: plain, jitted and vmapped, over hundreds of steps."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from tests.networks import batches, dense_params, dense_units, mlp, numpy_layers, squared_loss
from tests.reference import continual_backprop, network, optimizers
from tests.reference import utilities as scores

SIZES = (6, 5, 4, 3)
EXAMPLES = 4
STEPS = 300
DECAY = 0.9
LEARNING_RATE = 0.01
EPS = 1e-4  # Adam's own 1e-8 turns the last bit of a tiny gradient into a whole step

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}
OPTIMIZERS = {
    "sgd": (lambda: optax.sgd(LEARNING_RATE), lambda layers: optimizers.Sgd(layers, LEARNING_RATE)),
    "momentum": (
        lambda: optax.sgd(LEARNING_RATE, momentum=0.9),
        lambda layers: optimizers.Momentum(layers, LEARNING_RATE, 0.9),
    ),
    "adam": (
        lambda: optax.adam(LEARNING_RATE, eps=EPS),
        lambda layers: optimizers.Adam(layers, LEARNING_RATE, per_weight=False, eps=EPS),
    ),
    "per_weight_adam": (
        lambda: gxd.adam(LEARNING_RATE, eps=EPS),
        lambda layers: optimizers.Adam(layers, LEARNING_RATE, per_weight=True, eps=EPS),
    ),
}
"""Name -> (the library's, the reference's for given layers)."""


class Case(NamedTuple):
    utility: str
    readout: str | None
    optimizer: str
    activation: str
    compensate: bool = True
    rate: float = 0.02
    maturity: int = 10


CASES = [
    Case("contribution", None, "sgd", "relu"),
    Case("mean_corrected_contribution", None, "momentum", "tanh"),
    Case("adaptable_contribution", None, "per_weight_adam", "tanh"),
    Case("weight", None, "adam", "relu"),
    Case("adaptation", None, "sgd", "tanh"),
    Case("activation", None, "per_weight_adam", "relu", compensate=False),
    Case("gradient", "loss", "momentum", "tanh"),
    Case("gxd", "logits_exact", "per_weight_adam", "relu"),
    Case("gxd", "logits", "sgd", "tanh"),
    Case("gxd", "loss", "adam", "tanh"),
]
VMAPPED_CASES = [CASES[2], CASES[8]]


class Trace(NamedTuple):
    """What a run left behind at every step."""

    params: dict
    info: gxd.ResetInfo
    sensitivities: dict | None


def ids(case):
    return f"{case.utility}-{case.readout}-{case.optimizer}-{case.activation}"


def start_and_step(case, seed):
    """The initial carry of one seed, and the step that a loop repeats."""
    units = dense_units(dense_params(SIZES))
    observe = gxd.observe(mlp(ACTIVATIONS[case.activation]), squared_loss, units, readout=case.readout)
    tx = gxd.chain(
        OPTIMIZERS[case.optimizer][0](),
        gxd.continual_backprop(
            units,
            utility=case.utility,
            replacement_rate=case.rate,
            maturity_threshold=case.maturity,
            decay=DECAY,
            compensate=case.compensate,
            key=seed,
        ),
    )

    def step(carry, batch):
        params, state = carry
        x, y, number = batch
        _, grads, observation = observe(params, x, y, key=jax.random.fold_in(jax.random.key(99), number))
        updates, state = tx.update(grads, state, params, observation=observation)
        params = optax.apply_updates(params, updates)
        return (params, state), Trace(params, gxd.reset_info(state), observation.sensitivities)

    return tx.init, step


def stream(seed, steps=STEPS):
    x, y = batches(steps, EXAMPLES, SIZES[0], SIZES[-1], seed=seed)
    return x, y, jnp.arange(steps)


def scanned(case):
    """A compiled function (seed, params, stream) -> Trace of the whole run."""

    def run(seed, params, batches):
        init, step = start_and_step(case, seed)
        return jax.lax.scan(step, (params, init(params)), batches)[1]

    return run


def reference_sensitivities(case, layers, features, cotangents, trace, t):
    """Sensitivities by layer; where chance has a part in them (a drawn readout) they are read off the run."""
    if case.readout == "loss":
        return network.sensitivities(layers, features, EXAMPLES * cotangents, case.activation)
    if case.readout == "logits_exact":
        outputs = SIZES[-1]
        each = [
            network.sensitivities(layers, features, np.tile(np.eye(outputs)[k], (EXAMPLES, 1)), case.activation)
            for k in range(outputs)
        ]
        return [np.stack(layer) for layer in zip(*each, strict=True)]
    if case.readout is None:
        return [None] * len(features)
    return [np.float64(trace.sensitivities[f"l{i + 1}"][t]) for i in range(len(features))]


def assert_agrees_with_the_reference(case, params, batches, trace):
    """Walks the reference along a run and compares every step. Returns how many units were replaced."""
    x, y = np.float64(batches[0]), np.float64(batches[1])
    learner = continual_backprop.Learner(
        numpy_layers(params),
        OPTIMIZERS[case.optimizer][1](numpy_layers(params)),
        getattr(scores, case.utility),
        rate=case.rate,
        maturity=case.maturity,
        decay=DECAY,
        compensates=case.compensate,
    )
    names = ("l1", "l2")
    total = 0
    for t in range(len(x)):
        features, outputs = network.forward(learner.layers, x[t], case.activation)
        cotangents = network.squared_loss_cotangents(outputs, y[t])
        grads = network.parameter_gradients(learner.layers, x[t], features, cotangents, case.activation)
        sensitivities = reference_sensitivities(case, learner.layers, features, cotangents, trace, t)
        after = numpy_layers(jax.tree.map(lambda leaf, t=t: leaf[t], trace.params))
        fresh_kernels = [kernel for kernel, _ in after]

        masks, rankings = learner.update(grads, features, sensitivities, fresh_kernels)

        where = f"step {t + 1}"
        for i, name in enumerate(names):
            np.testing.assert_array_equal(trace.info.replaced[name][t], masks[i], err_msg=where)
            kept = ~masks[i]
            np.testing.assert_array_equal(trace.info.ages[name][t], learner.hidden[i].age, err_msg=where)
            np.testing.assert_allclose(
                trace.info.utilities[name][t][kept], rankings[i][kept], rtol=2e-3, atol=1e-5, err_msg=where
            )
            np.testing.assert_array_equal(after[i + 1][0][masks[i]], 0.0, err_msg=where)
            total += int(masks[i].sum())
            assert trace.info.counts[name][t] == masks[i].sum()
        for i, (kernel, bias) in enumerate(learner.layers):
            np.testing.assert_allclose(after[i][0], kernel, rtol=2e-3, atol=2e-5, err_msg=f"kernel {i}, {where}")
            np.testing.assert_allclose(after[i][1], bias, rtol=2e-3, atol=2e-5, err_msg=f"bias {i}, {where}")
    return total


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_jitted_runs_agree_with_the_reference(case):
    params, batches = dense_params(SIZES, seed=1), stream(seed=1)
    trace = jax.device_get(jax.jit(scanned(case))(5, params, batches))
    replaced = assert_agrees_with_the_reference(case, params, batches, trace)
    # 300 updates of up to 9 eligible units at .02, most of them eligible.
    assert 30 <= replaced <= 54


@pytest.mark.parametrize("case", VMAPPED_CASES, ids=ids)
def test_vmapped_seeds_agree_with_the_reference_and_with_their_solo_runs(case):
    seeds = [3, 4, 5]
    params = [dense_params(SIZES, seed=seed) for seed in seeds]
    streams = [stream(seed, steps=100) for seed in seeds]
    together = jax.jit(jax.vmap(scanned(case)))(
        jnp.array(seeds),
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *params),
        tuple(map(jnp.stack, zip(*streams, strict=True))),
    )
    solo = jax.jit(scanned(case))
    for i, seed in enumerate(seeds):
        trace = jax.device_get(jax.tree.map(lambda leaf, i=i: leaf[i], together))
        assert assert_agrees_with_the_reference(case, params[i], streams[i], trace) >= 8
        alone = jax.device_get(solo(seed, params[i], streams[i]))
        np.testing.assert_array_equal(trace.info.totals["l1"], alone.info.totals["l1"])
        jax.tree.map(
            lambda many, one: np.testing.assert_allclose(many, one, rtol=1e-3, atol=1e-5), trace.params, alone.params
        )
        chex.assert_trees_all_equal(trace.info.replaced, alone.info.replaced)
    first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], together.params["l1"]["kernel"]) for i in (0, 1))
    assert not np.any(first[-1] == second[-1])


@pytest.mark.parametrize("case", [CASES[2]._replace(rate=0.5, maturity=1)], ids=ids)
def test_plain_runs_agree_with_the_reference(case):
    params, batches = dense_params(SIZES, seed=2), stream(seed=2, steps=5)
    init, step = start_and_step(case, 5)
    carry, traces = (params, init(params)), []
    for batch in zip(*batches, strict=True):
        carry, trace = step(carry, batch)
        traces.append(trace)
    trace = jax.device_get(jax.tree.map(lambda *leaves: jnp.stack(leaves), *traces))
    assert assert_agrees_with_the_reference(case, params, batches, trace) >= 5


def test_units_replaced_by_chance_utilities_are_otherwise_treated_alike():
    """With `random` only the choice cannot be predicted: here it is read off, and everything else has to follow."""
    case = Case("random", None, "momentum", "tanh")
    params, batches = dense_params(SIZES, seed=1), stream(seed=1, steps=100)
    trace = jax.device_get(jax.jit(scanned(case))(5, params, batches))
    learner = continual_backprop.Learner(
        numpy_layers(params),
        OPTIMIZERS["momentum"][1](numpy_layers(params)),
        None,
        rate=case.rate,
        maturity=case.maturity,
        decay=DECAY,
    )
    x, y = np.float64(batches[0]), np.float64(batches[1])
    for t in range(100):
        features, outputs = network.forward(learner.layers, x[t], "tanh")
        cotangents = network.squared_loss_cotangents(outputs, y[t])
        grads = network.parameter_gradients(learner.layers, x[t], features, cotangents, "tanh")
        after = numpy_layers(jax.tree.map(lambda leaf, t=t: leaf[t], trace.params))
        chosen = iter([np.where(trace.info.replaced[name][t], -1e9, 0.0) for name in ("l1", "l2")])
        learner.utility = lambda h, g, r, w_in, w_out, chosen=chosen: next(chosen)
        for hidden in learner.hidden:
            hidden.utility[:] = 0.0
        masks, _ = learner.update(grads, features, [None, None], [kernel for kernel, _ in after])
        for i, name in enumerate(("l1", "l2")):
            np.testing.assert_array_equal(trace.info.replaced[name][t], masks[i])
        for i, (kernel, bias) in enumerate(learner.layers):
            np.testing.assert_allclose(after[i][0], kernel, rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(after[i][1], bias, rtol=1e-3, atol=1e-5)
    assert trace.info.totals["l1"][-1] == 7
