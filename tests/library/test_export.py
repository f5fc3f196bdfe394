"""Steps lower for accelerators that this machine does not have: no host callback and no 64-bit value slips in."""

import re

import jax
import jax.export
import jax.numpy as jnp
import pytest

import gxd_jax as gxd
from tests.library.programs import (
    NETWORK,
    RESETTING,
    conv_scan,
    dense,
    enable_x64,
    loss,
    numbers,
    readout_of,
    resetting,
    step_of,
)


def lowered(function, *arguments):
    """Returns the text of a program lowered for both platforms."""
    return jax.export.export(jax.jit(function), platforms=("cuda", "tpu"))(*arguments).mlir_module()


def callbacks(text):
    return [target for target in re.findall(r"custom_call @(\w+)", text) if "callback" in target]


def values_of_64_bits(text):
    """Returns their types. Attributes are not values; unsigned numbers are the counters of JAX's random bits."""
    text = re.sub(r"dense<[^>]*> : tensor<[^>]*>(?= *[,}>])", "", text)
    return re.findall(r"tensor<(?:[0-9?]+x)*(?:i64|f64|complex<f64>)>", text)


def test_what_must_not_slip_in_would_be_seen():
    def calls_back(x):
        return jax.pure_callback(lambda x: x, x, x)

    assert callbacks(jax.jit(calls_back).lower(jnp.ones(3)).as_text())  # which is not exported at all
    with enable_x64(True):
        assert values_of_64_bits(lowered(lambda x: x + 1, jnp.ones(3, "float64")))
        assert values_of_64_bits(lowered(lambda x: x.argmax(), jnp.ones(3)))


@pytest.mark.parametrize("method", sorted(RESETTING))
def test_a_step(method):
    params, units = dense()
    tx = resetting(method, units)
    step = step_of(gxd.observe(NETWORK.apply, loss, units, readout=readout_of(method)), tx)
    text = lowered(step, params, tx.init(params), *numbers(), jax.random.key(1))
    assert not callbacks(text)
    assert not values_of_64_bits(text)


def test_a_task_loop_of_several_seeds():
    function, arguments = conv_scan()
    text = lowered(function, *arguments)
    assert "stablehlo.while" in text
    assert not callbacks(text)
    assert not values_of_64_bits(text)
