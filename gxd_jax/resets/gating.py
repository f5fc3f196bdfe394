"""A branch that is really skipped, also under `vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

if TYPE_CHECKING:
    from jaxtyping import Array, Bool


def run_if(predicate: Bool[Array, ""], work: Callable, skip: Callable, *operands: Any) -> Any:
    """Runs `work(*operands)` if the predicate holds, else `skip(*operands)`.

    `vmap` turns a `lax.cond` with a batched predicate into a `select`, which runs both branches at every step. Here the
    batched form asks whether *any* replica needs the work and then runs it for all; so `work` must give what `skip`
    gives for replicas that need nothing.

    Args:
        predicate: Scalar.
        work: Pure function of the operands; it may close over traced values, mapped ones among them.
        skip: Cheap function of the operands, of the same result types, that closes over no traced value, nor
            over `work`: the program keeps `skip` for `vmap`, and traced values must not outlive their trace.
        *operands: Pytrees of arrays.
    """
    if not isinstance(predicate, Tracer):  # outside of jit: nothing to compile
        return (work if predicate else skip)(*operands)
    work, closed_over = _hoisted(work, operands)
    return _branch(predicate, work, lambda closed_over, *operands: skip(*operands), closed_over, *operands)


def _branch(predicate: Bool[Array, ""], work: Callable, skip: Callable, *operands: Any) -> Any:
    """As `run_if`, for functions that close over no traced value."""

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

        result = _branch(any_predicate, over_replicas(work), over_replicas(skip), *operands)
        return result, jax.tree.map(lambda _: True, result)

    return branch(predicate, *operands)


def _hoisted(function: Callable, operands: tuple) -> tuple[Callable, list[Array]]:
    """Returns a function (closed-over values, *operands) that closes over nothing traced, and those values."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*operands)
    structure, jaxpr, consts = jax.tree.structure(shapes), closed.jaxpr, list(closed.consts)

    def hoisted(closed_over: list[Array], *operands: Any) -> Any:
        results = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed_over))(*jax.tree.leaves(operands))
        return jax.tree.unflatten(structure, results)

    return hoisted, consts


def known_after(flags: Any, arrays: Any) -> Any:
    """Returns the flags unchanged, but as values that XLA has to compute from the arrays.

    For work that changes operands in place, such as the moments of an optimizer, while something outside reads the same
    operands to compute `arrays`, such as the new parameters. XLA changes an operand of a conditional in place only if
    every other reading of it is over before, and copies it at every step, replaced units or not, if the order of the
    two is free. Flags that depend on the arrays fix the order: first the reading, then the branch. A test counts the
    copies in the compiled step (`test_adams_moments_are_not_copied`).

    Args:
        flags: Pytree of bool arrays.
        arrays: Pytree of arrays, of which only the first entries are read.
    """
    firsts = [jnp.real(leaf[(0,) * leaf.ndim]).astype(jnp.float32) for leaf in jax.tree.leaves(arrays) if leaf.size]
    bits = jax.lax.bitcast_convert_type(jnp.stack(firsts), jnp.uint32)
    always = (jax.lax.population_count(bits) <= 32).all()
    return jax.tree.map(lambda flag: flag & always, flags)
