"""One update of a method that resets units: the nine steps, in order, for layers of units and for single weights.

What every step computes. U units of a layer; eta decay; a[i] age, u[i] utility, r[i] reference of unit i.

1. The optimizer's update gives the stepped parameters. Everything below acts on those.
2. Every unit ages: a <- a + 1.
3. The reference is a running average of the unit's mean output over the batch, r <- eta r + (1 - eta) mean h. It is
   bias-corrected, this batch included: r^ = r / (1 - eta^n), n the number of batches averaged since the unit was last
   initialised.
4. The utility is averaged in the same way, u <- eta u + (1 - eta) y, y the utility on this batch; units are ranked by
   the corrected u^. Features are those of the parameters before the optimizer's step, weights those after it. A batch
   with a feature or a sensitivity that is not finite enters no average of that layer.
5. The rule says which units are eligible and how many of them are replaced. In continual backprop units of
   a > maturity threshold are eligible; rate x eligible units is added to an accumulator, whose whole part is replaced.
6. The eligible units of lowest u^ are replaced; ties go to the lowest index.
7. Their incoming weights are re-initialised, own parameters set to their reset values, outgoing weights to exactly 0;
   outgoing weight x r^ is added to each consumer's bias. All masks are computed before anything is written: where two
   adjacent layers replace units in the same step, the zero of an outgoing weight wins over a fresh weight.
8. The optimizer's state at the incoming, own and outgoing entries of replaced units goes back to what `init` gives.
   The compensated biases keep theirs. Every other entry of parameters and state is what the optimizer alone gives, to
   the bit.
9. Age, utility and reference of replaced units are set to 0 in the same update.

A resetting method is a `Rule` (which units, and when) and the `Evidence` that it is given of each batch; everything
else is here.

References:
    Dohare et al., "Loss of plasticity in deep continual learning", Nature 632 (2024), Algorithm 1; Elisii et al., arXiv
    2605.06834.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from gxd_jax.checks import check_flag, check_number
from gxd_jax.keys import KeyLike, implementation, step_key
from gxd_jax.resets import evidence, fresh_weights, parameters, selection, statistics
from gxd_jax.resets.fresh_weights import KernelInit
from gxd_jax.resets.gating import run_if
from gxd_jax.resets.initial_weights import InitialWeights, initial_weights
from gxd_jax.resets.initializers import check_draws, check_kernel_init
from gxd_jax.resets.optimizer_state import clear_states
from gxd_jax.resets.parameters import Replacement
from gxd_jax.resets.rules import Candidates, Evidence, LayerStep, Rule
from gxd_jax.resets.state import (
    LayerState,
    ResettingState,
    ResettingTransformation,
    check_layers,
    first_state,
    statistics_after,
)
from gxd_jax.trees import is_placeholder, leaves_by_path, with_values
from gxd_jax.types import Params, Path
from gxd_jax.utilities import Utility
from gxd_jax.wiring.layers import Layer, UnitLayer
from gxd_jax.wiring.validation import check_unit_list, validate_units

if TYPE_CHECKING:
    from jaxtyping import Array

Read = Callable[[Any, dict[Path, Any], Any], Evidence]
"""A function (layer, stepped parameters, key) -> the `Evidence` of this batch about the layer's units."""


class Keys(NamedTuple):
    """The keys of one update: for the utility and the rule of each layer, and for all fresh weights."""

    utility: Array
    rule: Array
    draw: Array


