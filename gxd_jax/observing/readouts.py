"""Readouts: the functions of the outputs whose derivatives by the features are the sensitivities.

GXD is the mean size of the change that a reset makes to the outputs; the readout defines this size (Elisii et al.,
arXiv 2605.06834, section on output sensitivity). A readout turns the linearisation of one batch into sensitivities, and
says how a change of the readout becomes a size. To add one, add its record to `READOUTS`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gxd_jax.checks import look_up

if TYPE_CHECKING:
    from jaxtyping import Array, PRNGKeyArray


class Linearisation(NamedTuple):
    """One batch, linearised once.

    Attributes:
        outputs: The network's outputs, a pytree of arrays [B, ...].
        targets: The second argument of the loss.
        loss_gradients: Derivatives of the (mean) loss by the features.
        pull: Function from a cotangent of the outputs to the derivatives by the features.
        batch_size: Number of examples B.
        key: A key, or None if the caller gave none.
    """

    outputs: Any
    targets: Any
    loss_gradients: Any
    pull: Callable[[Any], Any]
    batch_size: int
    key: PRNGKeyArray | None


Readout = Callable[[Any, Any, "PRNGKeyArray | None"], Any]
"""A user's readout: (outputs, targets, key) -> [B], one number for each example, whose change counts."""


def logits(batch: Linearisation) -> Any:
    """One pullback of a Gaussian vector for each example, times sqrt(pi / 2).

    The mean of abs(g . delta) is then the 2-norm of the outputs' change, without bias, since for v ~ N(0, I)
    E abs(v . a) = sqrt(2 / pi) norm2(a). With a single output the pullback is exact.

    Raises:
        ValueError: If there are several outputs and no key.
    """
    leaves, treedef = jax.tree.flatten(batch.outputs)
    if sum(leaf[0].size for leaf in leaves) == 1:
        return batch.pull(jax.tree.map(jnp.ones_like, batch.outputs))
    sizes = [leaf.size for leaf in leaves]
    draws = math.sqrt(math.pi / 2) * jax.random.normal(_key("logits", batch), (sum(sizes),))  # one draw is cheaper
    parts = jnp.split(draws, np.cumsum(sizes)[:-1])
    vectors = [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]
    return batch.pull(jax.tree.unflatten(treedef, vectors))


