"""What each primitive does to labels: the table of the rules of primitives.

Such a rule takes the reader and an equation, and returns the equation's results. Where it raises, or its results do not
have the equation's shapes, the units concerned are refused as if there were no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gxd_jax.wiring.discovery import mixing, shapes
from gxd_jax.wiring.discovery.calls import CALLS
from gxd_jax.wiring.discovery.entries import LINEAR, NONLINEAR, PRODUCTS, combine
from gxd_jax.wiring.discovery.products import convolve, multiply
from gxd_jax.wiring.discovery.reader import Rule
from gxd_jax.wiring.discovery.values import Value


def _table(rule: Callable[..., list[Value]], names: Iterable[str]) -> dict[str, Rule]:
    return dict.fromkeys(names, rule)


RULES: dict[str, Rule] = {
    **_table(combine, [*LINEAR, *NONLINEAR, *PRODUCTS]),
    **_table(mixing.reduce_axes, [f"reduce_{name}" for name in ("sum", "max", "min", "prod", "and", "or", "xor")]),
    **_table(mixing.reduce_axes, ["argmax", "argmin"]),
    **_table(mixing.mix_along("axis"), ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"]),
    **_table(mixing.mix_along("dimension"), ["sort"]),
    **_table(mixing.reduce_windows, ["reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"]),
    **_table(shapes.same, ["optimization_barrier"]),
    "transpose": shapes.transpose,
    "squeeze": shapes.squeeze,
    "broadcast_in_dim": shapes.broadcast,
    "reshape": shapes.reshape,
    "rev": shapes.reverse,
    "slice": shapes.cut,
    "split": shapes.split,
    "pad": shapes.pad,
    "concatenate": shapes.concatenate,
    "dynamic_slice": mixing.cut_at,
    "dynamic_update_slice": mixing.write_at,
    "gather": mixing.look_up,
    "dot_general": multiply,
    "conv_general_dilated": convolve,
    **CALLS,
}
"""Primitive -> its rule. A primitive that is not here is not understood."""
