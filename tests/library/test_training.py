"""A train step and a task loop, for scan and vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from tests.networks import batches, dense_params, dense_units, mlp, squared_loss

STEPS = 40
UNITS = dense_units(dense_params([6, 5, 4, 3]))
OBSERVE = gxd.observe(mlp(jnp.tanh), squared_loss, UNITS, readout="logits")


def transformation(key):
    return gxd.chain(
        optax.sgd(0.05, momentum=0.9),
        gxd.continual_backprop(UNITS, utility="gxd", replacement_rate=0.05, maturity_threshold=5, key=key),
    )


def start(seed):
    """A learner of this seed, its step, and a stream that hands out stored batches one after the other."""
    tx = transformation(seed)
    params = dense_params([6, 5, 4, 3])
    state = gxd.training.init(params, tx, jax.random.key(seed))
    return state, gxd.training.make_train_step(OBSERVE, tx)


def sample(stream):
    position, x, y = stream
    return (position + 1, x, y), (x[position], y[position])


def run_task(seed, x, y):
    state, step = start(seed)
    return gxd.training.train_task(step, state, sample, (0, x, y), STEPS)


def close(value, expected):
    np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def data():
    return batches(STEPS, 4, 6, 3)


@pytest.fixture(scope="module")
def task(data):
    """The whole task of seed 3, compiled."""
    return jax.jit(run_task)(3, *data)


def test_a_task_is_its_steps_one_after_the_other(data, task):
    state, step = start(3)
    step = jax.jit(step)
    losses = []
    for x, y in zip(*data, strict=True):
        state, loss = step(state, x, y)
        losses.append(loss)
    scanned_state, (position, _, _), scanned_losses = task
    assert position == STEPS
    assert scanned_losses.shape == (STEPS,)
    np.testing.assert_allclose(scanned_losses, losses, rtol=1e-4)
    jax.tree.map(close, scanned_state.params, state.params)
    assert gxd.reset_info(scanned_state.opt_state).totals["l1"] == gxd.reset_info(state.opt_state).totals["l1"] > 2


def test_the_first_step_is_observe_and_update(data):
    """The loss is that of the batch before the step, and the parameters those that apply_updates gives."""
    x, y = data[0][0], data[1][0]
    state, step = start(3)
    after, loss = jax.jit(step)(state, x, y)
    np.testing.assert_allclose(loss, squared_loss(mlp(jnp.tanh)(state.params, x), y), rtol=1e-5)
    grads = jax.grad(lambda params: squared_loss(mlp(jnp.tanh)(params, x), y))(state.params)
    expected = jax.tree.map(lambda param, gradient: param - 0.05 * gradient, state.params, grads)
    jax.tree.map(close, after.params, expected)


def test_every_step_and_every_seed_has_a_key_of_its_own():
    def observe_key(params, x, y, key):
        return jax.random.key_data(key), jax.tree.map(jnp.zeros_like, params), None

    keys = []
    for seed in (0, 1):
        tx = optax.sgd(0.1)
        state = gxd.training.init(dense_params([6, 5, 4, 3]), tx, seed)
        step = jax.jit(gxd.training.make_train_step(observe_key, tx))
        for _ in range(3):
            state, key = step(state, 0.0, 0.0)
            keys.append(tuple(key.tolist()))
    assert len(set(keys)) == 6


def test_every_vmapped_seed_is_its_solo_run(data, task):
    seeds = jnp.array([2, 3, 4])
    states, _, losses = jax.jit(jax.vmap(run_task, in_axes=(0, None, None)))(seeds, *data)
    state, _, loss = task
    np.testing.assert_allclose(losses[1], loss, rtol=1e-4)
    jax.tree.map(lambda many, one: close(many[1], one), states.params, state.params)
    many, one = gxd.reset_info(states.opt_state), gxd.reset_info(state.opt_state)
    np.testing.assert_array_equal(many.ages["l1"][1], one.ages["l1"])
    np.testing.assert_array_equal(many.ages["l2"][1], one.ages["l2"])
    assert not np.array_equal(losses[0], losses[1])


def test_tasks_follow_one_another(data, task):
    """Two tasks of half the length are the whole task: the learner's state and the stream's carry over."""
    half = STEPS // 2

    def two_halves(seed, x, y):
        state, step = start(seed)
        state, stream, first = gxd.training.train_task(step, state, sample, (0, x, y), half)
        state, _, second = gxd.training.train_task(step, state, sample, stream, half)
        return state, jnp.concatenate([first, second])

    state, losses = jax.jit(two_halves)(3, *data)
    np.testing.assert_allclose(losses, task[2], rtol=1e-4)
    jax.tree.map(close, state.params, task[0].params)


def test_learning_lowers_the_loss_of_a_fixed_task():
    rng = np.random.default_rng(0)
    x = jnp.float32(rng.normal(size=(STEPS, 16, 6)))
    y = jnp.tanh(x @ jnp.float32(rng.normal(size=(6, 3)) / 2))
    _, _, losses = jax.jit(run_task)(3, x, y)
    assert losses[-10:].mean() < 0.5 * losses[:5].mean()
