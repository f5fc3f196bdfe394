"""The experiments on images: their tasks, what they measure, and the table of methods on their networks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from benchmarks import classification, continual_imagenet, convnet, learners, methods, permuted_mnist
from benchmarks.datasets import Images
from benchmarks.experiment import fill_in
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
PAIRS = continual_imagenet.Settings(scale="smoke", method=("backprop",), devices=1)


def filled(settings):
    return fill_in(settings, permuted_mnist.SCALES)


# --- Online permuted MNIST -----------------------------------------------------------------------------------------


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
        permuted_mnist.make_experiment(dataclasses.replace(PERMUTED, permutations=0))


def test_every_method_can_have_a_normalised_network():
    settings = dataclasses.replace(PERMUTED, method=("backprop", "layer_norm", "batch_norm"), normalization="layer")
    plain, layer, batch = (run.start(jnp.int32(0), ()) for run in permuted_mnist.make_experiment(settings).runs)
    assert "hidden_1_norm" in plain.learner.params
    jax.tree.map(np.testing.assert_array_equal, plain.learner.params, layer.learner.params)
    jax.tree.map(np.testing.assert_array_equal, plain.learner.params, batch.learner.params)
    alone = dataclasses.replace(settings, method=("backprop",), normalization="batch", batch=1)
    with pytest.raises(ValueError, match="batch norm needs a batch of 2 or more, got 1"):
        permuted_mnist.make_experiment(alone)


def test_online_accuracy_by_hand():
    experiment = permuted_mnist.make_experiment(dataclasses.replace(PERMUTED, tasks_per_chunk=2))
    run, (images, labels) = experiment.runs[0], experiment.data
    carry = run.start(jnp.int32(5), ())
    end, measures = jax.jit(run.chunk)(carry, (jnp.asarray(images), jnp.asarray(labels)))
    apply = learners.make_apply((64, 6, 6, 10), "tanh")
    gradient = jax.jit(jax.grad(lambda params, x, y: learners.cross_entropy(apply(params, x), y)))
    params, found = carry.learner.params, []
    for number in range(2):
        task, right = permuted_mnist.draw_task(carry.key, jnp.int32(number), 64, len(labels), 24), []
        for place in range(0, 24, 4):
            numbers = np.asarray(task.order[place : place + 4])
            x, y = images[numbers][:, task.permutation] / np.float32(255), labels[numbers]
            right.append((apply(params, x).argmax(1) == y).mean())  # before the step
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient(params, x, y))
        found.append(np.mean(right))
    np.testing.assert_allclose(measures["accuracy"], found, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), end.learner.params, params)
    assert int(end.task) == 2


@pytest.mark.slow
def test_interrupted_run_of_several_tasks_a_chunk_resumes_to_the_same_bits(tmp_path):
    settings = {"method": ("gxd",), "layers": 1, "replacement_rate": (0.05,), "maturity_threshold": 3}
    experiment = permuted_mnist.make_experiment(dataclasses.replace(PERMUTED, **settings, tasks_per_chunk=2))
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
        permuted_mnist.make_experiment(dataclasses.replace(PERMUTED, **changes))


# --- Continual ImageNet --------------------------------------------------------------------------------------------


def test_images_are_sorted_by_class_and_enlarged():
    labels = np.array([1, 0, 1, 0, 1], np.int32)
    pixels = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, 16, 16, 1), np.uint8)
    images = Images("two", "0", 2, pixels, labels, pixels, labels)
    classes = continual_imagenet.by_class(images, 2, 1)
    assert classes.train.shape == (2, 2, 32, 32, 1)
    np.testing.assert_array_equal(classes.train[..., 0, 0, 0], [[1, 3], [0, 2]])
    np.testing.assert_array_equal(classes.test[..., 31, 31, 0], [[1], [0]])
    with pytest.raises(ValueError, match="train_images must lie between 1 and 2, the images that every class has"):
        continual_imagenet.by_class(images, 3, 1)


def test_pairs_are_of_different_classes_and_cover_them():
    pairs = np.asarray(
        jax.vmap(lambda key: continual_imagenet.draw_pair(key, 5))(jax.random.split(jax.random.key(0), 99))
    )
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert set(pairs.ravel().tolist()) == set(range(5))


def test_network_equals_real_convolutions():
    params = convnet.init(jax.random.key(0), (32, 32, 3), "relu", outputs=2)
    images = jax.random.normal(jax.random.key(1), (2, 32, 32, 3))
    x = images
    for name in ("conv_1", "conv_2", "conv_3"):
        kernel, bias = params[name]["kernel"], params[name]["bias"]
        dimensions = ("NHWC", "HWIO", "NHWC")
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=dimensions) + bias)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(2, -1)
    for name in ("dense_1", "dense_2"):
        x = jax.nn.relu(x @ params[name]["kernel"] + params[name]["bias"])
    expected = x @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(convnet.make_apply("relu")(params, images), expected, rtol=1e-4, atol=1e-5)
    assert [layer.size for layer in convnet.hidden_layers(params)] == [32, 64, 128, 128, 128]


def test_head_starts_from_zeros_with_fresh_moments():
    init, units = mlp("none")
    network = classification.Network(init, learners.make_apply((8, 6, 5, 3), "relu"), units)
    learner = classification.make_learner(
        network,
        methods.METHODS["backprop"],
        {},
        filled(PERMUTED),
        {"activation": "relu", "optimizer": "momentum", "step_size": 0.1},
    )
    state, _ = learner.step(learner.start(jax.random.key(0)), (jnp.ones((4, 8)), None), jnp.arange(4) % 3)
    reset, kept = learner.reset_head(state), learner.reset_head(state, moments=False)
    for after in (reset, kept):
        assert not any(leaf.any() for leaf in jax.tree.leaves(after.params["output"]))
        np.testing.assert_array_equal(after.params["hidden_1"]["kernel"], state.params["hidden_1"]["kernel"])
    moments = [optax.tree.get(s.opt_state, "trace") for s in (state, reset, kept)]
    assert moments[0]["output"]["kernel"].any() and not moments[1]["output"]["kernel"].any()
    np.testing.assert_array_equal(moments[1]["hidden_1"]["kernel"], moments[0]["hidden_1"]["kernel"])
    np.testing.assert_array_equal(moments[2]["output"]["kernel"], moments[0]["output"]["kernel"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 7}, "batch must divide the 20 training images of a task, got 7"),
        ({"epochs": 0}, "epochs must be 1 or more, got 0"),
        ({"probe": 21}, "probe must be at most the 20 training images of a task, got 21"),
        ({"test_images": 31}, "test_images must lie between 1 and 30"),
    ],
)
def test_impossible_continual_imagenet_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        continual_imagenet.make_experiment(dataclasses.replace(PAIRS, **changes))


# --- The table of methods ------------------------------------------------------------------------------------------


def mlp(normalization):
    sizes = (8, 6, 5, 3)

    def init(key):
        return learners.init(key, sizes, "relu", normalization=normalization)

    apply = learners.make_apply(sizes, "relu", normalization=normalization)
    return init, gxd.find_units(lambda p, x: apply(p, x), init(jax.random.key(0)), jnp.zeros((2, 8)))


@pytest.mark.parametrize("name", classification.METHODS)
def test_every_row_of_the_table_can_learn(name):
    method, settings = methods.METHODS[name], filled(PERMUTED)
    setting = next(methods.settings_of(method, settings))
    init, units = mlp(method.normalization)
    apply = learners.make_apply(
        (8, 6, 5, 3), "relu", normalization=method.normalization, dropout=setting.get("dropout", 0.0)
    )
    learner = classification.make_learner(
        classification.Network(init, apply, units),
        method,
        setting,
        settings,
        {"activation": "relu", "optimizer": "adam", "step_size": 0.01},
    )
    state = jax.eval_shape(learner.start, jax.random.key(0))
    inputs = jax.ShapeDtypeStruct((4, 8), jnp.float32), jax.eval_shape(lambda: jax.random.key(0))
    after, (loss, logits) = jax.eval_shape(learner.step, state, inputs, jax.ShapeDtypeStruct((4,), jnp.int32))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), state
    )
    assert loss.shape == ()
    assert logits.shape == (4, 3)
    found = jax.eval_shape(learner.diagnose, state, inputs[0])
    assert set(found) == set(classification.DIAGNOSTICS)
    assert all(value.shape == () for value in found.values())


@pytest.mark.parametrize("normalization", ["layer", "batch"])
def test_norms_by_hand(normalization):
    params = learners.init(jax.random.key(0), (4, 3, 2), "tanh", normalization=normalization)
    params["hidden_1_norm"]["scale"] *= 2
    x = np.asarray(jax.random.normal(jax.random.key(1), (5, 4)))
    drive = x @ params["hidden_1"]["kernel"]
    axis = {"layer": 1, "batch": 0}[normalization]
    drive = (drive - drive.mean(axis, keepdims=True)) / np.sqrt(drive.var(axis, keepdims=True) + 1e-5)
    expected = np.tanh(2 * drive) @ params["output"]["kernel"]
    outputs = learners.make_apply((4, 3, 2), "tanh", normalization=normalization)(params, x)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_dropout_leaves_out_a_share_and_keeps_the_mean():
    dropped = learners.drop(jnp.ones((100, 100)), 0.25, jax.random.key(0))
    assert set(np.unique(dropped).round(4)) == {0.0, np.float32(4 / 3).round(4)}
    assert abs(float((dropped == 0).mean()) - 0.25) < 0.02
    apply, params = (
        learners.make_apply((4, 3, 2), "tanh", dropout=0.5),
        learners.init(jax.random.key(0), (4, 3, 2), "tanh"),
    )
    plain = learners.make_apply((4, 3, 2), "tanh")(params, jnp.ones((2, 4)))
    np.testing.assert_array_equal(apply(params, jnp.ones((2, 4))), plain)
    assert not np.array_equal(apply(params, jnp.ones((2, 4)), jax.random.key(1)), plain)


def test_digits_have_a_step_size_that_they_stand():
    experiment = continual_imagenet.make_experiment(continual_imagenet.Settings(devices=1))
    assert experiment.config["settings"]["step_size"] == [0.02]
