"""Observing one batch: loss, gradients, features and sensitivities from one linearisation.

Features are captured where the outgoing weights read them: by `tap`, or at the input of Flax linen's consumer modules.
At each captured site a zero is added; its derivative is the sensitivity.

Where several consumers read the very same value, it is captured once, and its sensitivity is that of all of them. Where
they read different ones (a stream at several depths, behind several norms, a map and its mean), all are captured, side
by side like the positions of a map. The reference is then one mean over all of them, and the compensation moves every
consumer to it: a utility still speaks of the change that a reset makes, but the mean input of a consumer whose own mean
differs is kept approximately only.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from gxd_jax import units as units_room
from gxd_jax.checks import check_function
from gxd_jax.keys import KeyLike, as_key
from gxd_jax.readouts import Linearisation, Readout, resolve_readout
from gxd_jax.types import Observation, Params
from gxd_jax.units import Path, UnitLayer

if TYPE_CHECKING:
    from jaxtyping import Array

Site = str | Path
"""A place where features are captured: the name of a tap or the path of a Flax module."""

# Flax layers that multiply their input with their kernel as it comes in.
CONSUMERS = (nn.Dense, nn.DenseGeneral, nn.Conv, nn.ConvLocal, nn.ConvTranspose)


class Recorder:
    """Collects what passes the sites of one run of a model, and adds the zeros.

    Attributes:
        captured: What passed each site.
        same: For each site the first one that the very same value passed: the one whose zero is added, once on its way.
    """

    def __init__(self, taps: set[str], consumers: set[Path], zeros: dict[Site, Array] | None):
        self.taps = taps
        self.consumers = consumers
        self.zeros = zeros
        self.captured: dict[Site, Array] = {}
        self.same: dict[Site, Site] = {}
        self._left: dict[Site, Array] = {}  # what went on from each site
        self.trace = current_trace()

    def record(self, site: Site, values: Array) -> Array:
        """Notes what passes a site, and adds the zero."""
        if not isinstance(values, (jax.Array, np.ndarray)):
            raise TypeError(f"the features at {site!r} must be one array [B, ..., U], got a {type(values).__name__}")
        if site in self.captured:
            raise ValueError(
                f"site {site!r} was passed twice in one run of the model (a module called twice, or two networks with "
                "the same module names): every site needs its own name"
            )
        if current_trace() != self.trace:
            raise ValueError(
                f"site {site!r} lies inside an inner transformation (jit, scan, remat, vmap) of the model, from which "
                "its values cannot be taken out: pass the function without jit, write the model for a batch instead of "
                "mapping it over examples, or tap the values outside"
            )
        self.captured[site] = values
        is_on_its_way = {first: self._left.get(first) is values for first in self.captured}
        first = next(f for f, value in self.captured.items() if value is values or is_on_its_way[f])
        self.same[site] = first
        if self.zeros is not None and not is_on_its_way[first]:
            values = values + self.zeros[first]
        self._left[site] = values
        return values

    def intercept(self, call: Callable, args: tuple, kwargs: dict, context: nn.module.InterceptorContext) -> Any:
        """Records the inputs of Flax modules that are sites."""
        module = context.module
        if context.method_name != "__call__" or tuple(module.path) not in self.consumers:
            return call(*args, **kwargs)
        if not isinstance(module, CONSUMERS):
            raise ValueError(
                f"module {module.path} is a {type(module).__name__}, which is not known to multiply its input with its "
                f"kernel (known are {[c.__name__ for c in CONSUMERS]}): pass the features through gxd_jax.tap"
            )
        if args:
            return call(self.record(tuple(module.path), args[0]), *args[1:], **kwargs)
        inputs = self.record(tuple(module.path), kwargs["inputs"])
        return call(**{**kwargs, "inputs": inputs})


_recorder: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar("gxd_jax_recorder", default=None)


def tap(name: str, values: Array) -> Array:
    """Marks the outputs of a layer of hidden units.

    Outside of an observing run this is the identity. Inside, the values are recorded as the features of the unit layer
    whose `feature` (or name) is `name`. Use it in code that is not Flax linen: `h = gxd.tap("h1", jax.nn.relu(...))`.

    Args:
        name: Name of the site.
        values: Unit outputs [B, ..., U], as the outgoing weights read them.

    Returns:
        The values.

    Raises:
        ValueError: Inside an observing run, if the site was passed already or lies inside an inner jit, scan or vmap.
    """
    recorder = _recorder.get()
    if recorder is None or name not in recorder.taps:
        return values
    return recorder.record(name, values)


def observe(
    apply: Callable[[Params, Any], Any],
    loss: Callable[[Any, Any], Array],
    units: Sequence[UnitLayer],
    *,
    readout: str | Readout | None = "logits",
    has_aux: bool = False,
) -> Callable[..., tuple[Any, Params, Observation]]:
    """Builds the function that looks at one batch.

    Args:
        apply: (params, inputs) -> outputs, a pytree of arrays [B, ...]; with `has_aux`, (outputs, aux).
        loss: (outputs, targets) -> scalar, the mean over the batch.
        units: The unit layers to observe.
        readout: What the sensitivities speak about: a name of `gxd_jax.readouts.READOUTS`, a function
            (outputs, targets, key) -> [B], or None for no sensitivities and no second pullback. The default, "logits",
            ranked units by the true cost of a reset as well as "logits_exact" and better than the others did (rank
            correlation .95 to .98; "loss", which is free, .91 to .95: benchmarks/README.md, reset cost).
        has_aux: Whether `apply` returns something beside the outputs (batch statistics).

    Returns:
        A pure function (params, inputs, targets, *, key=None) -> (loss, gradients, Observation); with `has_aux` the
        first result is (loss, aux). `key` (int or JAX key) is needed by readouts that draw at random.

    Raises:
        TypeError, ValueError: If the units are no list of `UnitLayer` or the readout is unknown. The returned function
            raises a ValueError where the wiring does not fit the parameters, a site of the units is not passed, or
            features have the wrong width or no batch axis.

    Example:
        >>> import numpy as np
        >>> params = {"hidden": {"w": np.ones((3, 5))}, "output": {"w": np.ones((5, 1))}}
        >>> units = units_room.sequential_units(params, ["hidden", "output"])
        >>> def apply(params, x):
        ...     return tap("hidden", jnp.tanh(x @ params["hidden"]["w"])) @ params["output"]["w"]
        >>> observed = observe(apply, lambda outputs, y: ((outputs - y) ** 2).mean(), units)
        >>> loss, gradients, observation = observed(params, np.ones((4, 3)), np.zeros((4, 1)))
        >>> observation.features["hidden"].shape
        (4, 5)

    References:
        arXiv 2605.06834 (GXD).
    """
    check_function("apply", apply)
    check_function("loss", loss)
    units_room.check_unit_list(units)
    readout_name, sense = (None, None) if readout is None else resolve_readout(readout)

    def observed(params, inputs, targets, *, key: KeyLike | None = None):
        units_room.validate_units(units, params)
        _check_floating(params)
        key = None if key is None else as_key(key)
        same: dict[Site, Site] = {}

        # Lists go in and come out: names of taps and paths of modules cannot be sorted together as keys of a pytree.
        def run(params, zeros):
            given = None if zeros is None else dict(zip(places, zeros, strict=True))
            with recording(units, given) as recorder:
                outputs = apply(params, inputs)
            same.update(recorder.same)
            outputs, aux = _split_aux(outputs) if has_aux else (outputs, None)
            return outputs, (list(recorder.captured.values()), aux)

        shapes = jax.eval_shape(lambda params: run(params, None)[1][0], params)
        sites = dict(zip(same, shapes, strict=True))
        places = list(dict.fromkeys(same.values()))
        _check_real(sites)
        # zeros_like: under shard_map they vary over the devices as the features do, else their derivatives were summed.
        zeros = [jnp.zeros_like(sites[site]) for site in places]
        outputs, pullback, (captured, aux) = jax.vjp(run, params, zeros, has_aux=True)
        loss_value, loss_cotangent = jax.value_and_grad(_scalar(loss))(outputs, targets)
        gradients, loss_gradients = pullback(loss_cotangent)
        read = functools.partial(features_by_layer, units, units_room.leaves_by_path(params), sites, same)
        features = read(dict(zip(same, captured, strict=True)))
        batch_size = _batch_size(outputs, features)
        sensitivities = None

        def pull(cotangent):
            """Makes the cotangent vary over the devices of a shard_map as the outputs do, and pulls it back."""
            return pullback(jax.tree.map(lambda c, output: c + jnp.zeros_like(output), cotangent, outputs))[1]

        if sense is not None:
            batch = Linearisation(outputs, targets, loss_gradients, pull, batch_size, key)
            sensitivities = read(dict(zip(places, sense(batch), strict=True)))
        first = (loss_value, aux) if has_aux else loss_value
        return first, gradients, Observation(features, sensitivities, readout_name)

    return observed


def capture(
    apply: Callable[[Params, Any], Any], params: Params, units: Sequence[UnitLayer], inputs: Any
) -> tuple[Any, dict[str, Array]]:
    """Runs a model and captures the features of its hidden units, without gradients: for probe sets and metrics.

    Args:
        apply: (params, inputs) -> outputs.
        params: The parameters.
        units: The unit layers to capture.
        inputs: The inputs.

    Returns:
        The outputs, and the features [B, ..., U] by layer.

    Raises:
        TypeError, ValueError: As `observe`.
    """
    check_function("apply", apply)
    units_room.validate_units(units, params)
    with recording(units, None) as recorder:
        outputs = apply(params, inputs)
    leaves, captured = units_room.leaves_by_path(params), recorder.captured
    features = features_by_layer(units, leaves, captured, recorder.same, captured)
    _batch_size(outputs, features)
    return outputs, features


@contextlib.contextmanager
def recording(
    units: Sequence[UnitLayer], zeros: dict[Site, Array] | None, recorder_type: type[Recorder] = Recorder
) -> Iterator[Recorder]:
    """Runs the body with taps and Flax modules recorded."""
    taps = {layer.feature or layer.name for layer in units}
    consumers = {site for layer in units if layer.feature is None for site in consumer_sites(layer)}
    recorder = recorder_type(taps, consumers, zeros)
    with listening(recorder):
        yield recorder


@contextlib.contextmanager
def listening(recorder: Any) -> Iterator[None]:
    """Runs the body with taps and Flax modules handed to `recorder` (`taps`, `record`, `intercept`)."""
    token = _recorder.set(recorder)
    try:
        with nn.intercept_methods(recorder.intercept):
            yield
    finally:
        _recorder.reset(token)


def consumer_sites(layer: UnitLayer) -> list[Path]:
    """Returns the paths of the Flax modules that hold a layer's outgoing kernels."""
    paths = [tuple(axis.path[:-1]) for axis in layer.outgoing]
    return [path[1:] if path[:1] == ("params",) else path for path in paths]


