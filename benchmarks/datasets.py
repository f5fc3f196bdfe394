"""Image-classification sets as arrays on the host: scikit-learn's digits, or any set of tensorflow-datasets.

A set is read whole, once, before the first step. Of tensorflow-datasets (TFDS) only its readers are used, which need
neither TensorFlow nor a network; preparing a set that is not on the disk yet needs both.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib.util
import io
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.running.folder import RefusedError

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

_DIGITS_MAX = 16
"""Brightest pixel of scikit-learn's digits."""
_DIGITS_TEST = 30
"""Test images of each digit, of the 174 or more that there are."""
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Channels -> what Pillow calls such an image of bytes."""
_READ_AT_ONCE = 1000
"""Examples between two movements of the progress bar."""
_TO_PREPARE = ("tensorflow", "importlib_resources")
"""What TFDS imports to prepare a set without naming it as its requirement; module and package have the same name."""
_PATIENCE_SECONDS = 10.0
"""How long a server may take to answer before it counts as out of reach."""


class Images(NamedTuple):
    """An image-classification set.

    Attributes:
        name: The set and its version, as `load` accepts it ("mnist:3.0.1"); "digits" for the embedded one.
        digest: Checksum of all arrays. With the name it tells an experiment's configuration which data were used.
        classes: Number of classes.
        images: Training images, uint8 [N, H, W, C] over the range 0..255.
        labels: Their classes, int32 [N].
        test_images: Held-out images, uint8 [M, H, W, C].
        test_labels: Their classes, int32 [M].
    """

    name: str
    digest: str
    classes: int
    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(tfds_name: str | None, data_dir: Path | None, console: Console) -> Images:
    """Reads a set.

    Args:
        tfds_name: A set of TFDS, name[/config][:version], registered or only prepared in the folder; None: digits.
        data_dir: The folder with the prepared sets of TFDS; None for TFDS's own choice, ~/tensorflow_datasets.
        console: Where the progress is shown.

    Raises:
        RefusedError: If the set is unknown, cannot be had here, or is not one of images of one size with a class each;
            if there is a folder and no name.
    """
    if tfds_name is None and data_dir is not None:
        raise RefusedError(f"data_dir is of --tfds: name a set with it, got --data-dir {data_dir} only")
    try:
        return _digits() if tfds_name is None else _from_tfds(tfds_name, data_dir, console)
    except ImportError as error:
        name = tfds_name or "digits"
        raise RefusedError(
            f'{name} needs {error.name}; what most sets need comes with pip install "gxd_jax[experiments]"'
        ) from error


def _digits() -> Images:
    from sklearn.datasets import load_digits  # takes a second to import

    digits = load_digits()
    images = np.round(digits.images[..., None] * (255 / _DIGITS_MAX)).astype(np.uint8)
    labels = digits.target.astype(np.int32)
    # The last images of each digit: neighbours come from the same writer, so a random choice would be an easier test.
    held_out = np.zeros(len(labels), bool)
    for digit in range(10):
        held_out[np.flatnonzero(labels == digit)[-_DIGITS_TEST:]] = True
    return _with_digest("digits", 10, images[~held_out], labels[~held_out], images[held_out], labels[held_out])


def _with_digest(name: str, classes: int, *arrays: np.ndarray) -> Images:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array)
    return Images(name, digest.hexdigest()[:16], classes, *arrays)


# --- tensorflow-datasets -------------------------------------------------------------------------------------------


def _from_tfds(name: str, data_dir: Path | None, console: Console) -> Images:
    with _refusal(f"cannot open {name}"):
        builder = _open(name, data_dir)
    if not builder.data_path.exists():
        _prepare(builder)
    info = builder.info
    image, label = _image_and_label(info)
    train, test = "train", "test" if "test" in info.splits else "validation"
    if not {train, test} <= set(info.splits):
        raise RefusedError(f'{name} needs the splits "train" and "test" or "validation", it has {sorted(info.splits)}')
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    with bar, _refusal(f"cannot read {name} in {builder.data_dir}"):
        arrays = [array for split in (train, test) for array in _read(builder, split, image, label, bar)]
    if arrays[0].shape[1:] != arrays[2].shape[1:]:
        raise _different_sizes(name, arrays[0][0], arrays[2][0])
    return _with_digest(_spelled(info), info.features[label].num_classes, *arrays)


@contextlib.contextmanager
def _refusal(what: str) -> Iterator[None]:
    """Turns what TFDS and the readers below it raise, which is of no common type, into one line."""
    try:
        yield
    except (RefusedError, ImportError):
        raise
    except Exception as error:
        raise RefusedError(f"{what}: {textwrap.shorten(str(error), 900)}") from error


def _open(name: str, data_dir: Path | None) -> tfds.core.DatasetBuilder:
    import tensorflow_datasets as tfds  # takes half a second to import

    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        known = set(tfds.list_builders(with_community_datasets=False))
        if data_dir is not None and data_dir.is_dir():
            known |= {entry.name for entry in data_dir.iterdir() if entry.is_dir()}
        close = difflib.get_close_matches(re.split("[/:]", name)[0], sorted(known))
        hint = f"did you mean {' or '.join(close)}?" if close else "--data-dir says where your own sets are"
        raise RefusedError(f"tensorflow-datasets knows no {name}: {hint}") from error


def _prepare(builder: tfds.core.DatasetBuilder) -> None:
    """Downloads a set and writes it where the builder will read it."""
    absent = f"{_spelled(builder.info)} is not prepared in {builder.data_dir}"
    missing = [module for module in _TO_PREPARE if importlib.util.find_spec(module) is None]
    if missing:
        raise RefusedError(f"{absent}: pip install {' '.join(missing)} to prepare it, or choose another --data-dir")
    # Left alone, TFDS tries for minutes.
    servers = {urlsplit(url).netloc: url for url in builder.url_infos or () if url.startswith("http")}
    if servers and not any(_answers(url) for url in servers.values()):
        raise RefusedError(f"{absent}, and {' and '.join(servers)} cannot be reached: choose another --data-dir")
    import tensorflow

    tensorflow.config.set_visible_devices([], "GPU")  # their memory is JAX's
    with _refusal(f"{absent}, and preparing it failed"):
        builder.download_and_prepare(file_format="array_record")


def _answers(url: str) -> bool:
    import requests  # as TFDS does: the same proxies and certificates

    try:
        requests.get(url, stream=True, timeout=_PATIENCE_SECONDS).close()
    except (requests.ConnectionError, requests.Timeout):
        return False
    return True


def _spelled(info: tfds.core.DatasetInfo) -> str:
    """Returns the name by which `load` finds exactly this set again."""
    name, _, version = info.full_name.rpartition("/")
    return f"{name}:{version}"


def _image_and_label(info: tfds.core.DatasetInfo) -> tuple[str, str]:
    """Returns the names of the features: those that TFDS calls supervised, else the only ones of their kinds."""
    import tensorflow_datasets as tfds

    features = dict(info.features.items()) if isinstance(info.features, tfds.features.FeaturesDict) else {}
    images = [name for name, feature in features.items() if _is_image(feature, tfds.features.Image)]
    labels = [name for name, feature in features.items() if isinstance(feature, tfds.features.ClassLabel)]
    pairs = [(image, label) for image in images for label in labels]
    if info.supervised_keys in pairs:
        return info.supervised_keys
    if len(pairs) != 1:
        raise RefusedError(
            f"{info.name} is no image-classification set: it should have one image of bytes and one class label, "
            f"its features are {', '.join(sorted(features))}"
        )
    return pairs[0]


def _is_image(feature: tfds.features.FeatureConnector, kind: type) -> bool:
    return isinstance(feature, kind) and feature.np_dtype == np.uint8 and feature.shape[-1] in _MODES


def _read(
    builder: tfds.core.DatasetBuilder, split: str, image: str, label: str, bar: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images and labels of a split."""
    import tensorflow_datasets as tfds
    from PIL import Image

    features = builder.info.features
    mode = _MODES[features[image].shape[-1]]
    # TFDS would decode with OpenCV where that is installed, whose JPEG images differ a little: Pillow everywhere.
    source = builder.as_data_source(split, decoders={image: tfds.decode.SkipDecoding()})

    def examples() -> Iterator[tuple[np.ndarray, int]]:
        task = bar.add_task(f"{builder.name} {split}", total=len(source))
        for start in range(0, len(source), _READ_AT_ONCE):
            places = list(range(start, min(start + _READ_AT_ONCE, len(source))))
            for example in source.__getitems__(places):
                pixels = np.asarray(Image.open(io.BytesIO(example[image])).convert(mode))
                yield pixels.reshape(*pixels.shape[:2], -1), example[label]
            bar.advance(task, len(places))

    images, labels = None, np.empty(len(source), np.int32)
    for place, (pixels, number) in enumerate(examples()):
        if images is None:
            images = np.empty((len(source), *pixels.shape), np.uint8)
        if pixels.shape != images.shape[1:]:
            raise _different_sizes(builder.name, pixels, images[0])
        images[place], labels[place] = pixels, number
    if images is None or labels.min() < 0:
        raise RefusedError(f"{builder.name} has no labels in its split {split}")
    return images, labels


def _different_sizes(name: str, *images: np.ndarray) -> RefusedError:
    sizes = " and ".join("x".join(map(str, image.shape)) for image in images)
    return RefusedError(f"{name} has images of different sizes, {sizes}: choose a set of one size")
