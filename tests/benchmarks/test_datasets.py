"""The image sets: what the digits are, sets of tensorflow-datasets that the tests write themselves, and refusals."""

import io
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from rich.console import Console

from benchmarks import datasets
from benchmarks.running.folder import RefusedError

KINDS = tfds.features
COLOURED = {"image": KINDS.Image(shape=(4, 5, 3)), "label": KINDS.ClassLabel(num_classes=3)}
GREY = {"image": KINDS.Image(shape=(None, None, 1)), "label": KINDS.ClassLabel(num_classes=3)}


def load(name, data_dir=None):
    return datasets.load(name, data_dir, Console(file=io.StringIO()))


def drawn(examples, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (examples, *shape), np.uint8)


def write_set(folder, features, splits, supervised=(), file_format="array_record"):
    """Writes a set called "own" as TFDS prepares them, without its builder and TensorFlow.

    `features` are by name; `splits` are lists of examples by name of the split.
    """
    features, place = KINDS.FeaturesDict(features), folder / "own" / "1.0.0"
    place.mkdir(parents=True)
    features.save_config(place)
    infos = []
    for split, examples in splits.items():
        records = [features.serialize_example(features.encode_example(example)) for example in examples]
        writer = ArrayRecordWriter(str(place / f"own-{split}.{file_format}-00000-of-00001"), "group_size:1")
        for record in records:
            writer.write(record)
        writer.close()
        infos.append(
            {
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "name": split,
                "numBytes": str(sum(map(len, records))),
                "shardLengths": [str(len(records))],
            }
        )
    info = {"name": "own", "version": "1.0.0", "moduleName": "own", "fileFormat": file_format, "splits": infos}
    if supervised:
        info["supervisedKeys"] = {"tuple": {"items": [{"featureKey": key} for key in supervised]}}
    (place / "dataset_info.json").write_text(json.dumps(info))
    return folder


def labelled(images, labels, **more):
    return [
        {"image": Image.fromarray(image), "label": label, **more} for image, label in zip(images, labels, strict=True)
    ]


# --- What is read --------------------------------------------------------------------------------------------------


def test_digits():
    digits = load(None)
    assert (digits.name, digits.classes, digits.images.dtype, digits.labels.dtype) == ("digits", 10, "uint8", "int32")
    assert (digits.images.shape, digits.test_images.shape) == ((1497, 8, 8, 1), (300, 8, 8, 1))
    np.testing.assert_array_equal(np.bincount(digits.test_labels), 30)
    np.testing.assert_array_equal(
        np.bincount(digits.labels), np.array([178, 182, 177, 183, 181, 182, 181, 179, 174, 180]) - 30
    )
    # The set begins with a zero whose first row is 0, 0, 5, 13, 9, 1, 0, 0 of 16.
    assert digits.labels[0] == 0
    np.testing.assert_array_equal(digits.images[0, 0, :, 0], [0, 0, 80, 207, 143, 16, 0, 0])
    assert digits.images.max() == 255
    assert digits.digest == load(None).digest


def test_set_of_tfds(tmp_path):
    images, test_images = drawn(2500, 4, 5, 3), drawn(3, 4, 5, 3, seed=1)
    labels = np.arange(2500) % 3
    write_set(tmp_path, COLOURED, {"train": labelled(images, labels), "test": labelled(test_images, [2, 0, 1])})
    own = load("own", tmp_path)
    assert (own.name, own.classes, own.images.dtype, own.labels.dtype) == ("own:1.0.0", 3, "uint8", "int32")
    np.testing.assert_array_equal(own.images, images)
    np.testing.assert_array_equal(own.labels, labels)
    np.testing.assert_array_equal(own.test_images, test_images)
    np.testing.assert_array_equal(own.test_labels, [2, 0, 1])
    assert load("own:1.0.0", tmp_path).digest == own.digest


def test_grey_images_are_told_by_supervised_keys_and_validation_is_held_out(tmp_path):
    features = {**GREY, "mask": KINDS.Image(shape=(2, 2, 1)), "coarse": KINDS.ClassLabel(num_classes=2)}
    images = drawn(4, 4, 5)
    examples = labelled(images, [0, 1, 2, 2], mask=Image.fromarray(images[0, :2, :2]), coarse=1)
    splits = {"train": examples[:2], "validation": examples[2:], "more": examples[:1]}
    own = load("own", write_set(tmp_path, features, splits, supervised=("image", "label")))
    np.testing.assert_array_equal(own.images[..., 0], images[:2])
    np.testing.assert_array_equal(own.test_images[..., 0], images[2:])
    np.testing.assert_array_equal(own.test_labels, [2, 2])