def features_by_layer(
    units: Sequence[UnitLayer],
    leaves: dict[Path, Any],
    sites: Mapping[Site, Any],
    same: Mapping[Site, Site],
    values: Mapping[Site, Array],
) -> dict[str, Array]:
    """Brings values captured at sites to [..., B, ..., U] by layer.

    Args:
        units: The unit layers.
        leaves: The parameters.
        sites: What passed each site, or its shape.
        same: For each site the first one that the very same value passed; `values` are looked up there.
        values: Values shaped as those at the sites, or with a leading axis more.

    Raises:
        ValueError: If a site was not passed, or holds something of another width, or the consumers of a layer read
            values with different batch axes.
    """
    result = {}
    for layer in units:
        tap_name = layer.feature or layer.name
        if tap_name in sites:
            width = sites[tap_name].shape[-1] if sites[tap_name].ndim else 0
            if width == layer.size:
                result[layer.name] = values[same.get(tap_name, tap_name)]
                continue
            parts = [(tap_name, layer.outgoing[0])]
        else:
            parts = list(zip(consumer_sites(layer), layer.outgoing, strict=True))
        views: dict[Site, Array] = {}
        batch_axis = 0
        for site, axis in parts:
            _check_site(layer, site, axis, leaves, sites)
            first = same.get(site, site)
            views[first] = units_room.features_of(values[first], axis, layer.size)
            batch_axis = values[first].ndim - len(sites[first].shape)
        result[layer.name] = _side_by_side(layer, list(views.values()), batch_axis)
    return result


