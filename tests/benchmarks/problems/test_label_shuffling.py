"""Label shuffling: its tasks, what it measures, and what is refused."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.networks import mlp
from benchmarks.problems import label_shuffling

SETTINGS = label_shuffling.Settings(
    scale="smoke",
    method=("backprop",),
    activation=("tanh",),
    optimizer=("sgd",),
    step_size=(0.1,),
    width=6,
    layers=2,
    batch=4,
    examples=24,
    epochs=2,
    tasks=2,
    tasks_per_chunk=2,
    probe=8,
    devices=1,
)


def test_a_task_gives_the_same_images_new_labels_and_sees_each_once_an_epoch():
    key = jax.random.key_data(jax.random.key(3))
    tasks = [label_shuffling.draw_task(key, jnp.int32(number), 10, 40, 3) for number in (0, 1, 0)]
    for task in tasks:
        assert task.labels.min() >= 0
        assert task.labels.max() <= 9
        for epoch in task.order.reshape(3, 40):
            assert sorted(epoch.tolist()) == list(range(40))
    assert (tasks[0].labels != tasks[1].labels).mean() > 0.5
    assert not np.array_equal(tasks[0].order, tasks[1].order)
    chex.assert_trees_all_equal(tasks[0].labels, tasks[2].labels)
    images = label_shuffling.draw_images(key, 100, 40)
    assert len(set(images.tolist())) == 40


def test_a_run_is_that_of_a_plain_loop():
    """Two tasks of plain SGD, step by step, with the accuracy of each batch before its step."""
    experiment = label_shuffling.PROBLEM.experiment(SETTINGS)
    (run,) = experiment.runs
    images = experiment.data
    carry = run.start(jnp.int32(5), images)
    params = carry.training.params
    end, measures = jax.jit(run.chunk)(carry, images)
    x = jnp.asarray(images, jnp.float32)[label_shuffling.draw_images(carry.key, len(images), 24)] / 255
    apply = mlp.make((64, 6, 6, 10), "tanh").apply

    @jax.jit
    def step(params, x, y):
        def loss(params):
            logits = apply(params, x)
            return -jax.nn.log_softmax(logits)[jnp.arange(len(y)), y].mean(), logits

        grads, logits = jax.grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), (logits.argmax(-1) == y).mean()

    for number in (0, 1):
        task = label_shuffling.draw_task(carry.key, jnp.int32(number), 10, 24, 2)
        found = []
        for batch in task.order.reshape(-1, 4):
            params, right = step(params, x[batch], task.labels[batch])
            found.append(float(right))
        np.testing.assert_allclose(measures["accuracy"][number], np.mean(found), rtol=1e-6)
        memorised = (apply(params, x).argmax(-1) == task.labels).mean()
        np.testing.assert_allclose(measures["memorised"][number], memorised, rtol=1e-6)
    chex.assert_trees_all_close(end.training.params, params, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"examples": 26}, "examples must be a multiple of the batch of 4 and at most the 1497 images, got 26"),
        ({"examples": 8000}, "examples must be .* at most the 1497 images, got 8000"),
        ({"probe": 25}, "probe must be at most the 24 images, got 25"),
        ({"epochs": 0}, "epochs must be 1 or more, got 0"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        label_shuffling.PROBLEM.experiment(dataclasses.replace(SETTINGS, **change))
