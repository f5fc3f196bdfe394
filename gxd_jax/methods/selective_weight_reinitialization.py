"""Selective weight reinitialization: the least useful single weights are re-initialised every so many updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import optax

from gxd_jax.checks import check_number, check_period, look_up
from gxd_jax.keys import KeyLike
from gxd_jax.resets import selection, statistics
from gxd_jax.resets.engine import resets
from gxd_jax.resets.initializers import KernelInit
from gxd_jax.resets.rules import Candidates, Evidence, Rule
from gxd_jax.trees import is_placeholder, kernels_of, leaves_by_path
from gxd_jax.types import Params, Path
from gxd_jax.wiring.layers import WeightLayer, weight_layer

if TYPE_CHECKING:
    from jaxtyping import Array

WeightUtility = Callable[["Array", Any], "Array"]
"""Utility of single weights: (weights after the optimizer's step, their gradient) -> scores of the same shape."""

WEIGHT_UTILITIES: dict[str, WeightUtility] = {
    "magnitude": lambda weights, grad: jnp.abs(weights),
    "gradient": lambda weights, grad: jnp.abs(weights * grad),
}


def selective_weight_reinitialization(
    kernels: Sequence[Path] | None = None,
    *,
    utility: str | WeightUtility = "gradient",
    rate: float = 0.01,
    period: int = 100,
    decay: float = 0.0,
    kernel_init: KernelInit = None,
    key: KeyLike = 0,
) -> optax.GradientTransformationExtraArgs:
    """Re-initialises, every `period` updates, the share `rate` of each kernel's weights that has the lowest utility.

    The utility of a weight w is abs(w) ("magnitude") or abs(w dL/dw) ("gradient"), to first order the change of the
    loss when w is set to 0. rate x weights is rounded up or down at random; ties go to the lowest index.

    Goes after the optimizer, best as the last member of `gxd_jax.chain`, which also clears the optimizer's moments of
    the re-initialised weights, and passes the gradient on. In plain `optax.chain` the utility "gradient" needs it as an
    extra argument: `update(grads, state, params, grad=grads)`. `reset_info` lists the kernels by their paths joined by
    slashes, their weights flattened: replaced [n], ages [n], utilities [n].

    Args:
        kernels: Paths of the kernels. None: every parameter of two or more axes.
        utility: "magnitude", "gradient", or a function (weights, their gradient or None) -> scores of the same shape.
        rate: Share of a kernel's weights that is re-initialised at each reset, in [0, 1].
        period: Updates between resets: they come with updates `period`, 2 `period`, ...
        decay: Decay of a running average of the utility, in [0, 1). 0: only that of the resetting update counts.
        kernel_init: Initializer (key, shape, dtype) -> array of fresh weights, drawn for whole kernels, or a dict of
            them by the kernel's path joined by slashes. None: normal, with the mean and the standard deviation
            that the kernel had when the state was created. `jax.nn.initializers.zeros` prunes.
        key: An int or a JAX key; under vmap a key for each replica.

    Returns:
        An `optax.GradientTransformationExtraArgs`.

    Raises:
        TypeError, ValueError: If a hyper-parameter is impossible; `init` raises a ValueError where a kernel is missing,
            `update` where params, or the gradient where it is needed, are.

    Differs from: the public code of [H], which leaves the optimizer's moments to the caller, and with a decay sets the
        averages of all weights of a kernel to 0 at each reset, not only those of the re-initialised ones. Its pruning
        by a threshold is left out.

    References:
        [H] Hernandez-Garcia, Dohare, Luo and Sutton, "Reinitializing weights vs units for maintaining plasticity in
        neural networks", CoLLAs 2025, arXiv 2508.00212.
    """
    score = look_up("utility", utility, WEIGHT_UTILITIES, "a function")
    check_number("rate", rate, "[0, 1]", lambda value: 0 <= value <= 1)
    check_period(period)
    if kernels is not None:
        _check_kernels(kernels)

    def layers_of(params: Params) -> Any:
        if is_placeholder(params):  # which kernels there are is not known, if they are not named
            return params if kernels is None else [weight_layer(tuple(path), 1) for path in kernels]
        leaves = leaves_by_path(params)
        paths = list(kernels_of(params)) if kernels is None else [tuple(path) for path in kernels]
        if missing := [path for path in paths if path not in leaves]:
            raise ValueError(f"params have no kernels {missing}; the paths there are {list(leaves)}")
        if not paths:
            raise ValueError("params hold no kernel (an array of 2 or more axes)")
        return [weight_layer(path, jnp.size(leaves[path])) for path in paths]

    def reader(*, grad: Any = None, **others: Any) -> Callable[[WeightLayer, dict[Path, Any], Any], Evidence]:
        del others
        if utility == "gradient" and grad is None:
            raise ValueError(
                "utility 'gradient' needs the gradient: use gxd_jax.chain, or call update(..., grad=grads)"
            )
        gradients = {} if grad is None else leaves_by_path(grad)

        def read(layer: WeightLayer, stepped: dict[Path, Any], key: Any) -> Evidence:
            del key
            (kernel,) = layer.incoming
            weights = jnp.asarray(stepped[kernel.path], jnp.float32)
            scores = score(weights, gradients.get(kernel.path)).ravel().astype(jnp.float32)
            return Evidence(jnp.zeros_like(scores), jnp.isfinite(scores).all(), lambda reference: scores)

        return read

    def choose(memory, step):
        ranking = statistics.corrected(step.statistics.utility, step.statistics.weight)
        due = step.count % period == 0
        eligible = due & (step.statistics.weight > 0)
        share = selection.round_at_random(selection.as_rate(rate), eligible, step.key)
        return Candidates(ranking, eligible, share), memory

    return resets(
        layers_of,
        reader,
        Rule(init=lambda size: (), choose=choose, most=lambda size: selection.most_replaced(rate, size)),
        decay=decay,
        kernel_init=kernel_init,
        key=key,
    )


def _check_kernels(kernels: Sequence[Path]) -> None:
    if isinstance(kernels, str) or not all(type(path) in (tuple, list) for path in kernels):
        raise TypeError(f'kernels must be a list of paths such as [("hidden", "kernel")], got {kernels!r}')
    if len(set(map(tuple, kernels))) < len(kernels):
        raise ValueError(f"the paths of kernels must differ, got {list(kernels)}")
