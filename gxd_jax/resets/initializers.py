"""Initializers that a user gives for fresh weights: which parameter takes which, and draws of slices from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gxd_jax.types import Path
from gxd_jax.wiring.layers import Layer

if TYPE_CHECKING:
    from jaxtyping import Array, PRNGKeyArray

Initializer = Callable[..., Any]
"""A function (key, shape, dtype) -> array, as in `jax.nn.initializers`."""

KernelInit = Initializer | Mapping[str | Path, Initializer] | None
"""An initializer, or initializers by the name of a layer or by the path of a parameter; None: `initial_weights`."""


def initializer_of(kernel_init: KernelInit, layer_name: str, path: Path, ndim: int) -> Initializer | None:
    """Returns the initializer of one incoming parameter, or None for its initial distribution.

    An initializer for all, or for a layer, is one of kernels: it is not used for 1-D parameters, which have no fans.
    """
    if isinstance(kernel_init, Mapping):
        if path in kernel_init:
            return kernel_init[path]
        kernel_init = kernel_init.get(layer_name)
    return kernel_init if ndim >= 2 else None


def check_kernel_init(kernel_init: KernelInit, layers: Sequence[Layer]) -> None:
    """Checks the form of `kernel_init` and the names in it.

    Raises:
        TypeError: If it is neither a function nor a dict of functions.
        ValueError: If the dict names a layer or a parameter that is not there.
    """
    by_name = dict(kernel_init) if isinstance(kernel_init, Mapping) else {"": kernel_init}
    if isinstance(kernel_init, Mapping):
        names = [layer.name for layer in layers]
        paths = [place.path for layer in layers for place in layer.incoming]
        if unknown := [name for name in by_name if name not in names and name not in paths]:
            raise ValueError(
                f"kernel_init names the layers {unknown}; the layers of units are {names}, "
                f"their incoming parameters {paths}"
            )
    for initializer in by_name.values():
        if initializer is not None and not callable(initializer):
            raise TypeError(
                "kernel_init must be an initializer (key, shape, dtype) -> array or a dict of them by layer, "
                f"got {initializer!r}"
            )


def check_draws(kernel_init: KernelInit, layers: Sequence[Layer], leaves: dict[Path, Array]) -> None:
    """Checks, without drawing, that initializers give arrays of the parameters' shapes.

    Raises:
        TypeError, ValueError: If one does not.
    """
    for layer in layers:
        for place in layer.incoming:
            shape = jnp.shape(leaves[place.path])
            initializer = initializer_of(kernel_init, layer.name, place.path, len(shape))
            if initializer is not None:
                checked = functools.partial(_checked_draw, initializer, layer.name, shape)
                jax.eval_shape(checked, jax.random.key(0))


def _checked_draw(initializer: Initializer, name: str, shape: tuple[int, ...], key: PRNGKeyArray) -> None:
    values = initializer(key, shape, jnp.float32)
    if not isinstance(values, (jax.Array, np.ndarray)):
        raise TypeError(
            f"kernel_init of layer {name!r} must return an array, got {values!r}: pass an initializer "
            "(key, shape, dtype) -> array, such as jax.nn.initializers.lecun_normal()"
        )
    if values.shape != shape:
        raise ValueError(f"kernel_init of layer {name!r} must return shape {shape}, it returned {values.shape}")


def scale_of_slices(
    initializer: Initializer, shape: tuple[int, ...], slices_shape: tuple[int, ...], probe_shape: tuple[int, ...]
) -> float | None:
    """Measures the factor between slices drawn by an initializer and the same slices of a whole kernel drawn by it.

    An initializer that sees only the slices takes their fans and so another standard deviation. JAX's counter-based
    generator gives the first n numbers of a draw the same random bits whatever the shape. Where the initializer draws
    independent entries, two draws of one key therefore differ by exactly this factor.

    Args:
        initializer: The initializer.
        shape: Shape of the kernel.
        slices_shape: Shape of the slices.
        probe_shape: Shape of slices of fewer units than the kernel has, on which this assumption is checked.

    Returns:
        The factor, or None where the assumption does not hold and the kernel has to be drawn whole (orthogonal).
    """
    measure = _cached_scale if isinstance(initializer, Hashable) else _scale
    return measure(initializer, shape, slices_shape, probe_shape)


def _scale(
    initializer: Initializer, shape: tuple[int, ...], slices_shape: tuple[int, ...], probe_shape: tuple[int, ...]
) -> float | None:
    # Some releases of JAX build a NaN while they compile a normal draw here, which is none of the initializer's.
    with jax.ensure_compile_time_eval(), jax.debug_nans(False), jax.debug_infs(False):
        key = jax.random.key(0, impl="threefry2x32")
        whole = np.asarray(initializer(key, shape, jnp.float32)).ravel()
        if _factor(initializer, key, probe_shape, whole) is None:
            return None
        return _factor(initializer, key, slices_shape, whole)


_cached_scale = functools.lru_cache(maxsize=256)(_scale)


def _factor(initializer: Initializer, key: PRNGKeyArray, shape: tuple[int, ...], whole: np.ndarray) -> float | None:
    """Returns the factor that turns a draw of this shape into the first entries of the whole draw, or None."""
    try:
        part = np.asarray(initializer(key, shape, jnp.float32))
    except Exception:  # the initializer draws this very kernel and no other shape
        return None
    if part.shape != shape:
        return None
    part, whole = part.ravel()[: whole.size], whole[: part.size]
    largest = np.abs(part).argmax()
    if part[largest] == 0:
        return None if whole.any() else 1.0
    factor = float(whole[largest] / part[largest])
    return factor if np.allclose(factor * part, whole, rtol=1e-5, atol=0) else None
