"""Sites: places of a model where features are captured, by `tap` or at the input of Flax linen's consumer modules.

Features are captured where the outgoing weights read them. At each site a zero is added to them; the derivative by this
zero is the sensitivity.

Where several consumers read the very same value, it is captured once, and its sensitivity is that through all of them.
Where they read different values (a residual stream at several depths or behind several norms, a map and its mean), all
values are captured and laid side by side like the positions of a map. The reference is then one mean over all of them,
and the compensation uses it for every consumer. A utility still measures the change that a reset makes, but the mean
input of a consumer is kept only approximately where its own mean differs from the reference.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.core
import jax.extend
import jax.numpy as jnp
import numpy as np

from gxd_jax.types import Path
from gxd_jax.wiring import axes
from gxd_jax.wiring.layers import ParamAxis, UnitLayer

if TYPE_CHECKING:
    from jaxtyping import Array

# Until JAX 0.5 the function had another place.
_trace_state = getattr(jax.extend.core, "get_opaque_trace_state", None) or jax.core.get_opaque_trace_state

Site = str | Path
"""A place where features are captured: the name of a tap or the path of a Flax module."""

# Flax layers that multiply their input with their kernel as it comes in.
CONSUMERS = (nn.Dense, nn.DenseGeneral, nn.Conv, nn.ConvLocal, nn.ConvTranspose)


class Recorder:
    """Records the values at the sites of one run of a model, and adds the zeros.

    Attributes:
        captured: Site -> the value there.
        same: Site -> the first site with the very same value. A zero is added to a value once, at its first site.
    """

    def __init__(self, taps: set[str], consumers: set[Path], zeros: dict[Site, Array] | None):
        self.taps = taps
        self.consumers = consumers
        self.zeros = zeros
        self.captured: dict[Site, Array] = {}
        self.same: dict[Site, Site] = {}
        self._left: dict[Site, Array] = {}  # the value that each site returned
        self.trace = current_trace()

    def record(self, site: Site, values: Array) -> Array:
        """Records the value at a site and returns it with the zero added."""
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
    listener = recorder

    def intercept(call, args, kwargs, context):
        return call(*args, **kwargs) if listener is None else listener.intercept(call, args, kwargs, context)

    try:
        with nn.intercept_methods(intercept):
            yield
    finally:
        listener = None  # under `python -O` Flax keeps interceptors for ever: it takes them away inside an assertion
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
        sites: Site -> the value there, or its shape.
        same: Site -> the first site with the very same value, where `values` are looked up.
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
            views[first] = axes.features_of(values[first], axis, layer.size)
            batch_axis = values[first].ndim - len(sites[first].shape)
        result[layer.name] = _side_by_side(layer, list(views.values()), batch_axis)
    return result


def _side_by_side(layer: UnitLayer, views: Sequence[Array], batch_axis: int) -> Array:
    """Joins the values that a layer's consumers read, [..., B, ..., U] each, along the positions."""
    if len(views) == 1:
        return views[0]
    if len({view.shape[: batch_axis + 1] for view in views}) > 1:
        raise ValueError(
            f"layer {layer.name!r}: its consumers read features with different batch axes, of shapes "
            f"{[view.shape for view in views]}: pass the features through gxd_jax.tap before they part"
        )
    return jnp.concatenate([view.reshape(*view.shape[: batch_axis + 1], -1, layer.size) for view in views], -2)


def _check_site(layer: UnitLayer, site: Site, axis: ParamAxis, leaves: dict, sites: Mapping) -> None:
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


def current_trace() -> Any:
    """Returns an object that identifies the innermost transformation (jit, vmap, ...) around the caller."""
    return _trace_state(convention="flax")
