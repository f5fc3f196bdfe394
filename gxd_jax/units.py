"""What a hidden unit is: where it sits in the parameters.

The wiring of a network is data: a `UnitLayer` says on which axis of which parameter the units of a layer sit. This is
the only room that knows parameter axes; every other one sees features [B, ..., U] and values [U].

Here "leaves" is a dict from a parameter's path to the parameter, and "slices" are the parts of a kernel that belong to
one unit. A list of k unit numbers may hold U (one past the last unit) for "nobody".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gxd_jax.checks import check_number
from gxd_jax.types import Params

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Shaped

Path = tuple[str | int, ...]

_FEW = 4


class ParamAxis(NamedTuple):
    """Where the units of a layer sit on one axis of one parameter.

    Attributes:
        path: Keys that lead to the parameter.
        axis: The axis of the parameter along which the units lie.
        index: int [U, P]: the P positions along that axis that belong to each unit. None: position u is unit u.
    """

    path: Path
    axis: int
    index: np.ndarray | None = None


class UnitLayer(NamedTuple):
    """One layer of hidden units and every parameter entry that belongs to them.

    Attributes:
        name: The name that the layer's features carry.
        size: Number of units U.
        incoming: Kernels that feed the units; re-drawn on replacement.
        own: Parameters with one entry a unit, each with its reset value (bias 0, norm scale 1).
        outgoing: Kernels that read the units; zeroed on replacement.
        outgoing_bias: For each outgoing kernel its layer's bias, which takes up the replaced unit's mean contribution:
            the path of a 1-D bias along the kernel's output axis (the other axis of a matrix, the last axis of a
            larger kernel), a `ParamAxis(bias path, output axis of the kernel)` where it is another axis, or None.
        feature: Name of the `tap` that holds the units' outputs. None: the tap of the layer's own name if the model
            passes one, else the input of the consumer module (Flax linen).
    """

    name: str
    size: int
    incoming: tuple[ParamAxis, ...]
    own: tuple[tuple[ParamAxis, float], ...]
    outgoing: tuple[ParamAxis, ...]
    outgoing_bias: tuple[Path | ParamAxis | None, ...]
    feature: str | None = None


class WeightLayer(NamedTuple):
    """One kernel whose weights are reset one by one: for masks, each of its n entries is a "unit" of its own.

    Attributes:
        name: The kernel's path, joined by slashes.
        path: Keys that lead to the kernel.
    """

    name: str
    path: Path


# --- Paths ---------------------------------------------------------------------------------------------------------


def plain_path(key_path: Sequence[Any]) -> Path:
    """Turns a JAX key path (of dicts, sequences, attributes) into a tuple of names and positions.

    The attribute in which a Flax nnx variable keeps its array is left out: `nnx.Optimizer` gives `init` the variables
    and `update` their arrays, and both have the same paths.
    """
    last = key_path[-1] if len(key_path) > 1 else None
    if isinstance(last, jax.tree_util.GetAttrKey) and _plain_key(last) in ("value", "raw_value"):
        key_path = key_path[:-1]
    return tuple(_plain_key(entry) for entry in key_path)


def _plain_key(entry: Any) -> str | int:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    raise TypeError(f"cannot read the tree key {entry!r}: allowed are dict keys, attributes and positions")


def leaves_by_path(tree: Params) -> dict[Path, Any]:
    """Returns the leaves of a tree by their paths."""
    return {plain_path(key_path): leaf for key_path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def replace_leaves(tree: Params, leaves: dict[Path, Any]) -> Params:
    """Returns `tree` with the leaves named in `leaves` exchanged."""
    return jax.tree_util.tree_map_with_path(lambda key_path, leaf: leaves.get(plain_path(key_path), leaf), tree)


# --- Building ------------------------------------------------------------------------------------------------------


def flatten_index(positions: int, units: int, order: str = "NHWC") -> np.ndarray:
    """Returns where each unit's values lie in a flattened feature map.

    Args:
        positions: Number of positions P of the map (H * W).
        units: Number of channels U.
        order: "NHWC" (channels last: entry p * U + u) or "NCHW" (channels first: entry u * P + p).

    Returns:
        int [U, P], for `ParamAxis.index`.

    Raises:
        ValueError: If `order` is neither of the two.
    """
    _check_order(order)
    entries = np.arange(positions * units)
    return entries.reshape(positions, units).T if order == "NHWC" else entries.reshape(units, positions)


def _check_order(order: str) -> None:
    if order not in ("NHWC", "NCHW"):
        raise ValueError(f"unknown order {order!r}: allowed are 'NHWC' and 'NCHW'")


def sequential_units(params: Params, layers: Sequence[str | int | Path], *, order: str = "NHWC") -> list[UnitLayer]:
    """Builds the unit layers of a plain stack of dense or convolutional layers.

    Every layer but the last, which is the network's output, becomes a `UnitLayer` with the layer's own name. A layer is
    a subtree of `params` with one kernel [..., in, out] and at most one bias [out]. Pooling between convolutions, and
    pooling or flattening between a convolution and a dense layer, are understood.

    The order of `layers` is the order of the data. It cannot be inferred: Flax numbers modules as they are *created*,
    so in `Dense(2)(Dense(5)(x))` the output layer is `Dense_0`, and dictionaries sort 'Dense_10' before 'Dense_2'.

    Args:
        params: The parameters, or Flax variables with a 'params' collection.
        layers: Keys (or whole paths, as tuples) of the layers from first to last.
        order: Layout of a feature map that is flattened, "NHWC" or "NCHW".

    Returns:
        One `UnitLayer` for each layer but the last.

    Raises:
        TypeError: If `layers` is no list of names or paths.
        ValueError: If a layer is missing, listed twice, has no or several kernels, or does not fit the next one.

    Example:
        >>> params = {
        ...     "hidden": {"kernel": np.ones((3, 5)), "bias": np.zeros(5)},
        ...     "output": {"kernel": np.ones((5, 2)), "bias": np.zeros(2)},
        ... }
        >>> [layer.name for layer in sequential_units(params, ["hidden", "output"])]
        ['hidden']
    """
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        raise TypeError(f"layers must be a list of layer names in order, got {layers!r}")
    if any(not isinstance(layer, (str, int, tuple)) for layer in layers):
        raise TypeError(f"layers must be names or paths (tuples) of layers, got {list(layers)!r}")
    _check_order(order)
    if len(layers) < 2:
        raise ValueError(f"layers must name at least a hidden layer and the output layer, got {list(layers)!r}")
    leaves = leaves_by_path(params)
    stack = [_find_layer(leaves, layer) for layer in layers]
    names = [str(layer) if isinstance(layer, (str, int)) else "/".join(map(str, layer)) for layer in layers]
    if len({kernel for kernel, _ in stack}) < len(stack):
        raise ValueError(f"layers must differ, got {list(layers)!r}")
    units = []
    for name, (kernel, bias), (next_kernel, next_bias) in zip(names[:-1], stack[:-1], stack[1:], strict=True):
        shape, next_shape = leaves[kernel].shape, leaves[next_kernel].shape
        size = shape[-1]
        units.append(
            UnitLayer(
                name=name,
                size=size,
                incoming=(ParamAxis(kernel, len(shape) - 1),),
                own=() if bias is None else ((ParamAxis(bias, 0), 0.0),),
                outgoing=(
                    ParamAxis(next_kernel, len(next_shape) - 2, _join(kernel, shape, next_kernel, next_shape, order)),
                ),
                outgoing_bias=(next_bias,),
            )
        )
    validate_units(units, params)
    return units


def _find_layer(leaves: dict[Path, Any], layer: str | int | Path) -> tuple[Path, Path | None]:
    """Returns the paths of a layer's kernel and bias."""
    path = (layer,) if isinstance(layer, (str, int)) else tuple(layer)
    for prefix in (path, ("params", *path)):
        inside = {p: leaf for p, leaf in leaves.items() if p[: len(prefix)] == prefix}
        if inside:
            break
    else:
        raise ValueError(f"params have no layer {layer!r}; the paths there are {_shown(leaves)}")
    shapes = {path: np.shape(leaf) for path, leaf in inside.items()}
    kernels = [path for path, shape in shapes.items() if len(shape) >= 2]
    if len(kernels) != 1:
        raise ValueError(
            f"layer {layer!r} must hold exactly one kernel (an array of 2 or more axes), it holds {shapes}"
        )
    size = shapes[kernels[0]][-1]
    others = [path for path in inside if path != kernels[0]]
    if len(others) > 1 or any(shapes[path] != (size,) for path in others):
        raise ValueError(
            f"layer {layer!r} must hold one kernel [..., in, out] and at most one bias [out], it holds {shapes}; "
            "describe other layers with UnitLayer"
        )
    return kernels[0], others[0] if others else None


