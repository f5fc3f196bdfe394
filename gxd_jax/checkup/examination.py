"""A check-up of a network's plasticity: every diagnostic of every layer in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from gxd_jax import metrics
from gxd_jax.chaining import reset_info
from gxd_jax.checks import check_function, check_number
from gxd_jax.checkup.layer_report import LayerReport
from gxd_jax.checkup.report import Report
from gxd_jax.observing.observation import capture
from gxd_jax.resets.state import resetting_states
from gxd_jax.trees import leaves_by_path
from gxd_jax.types import Params, ResetInfo
from gxd_jax.wiring import axes
from gxd_jax.wiring.layers import UnitLayer
from gxd_jax.wiring.validation import validate_units

if TYPE_CHECKING:
    from jaxtyping import Array, Float

Bounds = tuple[float, float]


def check_up(
    apply: Callable[[Params, Any], Any],
    params: Params,
    units: Sequence[UnitLayer],
    probe: Any,
    *,
    opt_state: Any = None,
    tau: float = 0.1,
    fraction: float = 0.01,
    epsilon: float = 0.05,
    saturated_at: float = 0.8,
    bounds: Bounds | Mapping[str, Bounds] | None = None,
) -> Report:
    """Examines the hidden units of a network on a probe set.

    A pure function of arrays: call it as it is, under `jit`, or under `vmap` over seeds. An optimization barrier keeps
    XLA from merging it with the code around it, so that the results of training stay the same to the bit. It costs a
    few runs of the network on the probe set and a singular value decomposition a layer: log it every so many steps.

    The ranks are those of the matrix [examples, U] of a layer's features. In maps [B, H, W, U], and for tokens, every
    position of every example is a row: the ranks are over channels, not over positions.

    Args:
        apply: (params, inputs) -> outputs [B, ...].
        params: The parameters.
        units: The unit layers.
        probe: A fixed set of inputs, the same for every check-up that is compared.
        opt_state: The optimizer's state, with a resetting member (`continual_backprop` or another method that resets
            units). The report of its layers then has ages, utilities, the share of mature units and weight growth too.
        tau: Threshold of dormant units, as in `metrics.dormant_units`.
        fraction: Share of examples below which a unit is of low activity, as in `metrics.low_activity_units`.
        epsilon: Nearness to a bound that counts, as in `metrics.saturated_share` and `metrics.saturated_units`.
        saturated_at: A unit counts as saturated if it is near a bound on at least this share of the examples; 1 as in
            `saturated_units`. Saturated tanh units are at one bound or the other, with few examples in between.
        bounds: (lower, upper) bounds of the activation functions, or a dict of them by layer. Layers without bounds are
            tested by intervention (`metrics.saturated_share`), which costs two runs of the network a layer.

    Returns:
        A `Report`.

    Raises:
        TypeError: If `apply` is no function, `units` no list of `UnitLayer`, or a threshold no number.
        ValueError: If the probe is empty, the wiring does not fit, a threshold is impossible, `bounds` names an unknown
            layer, or `opt_state` has no resetting member, none of these layers, or layers of another size. What `apply`
            raises on the probe is raised with a note.

    Example:
        >>> import gxd_jax
        >>> params = {"hidden": {"kernel": jnp.array([[1.0, 2.0, 0.0]])}, "output": {"kernel": jnp.ones((3, 1))}}
        >>> units = gxd_jax.sequential_units(params, ["hidden", "output"])
        >>> def apply(params, x):
        ...     return gxd_jax.tap("hidden", jax.nn.relu(x @ params["hidden"]["kernel"])) @ params["output"]["kernel"]
        >>> report = check_up(apply, params, units, jnp.array([[-1.0], [2.0]]))
        >>> report["hidden"].dead.tolist(), report["hidden"].activity.tolist()
        ([False, False, True], [1.0, 2.0, 0.0])

    References:
        Dohare et al., "Loss of plasticity in deep continual learning", Nature 632 (2024); Sokar et al., "The dormant
        neuron phenomenon in deep reinforcement learning", ICML 2023.
    """
    check_function("apply", apply)
    check_number("tau", tau, "[0, inf)", lambda value: 0 <= value < float("inf"))
    check_number("fraction", fraction, "[0, 1]", lambda value: 0 <= value <= 1)
    check_number("epsilon", epsilon, "(0, 1)", lambda value: 0 < value < 1)
    check_number("saturated_at", saturated_at, "(0, 1]", lambda value: 0 < value <= 1)
    validate_units(units, params)
    bounds = _resolve_bounds(bounds, units)
    info, initial_stds = (None, {}) if opt_state is None else _read_state(opt_state, units)

    params = jax.lax.optimization_barrier(jax.lax.stop_gradient(params))
    leaves = leaves_by_path(params)
    features = _features(apply, params, units, probe)
    unbounded = [layer for layer in units if layer.name not in bounds]
    shares = metrics.saturated_share(apply, params, unbounded, probe, epsilon=epsilon) if unbounded else {}

    layers = []
    for layer in units:
        values = jnp.asarray(features[layer.name], jnp.float32)
        matrix = values.reshape(-1, layer.size)
        activity = jnp.abs(matrix).mean(0)
        if layer.name in bounds:
            lower, upper = bounds[layer.name]
            saturated = ((matrix <= lower + epsilon) | (matrix >= upper - epsilon)).mean(0)
        else:
            saturated = shares[layer.name]
        outgoing = axes.outgoing_magnitude(layer, leaves)
        report = LayerReport(
            dead=metrics.dead_units(values),
            dormant=metrics.dormant_units(values, tau),
            saturated=saturated >= saturated_at,
            low_activity=metrics.low_activity_units(values, fraction=fraction),
            active_share=(matrix != 0).mean(0),
            saturated_share=saturated,
            activity=activity,
            contribution=activity * outgoing,
            incoming=axes.incoming_magnitude(layer, leaves),
            outgoing=outgoing / axes.outgoing_count(layer, leaves),
            effective_rank=metrics.effective_rank(matrix),
            stable_rank=metrics.stable_rank(matrix),
            approximate_rank=metrics.approximate_rank(matrix),
            highest_rank=jnp.array(min(matrix.shape), jnp.int32),
        )
        if info is not None and layer.name in initial_stds:
            report = report._replace(
                growth=_growth(axes.incoming_std(layer, leaves), initial_stds[layer.name]),
                ages=info.ages[layer.name],
                utilities=info.utilities[layer.name],
                mature_fraction=info.mature_fraction[layer.name],
            )
        layers.append(report)
    return Report(layers=tuple(layers), names=tuple(layer.name for layer in units))


def _features(
    apply: Callable[[Params, Any], Any], params: Params, units: Sequence[UnitLayer], probe: Any
) -> dict[str, Array]:
    shapes = jax.tree.map(jnp.shape, probe)
    if any(0 in jnp.shape(leaf) for leaf in jax.tree.leaves(probe)) or not jax.tree.leaves(probe):
        raise ValueError(f"probe must hold at least one example, its shapes are {shapes}")
    try:
        return capture(apply, params, units, probe, outputs=lambda everything: ())[1]
    except Exception as error:
        error.add_note(f"check_up ran apply(params, probe) on a probe of shapes {shapes}")
        raise


def _resolve_bounds(bounds: Bounds | Mapping[str, Bounds] | None, units: Sequence[UnitLayer]) -> dict[str, Bounds]:
    names = [layer.name for layer in units]
    if bounds is None:
        return {}
    by_name = dict(bounds) if isinstance(bounds, Mapping) else dict.fromkeys(names, bounds)
    if unknown := sorted(set(by_name) - set(names)):
        raise ValueError(f"bounds names the layers {unknown}; the layers of units are {names}")
    for name, pair in by_name.items():
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise ValueError(f"bounds must be (lower, upper), got {pair!r} for layer {name!r}")
        for end in pair:
            check_number(f"a bound of layer {name!r}", end, "[-inf, inf]", lambda value: value == value)
        if not pair[0] < pair[1]:
            raise ValueError(f"bounds must be (lower, upper) with lower < upper, got {pair!r} for layer {name!r}")
    return by_name


def _read_state(opt_state: Any, units: Sequence[UnitLayer]) -> tuple[ResetInfo, dict[str, tuple[Array, ...]]]:
    """Returns the reset info of the layers, and the initial standard deviations of their incoming kernels."""
    states = jax.lax.optimization_barrier(resetting_states(opt_state))
    info = reset_info(states)
    stds = {name: tuple(w.std for w in layer.initial) for state in states for name, layer in state.layers.items()}
    known = [layer for layer in units if layer.name in stds]
    if not known:
        raise ValueError(
            f"the optimizer state knows the layers {sorted(stds)}, none of units {[layer.name for layer in units]}"
        )
    for layer in known:
        if info.ages[layer.name].shape != (layer.size,):
            raise ValueError(
                f"the optimizer state has ages of shape {info.ages[layer.name].shape} for layer {layer.name!r}, which "
                f"has {layer.size} units; map check_up over seeds (vmap)"
            )
    return info, stds


def _growth(stds: Sequence[Array], initial: Sequence[Array]) -> Float[Array, ""]:
    now, then = jnp.stack(list(stds)), jnp.stack(list(initial))
    return jnp.where(then > 0, now / then, jnp.nan).mean()