def unit_resets(
    units: Sequence[UnitLayer],
    rule: Rule,
    *,
    utility: Utility,
    decay: Any,
    maturity_threshold: Any = 0,
    kernel_init: KernelInit,
    compensate: bool,
    axis_name: str | tuple[str, ...] | None,
    key: KeyLike,
) -> ResettingTransformation:
    """Builds the transformation of a method that resets hidden units by a utility.

    Args:
        units: The unit layers.
        rule: Which units are replaced, and when.
        utility: A function from a `UnitRecord` to scores [U], averaged over time.
        decay: Decay of the running averages.
        maturity_threshold: A unit counts as mature, in `ResetInfo`, when it has seen more updates than this.
        kernel_init: As in `continual_backprop`.
        compensate: As in `continual_backprop`.
        axis_name: As in `continual_backprop`.
        key: As in `continual_backprop`.

    Raises:
        TypeError, ValueError: As in `continual_backprop`.
    """
    check_unit_list(units)
    units = list(units)
    check_kernel_init(kernel_init, units)
    check_flag("compensate", compensate)
    if axis_name is not None and not isinstance(axis_name, (str, tuple)):
        raise TypeError(f"axis_name must be the name of a mapped axis, a tuple of names, or None, got {axis_name!r}")

    def reader(*, observation: Any = None, **others: Any) -> Read:
        del others
        observation = evidence.check_observation(observation, units)
        return lambda layer, stepped, key: evidence.unit_evidence(layer, observation, stepped, utility, axis_name, key)

    return resets(
        lambda params: units,
        reader,
        rule,
        validate=functools.partial(validate_units, units),
        decay=decay,
        maturity_threshold=maturity_threshold,
        kernel_init=kernel_init,
        compensate=compensate,
        key=key,
    )


def resets(
    layers_of: Callable[[Params], Sequence[Layer]],
    reader: Callable[..., Read],
    rule: Rule,
    *,
    validate: Callable[[Params], None] = lambda params: None,
    decay: Any,
    maturity_threshold: Any = 0,
    kernel_init: KernelInit,
    compensate: bool = False,
    key: KeyLike,
) -> ResettingTransformation:
    """Builds the transformation of a method that resets units or weights.

    Args:
        layers_of: Parameters -> the layers.
        reader: Extra arguments of `update` -> `Read`; raises where one that is needed is missing.
        rule: Which units are replaced, and when.
        validate: Checks, in `init`, that the layers fit the parameters.
        decay: Decay of the running averages.
        maturity_threshold: As in `unit_resets`.
        kernel_init: As in `continual_backprop`.
        compensate: As in `continual_backprop`.
        key: As in `continual_backprop`.
    """
    check_number("decay", decay, "[0, 1)", lambda value: 0 <= value < 1)
    key_implementation = implementation(key)

    def keys_of(data, count, layers):
        return _keys(step_key(data, key_implementation, count), len(layers))

    def init(params):
        if is_placeholder(params):
            return first_state(key, maturity_threshold, structure_of(params))
        params = with_values(params)
        validate(params)
        layers, leaves = layers_of(params), leaves_by_path(params)
        check_kernel_init(kernel_init, layers)
        check_draws(kernel_init, layers, leaves)
        initial = {
            layer.name: tuple(initial_weights(place, leaves[place.path], layer.size) for place in layer.incoming)
            for layer in layers
        }
        return first_state(key, maturity_threshold, first_layers(layers, initial))

    def first_layers(layers, initial):
        return {
            layer.name: LayerState(
                statistics=statistics.init_statistics(layer.size),
                memory=rule.init(layer.size),
                initial=initial[layer.name],
                replaced=jnp.zeros(layer.size, bool),
                total=jnp.zeros((), jnp.int32),
            )
            for layer in layers
        }

    def structure_of(placeholder):
        """Returns layers of the right structure where nothing is known of the parameters; values do not matter."""
        layers = layers_of(placeholder)
        if layers is placeholder:
            return placeholder
        unknown = InitialWeights(*(jnp.zeros(()) for _ in InitialWeights._fields))
        return first_layers(layers, {layer.name: tuple(unknown for _ in layer.incoming) for layer in layers})

    def update(updates, state, params=None, *, optimizer_inits=(), **extra_args):
        if params is None:
            raise ValueError("resets need the parameters: call update(grads, state, params, observation=...)")
        layers = layers_of(params)
        check_layers(state, [layer.name for layer in layers])
        read = reader(**extra_args)
        keys = keys_of(state.key, state.count, layers)

        stepped = leaves_by_path(optax.apply_updates(params, updates))  # step 1
        averages, references, memories, candidates, finite = {}, {}, {}, {}, []
        for layer, utility_key, rule_key in zip(layers, keys.utility, keys.rule, strict=True):
            before = state.layers[layer.name]
            seen = read(layer, stepped, utility_key)
            born = statistics_after(before)  # step 9 of the update before
            aged = statistics.advance_reference(born, seen.means, seen.finite, decay)  # steps 2 and 3
            references[layer.name] = statistics.corrected(aged.reference, aged.weight)
            utilities = seen.score(references[layer.name])
            averages[layer.name] = statistics.advance_utility(aged, utilities, seen.finite, decay)  # step 4
            step = LayerStep(averages[layer.name], utilities, seen.finite, state.count + 1, rule_key)
            candidates[layer.name], memories[layer.name] = rule.choose(before.memory, step)  # step 5
            finite.append(seen.finite)

        replaced = _replace(layers, rule, kernel_init, state, candidates, stepped, keys_of)  # step 6
        masks = {name: replacement.mask for name, replacement in replaced.items()}
        updates = parameters.reset_updates(layers, params, updates, replaced, references, compensate)  # step 7
        after = optax.apply_updates(params, updates)
        optimizer = clear_states(state.optimizer, optimizer_inits, after, layers, masks)  # step 8
        new_layers = {
            name: LayerState(
                statistics=averages[name],
                memory=memories[name],
                initial=state.layers[name].initial,
                replaced=mask,
                total=statistics.count_up(state.layers[name].total, candidates[name].count),
            )
            for name, mask in masks.items()
        }
        # A rule whose memory changes shape or dtype would fail later, in a scan, without a word of where.
        chex.assert_trees_all_equal_shapes_and_dtypes(new_layers, dict(state.layers))
        return updates, ResettingState(
            count=state.count + 1,
            key=state.key,
            maturity_threshold=jnp.asarray(maturity_threshold, jnp.float32),
            skipped_batches=statistics.count_skipped(state.skipped_batches, finite),
            layers=new_layers,
            optimizer=optimizer,
        )

    return ResettingTransformation(init, update)


