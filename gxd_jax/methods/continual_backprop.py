"""Continual backprop: at each step the few least useful hidden units that are old enough are re-initialised."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import optax
from jax.core import Tracer

from gxd_jax.checks import check_flag, check_number
from gxd_jax.keys import KeyLike
from gxd_jax.resets import selection, statistics
from gxd_jax.resets.engine import unit_resets
from gxd_jax.resets.initializers import KernelInit
from gxd_jax.resets.rules import Candidates, Rule
from gxd_jax.resets.state import ResettingState
from gxd_jax.utilities import Utility, resolve_utility
from gxd_jax.wiring.layers import UnitLayer

ContinualBackpropState = ResettingState
"""State of `continual_backprop`, which keeps what every resetting method keeps."""


def continual_backprop(
    units: Sequence[UnitLayer],
    *,
    utility: str | Utility = "gxd",
    replacement_rate: float = 1e-4,
    maturity_threshold: float = 100,
    decay: float = 0.99,
    kernel_init: KernelInit = None,
    compensate: bool = True,
    accumulate: bool = True,
    axis_name: str | None = None,
    key: KeyLike = 0,
) -> optax.GradientTransformationExtraArgs:
    """Re-initialises, at each step, the few least useful hidden units that are old enough.

    Goes after the optimizer, best as the last member of `gxd_jax.chain`, which also clears the optimizer's moments of
    the replaced units; in plain `optax.chain` it cannot. `update` needs `params` and the keyword `observation`.

    A reset is an update: `optax.apply_updates` gives exact zeros, and fresh weights exact to one rounding of the old
    value. It cannot turn a parameter that is NaN or infinite into a number; `gxd_jax.apply_updates` can. The updates of
    parameters of less than 32 bits are float32. Compensation keeps the mean input of the consumers where every position
    reads the unit: it is exact for dense layers, approximate at the borders of convolutions with SAME padding. Without
    it, or where a consumer has no bias, a replaced unit moves to 0, while GXD assumes that it moves to its mean.

    Args:
        units: The unit layers, from `sequential_units` or written by hand.
        utility: A name of `gxd_jax.utilities.UTILITIES` or a function from a `UnitRecord` to scores [U]. The default,
            "gxd", ranked units most like the measured cost of a reset, in each of 13 networks (benchmarks/README.md,
            reset cost).
        replacement_rate: Share of the eligible units of a layer that is replaced at each update, in [0, 1]. It is
            rounded up to a multiple of 2^-64, so that counts do not drift.
        maturity_threshold: A unit is eligible when it has seen more updates than this.
        decay: Decay of the running averages, in [0, 1).
        kernel_init: Initializer (key, shape, dtype) -> array of the fresh incoming weights, or a dict of them by the
            name of a layer or by the path of a parameter (a tuple). It is used for kernels; 1-D parameters need a path
            of their own. None: normal, with the mean and the standard deviation that each incoming parameter had when
            the state was created. A mean within sampling noise of 0 counts as 0; a parameter that was constant returns
            to its constant; a 1-D parameter whose initial values follow its units (evenly spaced, ascending, repeated)
            returns to each unit's own.
        compensate: Whether outgoing weight x mean output of replaced units is added to the biases of their consumers.
        accumulate: True: fractions of a unit are carried in an accumulator, so that the counts are exact. False: they
            are rounded at random and nothing is carried.
        axis_name: Mapped axis (of vmap, pmap, shard_map) over which the batch is sharded.
        key: An int or a JAX key; under vmap a key for each replica.

    Returns:
        An `optax.GradientTransformationExtraArgs`. With `optax.inject_hyperparams` pass functions (`utility`,
        `kernel_init`) as static_args; values that a schedule gives later cannot be checked: a rate below 0 or above 1
        counts as 0 or 1.

    Raises:
        TypeError, ValueError: If a hyper-parameter or the wiring is impossible; `init` raises a ValueError where the
            wiring does not fit the parameters, `update` where params or observation are missing or do not fit.

    Differs from: the public code of [N], which ranks by averages that are not bias-corrected for young units, keeps
        the optimizer's moments, and does not compensate biases.

    References:
        [N] Dohare et al., "Loss of plasticity in deep continual learning", Nature 632 (2024), Algorithm 1; Elisii et
        al., arXiv 2605.06834.
    """
    score = resolve_utility(utility)
    check_number("replacement_rate", replacement_rate, "[0, 1]", lambda value: 0 <= value <= 1)
    check_number("maturity_threshold", maturity_threshold, "[0, inf)", lambda value: 0 <= value < float("inf"))
    check_flag("accumulate", accumulate)
    if not isinstance(maturity_threshold, Tracer):
        maturity_threshold = min(maturity_threshold, np.iinfo(np.int32).max)
    rate = selection.as_rate(replacement_rate)

    def choose(accumulator, step):
        eligible = statistics.mature(step.statistics, maturity_threshold)
        if accumulate:
            count, accumulator = selection.accumulate(accumulator, rate, eligible)
        else:
            count = selection.round_at_random(rate, eligible, step.key)
        ranking = statistics.corrected(step.statistics.utility, step.statistics.weight)
        return Candidates(ranking, eligible, count), accumulator

    return unit_resets(
        units,
        Rule(
            init=lambda size: selection.empty_accumulator(),
            choose=choose,
            most=functools.partial(selection.most_replaced, replacement_rate),
        ),
        utility=score,
        decay=decay,
        maturity_threshold=maturity_threshold,
        kernel_init=kernel_init,
        compensate=compensate,
        axis_name=axis_name,
        key=key,
    )
