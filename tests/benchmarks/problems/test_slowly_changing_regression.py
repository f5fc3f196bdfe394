"""Slowly-changing regression: its runs, their seeds, and what a chunk computes."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

from benchmarks.problems import slow_bits
from benchmarks.problems import slowly_changing_regression as regression
from tests.benchmarks.tiny import tiny


def test_block_size_must_fit():
    with pytest.raises(ValueError, match="multiple of 4"):
        slow_bits.Stream().sample_block(slow_bits.Stream().init(jax.random.key(0)), 30)
    with pytest.raises(ValueError, match="multiples of 4"):
        tiny(examples=30, bin=30)
    with pytest.raises(ValueError, match="multiple of bin"):
        tiny(examples=100)
    with pytest.raises(ValueError, match="seeds"):
        tiny(seeds=0)


def test_every_method_sees_the_same_streams_and_initial_weights():
    runs = tiny(method=regression._METHODS, activation=("relu",), seeds=3).runs
    # Not jitted: the methods then share the small programs of single operations.
    carries = {run.labels["method"]: jax.vmap(run.start, in_axes=(0, None))(jnp.arange(3), ()) for run in runs}
    assert set(carries) == set(regression._METHODS)
    for name, carry in carries.items():
        chex.assert_trees_all_equal(carry.stream, carries["backprop"].stream)
        if name != "linear":
            chex.assert_trees_all_equal(carry.training.params, carries["backprop"].training.params)


def test_a_seed_depends_on_its_number_only():
    run = tiny().runs[1]
    start = jax.jit(jax.vmap(run.start, in_axes=(0, None)))
    all_seeds, one_seed = start(jnp.arange(4), ()), start(jnp.array([2]), ())
    jax.tree.map(lambda several, one: np.testing.assert_array_equal(several[2], one[0]), all_seeds, one_seed)


def test_linear_learner_runs_once_and_paper_scale_has_its_grid():
    runs = regression.PROBLEM.experiment(regression.Settings(scale="paper", devices=1)).runs
    labels = pd.DataFrame([run.labels for run in runs])
    counts = labels.groupby(["method", "step_size"]).size().unstack()[0.01]
    expected = {"linear": 1, "backprop": 6, "l2": 6 * 7, "shrink_and_perturb": 6 * 6, "gxd": 6 * 5}
    assert {name: counts[name] for name in expected} == expected


def test_chunk_equals_plain_sgd_by_hand():
    run = tiny(method=("backprop",), bin=40, flip_every=40, examples=40).runs[0]
    carry = run.start(jnp.int32(7), ())
    end, measures = jax.jit(run.chunk)(carry, ())
    stream, state, params, errors = slow_bits.Stream("one", 40), carry.stream, carry.training.params, []

    def error(params, x, y):
        hidden = jnp.tanh(x @ params["hidden_1"]["kernel"] + params["hidden_1"]["bias"])
        return (hidden @ params["output"]["kernel"] + params["output"]["bias"] - y)[0, 0] ** 2

    sample, error_and_gradients = jax.jit(stream.sample), jax.jit(jax.value_and_grad(error))
    for _ in range(40):
        state, (x, y) = sample(state)
        value, gradients = error_and_gradients(params, x, y)
        params = optax.apply_updates(params, jax.tree.map(lambda g: -0.01 * g, gradients))
        errors.append(value)
    np.testing.assert_allclose(measures["error"], np.mean(errors), rtol=1e-5)
    chex.assert_trees_all_close(end.training.params, params, rtol=1e-4, atol=1e-6)


def test_replaced_units_are_counted():
    settings = {"method": ("cbp_contribution",), "replacement_rate": (1.0,), "maturity_threshold": 9}
    run = tiny(**settings, bin=40, flip_every=40).runs[0]
    _, measures = jax.jit(run.chunk)(run.start(jnp.int32(0), ()), ())
    # At rate 1 and maturity 9 all five units go at updates 10, 20, 30 and 40.
    assert measures["replaced"] == 20
