"""Plasticity injection: a fresh network learns a change to the predictions of the old, frozen one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gxd_jax.types import Params


class Injection(NamedTuple):
    """The three copies of the parameters.

    Attributes:
        old: Parameters at the injection, frozen.
        fresh: Fresh parameters, frozen.
        learned: The same fresh parameters, which are trained.
    """

    old: Params
    fresh: Params
    learned: Params


def plasticity_injection(params: Params, fresh: Params) -> Injection:
    """Freezes the parameters and puts fresh ones beside them, without changing the predictions.

    Train `learned` only, with a new optimizer state: `tx.init(injection.learned)`.

    Args:
        params: The parameters now, of the whole network or of its head alone ([N]).
        fresh: The same parameters as freshly initialised.

    Returns:
        An `Injection`, for the function that `injected` gives.

    Raises:
        ValueError: If the two trees differ in structure or shapes.

    References:
        [N] Nikishin et al., "Deep reinforcement learning with plasticity injection", NeurIPS 2023, arXiv 2305.15555,
        eq. (1).
    """
    if jax.tree.structure(params) != jax.tree.structure(fresh):
        raise ValueError(
            f"fresh must have the structure of params, {jax.tree.structure(params)}; it is {jax.tree.structure(fresh)}"
        )
    shapes, fresh_shapes = ([leaf.shape for leaf in jax.tree.leaves(tree)] for tree in (params, fresh))
    if shapes != fresh_shapes:
        raise ValueError(f"fresh must have the shapes of params, {shapes}; they are {fresh_shapes}")
    copied = functools.partial(jax.tree.map, jnp.copy)  # each may be donated, and the caller keeps its own
    return Injection(old=copied(params), fresh=copied(fresh), learned=copied(fresh))


def injected(apply: Callable[[Params, Any], Any]) -> Callable[[Injection, Any], Any]:
    """Returns the injected form of a model: apply(old, x) + apply(learned, x) - apply(fresh, x).

    Args:
        apply: (params, inputs) -> outputs, an array or a tree of arrays.

    Returns:
        A function (injection, inputs) -> outputs; no gradient reaches `old` and `fresh`.

    References:
        Nikishin et al., "Deep reinforcement learning with plasticity injection", arXiv 2305.15555, eq. (1).
    """

    def apply_injected(injection: Injection, inputs: Any) -> Any:
        old, fresh = (apply(jax.lax.stop_gradient(frozen), inputs) for frozen in (injection.old, injection.fresh))
        learned = apply(injection.learned, inputs)
        return jax.tree.map(lambda o, f, n: o + (n - f), old, fresh, learned)  # exactly o while nothing was learned

    return apply_injected