def _keys(key: Array, layers: int) -> Keys:
    keys = jax.random.split(key, 2 * layers + 1)
    return Keys(utility=keys[:layers], rule=keys[layers:-1], draw=keys[-1])


def _replace(
    layers: Sequence[Layer],
    rule: Rule,
    kernel_init: KernelInit,
    state: ResettingState,
    candidates: Mapping[str, Candidates],
    stepped: dict[Path, Any],
    keys_of: Callable[..., Keys],
) -> dict[str, Replacement]:
    """Selects units and draws their fresh weights, at updates at which some layer (of some replica) replaces one.

    The keys are split inside the branch: at other updates none is needed.
    """
    most = {layer.name: rule.most(layer.size) for layer in layers}
    if not all(most.values()):  # a rate of 0
        none = jnp.zeros(0, jnp.int32)
        return {layer.name: Replacement(jnp.zeros(layer.size, bool), none, ()) for layer in layers}
    initial = {layer.name: state.layers[layer.name].initial for layer in layers}
    incoming_of = functools.partial(fresh_weights.incoming_of, layers, stepped, kernel_init)

    def work(key_data, count, initial, candidates):
        indices, masks = {}, {}
        for layer in layers:
            name, chosen = layer.name, candidates[layer.name]
            indices[name] = selection.lowest(chosen.utility, chosen.eligible, chosen.count, most[name])
            masks[name] = selection.mask_of(indices[name], layer.size)
        draw_key = keys_of(key_data, count, layers).draw
        return indices, masks, fresh_weights.draw(incoming_of(initial, indices), draw_key)

    operands = (state.key, state.count, initial, dict(candidates))
    indices_shape, *others_shapes = jax.eval_shape(work, *operands)

    def skip(*operands):
        del operands
        padding = {layer.name: jnp.full_like(indices_shape[layer.name], layer.size) for layer in layers}
        return padding, *jax.tree.map(jnp.zeros_like, others_shapes)

    replaces = (jnp.stack([candidates[layer.name].count for layer in layers]) > 0).any()
    indices, masks, packed = run_if(replaces, work, skip, *operands)
    fresh = fresh_weights.unpack(packed, incoming_of(initial, indices), layers)
    return {name: Replacement(mask, indices[name], fresh[name]) for name, mask in masks.items()}
