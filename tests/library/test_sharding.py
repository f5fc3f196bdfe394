"""Training on many devices makes the same resets and the same weights as on one."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

WAYS = ("batch", "params", "shard_map", "replicas")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What `sharded_training` finds, in a process of its own with eight devices: arrays by way and name."""
    file = tmp_path_factory.mktemp("sharded") / "found.npz"
    root = Path(__file__).parents[2]
    # More threads than devices: a running device holds one and waits for others (see benchmarks.experiment).
    environment = os.environ | {"PYTHONPATH": str(root), "JAX_NUM_CPU_DEVICES": "8", "PJRT_NPROC": "16"}
    subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.library.sharded_training", str(file)],
        cwd=root,
        env=environment,
        check=True,
    )
    arrays = np.load(file)
    ways = {}
    for name in arrays.files:
        way, key = name.split("[", 1)
        ways.setdefault(way, {})[key] = arrays[name]
    return ways


@pytest.mark.parametrize(
    ("way", "one"), [*((way, "one") for way in WAYS), ("weights", "one_weights"), ("many", "one_many")]
)
def test_sharded_training_is_that_of_one_device(found, way, one):
    """The same units, to the bit; the same weights, but for the order of sums over the batch."""
    assert found[way].keys() == found[one].keys()
    for key, values in found[one].items():
        if key.startswith("'params'"):
            np.testing.assert_allclose(found[way][key], values, rtol=1e-3, atol=1e-5, err_msg=key)
        else:
            np.testing.assert_array_equal(found[way][key], values, err_msg=key)
    replaced = [values.sum() for key, values in found[one].items() if key.startswith("'replaced'")]
    assert min(replaced) >= 8, "every layer had resets to agree about"


def test_seeds_on_many_devices(found):
    assert len(np.unique(found["seeds"]["'params']['l1']['kernel']"], axis=0)) == 16, "the seeds differ"
    for key, values in found["seeds"].items():
        if key.startswith("'params'"):
            np.testing.assert_allclose(found["sharded_seeds"][key], values, rtol=1e-3, atol=1e-5, err_msg=key)
        else:
            np.testing.assert_array_equal(found["sharded_seeds"][key], values, err_msg=key)
