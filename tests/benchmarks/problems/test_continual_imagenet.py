"""Continual ImageNet: its tasks, and what is refused."""

import dataclasses

import jax
import numpy as np
import pytest

from benchmarks.datasets import Images
from benchmarks.problems import continual_imagenet

PAIRS = continual_imagenet.Settings(scale="smoke", method=("backprop",), devices=1)


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
        continual_imagenet.PROBLEM.experiment(dataclasses.replace(PAIRS, **changes))


def test_digits_have_a_step_size_that_they_stand():
    experiment = continual_imagenet.PROBLEM.experiment(continual_imagenet.Settings(devices=1))
    assert experiment.config["settings"]["step_size"] == [0.02]