def _join(kernel: Path, shape: tuple, next_kernel: Path, next_shape: tuple, order: str) -> np.ndarray | None:
    """Returns the index by which the next kernel reads this one's units."""
    size, inputs = shape[-1], next_shape[-2]
    if inputs == size:
        return None
    flattened = len(shape) > 2 and len(next_shape) == 2 and inputs % size == 0
    if not flattened:
        raise ValueError(
            f"{kernel} {shape} gives {size} units but {next_kernel} {next_shape} reads {inputs} inputs: kernels must "
            "be [..., in, out] and stand in the order of the data (Flax numbers modules as they are created: in "
            "Dense(3)(Dense(4)(x)) the output layer is Dense_0)"
        )
    return flatten_index(inputs // size, size, order)


# --- Checking ------------------------------------------------------------------------------------------------------


def validate_units(units: Sequence[UnitLayer], params: Params) -> None:
    """Checks that the wiring fits the parameters.

    Args:
        units: The unit layers.
        params: The parameters that they speak of.

    Raises:
        TypeError: If `units` is not a sequence of `UnitLayer`.
        ValueError: If a path is missing, an axis or index does not fit, a layer has no incoming or no outgoing kernel
            (an output layer is not hidden), a name or a parameter's axis is used twice.
    """
    check_unit_list(units)
    leaves = leaves_by_path(params)
    users: dict[tuple[Path, int, int], str] = {}
    for layer in units:
        own = tuple(axis for axis, _ in layer.own)
        for role, axes in (("incoming", layer.incoming), ("own", own), ("outgoing", layer.outgoing)):
            for param_axis in axes:
                where = f"layer {layer.name!r}: {role} {param_axis.path} axis {param_axis.axis}"
                axis, index = _check_axis(where, layer.size, param_axis, leaves)
                for position in index.ravel().tolist():
                    user = users.setdefault((param_axis.path, axis, position), where)
                    if user is not where:
                        raise ValueError(f"{where}: position {position} is used twice, also as {user}")
        for param_axis, bias in zip(layer.outgoing, layer.outgoing_bias, strict=True):
            _check_bias(layer.name, param_axis, bias, leaves)


def check_unit_list(units: Sequence[UnitLayer]) -> None:
    """Checks what can be checked of unit layers without parameters; raises as `validate_units` does."""
    if isinstance(units, UnitLayer) or not isinstance(units, Sequence) or isinstance(units, str):
        raise TypeError(f"units must be a list of UnitLayer, got {type(units).__name__}")
    for layer in units:
        if not isinstance(layer, UnitLayer):
            raise TypeError(f"units must be a list of UnitLayer, it holds a {type(layer).__name__}")
        _check_form(layer)
        if not layer.incoming or not layer.outgoing:
            missing = "outgoing" if layer.incoming else "incoming"
            raise ValueError(
                f"layer {layer.name!r} has no {missing} kernel: hidden units have both (an output layer is not hidden)"
            )
        if len(layer.outgoing_bias) != len(layer.outgoing):
            raise ValueError(
                f"layer {layer.name!r}: outgoing_bias must have one entry (a path or None) for each of the "
                f'{len(layer.outgoing)} outgoing kernels, such as (("output", "bias"),); it is {layer.outgoing_bias}'
            )
    names = [layer.name for layer in units]
    if not names:
        raise ValueError("units must hold at least one layer")
    if len(set(names)) < len(names):
        raise ValueError(f"the names of unit layers must differ, got {names}")


def _check_form(layer: UnitLayer) -> None:
    """Checks that the fields of a layer written by hand have the right form."""
    if not isinstance(layer.name, str) or not layer.name:
        raise TypeError(f"the name of a UnitLayer must be a string that is not empty, got {layer.name!r}")
    if isinstance(layer.size, bool) or not isinstance(layer.size, (int, np.integer)) or layer.size < 1:
        raise TypeError(f"layer {layer.name!r}: size must be a whole number of 1 or more, got {layer.size!r}")
    for field in ("incoming", "own", "outgoing", "outgoing_bias"):
        if not isinstance(getattr(layer, field), (tuple, list)):
            raise TypeError(f"layer {layer.name!r}: {field} must be a tuple, got {getattr(layer, field)!r}")
    own = [pair[0] if isinstance(pair, tuple) and len(pair) == 2 else pair for pair in layer.own]
    for role, axes in (("incoming", layer.incoming), ("own", own), ("outgoing", layer.outgoing)):
        wanted = "(ParamAxis, reset value) pairs" if role == "own" else "ParamAxis"
        for axis in [axes] if isinstance(axes, ParamAxis) else axes:
            form = (
                isinstance(axis, ParamAxis)
                and isinstance(axis.path, tuple)
                and isinstance(axis.axis, (int, np.integer))
            )
            if axes is axis or not form or (role == "own" and any(pair is axis for pair in layer.own)):
                raise TypeError(
                    f"layer {layer.name!r}: {role} must be a tuple of {wanted}, each with a tuple as path and an int "
                    f"as axis; got {getattr(layer, role)!r}"
                )
    for axis, value in layer.own:
        allowed = "(-inf, inf)"
        check_number(f"layer {layer.name!r}: the reset value of {axis.path}", value, allowed, np.isfinite)


def _check_axis(where: str, size: int, param_axis: ParamAxis, leaves: dict[Path, Any]) -> tuple[int, np.ndarray]:
    """Checks one parameter axis; returns the axis as a non-negative number and its index [U, P]."""
    shape = _check_path(where, tuple(param_axis.path), leaves)
    if not -len(shape) <= param_axis.axis < len(shape):
        raise ValueError(f"{where}: the parameter has shape {shape}, it has no such axis")
    length = shape[param_axis.axis]
    index = _index(param_axis, size)
    if param_axis.index is None and length != size:
        raise ValueError(f"{where}: shape {shape} has {length} entries there, the layer has {size} units")
    if index.ndim != 2 or index.shape[0] != size or not np.issubdtype(index.dtype, np.integer):
        raise ValueError(f"{where}: index must be integers [{size}, P], it is {index.dtype} {index.shape}")
    if index.size and (index.min() < 0 or index.max() >= length):
        raise ValueError(f"{where}: index must lie in [0, {length}), it spans [{index.min()}, {index.max()}]")
    if np.unique(index).size < index.size:
        raise ValueError(f"{where}: index names a position twice")
    return param_axis.axis % len(shape), index


def _check_path(where: str, path: Path, leaves: dict[Path, Any]) -> tuple[int, ...]:
    if path not in leaves:
        raise ValueError(
            f"{where}: params have no such path (or it is masked out); the paths there are {_shown(leaves)}"
        )
    return np.shape(leaves[path])


def _check_bias(name: str, param_axis: ParamAxis, bias: Path | ParamAxis | None, leaves: dict[Path, Any]) -> None:
    if bias is None:
        return
    path, out_axis = _bias_axis(param_axis, bias, np.ndim(leaves[param_axis.path]))
    where = f"layer {name!r}: outgoing bias {path}"
    shape = _check_path(where, path, leaves)
    kernel_shape = np.shape(leaves[param_axis.path])
    if out_axis == param_axis.axis % len(kernel_shape):
        raise ValueError(f"{where}: axis {out_axis} of {param_axis.path} holds the units, it cannot be its output axis")
    if shape != (kernel_shape[out_axis],):
        raise ValueError(
            f"{where}: shape {shape} does not fit axis {out_axis} of {param_axis.path} {kernel_shape}: "
            f"it must be ({kernel_shape[out_axis]},)"
        )


def _shown(leaves: dict[Path, Any]) -> str:
    shown = [f"{path} {np.shape(leaf)}" for path, leaf in list(leaves.items())[:20]]
    return ", ".join(shown + ["..."] * (len(leaves) > 20)) or "none"


def _bias_axis(param_axis: ParamAxis, bias: Path | ParamAxis, ndim: int) -> tuple[Path, int]:
    """Returns the path of an outgoing bias and the axis of the kernel along which it lies."""
    if isinstance(bias, ParamAxis):
        return tuple(bias.path), bias.axis % ndim
    return tuple(bias), 1 - param_axis.axis % ndim if ndim == 2 else ndim - 1


def _index(param_axis: ParamAxis, size: int) -> np.ndarray:
    return np.arange(size)[:, None] if param_axis.index is None else np.asarray(param_axis.index)


# --- From units to parameter entries and back ----------------------------------------------------------------------


def features_of(values: Array, param_axis: ParamAxis, size: int) -> Array:
    """Brings what a kernel reads, [..., n], to one value a unit: [..., U], or [..., P, U] with P positions a unit.

    Args:
        values: The kernel's input, its last axis as long as the axis that holds the units.
        param_axis: The outgoing kernel's axis.
        size: Number of units U.
    """
    if param_axis.index is None:
        return values
    index, lead = np.asarray(param_axis.index), values.shape[:-1]
    positions = index.shape[1]
    if positions == 1:
        return values[..., index[:, 0]]
    if values.shape[-1] == index.size and np.array_equal(index, flatten_index(positions, size, "NHWC")):
        return values.reshape(*lead, positions, size)
    return values[..., index.T]


def incoming_magnitude(layer: UnitLayer, leaves: dict[Path, Array]) -> Float[Array, " U"]:
    """Mean absolute incoming weight of each unit."""
    sums = [_per_unit(jnp.abs(_float32(leaves[a.path])), a, layer.size) for a in layer.incoming]
    count = sum(_entries_per_unit(a, leaves[a.path].shape) for a in layer.incoming)
    return sum(sums[1:], start=sums[0]) / count


def outgoing_magnitude(layer: UnitLayer, leaves: dict[Path, Array]) -> Float[Array, " U"]:
    """Sum of the absolute outgoing weights of each unit, over all consumers."""
    sums = [_per_unit(jnp.abs(_float32(leaves[a.path])), a, layer.size) for a in layer.outgoing]
    return sum(sums[1:], start=sums[0])


def outgoing_count(layer: UnitLayer, leaves: dict[Path, Array]) -> int:
    """Number of outgoing weights of each unit."""
    return sum(_entries_per_unit(a, leaves[a.path].shape) for a in layer.outgoing)


def incoming_std(layer: UnitLayer, leaves: dict[Path, Array]) -> tuple[Float[Array, ""], ...]:
    """Standard deviation of the units' entries in each incoming kernel."""
    return tuple(
        jnp.std(jnp.take(_float32(leaves[a.path]), _index(a, layer.size).ravel(), axis=a.axis)) for a in layer.incoming
    )


def scale_units(layer: UnitLayer, leaves: dict[Path, Array], gains: Float[Array, " U"]) -> dict[Path, Array]:
    """Returns the leaves with the incoming weights and own parameters of each unit times its gain."""
    scaled = dict(leaves)
    for param_axis in (*layer.incoming, *(axis for axis, _ in layer.own)):
        leaf = scaled[param_axis.path]
        scaled[param_axis.path] = (leaf * _spread(param_axis, gains, jnp.shape(leaf), 1.0)).astype(leaf.dtype)
    return scaled


def slices_shape(param_axis: ParamAxis, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Returns the shape of the slices of `count` units, laid out like the kernel itself."""
    axis = param_axis.axis % len(shape)
    positions = 1 if param_axis.index is None else np.shape(param_axis.index)[1]
    return (*shape[:axis], count * positions, *shape[axis + 1 :])


def take_slices(param_axis: ParamAxis, leaf: Array, size: int, numbers: Int[Array, " k"]) -> Array:
    """Returns the slices of k units, of shape `slices_shape(param_axis, leaf.shape, k)`; any for nobody's."""
    if param_axis.index is None and numbers.shape[0] == 1:  # less to compile than a gather
        return jax.lax.dynamic_slice_in_dim(leaf, numbers[0], 1, param_axis.axis)
    positions = _positions(param_axis, jnp.minimum(numbers, size - 1))
    return jnp.take(leaf, positions.ravel(), axis=param_axis.axis, mode="clip")


def place_slices(param_axis: ParamAxis, leaf: Array, size: int, numbers: Int[Array, " k"], slices: Array) -> Array:
    """Returns the leaf with the slices of k units written into it."""
    axis = param_axis.axis % leaf.ndim
    positions = jnp.where((numbers < size)[:, None], _positions(param_axis, numbers), leaf.shape[axis])
    return leaf.at[(slice(None),) * axis + (positions.ravel(),)].set(slices, mode="drop")


def is_compact(param_axis: ParamAxis, count: int) -> bool:
    """Whether the entries of at most `count` units are handled as slices, and not as an array like the whole kernel.

    A few slices are spread over a kernel inside the loop that applies its update, for next to nothing; many would need
    a lookup at every entry.
    """
    return param_axis.index is None and count <= _FEW


def spread_mask(param_axis: ParamAxis, mask: Bool[Array, " U"], shape: tuple[int, ...]) -> Array:
    """Turns a mask over units into one that broadcasts against a parameter of this shape."""
    return _spread(param_axis, mask, shape, False)


def entry_masks_of(
    layer: UnitLayer | WeightLayer, mask: Bool[Array, " U"], leaves: dict[Path, Any]
) -> list[tuple[Path, Array]]:
    """Returns, for each parameter that holds entries of the layer's units, its path and the mask of those in `mask`."""
    if isinstance(layer, WeightLayer):
        return [(layer.path, mask.reshape(leaves[layer.path].shape))]
    return [(axis.path, spread_mask(axis, mask, leaves[axis.path].shape)) for axis in _axes(layer)]


def paths_of(layer: UnitLayer | WeightLayer) -> list[Path]:
    """Returns the paths of the parameters that hold entries of the layer's units."""
    return [layer.path] if isinstance(layer, WeightLayer) else [axis.path for axis in _axes(layer)]


def _axes(layer: UnitLayer) -> tuple[ParamAxis, ...]:
    return (*layer.incoming, *(axis for axis, _ in layer.own), *layer.outgoing)


def spread_slices(param_axis: ParamAxis, slices: Array, numbers: Int[Array, " k"], shape: tuple[int, ...]) -> Array:
    """Spreads the slices of a few units (see `is_compact`) so that they broadcast against the kernel.

    Returns:
        An array in which every unit's entries hold its slice; entries of other units are arbitrary.
    """
    axis = param_axis.axis % len(shape)
    spread = jax.lax.slice_in_dim(slices, 0, 1, axis=axis)
    unit = _along(jnp.arange(shape[axis]), axis, len(shape))
    for place in range(1, numbers.shape[0]):
        spread = jnp.where(unit == numbers[place], jax.lax.slice_in_dim(slices, place, place + 1, axis=axis), spread)
    return spread


def weighted_outgoing_sums(
    layer: UnitLayer, weights: Float[Array, " U"], numbers: Int[Array, " k"], *trees: dict[Path, Array]
) -> list[tuple[Path, Float[Array, " K"]]]:
    """Sums weight x outgoing entry over the given units, by the outputs of each consumer with a bias.

    Args:
        layer: The unit layer.
        weights: A weight for each unit.
        numbers: The units' numbers; few are looked up, for many the whole kernel is read.
        *trees: Leaves that are added up first (parameters and updates).

    Returns:
        For each consumer with a bias, the bias's path and the sums [K]; entries that are not finite are left out.
    """
    sums = []
    for param_axis, bias in zip(layer.outgoing, layer.outgoing_bias, strict=True):
        if bias is None:
            continue
        kernels = [tree[param_axis.path] for tree in trees]
        shape = kernels[0].shape
        bias_path, out_axis = _bias_axis(param_axis, bias, len(shape))
        if numbers.shape[0] <= _FEW:
            kernels = [take_slices(param_axis, kernel, layer.size, numbers) for kernel in kernels]
            axis, positions = param_axis.axis % len(shape), kernels[0].shape[param_axis.axis] // numbers.shape[0]
            of_entry = jnp.repeat(jnp.minimum(numbers, layer.size - 1), positions)
            weight = _along(weights[of_entry], axis, len(shape))
            counts = _along(jnp.repeat(numbers < layer.size, positions), axis, len(shape))
        else:
            given = jnp.zeros(layer.size, bool).at[numbers].set(True, mode="drop")
            weight = _spread(param_axis, weights, shape, 0.0)
            counts = spread_mask(param_axis, given, shape)
        entries = weight * sum(_float32(kernel) for kernel in kernels)
        entries = jnp.where(counts & jnp.isfinite(entries), entries, 0.0)
        sums.append((bias_path, entries.sum([i for i in range(len(shape)) if i != out_axis])))
    return sums


def _along(values: Array, axis: int, ndim: int) -> Array:
    """Shapes a vector so that it lies along one of `ndim` axes."""
    return values.reshape([-1 if i == axis else 1 for i in range(ndim)])


def _positions(param_axis: ParamAxis, numbers: Int[Array, " k"]) -> Int[Array, "k P"]:
    if param_axis.index is None:
        return numbers[:, None]
    return jnp.take(jnp.asarray(param_axis.index), numbers, axis=0, mode="clip")


def _spread(param_axis: ParamAxis, values: Shaped[Array, " U"], shape: tuple[int, ...], fill: Any) -> Array:
    """Lays values of units out along the parameter's axis; `fill` at positions of nobody."""
    axis = param_axis.axis % len(shape)
    if param_axis.index is not None:
        unit = _owners(param_axis.index, shape[axis])
        values = jnp.where(unit >= 0, values[np.maximum(unit, 0)], fill)
    return _along(values, axis, len(shape))


def _owners(index: np.ndarray, length: int) -> np.ndarray:
    """Returns the unit of each position along an axis, -1 for nobody's."""
    unit = np.full(length, -1)
    unit[index] = np.arange(len(index))[:, None]
    return unit


def _entries_per_unit(param_axis: ParamAxis, shape: tuple[int, ...]) -> int:
    return math.prod(slices_shape(param_axis, shape, 1))


def _per_unit(values: Array, param_axis: ParamAxis, size: int) -> Float[Array, " U"]:
    """Sums a parameter's entries by unit."""
    axis = param_axis.axis % values.ndim
    sums = values.sum([i for i in range(values.ndim) if i != axis])
    return sums if param_axis.index is None else sums[_index(param_axis, size)].sum(1)


def _float32(leaf: Array) -> Array:
    return jnp.asarray(leaf, jnp.float32)
