"""Continual backprop as an optax transformation: the assembly of the rooms, without arithmetic of its own."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import optax
from jax.core import Tracer

from gxd_jax import drawing, selection, tracking
from gxd_jax.checks import check_flag, check_number
from gxd_jax.keys import KeyLike
from gxd_jax.resetting import Candidates, ResettingState, Rule, resetting_transformation
from gxd_jax.units import UnitLayer
from gxd_jax.utilities import Utility, resolve_utility

ContinualBackpropState = ResettingState
"""State of `continual_backprop`, which keeps what every resetting method keeps."""


_LEAST_RATE = 1e-16
"""Of a replacement rate 16 decimals count."""


def continual_backprop(
    units: Sequence[UnitLayer],
    *,
    utility: str | Utility = "gxd",
    replacement_rate: float = 1e-4,
    maturity_threshold: float = 100,
    decay: float = 0.99,
    kernel_init: drawing.Initializer | dict[str, drawing.Initializer] | None = None,
    compensate: bool = True,
    accumulate: bool = True,
    axis_name: str | None = None,
    key: KeyLike = 0,
) -> optax.GradientTransformationExtraArgs:
    """Re-initialises, at each step, the few least useful hidden units that are old enough.

    Goes after the optimizer, best as the last member of `gxd_jax.chain`, which also clears the optimizer's moments of
    the replaced units; in plain `optax.chain` it cannot. `update` needs `params` and the keyword `observation`.

    A reset is an update: `optax.apply_updates` gives exact zeros, and draws exact to one rounding of the old value. It
    cannot heal a parameter that is NaN or infinite; `gxd_jax.apply_updates` can. The updates of parameters of less than
    32 bits are float32. Compensation keeps the mean input of the consumers where every position reads the unit: it is
    exact for dense layers, approximate at the borders of convolutions with SAME padding. Without it, or where a
    consumer has no bias, a replaced unit really moves to 0 while GXD's formula keeps the unit's mean.

    Args:
        units: The unit layers, from `sequential_units` or written by hand.
        utility: A name of `gxd_jax.utilities.UTILITIES` or a function from a `UnitRecord` to scores [U]. The default,
            "gxd", knew the true cost of a reset best of all, in each of 13 networks (benchmarks/README.md, reset cost).
        replacement_rate: Share of the eligible units of a layer that is replaced at each update, in [0, 1], exact to 16
            decimals.
        maturity_threshold: A unit is eligible when it has seen more updates than this.
        decay: Decay of the running averages, in [0, 1).
        kernel_init: Initializer (key, shape, dtype) -> array of the fresh incoming weights, or a dict of them by layer.
            None: normal, zero mean, with the standard deviation that the kernel had when the state was created; pass an
            initializer for kernels that start constant, whose standard deviation is 0.
        compensate: Whether the biases of the consumers take up the mean output of replaced units.
        accumulate: True: fractions of a unit are carried, so that the counts are exact. False: they are rounded by
            chance and nothing is carried.
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
        Dohare et al., "Loss of plasticity in deep continual learning", Nature 632 (2024), Algorithm 1; Elisii et al.,
        arXiv 2605.06834.
    """
    score = resolve_utility(utility)
    check_number("replacement_rate", replacement_rate, "[0, 1]", lambda value: 0 <= value <= 1)
    if not isinstance(replacement_rate, Tracer) and 0 < replacement_rate < _LEAST_RATE:
        raise ValueError(f"replacement_rate must be 0, or {_LEAST_RATE} or more, got {replacement_rate}")
    check_number("maturity_threshold", maturity_threshold, "[0, inf)", lambda value: 0 <= value < float("inf"))
    check_flag("accumulate", accumulate)
    if not isinstance(maturity_threshold, Tracer):
        maturity_threshold = min(maturity_threshold, np.iinfo(np.int32).max)
    rate = selection.as_rate(replacement_rate)

    def choose(debt, step):
        eligible = tracking.mature(step.statistics, maturity_threshold)
        owe = selection.owe if accumulate else functools.partial(selection.owe_by_chance, key=step.key)
        count, debt = owe(debt, rate, eligible)
        ranking = tracking.corrected(step.statistics.utility, step.statistics.weight)
        return Candidates(ranking, eligible, count), debt

    return resetting_transformation(
        units,
        Rule(
            init=lambda size: selection.no_debt(),
            choose=choose,
            most=functools.partial(selection.most_owed, replacement_rate),
        ),
        utility=score,
        decay=decay,
        maturity_threshold=maturity_threshold,
        kernel_init=kernel_init,
        compensate=compensate,
        axis_name=axis_name,
        key=key,
    )