def _side_by_side(layer: UnitLayer, views: Sequence[Array], batch_axis: int) -> Array:
    """Joins what the consumers of a layer read, [..., B, ..., U] each, along the positions."""
    if len(views) == 1:
        return views[0]
    if len({view.shape[: batch_axis + 1] for view in views}) > 1:
        raise ValueError(
            f"layer {layer.name!r}: its consumers read features with different batch axes, of shapes "
            f"{[view.shape for view in views]}: pass the features through gxd_jax.tap before they part"
        )
    return jnp.concatenate([view.reshape(*view.shape[: batch_axis + 1], -1, layer.size) for view in views], -2)


def _check_site(layer: UnitLayer, site: Site, axis: units_room.ParamAxis, leaves: dict, sites: Mapping) -> None:
    if site not in sites:
        wanted = f"tap {layer.feature!r}" if layer.feature else f"tap {layer.name!r} and Flax module {site}"
        raise ValueError(
            f"layer {layer.name!r} has no features: the model passed no {wanted}. Put gxd_jax.tap into the model, "
            "also where Flax networks are applied to parts of params (modules have their path inside apply); a "
            "function that was jitted and traced before skips its taps, so pass it without jit"
        )
    shape, width = sites[site].shape, leaves[axis.path].shape[axis.axis]
    if len(shape) < 1 or shape[-1] != width:
        raise ValueError(
            f"layer {layer.name!r}: the features at {site!r} have shape {shape}, their last axis should be the "
            f"{layer.size} units or the {width} inputs of {axis.path}"
        )


