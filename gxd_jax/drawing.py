"""Fresh incoming weights for a few units, from the distribution that the whole kernel was initialised from."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from gxd_jax import units as units_room
from gxd_jax.types import Params
from gxd_jax.units import ParamAxis, UnitLayer, WeightLayer

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray

Initializer = Callable[..., Any]
"""A function (key, shape, dtype) -> array, as in `jax.nn.initializers`."""


_BLOCK = 8
"""Units that are drawn at once where there may be many."""


def resolve_initializers(
    kernel_init: Initializer | dict[str, Initializer] | None, units: Sequence[UnitLayer | WeightLayer]
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


def check_initializers(
    initializers: Mapping[str, Initializer | None], shapes: Mapping[str, Sequence[tuple[int, ...]]]
) -> None:
    """Checks, without drawing, that initializers give arrays of the kernels' shapes; the mappings are by layer.

    Raises:
        TypeError, ValueError: If one does not.
    """

    def draw(initializer: Initializer, name: str, shape: tuple[int, ...], key: PRNGKeyArray) -> None:
        values = initializer(key, shape, jnp.float32)
        if not isinstance(values, (jax.Array, np.ndarray)):
            raise TypeError(
                f"kernel_init of layer {name!r} must return an array, got {values!r}: pass an initializer "
                "(key, shape, dtype) -> array, such as jax.nn.initializers.lecun_normal()"
            )
        if values.shape != shape:
            raise ValueError(f"kernel_init of layer {name!r} must return shape {shape}, it returned {values.shape}")

    for name, initializer in initializers.items():
        if initializer is not None:
            for shape in shapes[name]:
                jax.eval_shape(functools.partial(draw, initializer, name, shape), jax.random.key(0))


class Draws(NamedTuple):
    """Fresh incoming weights of a step, packed.

    Attributes:
        normals: The slices that come from a normal distribution of spread 1, of all kernels in a row, float32. One draw
            for all of them: a draw for each kernel would be most of what there is to compile.
        others: One array for each of the other kernels, as in `unpack`.
    """

    normals: Float[Array, " n"]
    others: tuple[Array, ...]


class Kernel(NamedTuple):
    """One incoming kernel and whose slices are drawn.

    Attributes:
        axis: Where the units are.
        shape: Shape of the kernel.
        size: Number of units U.
        initializer: Where the weights come from; None: a normal distribution.
        std: Initial standard deviation of the kernel.
        numbers: The units' numbers, the places that hold U last.
    """

    axis: ParamAxis
    shape: tuple[int, ...]
    size: int
    initializer: Initializer | None
    std: Float[Array, ""]
    numbers: Int[Array, " k"]


def incoming_kernels(
    layers: Sequence[UnitLayer],
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
    initializers: Mapping[str, Initializer | None],
    stds: Mapping[str, Sequence[Float[Array, ""]]],
    numbers: Mapping[str, Int[Array, " k"]],
) -> list[Kernel]:
    """Lists the incoming kernels of all layers; the mappings are by the layers' names."""
    return [
        Kernel(axis, shape, layer.size, initializers[layer.name], std, numbers[layer.name])
        for layer in layers
        for axis, shape, std in zip(layer.incoming, shapes[layer.name], stds[layer.name], strict=True)
    ]


def draw_incoming(kernels: Sequence[Kernel], key: PRNGKeyArray) -> Draws:
    """Draws fresh incoming weights of the units of each kernel.

    Only what is replaced is drawn. An initializer whose spread depends on the shape (fan-in, fan-out) still sees the
    whole kernel: its factor between slices and kernel is measured once, while tracing. One whose values cannot be drawn
    by slices (orthogonal) is drawn whole.

    Args:
        kernels: From `incoming_kernels`.
        key: Key of this step.
    """
    normal_key, kernels_key = jax.random.split(key)
    count = sum(math.prod(_slices_shape(kernel)) for kernel in kernels if _is_normal(kernel))
    others = tuple(
        (_draw_slices if _is_compact(kernel) else _draw_in_place)(kernel, kernel_key)
        for kernel, kernel_key in zip(kernels, jax.random.split(kernels_key, len(kernels)), strict=True)
        if not _is_normal(kernel)
    )
    return Draws(jax.random.normal(normal_key, (count,), jnp.float32), others)


