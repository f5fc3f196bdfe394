"""A branch that is really skipped, also under `vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

if TYPE_CHECKING:
    from jaxtyping import Array, Bool


def run_if(predicate: Bool[Array, ""], work: Callable, skip: Callable, *operands: Any) -> Any:
    """Runs `work(*operands)` if the predicate holds, else `skip(*operands)`.

    `vmap` turns a `lax.cond` with a batched predicate into a `select`, which runs both branches at every step. Here the
    batched form asks whether *any* replica needs the work and then runs it for all; so `work` must give what `skip`
    gives for replicas that need nothing.

    Args:
        predicate: Scalar.
        work: Pure function of the operands, without closed-over tracers.
        skip: Cheap function of the operands, of the same result types.
        *operands: Pytrees of arrays.
    """
    if not isinstance(predicate, Tracer):  # outside of jit: nothing to compile
        return (work if predicate else skip)(*operands)

    @jax.custom_batching.custom_vmap
    def branch(predicate, *operands):
        return jax.lax.cond(predicate, work, skip, *operands)

    @branch.def_vmap
    def branch_for_all(axis_size, batched, predicate, *operands):
        predicate_batched, *operands_batched = batched
        in_axes = tuple(jax.tree.map(lambda b: 0 if b else None, b) for b in operands_batched)
        any_predicate = jnp.any(predicate) if predicate_batched else predicate

        def over_replicas(function):
            return jax.vmap(function, in_axes=in_axes, axis_size=axis_size)

        result = run_if(any_predicate, over_replicas(work), over_replicas(skip), *operands)
        return result, jax.tree.map(lambda _: True, result)

    return branch(predicate, *operands)
