"""Small experiments that several tests share."""

import dataclasses

import jax
import jax.numpy as jnp

from benchmarks.experiment import Run
from benchmarks.problems import slowly_changing_regression as regression

TINY = regression.Settings(
    scale="smoke", seeds=2, examples=480, bin=80, flip_every=80, method=("backprop", "gxd"), devices=1
)


def tiny(**changes):
    return regression.PROBLEM.experiment(dataclasses.replace(TINY, **changes))


def random_walks(**changes):
    """An experiment of the tiny one's shape that compiles in a moment: two random walks a seed."""

    def start(seed, data):
        del data
        return jax.random.key(seed), jnp.float32(0)

    def chunk(carry, data):
        del data
        key, place = carry
        key, step_key = jax.random.split(key)
        place += jax.random.normal(step_key)
        return (key, place), {"error": place, "replaced": jnp.int32(1)}

    runs = [Run({"method": name}, start, chunk) for name in ("first", "second")]
    return tiny(**changes)._replace(runs=runs)
