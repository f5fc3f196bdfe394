"""Finding the hidden units of any model: `find_units` reads its traced program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gxd_jax.types import Params, Path
from gxd_jax.wiring.discovery import layers
from gxd_jax.wiring.discovery.classes import IS_INPUT, Group, UnitClasses, group_units, read_classes
from gxd_jax.wiring.discovery.labels import INPUT
from gxd_jax.wiring.discovery.tracing import trace_program
from gxd_jax.wiring.layers import UnitLayer
from gxd_jax.wiring.validation import validate_units


class LeftOut(NamedTuple):
    """An axis of a parameter whose units cannot be replaced.

    Attributes:
        parameter: Path of the parameter.
        axis: Its axis.
        reason: Why.
    """

    parameter: Path
    axis: int
    reason: str


class Units(list[UnitLayer]):
    """The unit layers that were found: a list, with what was left out and other remarks as attributes.

    Attributes:
        left_out: Axes of kernels whose units cannot be replaced, with the reasons.
        coupled: Names of the layers whose units share statistics with their siblings (layer norm, group norm): a
            replacement changes the others a little.
        untapped: Names of the layers whose features are not captured yet: the model must pass them through
            `gxd_jax.tap(layer.feature, values)`.
    """

    def __init__(
        self,
        found: Iterable[UnitLayer] = (),
        *,
        left_out: Sequence[LeftOut] = (),
        coupled: Iterable[str] = (),
        untapped: Iterable[str] = (),
    ):
        super().__init__(found)
        self.left_out = list(left_out)
        self.coupled = frozenset(coupled)
        self.untapped = frozenset(untapped)


def find_units(
    apply: Callable[..., Any],
    params: Params,
    *example_inputs: Any,
    outputs: Callable[[Any], Any] | None = None,
    linear: bool = False,
) -> Units:
    """Finds the hidden units of a model and every parameter entry that belongs to them.

    The model's program is traced and read, never run or changed. Units are followed from the kernels that feed them,
    through operations that do not mix them (activations, norms, pooling, reshapes, concatenations, sums), to the
    kernels that read them. What is not understood is refused and listed in `left_out` with the reason.
    Check the result, or any other wiring, with `verify_units`.

    Layers are named by the module that produces them. Their `feature` is the name of a tap that the model passes, None
    where the consumers are Flax linen layers, else the name of a tap that the model must still be given.

    Args:
        apply: (params, *example_inputs) -> outputs, any pytree of arrays.
        params: The *initial* parameters: own parameters are reset to the constant that they hold (biases 0, norm scales
            1), and re-initialised like kernels where they hold no constant. A tree of arrays only.
        *example_inputs: Inputs of the right shapes.
        outputs: Selects the real outputs from what `apply` returns, for models that also return new state (batch
            statistics, a recurrent state). None: all of it.
        linear: Whether units with nothing non-linear between producer and consumer are units.

    Returns:
        A list of `UnitLayer` with the attributes of `Units`.

    Raises:
        TypeError: If `apply` is no function or a parameter has no values.
        ValueError: If no parameter is used.

    Example:
        >>> import jax.numpy as jnp
        >>> import gxd_jax
        >>> params = {"hidden": {"w": np.ones((3, 5)), "b": np.zeros(5)}, "output": {"w": np.ones((5, 1))}}
        >>> def apply(params, x):
        ...     h = jnp.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
        ...     return gxd_jax.tap("hidden", h) @ params["output"]["w"]
        >>> (layer,) = find_units(apply, params, np.ones((4, 3)))
        >>> layer.name, layer.size, layer.feature
        ('hidden', 5, 'hidden')
    """
    classes = read_classes(trace_program(apply, params, example_inputs, outputs))
    groups = group_units(classes, linear)
    chosen, overlaps = layers.choose(groups, classes)
    names = layers.name_groups(chosen, classes)
    found, untapped = [], []
    for name, group in zip(names, chosen, strict=True):
        layer, must_tap = layers.find_feature(layers.build_layer(name, group, classes), group, classes)
        found.append(layer)
        untapped += [name] * must_tap
    if found:
        validate_units(found, params)
    reasons = {id(group): group.reason for group in groups if group.reason is not None}
    for number, rival in overlaps.items():
        reasons[id(groups[number])] = layers.OVERLAPS.format(names[chosen.index(groups[rival])])
    return Units(
        found,
        left_out=_left_out(classes, groups, reasons),
        coupled=[name for name, group in zip(names, chosen, strict=True) if group.coupled],
        untapped=untapped,
    )


def _left_out(classes: UnitClasses, groups: Sequence[Group], reasons: dict[int, str]) -> list[LeftOut]:
    """Lists the axes of kernels on which no unit was found, in the order of the program."""
    paths = list(classes.program.parameters)
    entries: dict[LeftOut, None] = {}
    chosen = [group for group in groups if id(group) not in reasons]
    used = {place for place, roles in classes.reader.roles.items() if roles & {"feed", "read", "looked up"}}
    for place in classes.reader.roles:
        number, axis = place
        if place not in used:
            continue
        if (classes.labels[number][axis] == INPUT).any():
            entries.setdefault(LeftOut(paths[number], axis, IS_INPUT))
        for group in groups:
            if place not in group.tables or id(group) not in reasons:
                continue
            taken = [other.tables[place].ravel() for other in chosen if place in other.tables]
            if not np.isin(group.tables[place], np.concatenate([*taken, np.empty(0)])).all():
                entries.setdefault(LeftOut(paths[number], axis, reasons[id(group)]))
    return list(entries)
