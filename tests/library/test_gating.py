"""Gated work: skipped where no replica needs it, alone and under vmap, nested vmap included."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gxd_jax.resets.gating import known_after, run_if


def counted(values, wanted):
    """Adds 1 where wanted; the work counts how often it really runs."""
    runs = []

    def work(values, wanted):
        jax.debug.callback(lambda: runs.append(1))
        return jnp.where(wanted, values + 1, values)

    def gated(values, wanted):
        return run_if(wanted, work, lambda values, wanted: values, values, wanted)

    for _ in range(jnp.ndim(wanted)):
        gated = jax.vmap(gated)
    result = jax.jit(gated)(values, wanted)
    jax.effects_barrier()
    return np.asarray(result).tolist(), len(runs) > 0


def test_alone():
    assert counted(jnp.float32(3), jnp.array(True)) == (4.0, True)
    assert counted(jnp.float32(3), jnp.array(False)) == (3.0, False)


def test_over_replicas_the_work_is_skipped_only_if_no_replica_needs_it():
    values = jnp.arange(3.0)
    assert counted(values, jnp.array([False, True, False])) == ([0.0, 2.0, 2.0], True)
    assert counted(values, jnp.zeros(3, bool)) == ([0.0, 1.0, 2.0], False)


def test_nested_replicas():
    values = jnp.zeros((2, 2))
    assert counted(values, jnp.array([[False, False], [True, False]])) == ([[0.0, 0.0], [1.0, 0.0]], True)
    assert counted(values, jnp.zeros((2, 2), bool)) == ([[0.0, 0.0], [0.0, 0.0]], False)


def test_operands_that_are_not_batched_are_shared():
    result = jax.vmap(
        lambda wanted: run_if(wanted, lambda a: a * 2, lambda a: a, jnp.float32(5)),
    )(jnp.array([False, False]))
    assert result.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("values", [jnp.nan, -jnp.inf, -3, True, 1j, jnp.bfloat16(-2)])
def test_flags_are_known_after_any_values(values):
    flags = {"a": jnp.array([True, False]), "b": jnp.array(True)}
    arrays = [jnp.full((2, 3), values), jnp.array(values), jnp.zeros((0, 4))]
    found = jax.jit(known_after)(flags, arrays)
    chex.assert_trees_all_equal(found, flags)