def _batch_size(outputs: Any, features: dict[str, Array]) -> int:
    """Returns the number of examples, which outputs and features must agree on."""
    shapes = [(f"the features of layer {name!r}", values.shape, 2) for name, values in features.items()]
    shapes += [("the outputs", jnp.shape(leaf), 1) for leaf in jax.tree.leaves(outputs)]
    size = shapes[0][1][0]
    for what, shape, least_axes in shapes:
        if len(shape) < least_axes or shape[0] != size:
            raise ValueError(
                f"{what} have shape {shape}: outputs and features need a leading batch axis of the same length, "
                f"which is {size} for {shapes[0][0]}; give a single example as x[None]"
            )
    if size == 0:
        raise ValueError("the batch is empty: give one example or more")
    return size


def _check_floating(params: Params) -> None:
    for path, leaf in units_room.leaves_by_path(params).items():
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            raise TypeError(f"the parameter {path} is {jnp.result_type(leaf)}: keep what has no gradient out of params")


def _check_real(sites: Mapping[Site, jax.ShapeDtypeStruct]) -> None:
    for site, values in sites.items():
        if not jnp.issubdtype(values.dtype, jnp.floating):
            raise TypeError(f"the features at {site!r} are {values.dtype}: cast them to float, they need a gradient")


def _split_aux(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"with has_aux=True apply must return (outputs, aux), it returned a {type(result).__name__}")
    return result


def _scalar(loss: Callable) -> Callable:
    """Lets a loss fail with a message of ours where it is not one number."""

    def checked(outputs: Any, targets: Any) -> Array:
        value = loss(outputs, targets)
        if jnp.shape(value) != ():
            raise ValueError(
                f"loss must return one number, the mean over the batch; it returned shape {jnp.shape(value)}"
            )
        return value

    return checked


def current_trace() -> Any:
    """Returns what tells the transformation that the caller is inside of."""
    return jax.extend.core.get_opaque_trace_state(convention="flax")
