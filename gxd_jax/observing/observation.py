"""Observing one batch: loss, gradients, features and sensitivities from one linearisation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from gxd_jax.checks import check_function
from gxd_jax.keys import KeyLike, as_key
from gxd_jax.observing.readouts import Linearisation, Readout, resolve_readout
from gxd_jax.observing.sites import Site, features_by_layer, recording
from gxd_jax.trees import leaves_by_path
from gxd_jax.types import Observation, Params
from gxd_jax.wiring.layers import UnitLayer
from gxd_jax.wiring.validation import check_unit_list, validate_units

if TYPE_CHECKING:
    from jaxtyping import Array


def observe(
    apply: Callable[[Params, Any], Any],
    loss: Callable[[Any, Any], Array],
    units: Sequence[UnitLayer],
    *,
    readout: str | Readout | None = "logits",
    has_aux: bool = False,
    outputs: Callable[[Any], Any] | None = None,
) -> Callable[..., tuple[Any, Params, Observation]]:
    """Builds the function that computes loss, gradients, features and sensitivities of one batch.

    Args:
        apply: (params, inputs) -> outputs, a pytree; with `has_aux`, (outputs, aux).
        loss: (outputs, targets) -> scalar, the mean over the batch.
        units: The unit layers to observe.
        readout: The function of the outputs whose derivatives the sensitivities are: a name of
            `gxd_jax.readouts.READOUTS`, a function (outputs, targets, key) -> [B], or None for no sensitivities and no
            second pullback. With the default, "logits", the utility "gxd" ranks units by the measured cost of a reset
            as well as with "logits_exact" and better than with the others (rank correlation .95 to .98; with "loss",
            which is free, .91 to .95: benchmarks/README.md, reset cost).
        has_aux: Whether `apply` returns something beside the outputs (batch statistics).
        outputs: Selects, of what `apply` returns, the arrays [B, ...] that the readout speaks of, as in `find_units`: a
            policy (mean [B, A], log_std [A]) is observed by `lambda policy: policy[0]`. The loss gets everything. None:
            all of it.

    Returns:
        A pure function (params, inputs, targets, *, key=None) -> (loss, gradients, Observation); with `has_aux` the
        first result is (loss, aux). `key` (int or JAX key) is needed by readouts that draw at random.

    Raises:
        TypeError, ValueError: If the units are no list of `UnitLayer` or the readout is unknown. The returned function
            raises a ValueError where the wiring does not fit the parameters, a site of the units is not passed, or
            features have the wrong width or no batch axis.

    Example:
        >>> import numpy as np
        >>> import gxd_jax
        >>> params = {"hidden": {"w": np.ones((3, 5))}, "output": {"w": np.ones((5, 1))}}
        >>> units = gxd_jax.sequential_units(params, ["hidden", "output"])
        >>> def apply(params, x):
        ...     return gxd_jax.tap("hidden", jnp.tanh(x @ params["hidden"]["w"])) @ params["output"]["w"]
        >>> observed = observe(apply, lambda outputs, y: ((outputs - y) ** 2).mean(), units)
        >>> loss, gradients, observation = observed(params, np.ones((4, 3)), np.zeros((4, 1)))
        >>> observation.features["hidden"].shape
        (4, 5)

    References:
        arXiv 2605.06834 (GXD).
    """
    check_function("apply", apply)
    check_function("loss", loss)
    check_unit_list(units)
    select = _selection(outputs)
    readout_name, record = (None, None) if readout is None else resolve_readout(readout)

    def observed(params, inputs, targets, *, key: KeyLike | None = None):
        validate_units(units, params)
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
        # zeros_like: under shard_map they vary over the devices like the features; else derivatives would be summed.
        zeros = [jnp.zeros_like(sites[site]) for site in places]
        everything, pullback, (captured, aux) = jax.vjp(run, params, zeros, has_aux=True)
        loss_value, loss_cotangent = jax.value_and_grad(_scalar(loss))(everything, targets)
        gradients, loss_gradients = pullback(loss_cotangent)
        read = functools.partial(features_by_layer, units, leaves_by_path(params), sites, same)
        features = read(dict(zip(same, captured, strict=True)))
        selected, from_selected = jax.vjp(select, everything)
        batch_size = _batch_size(selected, features)
        sensitivities = None

        def pull(cotangent):
            """Makes the cotangent vary over the devices of a shard_map as the outputs do, and pulls it back."""
            varying = jax.tree.map(lambda c, output: c + jnp.zeros_like(output), cotangent, selected)
            return pullback(*from_selected(varying))[1]

        if record is not None:
            batch = Linearisation(selected, targets, loss_gradients, pull, batch_size, key)
            sensitivities = read(dict(zip(places, record.pull(batch), strict=True)))
        first = (loss_value, aux) if has_aux else loss_value
        return first, gradients, Observation(features, sensitivities, readout_name)

    return observed


def capture(
    apply: Callable[[Params, Any], Any],
    params: Params,
    units: Sequence[UnitLayer],
    inputs: Any,
    *,
    outputs: Callable[[Any], Any] | None = None,
) -> tuple[Any, dict[str, Array]]:
    """Runs a model and captures the features of its hidden units, without gradients: for probe sets and metrics.

    Args:
        apply: (params, inputs) -> outputs.
        params: The parameters.
        units: The unit layers to capture.
        inputs: The inputs.
        outputs: Selects the outputs [B, ...] that have a batch axis, as in `observe`.

    Returns:
        The outputs, and the features [B, ..., U] by layer.

    Raises:
        TypeError, ValueError: As `observe`.
    """
    check_function("apply", apply)
    validate_units(units, params)
    select = _selection(outputs)
    with recording(units, None) as recorder:
        everything = apply(params, inputs)
    leaves, captured = leaves_by_path(params), recorder.captured
    features = features_by_layer(units, leaves, captured, recorder.same, captured)
    _batch_size(select(everything), features)
    return everything, features


def _selection(outputs: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    if outputs is None:
        return lambda everything: everything
    check_function("outputs", outputs)
    return outputs


def _batch_size(outputs: Any, features: dict[str, Array]) -> int:
    """Returns the number of examples, which outputs and features must agree on."""
    shapes = [(f"the features of layer {name!r}", values.shape, 2) for name, values in features.items()]
    shapes += [("the outputs", jnp.shape(leaf), 1) for leaf in jax.tree.leaves(outputs)]
    size = shapes[0][1][0]
    for what, shape, least_axes in shapes:
        if len(shape) < least_axes or shape[0] != size:
            raise ValueError(
                f"{what} have shape {shape}: outputs and features need a leading batch axis of the same length, "
                f"which is {size} for {shapes[0][0]}; give a single example as x[None], and select outputs that have "
                "a batch axis by outputs="
            )
    if size == 0:
        raise ValueError("the batch is empty: give one example or more")
    return size


def _check_floating(params: Params) -> None:
    for path, leaf in leaves_by_path(params).items():
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
    """Returns the loss with a check that it gives one number."""

    def checked(outputs: Any, targets: Any) -> Array:
        value = loss(outputs, targets)
        if jnp.shape(value) != ():
            raise ValueError(
                f"loss must return one number, the mean over the batch; it returned shape {jnp.shape(value)}"
            )
        return value

    return checked
