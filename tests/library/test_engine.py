"""The engine's contract with the author of a rule."""

import jax.numpy as jnp
import pytest

import gxd_jax as gxd
from gxd_jax.resets.engine import unit_resets
from gxd_jax.resets.rules import Candidates, Rule
from tests.networks import one_hidden_layer, zeros_like


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (jnp.zeros((), jnp.bfloat16), "'l1/memory': types: bfloat16 != float32"),
        (jnp.zeros(2), r"'l1/memory': shapes: \(2,\) != \(\)"),
    ],
)
def test_a_memory_that_changes_is_refused_where_it_changes(memory, message):
    params, units = one_hidden_layer(3)

    def choose(before, step):
        del before
        return Candidates(step.utility, jnp.ones(3, bool), jnp.int32(0)), memory

    tx = unit_resets(
        units,
        Rule(init=lambda size: jnp.zeros(()), choose=choose, most=lambda size: 1),
        utility=gxd.utilities.activation,
        decay=0.9,
        kernel_init=None,
        compensate=True,
        axis_name=None,
        key=0,
    )
    observation = gxd.Observation({"l1": jnp.ones((2, 3))})
    with pytest.raises(AssertionError, match=message):
        tx.update(zeros_like(params), tx.init(params), params, observation=observation)
