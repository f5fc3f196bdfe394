"""The distribution that an incoming parameter was initialised from, estimated from its initial values.

For each incoming parameter its mean and standard deviation are kept as they were when the optimizer's state was
created; fresh weights are normal with both. There are three kinds of parameters:

- The mean of kernels drawn at random is sampling noise and counts as 0: fresh weights have mean 0.
- Parameters that were constant return to their constant.
- 1-D parameters whose initial values follow the units (evenly spaced, ascending, repeated as in an identity matrix)
  return, unit by unit, to their own initial values; other 1-D parameters are drawn like kernels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from gxd_jax.wiring import axes
from gxd_jax.wiring.axes import Place
from gxd_jax.wiring.layers import EveryEntry

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Inexact

_NOISE = 3.0
"""A mean of less than this number of standard errors counts as 0."""
_FEWEST_EVENLY_SPACED = 4
_FEWEST_ASCENDING = 6
"""With fewer units, values drawn at random ascend or descend too often by chance: with six, probability 2 / 6!."""
_EVEN = 1e-3
"""Relative tolerance within which the differences between neighbouring values are equal."""


class InitialWeights(NamedTuple):
    """The distribution of an incoming parameter's values when the state was created.

    Real and imaginary parts of complex parameters have a mean and a standard deviation of their own: `std` is then the
    complex number made of both.

    Attributes:
        mean: Mean of the units' entries, 0 where it is within sampling noise of 0.
        std: Standard deviation of the units' entries.
        values: Initial values of a 1-D parameter in the order of its units; empty for parameters of more axes.
        follows_units: Whether those values follow the units, bool.
    """

    mean: Inexact[Array, ""]
    std: Inexact[Array, ""]
    values: Inexact[Array, " n"]
    follows_units: Bool[Array, ""]


def initial_weights(place: Place, leaf: Array, size: int) -> InitialWeights:
    """Estimates the distribution that one incoming parameter was initialised from, from its initial values.

    Args:
        place: Where the units are.
        leaf: The parameter.
        size: Number of units U.
    """
    entries = axes.entries_of(place, leaf, size)
    entries = entries.astype(jnp.promote_types(entries.dtype, jnp.float32))
    is_vector = jnp.ndim(leaf) == 1 and not isinstance(place, EveryEntry)
    values = entries if is_vector else jnp.zeros(0, entries.dtype)
    follows = _follows_units(entries.reshape(size, -1)) if is_vector else jnp.array(False)
    if jnp.iscomplexobj(entries):
        (real_mean, real_std), (imag_mean, imag_std) = _moments(entries.real), _moments(entries.imag)
        mean, std = jax.lax.complex(real_mean, imag_mean), jax.lax.complex(real_std, imag_std)
    else:
        mean, std = _moments(entries)
    return InitialWeights(mean, std, values, follows)


def _moments(entries: Float[Array, "..."]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns mean and standard deviation in float32; exactly the constant and 0 of constant entries."""
    entries = jnp.asarray(entries, jnp.float32)
    first, std, mean = entries.ravel()[0], entries.std(), entries.mean()
    mean = jnp.where(jnp.abs(mean) < _NOISE * std / math.sqrt(entries.size), 0.0, mean)
    is_constant = (entries == first).all()
    return jnp.where(is_constant, first, mean), jnp.where(is_constant, 0.0, std)


def _follows_units(values: Inexact[Array, "U P"]) -> Bool[Array, ""]:
    """Whether the values follow the units in a way that values drawn at random do not, bool.

    They do if they ascend or descend, if they or their logarithms are evenly spaced, or if at least half of them are
    repetitions of others (an identity matrix, a spectrum tiled over blocks).
    """
    if jnp.iscomplexobj(values):
        return _follows_units(values.real) | _follows_units(values.imag)
    size = values.shape[0]
    if size < _FEWEST_EVENLY_SPACED:
        return jnp.array(False)

    def evenly_spaced(values):
        steps = jnp.diff(values, axis=0)
        return (jnp.abs(steps - steps.mean(0)) <= _EVEN * jnp.abs(steps.mean(0))).all() & (steps != 0).all()

    steps = jnp.diff(values, axis=0)
    ascending = ((steps > 0).all() | (steps < 0).all()) & (size >= _FEWEST_ASCENDING)
    positive = jnp.abs(jnp.where(values == 0, 1, values))
    in_logarithms = evenly_spaced(jnp.log(positive)) & ((values > 0).all() | (values < 0).all())
    ordered = jnp.sort(values.ravel())
    repetitions = (jnp.diff(ordered) == 0).sum() * 2 >= ordered.size
    is_coarse = jnp.finfo(values.dtype).bits < 32
    is_constant = ordered[0] == ordered[-1]
    return ascending | evenly_spaced(values) | in_logarithms | (repetitions & ~is_constant & (not is_coarse))
