"""Fresh incoming weights for a few units, from the distribution that the whole kernel was initialised from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gxd_jax import units as units_room
from gxd_jax.units import ParamAxis, UnitLayer

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray

Initializer = Callable[..., Any]
"""A function (key, shape, dtype) -> array, as in `jax.nn.initializers`."""


def resolve_initializers(
    kernel_init: Initializer | dict[str, Initializer] | None, units: Sequence[UnitLayer]
) -> dict[str, Initializer | None]:
    """Returns each layer's initializer; None stands for a normal distribution of the kernel's initial spread.

    Raises:
        TypeError: If `kernel_init` is neither a function nor a dict of functions.
        ValueError: If the dict names a layer that is not in `units`.
    """
    names = [layer.name for layer in units]
    by_layer = kernel_init if isinstance(kernel_init, dict) else dict.fromkeys(names, kernel_init)
    if unknown := sorted(set(by_layer) - set(names)):
        raise ValueError(f"kernel_init names the layers {unknown}; the layers of units are {names}")
    for initializer in by_layer.values():
        if initializer is not None and not callable(initializer):
            raise TypeError(
                "kernel_init must be an initializer (key, shape, dtype) -> array or a dict of them by layer, "
                f"got {initializer!r}"
            )
    return {name: by_layer.get(name) for name in names}


def draw_incoming(
    layer: UnitLayer,
    shapes: Sequence[tuple[int, ...]],
    initializer: Initializer | None,
    stds: Sequence[Float[Array, ""]],
    numbers: Int[Array, " k"],
    key: PRNGKeyArray,
) -> tuple[Array, ...]:
    """Draws the incoming slices of k units, one array for each incoming kernel.

    Only the slices are drawn. An initializer whose spread depends on the shape (fan-in, fan-out) still sees the whole
    kernel: its factor between slices and kernel is measured once, while tracing. One whose values cannot be drawn by
    slices (orthogonal) is drawn whole.

    Args:
        layer: The unit layer.
        shapes: Shapes of the incoming kernels.
        initializer: Where the weights come from; None: a normal distribution with `stds`.
        stds: Initial standard deviation of each incoming kernel.
        numbers: The units' numbers; places that hold U may get anything.
        key: Key of this layer and step.

    Returns:
        float32 arrays of shape `units.slices_shape(axis, shape, k)`.
    """
    keys = jax.random.split(key, len(layer.incoming))
    draws = []
    for param_axis, shape, std, kernel_key in zip(layer.incoming, shapes, stds, keys, strict=True):
        slices_shape = units_room.slices_shape(param_axis, shape, numbers.shape[0])
        if initializer is None:
            draws.append(std * jax.random.normal(kernel_key, slices_shape, jnp.float32))
            continue
        scale = _scale_of_slices(initializer, shape, _probe_shape(param_axis, shape, layer.size))
        if scale is None:
            whole = initializer(kernel_key, shape, jnp.float32)
            draws.append(units_room.take_slices(param_axis, whole, layer.size, numbers))
        else:
            draws.append(scale * initializer(kernel_key, slices_shape, jnp.float32))
    return tuple(draws)


def no_draws(layer: UnitLayer, shapes: Sequence[tuple[int, ...]], count: int) -> tuple[Array, ...]:
    """Returns what `draw_incoming` gives for `count` units, as zeros."""
    return tuple(
        jnp.zeros(units_room.slices_shape(param_axis, shape, count), jnp.float32)
        for param_axis, shape in zip(layer.incoming, shapes, strict=True)
    )


def _probe_shape(param_axis: ParamAxis, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    return units_room.slices_shape(param_axis, shape, max(1, min(3, size - 1)))


@functools.lru_cache(maxsize=256)
def _scale_of_slices(initializer: Initializer, shape: tuple[int, ...], probe_shape: tuple[int, ...]) -> float | None:
    """Measures by which factor a draw of slices must be scaled to match a draw of the whole kernel.

    JAX's counter-based generator gives the first n numbers of a draw the same random bits whatever the shape, so where
    the initializer draws independent entries the two draws differ by exactly this factor. None: they do not, and the
    kernel has to be drawn whole.
    """
    with jax.ensure_compile_time_eval():
        key = jax.random.key(0, impl="threefry2x32")
        slices = np.asarray(initializer(key, probe_shape, jnp.float32)).ravel()
        whole = np.asarray(initializer(key, shape, jnp.float32)).ravel()[: slices.size]
    largest = np.abs(slices).argmax()
    if slices[largest] == 0:
        return 1.0 if not whole.any() else None
    scale = float(whole[largest] / slices[largest])
    return scale if np.allclose(scale * slices, whole, rtol=1e-5, atol=0) else None
