"""Selective weight reinitialization: every so often, the least useful single weights are drawn anew."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from gxd_jax import drawing, reset, selection, tracking
from gxd_jax import units as units_room
from gxd_jax.checks import check_number, check_period
from gxd_jax.gating import run_if
from gxd_jax.keys import KeyLike, implementation
from gxd_jax.resetting import (
    Candidates,
    LayerState,
    ResettingState,
    ResettingTransformation,
    check_state,
    initial_state,
    report_wiring,
)
from gxd_jax.units import Path, WeightLayer

if TYPE_CHECKING:
    from jaxtyping import Array

# Utility of single weights: (weights after the optimizer's step, their gradient) -> scores of the same shape.
WEIGHT_UTILITIES: dict[str, Callable[[Array, Any], Array]] = {
    "magnitude": lambda weights, grad: jnp.abs(weights),
    "gradient": lambda weights, grad: jnp.abs(weights * grad),
}


def selective_weight_reinitialization(
    kernels: Sequence[Path] | None = None,
    *,
    utility: str = "gradient",
    rate: float = 0.01,
    period: int = 100,
    decay: float = 0.0,
    kernel_init: drawing.Initializer | dict[str, drawing.Initializer] | None = None,
    key: KeyLike = 0,
) -> optax.GradientTransformationExtraArgs:
    """Draws anew, every `period` updates, the share `rate` of each kernel's weights that is of least utility.

    The utility of a weight w is abs(w) ("magnitude") or, to first order the change of the loss without it,
    abs(w dL/dw) ("gradient"). rate x weights is rounded up or down by chance; ties go to the lowest index.

    Goes after the optimizer, best as the last member of `gxd_jax.chain`, which also clears the optimizer's moments of
    the weights drawn anew, and hands the gradient on. In plain `optax.chain` the utility "gradient" needs it as an
    extra argument: `update(grads, state, params, grad=grads)`. `reset_info` lists the kernels by their paths joined by
    slashes, their weights flattened: replaced [n], ages [n], utilities [n].

    Args:
        kernels: Paths of the kernels. None: every parameter of two or more axes.
        utility: "magnitude" or "gradient".
        rate: Share of a kernel's weights that is drawn anew at each reset, in [0, 1].
        period: Updates between resets: they come with updates `period`, 2 `period`, ...
        decay: Decay of a running average of the utility, in [0, 1). 0: that of the resetting update decides alone.
        kernel_init: Initializer (key, shape, dtype) -> array of fresh weights, drawn for whole kernels, or a dict of
            them by the kernel's path joined by slashes. None: normal, zero mean, with the standard deviation that the
            kernel had when the state was created. `jax.nn.initializers.zeros` prunes.
        key: An int or a JAX key; under vmap a key for each replica.

    Returns:
        An `optax.GradientTransformationExtraArgs`.

    Raises:
        TypeError, ValueError: If a hyper-parameter is impossible; `init` raises a ValueError where a kernel is missing,
            `update` where params, or the gradient where it is needed, are.

    Differs from: the public code of [H], which leaves the optimizer's moments to the caller, and with a decay forgets
        the averages of all weights of a kernel at each reset, not only of those drawn anew. Its pruning by a threshold
        is left out.

    References:
        [H] Hernandez-Garcia, Dohare, Luo and Sutton, "Reinitializing weights vs units for maintaining plasticity in
        neural networks", CoLLAs 2025, arXiv 2508.00212.
    """
    if utility not in WEIGHT_UTILITIES:
        raise ValueError(f"unknown utility {utility!r} of weights: allowed are {sorted(WEIGHT_UTILITIES)}")
    check_number("rate", rate, "[0, 1]", lambda value: 0 <= value <= 1)
    check_number("decay", decay, "[0, 1)", lambda value: 0 <= value < 1)
    check_period(period)
    if kernels is not None:
        _check_kernels(kernels)
    wrap = functools.partial(jax.random.wrap_key_data, impl=implementation(key))

    def init(params):
        leaves = units_room.leaves_by_path(params)
        layers = _weight_layers(kernels, leaves)
        initializers = drawing.resolve_initializers(kernel_init, layers)
        drawing.check_initializers(initializers, {layer.name: [leaves[layer.path].shape] for layer in layers})
        states = {}
        for layer in layers:
            kernel = jnp.asarray(leaves[layer.path], jnp.float32)
            states[layer.name] = LayerState(
                statistics=tracking.init_statistics(kernel.size),
                memory=(),
                initial_std=(kernel.std(),),
                replaced=jnp.zeros(kernel.size, bool),
                total=jnp.zeros((), jnp.int32),
            )
        return initial_state(key, 0, states)

    def update(updates, state, params=None, *, grad=None, wiring=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError("resets need the parameters: call update(grads, state, params)")
        if utility == "gradient" and grad is None:
            raise ValueError(
                "utility 'gradient' needs the gradient: use gxd_jax.chain, or call update(..., grad=grads)"
            )
        leaves, old_updates = units_room.leaves_by_path(params), units_room.leaves_by_path(updates)
        grads = {} if grad is None else units_room.leaves_by_path(grad)
        layers = _weight_layers(kernels, leaves)
        if wiring is not None:
            report_wiring(wiring, layers)
        check_state(state, [layer.name for layer in layers])
        due = (state.count + 1) % period == 0

        statistics, candidates, finite = {}, {}, []
        for layer, count_key in zip(layers, _step_keys(wrap(state.key), state.count, len(layers))[:-1], strict=True):
            old = state.layers[layer.name]
            stepped = jnp.asarray(leaves[layer.path] + old_updates[layer.path], jnp.float32)
            scores = WEIGHT_UTILITIES[utility](stepped, grads.get(layer.path)).ravel().astype(jnp.float32)
            finite.append(jnp.isfinite(scores).all())
            aged = tracking.restart(old.statistics, old.replaced)
            aged = tracking.advance_reference(aged, jnp.zeros_like(scores), finite[-1], decay)
            statistics[layer.name] = tracking.advance_utility(aged, scores, finite[-1], decay)
            ranking = tracking.corrected(statistics[layer.name].utility, aged.weight)
            eligible = due & (aged.weight > 0)
            share = selection.share_by_chance(rate, scores.size, count_key)
            count = jnp.minimum(share, eligible.sum(dtype=jnp.int32))
            candidates[layer.name] = Candidates(ranking, eligible, count)

        masks, draws = draw(state, layers, candidates, leaves)
        new_updates = {
            layer.path: reset.overwritten(
                leaves[layer.path],
                old_updates[layer.path],
                masks[layer.name].reshape(leaves[layer.path].shape),
                draws[layer.name],
            )
            for layer in layers
        }
        new_layers = {
            name: LayerState(
                statistics=statistics[name],
                memory=(),
                initial_std=state.layers[name].initial_std,
                replaced=masks[name],
                total=tracking.count_up(state.layers[name].total, candidates[name].count),
            )
            for name in masks
        }
        return units_room.replace_leaves(updates, new_updates), ResettingState(
            count=state.count + 1,
            key=state.key,
            maturity_threshold=state.maturity_threshold,
            skipped_batches=tracking.count_skipped(state.skipped_batches, finite),
            layers=new_layers,
        )

    def draw(state, layers, candidates, leaves):
        """Chooses the weights and draws whole kernels, on resetting steps."""
        shapes = {layer.name: leaves[layer.path].shape for layer in layers}
        initializers = drawing.resolve_initializers(kernel_init, layers)
        stds = {name: state.layers[name].initial_std[0] for name in shapes}

        def skip(*operands):
            return jax.tree.map(jnp.zeros_like, jax.eval_shape(work, *operands))

        def work(data, step, stds, candidates):
            draw_keys = jax.random.split(_step_keys(wrap(data), step, len(shapes))[-1], len(shapes))
            masks, draws = {}, {}
            for (name, shape), draw_key in zip(shapes.items(), draw_keys, strict=True):
                chosen, size = candidates[name], math.prod(shape)
                most = selection.most_owed(rate, size)
                numbers = selection.lowest(chosen.utility, chosen.eligible, chosen.count, most)
                masks[name] = selection.mask_of(numbers, size)
                initializer = initializers[name]
                draws[name] = (
                    stds[name] * jax.random.normal(draw_key, shape, jnp.float32)
                    if initializer is None
                    else initializer(draw_key, shape, jnp.float32)
                )
            return masks, draws

        owed = jnp.stack([chosen.count for chosen in candidates.values()])
        return run_if((owed > 0).any(), work, skip, state.key, state.count, stds, candidates)

    return ResettingTransformation(init, update)


def _check_kernels(kernels: Sequence[Path]) -> None:
    if isinstance(kernels, str) or not all(type(path) in (tuple, list) for path in kernels):
        raise TypeError(f'kernels must be a list of paths such as [("hidden", "kernel")], got {kernels!r}')
    if len(set(map(tuple, kernels))) < len(kernels):
        raise ValueError(f"the paths of kernels must differ, got {list(kernels)}")


def _weight_layers(kernels: Sequence[Path] | None, leaves: dict[Path, Any]) -> list[WeightLayer]:
    """Returns the kernels as layers of single weights."""
    if kernels is None:
        paths = [path for path, leaf in leaves.items() if jnp.ndim(leaf) >= 2]
    else:
        paths = [tuple(path) for path in kernels]
    if missing := [path for path in paths if path not in leaves]:
        raise ValueError(f"params have no kernels {missing}; the paths there are {list(leaves)}")
    if not paths:
        raise ValueError("params hold no kernel (an array of 2 or more axes)")
    return [WeightLayer("/".join(map(str, path)), path) for path in paths]


def _step_keys(key: Array, step: Array, layers: int) -> Array:
    """Returns this step's keys: of the count for each layer, and of the draws."""
    return jax.random.split(jax.random.fold_in(key, step), layers + 1)