@pytest.mark.parametrize("part", ["image", "label", "test image", "test label"])
def test_digest_tells_data_apart(tmp_path, part):
    images, labels = drawn(4, 4, 5), [0, 1, 2, 2]
    digests = []
    for change in (False, True):
        if change and "label" in part:
            labels[3 if "test" in part else 0] = 1
        elif change:
            images[3 if "test" in part else 0, 0, 0] ^= 1
        examples = labelled(images, labels)
        splits = {"train": examples[:2], "test": examples[2:]}
        digests.append(load("own", write_set(tmp_path / str(change), GREY, splits)).digest)
    assert digests[0] != digests[1]


@pytest.mark.skipif("GXD_TFDS_DIR" not in os.environ, reason="GXD_TFDS_DIR names a folder of prepared sets")
def test_mnist():
    mnist = load("mnist", Path(os.environ["GXD_TFDS_DIR"]))
    np.testing.assert_array_equal(
        np.bincount(mnist.test_labels), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    )
    assert (mnist.images.shape, mnist.classes) == ((60_000, 28, 28, 1), 10)
    # The set's mean intensity is known: 0.1307 of 1.
    assert mnist.images.mean() / 255 == pytest.approx(0.1307, abs=5e-5)


# --- What is refused -----------------------------------------------------------------------------------------------


def refusal(name, data_dir):
    with pytest.raises(RefusedError) as caught:
        load(name, data_dir)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_unknown_name_is_refused_with_close_ones(tmp_path):
    (tmp_path / "mnist_of_mine").mkdir()
    assert "did you mean mnist or" in refusal("mnistt", tmp_path)
    assert "mnist_of_mine" in refusal("mnist_of_min", tmp_path)
    assert "--data-dir" in refusal("no_such_set", tmp_path / "absent")
    assert "32x32" in refusal("imagenet_resized/33x33", tmp_path)
    assert "only: 3.0.1" in refusal("mnist:9.9.9", tmp_path)
    assert "format" in refusal("a b", tmp_path)


def test_unprepared_set_without_tensorflow_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_TO_PREPARE", ("json", "no_such_module"))
    message = refusal("mnist", tmp_path)
    assert f"mnist:3.0.1 is not prepared in {tmp_path}" in message
    assert "pip install no_such_module to prepare it" in message
    assert not list(tmp_path.iterdir())


def test_unprepared_set_without_network_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_TO_PREPARE", ())
    info = SimpleNamespace(full_name="own/1.0.0")
    nobody = {"http://127.0.0.1:9/a": None, "http://127.0.0.1:9/b": None}  # the port of "discard"
    with pytest.raises(RefusedError, match=re.escape("own:1.0.0 is not prepared in here, and 127.0.0.1:9 cannot be")):
        datasets._prepare(SimpleNamespace(info=info, data_dir="here", url_infos=nobody))


def test_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    assert re.search(r'tensorflow_datasets.*pip install "gxd_jax\[experiments\]"', refusal("mnist", tmp_path))


def test_images_of_different_sizes_are_refused(tmp_path):
    small, large = labelled(drawn(2, 4, 5), [0, 1]), labelled(drawn(2, 4, 6), [0, 1])
    write_set(tmp_path / "within", GREY, {"train": small + large, "test": small})
    write_set(tmp_path / "between", GREY, {"train": small, "test": large})
    for folder in ("within", "between"):
        message = refusal("own", tmp_path / folder)
        assert "different sizes" in message
        assert "4x5x1" in message
        assert "4x6x1" in message


def test_other_than_images_with_classes_is_refused(tmp_path):
    images = drawn(1, 4, 5)
    unlabelled = {"image": KINDS.Image(shape=(4, 5, 1)), "number": KINDS.Scalar(np.int64)}
    write_set(tmp_path / "a", unlabelled, {"train": [{"image": Image.fromarray(images[0]), "number": 3}]})
    assert "image, number" in refusal("own", tmp_path / "a")
    two_labels = {**GREY, "coarse": KINDS.ClassLabel(num_classes=2)}
    write_set(tmp_path / "b", two_labels, {"train": labelled(images, [0], coarse=1)})
    assert "coarse, image, label" in refusal("own", tmp_path / "b")
    write_set(tmp_path / "c", GREY, {"train": labelled(images, [0])})
    assert '"test" or "validation", it has [\'train\']' in refusal("own", tmp_path / "c")
    write_set(tmp_path / "d", GREY, {"train": labelled(images, [0]), "test": labelled(images, [-1])})
    assert "no labels in its split test" in refusal("own", tmp_path / "d")


def test_unreadable_set_is_refused(tmp_path):
    splits = {name: labelled(drawn(50, 4, 5), [0] * 50) for name in ("train", "test")}
    write_set(tmp_path / "other", GREY, splits, file_format="tfrecord")
    assert "TFRECORD is not supported" in refusal("own", tmp_path / "other")
    for name, content in (("own-train.array_record-00000-of-00001", b"?"), ("dataset_info.json", b"{")):
        write_set(tmp_path / name, GREY, splits)
        (tmp_path / name / "own" / "1.0.0" / name).write_bytes(content)
        assert re.match("cannot (read|open) own", refusal("own", tmp_path / name))