def unpack(draws: Draws, kernels: Sequence[Kernel], layers: Sequence[UnitLayer]) -> dict[str, tuple[Array, ...]]:
    """Returns the fresh weights: layer name -> one float32 array for each incoming kernel.

    An array holds the slices of the k units where `units.is_compact` says so, else it is like the kernel and holds the
    slices at their places.
    """
    others, drawn, start = iter(draws.others), [], 0
    for kernel in kernels:
        if not _is_normal(kernel):
            drawn.append(next(others))
            continue
        shape = _slices_shape(kernel)
        end = start + math.prod(shape)
        drawn.append(kernel.std * draws.normals[start:end].reshape(shape))
        start = end
    remaining = iter(drawn)
    return {layer.name: tuple(next(remaining) for _ in layer.incoming) for layer in layers}


def normal_like(tree: Params, key: PRNGKeyArray) -> Params:
    """Draws standard normal noise like the leaves of a tree; one draw is faster than one for each leaf."""
    flat, unravel = jax.flatten_util.ravel_pytree(tree)
    return unravel(jax.random.normal(key, flat.shape, flat.dtype))


def _is_normal(kernel: Kernel) -> bool:
    return _is_compact(kernel) and kernel.initializer is None


def _is_compact(kernel: Kernel) -> bool:
    return units_room.is_compact(kernel.axis, kernel.numbers.shape[0])


def _slices_shape(kernel: Kernel) -> tuple[int, ...]:
    return units_room.slices_shape(kernel.axis, kernel.shape, kernel.numbers.shape[0])


def _draw_slices(kernel: Kernel, key: PRNGKeyArray) -> Array:
    """Draws the slices of k units of one kernel."""
    axis, shape, size, initializer, std, numbers = kernel
    slices_shape = _slices_shape(kernel)
    if initializer is None:
        return std * jax.random.normal(key, slices_shape, jnp.float32)
    probe_shape = units_room.slices_shape(axis, shape, max(1, min(3, size - 1)))
    measure = _cached_scale_of_slices if isinstance(initializer, Hashable) else _scale_of_slices
    scale = measure(initializer, shape, slices_shape, probe_shape)
    if scale is None:
        return units_room.take_slices(axis, initializer(key, shape, jnp.float32), size, numbers)
    return scale * initializer(key, slices_shape, jnp.float32)


def _draw_in_place(kernel: Kernel, key: PRNGKeyArray) -> Array:
    """Draws the slices block by block, as many as there are units, into an array like the kernel."""
    size, numbers = kernel.size, kernel.numbers
    blocks = -(-numbers.shape[0] // _BLOCK)
    numbers = jnp.pad(numbers, (0, blocks * _BLOCK - numbers.shape[0]), constant_values=size).reshape(blocks, _BLOCK)

    def draw_block(i, whole):
        slices = _draw_slices(kernel._replace(numbers=numbers[i]), jax.random.fold_in(key, i))
        return units_room.place_slices(kernel.axis, whole, size, numbers[i], slices)

    needed = (numbers[:, 0] < size).sum()
    empty = jnp.zeros(kernel.shape, jnp.float32)
    empty = jnp.zeros_like(jax.eval_shape(draw_block, 0, empty))  # under shard_map it varies as the draws do
    return jax.lax.fori_loop(0, needed, draw_block, empty)


def _scale_of_slices(
    initializer: Initializer, shape: tuple[int, ...], slices_shape: tuple[int, ...], probe_shape: tuple[int, ...]
) -> float | None:
    """Measures by which factor a draw of slices must be scaled to match a draw of the whole kernel.

    JAX's counter-based generator gives the first n numbers of a draw the same random bits whatever the shape, so where
    the initializer draws independent entries two draws differ by exactly this factor. None: they do not (seen on a
    probe, of fewer units than the kernel has), and the kernel has to be drawn whole.
    """
    with jax.ensure_compile_time_eval():
        key = jax.random.key(0, impl="threefry2x32")
        whole = np.asarray(initializer(key, shape, jnp.float32)).ravel()
        if _factor(initializer, key, probe_shape, whole) is None:
            return None
        return _factor(initializer, key, slices_shape, whole)


_cached_scale_of_slices = functools.lru_cache(maxsize=256)(_scale_of_slices)


def _factor(initializer: Initializer, key: PRNGKeyArray, shape: tuple[int, ...], whole: np.ndarray) -> float | None:
    """Returns the number that makes a draw of this shape the beginning of the whole draw, or None."""
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
