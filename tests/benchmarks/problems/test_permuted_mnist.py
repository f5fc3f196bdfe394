"""Online permuted MNIST: its tasks, what it measures, and what is refused."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.learner import cross_entropy
from benchmarks.networks import mlp
from benchmarks.problems import permuted_mnist
from tests.benchmarks.resuming import check_resuming

PERMUTED = permuted_mnist.Settings(
    scale="smoke",
    method=("backprop",),
    activation=("tanh",),
    optimizer=("sgd",),
    step_size=(0.1,),
    width=6,
    layers=2,
    batch=4,
    examples=24,
    tasks=4,
    probe=8,
    devices=1,
)


def test_a_task_is_a_permutation_and_images_seen_once():
    key = jax.random.key_data(jax.random.key(3))
    first, second, all_images = (
        permuted_mnist.draw_task(key, jnp.int32(number), 64, 100, examples)
        for number, examples in ((0, 30), (1, 30), (0, 100))
    )
    for task in (first, second):
        assert sorted(task.permutation.tolist()) == list(range(64))
        assert len(set(task.order.tolist())) == 30
    assert not np.array_equal(first.permutation, second.permutation)
    assert not np.array_equal(first.order, second.order)
    assert sorted(all_images.order.tolist()) == list(range(100))
    again = permuted_mnist.draw_task(key, jnp.int32(0), 64, 100, 30)
    np.testing.assert_array_equal(first.order, again.order)


def test_permutations_come_back_in_turn():
    key = jax.random.key_data(jax.random.key(3))
    tasks = [permuted_mnist.draw_task(key, jnp.int32(number), 64, 100, 30, permutations=2) for number in range(4)]
    for number in (0, 1):
        np.testing.assert_array_equal(tasks[number].permutation, tasks[number + 2].permutation)
        assert not np.array_equal(tasks[number].order, tasks[number + 2].order), "the images are new"
        alone = permuted_mnist.draw_task(key, jnp.int32(number), 64, 100, 30)
        np.testing.assert_array_equal(tasks[number].permutation, alone.permutation)
    assert not np.array_equal(tasks[0].permutation, tasks[1].permutation)
    with pytest.raises(ValueError, match="permutations must be 1 or more, got 0"):
        permuted_mnist.PROBLEM.experiment(dataclasses.replace(PERMUTED, permutations=0))


def test_every_method_can_have_a_normalised_network():
    settings = dataclasses.replace(PERMUTED, method=("backprop", "layer_norm", "batch_norm"), normalization="layer")
    plain, layer, batch = (run.start(jnp.int32(0), ()) for run in permuted_mnist.PROBLEM.experiment(settings).runs)
    assert "hidden_1_norm" in plain.training.params
    chex.assert_trees_all_equal(plain.training.params, layer.training.params)
    chex.assert_trees_all_equal(plain.training.params, batch.training.params)
    alone = dataclasses.replace(settings, method=("backprop",), normalization="batch", batch=1)
    with pytest.raises(ValueError, match="batch norm needs a batch of 2 or more, got 1"):
        permuted_mnist.PROBLEM.experiment(alone)


def test_online_accuracy_by_hand():
    experiment = permuted_mnist.PROBLEM.experiment(dataclasses.replace(PERMUTED, tasks_per_chunk=2))
    run, (images, labels) = experiment.runs[0], experiment.data
    carry = run.start(jnp.int32(5), ())
    end, measures = jax.jit(run.chunk)(carry, (jnp.asarray(images), jnp.asarray(labels)))
    apply = mlp.make_apply((64, 6, 6, 10), "tanh")
    gradient = jax.jit(jax.grad(lambda params, x, y: cross_entropy(apply(params, x), y)))
    params, found = carry.training.params, []
    for number in range(2):
        task, right = permuted_mnist.draw_task(carry.key, jnp.int32(number), 64, len(labels), 24), []
        for place in range(0, 24, 4):
            numbers = np.asarray(task.order[place : place + 4])
            x, y = images[numbers][:, task.permutation] / np.float32(255), labels[numbers]
            right.append((apply(params, x).argmax(1) == y).mean())  # before the step
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient(params, x, y))
        found.append(np.mean(right))
    np.testing.assert_allclose(measures["accuracy"], found, atol=1e-6)
    chex.assert_trees_all_close(end.training.params, params, rtol=1e-4, atol=1e-6)
    assert int(end.task) == 2


@pytest.mark.slow
def test_interrupted_run_of_several_tasks_a_chunk_resumes_to_the_same_bits(tmp_path):
    settings = {"method": ("gxd",), "layers": 1, "replacement_rate": (0.05,), "maturity_threshold": 3}
    experiment = permuted_mnist.PROBLEM.experiment(dataclasses.replace(PERMUTED, **settings, tasks_per_chunk=2))
    whole, _ = check_resuming(experiment, tmp_path, 1)
    assert list(whole["task"]) == 2 * [1, 2, 3, 4]
    assert whole["replaced"].sum() > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"examples": 26}, "examples must be a multiple of the batch of 4 and at most the 1497 images, got 26"),
        ({"examples": 4000}, "at most the 1497 images, got 4000"),
        ({"tasks_per_chunk": 3}, "tasks must be a multiple of tasks_per_chunk, got 4 and 3"),
        ({"probe": 0}, "probe must be 1 or more, got 0"),
        ({"probe": 25}, "probe must be at most the 24 images of a task, got 25"),
        ({"method": ("batch_norm",), "batch": 1}, "batch_norm needs a batch of 2 or more, got 1"),
    ],
)
def test_impossible_permuted_mnist_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        permuted_mnist.PROBLEM.experiment(dataclasses.replace(PERMUTED, **changes))
