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


def known_after(flags: Any, arrays: Any) -> Any:
    """Returns the flags unchanged, but in a way that XLA cannot know before it has the arrays.

    For `work` above, where something reads `operands` that `work` is to change in place: only where that reading comes
    first for certain does XLA write in place, else it copies the operands at every step. Pass what is computed by that
    reading as arrays, and as an operand.

    Args:
        flags: Pytree of bool arrays.
        arrays: Pytree of arrays, of which only the first entries are read.
    """
    firsts = [jnp.real(leaf[(0,) * leaf.ndim]).astype(jnp.float32) for leaf in jax.tree.leaves(arrays) if leaf.size]
    bits = jax.lax.bitcast_convert_type(jnp.stack(firsts), jnp.uint32)
    always = (jax.lax.population_count(bits) <= 32).all()
    return jax.tree.map(lambda flag: flag & always, flags)