def logits_exact(batch: Linearisation) -> Any:
    """The pullbacks of all K outputs: sensitivities [K, B, ..., U]."""
    leaves, treedef = jax.tree.flatten(batch.outputs)
    sizes = [leaf[0].size for leaf in leaves]

    def pull_output(row):
        parts = jnp.split(row, np.cumsum(sizes)[:-1])
        cotangents = [
            jnp.broadcast_to(part.reshape(leaf.shape[1:]), leaf.shape).astype(leaf.dtype)
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        return batch.pull(jax.tree.unflatten(treedef, cotangents))

    return jax.vmap(pull_output)(jnp.eye(sum(sizes)))


def predicted(batch: Linearisation) -> Any:
    """The pullback of the largest logit of each example.

    Raises:
        ValueError: If the outputs are not one array [B, ..., K].
    """
    outputs = _logits_of("predicted", batch)
    return batch.pull(_one_hot(outputs.argmax(-1), outputs))


def target(batch: Linearisation) -> Any:
    """The pullback of the labelled logit of each example; labels are ints [B, ...] or one-hot rows [B, ..., K].

    Raises:
        ValueError: If the outputs are not one array [B, ..., K], or the targets are no labels.
    """
    outputs = _logits_of("target", batch)
    labels = jnp.asarray(batch.targets) if hasattr(batch.targets, "shape") else None
    if labels is not None and labels.shape == outputs.shape:
        labels = labels.argmax(-1)
    if labels is None or labels.shape != outputs.shape[:-1] or not jnp.issubdtype(labels.dtype, jnp.integer):
        shown = type(batch.targets).__name__ if labels is None else f"{labels.dtype} {labels.shape}"
        raise ValueError(
            f"readout 'target' needs integer labels {outputs.shape[:-1]} or one-hot rows {outputs.shape}, got {shown}"
        )
    return batch.pull(_one_hot(labels, outputs))


def fisher(batch: Linearisation) -> Any:
    """The pullback of onehot(y) - softmax(z) with y ~ softmax(z): the score of a sampled label.

    The mean square of g . delta is twice the second-order Kullback-Leibler divergence between the predictions before
    and after.

    Raises:
        ValueError: If the outputs are not one array [B, ..., K], or there is no key.
    """
    outputs = _logits_of("fisher", batch)
    labels = jax.random.categorical(_key("fisher", batch), outputs)
    return batch.pull(_one_hot(labels, outputs) - jax.nn.softmax(outputs))


def loss(batch: Linearisation) -> Any:
    """The gradient of each example's own loss: the mean loss's gradient times B, without a second pullback."""
    return jax.tree.map(lambda gradients: gradients * batch.batch_size, batch.loss_gradients)


class ReadoutRecord(NamedTuple):
    """One row of the table of readouts.

    Attributes:
        pull: Linearisation -> sensitivities, derivatives of the readout by the features [B, ..., U].
        size: Change of the readout for each example and unit [B, U] -> its size [B, U].
        has_output_axis: Whether sensitivities, and so changes, have a leading axis of the K outputs.
        needs_classes: Whether the outputs have to be logits of classes.
    """

    pull: Callable[[Linearisation], Any]
    size: Callable[[Array], Array] = jnp.abs
    has_output_axis: bool = False
    needs_classes: bool = False


def _norm_over_outputs(change: Array) -> Array:
    return jnp.sqrt(jnp.square(jnp.abs(change)).sum(0))


def _squared(change: Array) -> Array:
    return jnp.square(jnp.abs(change))


READOUTS: dict[str, ReadoutRecord] = {
    "logits": ReadoutRecord(logits),
    "logits_exact": ReadoutRecord(logits_exact, size=_norm_over_outputs, has_output_axis=True),
    "predicted": ReadoutRecord(predicted, needs_classes=True),
    "target": ReadoutRecord(target, needs_classes=True),
    "fisher": ReadoutRecord(fisher, size=_squared, needs_classes=True),
    "loss": ReadoutRecord(loss),
}


def readout_of(name: str | None) -> ReadoutRecord:
    """Returns the record of the readout of some sensitivities, by the name that an `Observation` carries.

    A user's function is one number for each example: its changes count by their absolute value.
    """
    return READOUTS.get(name or "", ReadoutRecord(_no_pull))


def _no_pull(batch: Linearisation) -> Any:
    raise ValueError("these sensitivities were computed before")


def resolve_readout(readout: str | Readout) -> tuple[str, ReadoutRecord]:
    """Returns the name and the record of a readout given by name or as a user's function.

    Raises:
        ValueError: If there is no such name.
        TypeError: If it is neither a name nor a function.
    """
    row = look_up("readout", readout, READOUTS, "a function (outputs, targets, key) -> [B], or None")
    if isinstance(readout, str):
        return readout, row
    name = getattr(readout, "__name__", type(readout).__name__)
    return f"function {name}", ReadoutRecord(functools.partial(_of_function, readout))


def _of_function(readout: Readout, batch: Linearisation) -> Any:
    """The pullback of the gradient of a user's number for each example."""

    def total(outputs):
        values = readout(outputs, batch.targets, batch.key)
        if jnp.shape(values) != (batch.batch_size,):
            raise ValueError(
                f"a readout must return one number for each example, [{batch.batch_size}], it returned shape "
                f"{jnp.shape(values)}"
            )
        return values.sum()

    return batch.pull(jax.grad(total)(batch.outputs))


def _logits_of(name: str, batch: Linearisation) -> Array:
    if not isinstance(batch.outputs, jax.Array) or batch.outputs.ndim < 2:
        shapes = jax.tree.map(jnp.shape, batch.outputs)
        raise ValueError(
            f"readout {name!r} needs outputs that are one array of logits [B, ..., K], got shapes {shapes}"
        )
    return batch.outputs


def _key(name: str, batch: Linearisation) -> PRNGKeyArray:
    if batch.key is None:
        raise ValueError(f"readout {name!r} draws at random: pass key= to the observing function")
    return batch.key


def _one_hot(labels: Array, outputs: Array) -> Array:
    return jax.nn.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
