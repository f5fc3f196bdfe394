"""Checkpoints: damaged and foreign ones are refused, and what they keep comes back as it was."""

import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.running import checkpoints, folder, runner
from tests.benchmarks.resuming import StopError, stop_after
from tests.benchmarks.tiny import random_walks


def interrupted(tmp_path):
    experiment = random_walks()
    with pytest.raises(StopError):
        runner.run_experiment(experiment, tmp_path, on_chunk=stop_after(3))
    (checkpoint,) = (tmp_path / "runs").glob("*.checkpoint")
    return experiment, checkpoint


def test_damaged_checkpoint_is_refused(tmp_path):
    experiment, checkpoint = interrupted(tmp_path)
    for name in ("_CHECKPOINT_METADATA", "default/_METADATA", "default/manifest.ocdbt", "default/d/*"):
        (file,) = checkpoint.glob(f"*/{name}")
        good = file.read_bytes()
        flipped = bytearray(good)
        flipped[len(good) // 2] ^= 128
        for bad in (b"", good[: len(good) // 2], bytes(flipped)):
            file.write_bytes(bad)
            with pytest.raises(folder.RefusedError, match=f"{re.escape(str(checkpoint))} is damaged"):
                runner.run_experiment(experiment, tmp_path, resume=True)
        file.write_bytes(good)
    runner.run_experiment(experiment, tmp_path, resume=True)


def test_foreign_checkpoint_is_refused(tmp_path):
    experiment, checkpoint = interrupted(tmp_path / "mine")
    (tmp_path / "other").mkdir()
    other, others = random_walks(first_seed=9), tmp_path / "other"
    with pytest.raises(StopError):
        runner.run_experiment(other, others, on_chunk=stop_after(3))
    (theirs,) = (others / "runs").glob("*.checkpoint")
    shutil.rmtree(checkpoint)
    shutil.copytree(theirs, checkpoint)
    with pytest.raises(folder.RefusedError, match="another configuration"):
        runner.run_experiment(experiment, tmp_path / "mine", resume=True)


def test_checkpoint_keeps_keys_dtypes_and_sharding(tmp_path):
    mesh = jax.make_mesh((1,), ("seeds",))
    sharding = jax.NamedSharding(mesh, jax.P("seeds"))
    carry = {
        "key": jax.device_put(jax.random.split(jax.random.key(3), 2), sharding),
        "n": jnp.int32(4),
        "empty": jnp.zeros((0, 2)),
        "mask": jax.device_put(jnp.array([True, False]), sharding),
    }
    with checkpoints.open_manager(tmp_path / "c") as manager:
        checkpoints.save(manager, {"a": 1}, carry, {"error": np.ones((2, 3), np.float32)})
    with checkpoints.open_manager(tmp_path / "c") as manager:
        loaded, measures = checkpoints.load(manager, {"a": 1}, carry)
        for other in ({**carry, "n": jnp.float32(4)}, {**carry, "more": jnp.int32(4)}, {"n": carry["n"]}):
            with pytest.raises(folder.RefusedError, match="another configuration"):
                checkpoints.load(manager, {"a": 1}, other)
        with pytest.raises(folder.RefusedError, match="another configuration"):
            checkpoints.load(manager, {"a": 2}, carry)
    for name, leaf in carry.items():
        assert (loaded[name].dtype, loaded[name].sharding) == (leaf.dtype, leaf.sharding)
    np.testing.assert_array_equal(jax.random.key_data(loaded["key"]), jax.random.key_data(carry["key"]))
    for name in ("n", "empty", "mask"):
        np.testing.assert_array_equal(loaded[name], carry[name])
    np.testing.assert_array_equal(measures["error"], np.ones((2, 3), np.float32), strict=True)


def test_only_the_latest_checkpoint_is_kept(tmp_path):
    _, checkpoint = interrupted(tmp_path)
    assert [entry.name for entry in checkpoint.iterdir()] == ["3"]
