"""The methods that the experiments compare: one row each.

A new method is one row of `METHODS`; a new hyper-parameter one field of `Hyperparameters`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import optax

import gxd_jax as gxd

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray


@dataclasses.dataclass(frozen=True)
class Hyperparameters:
    """Hyper-parameters of the methods. Where several values can be given, a method runs with each of its own."""

    l2: tuple[float, ...] | None = None
    """Weight decay of `l2`."""
    perturb_l2: tuple[float, ...] | None = None
    """Weight decay of `shrink_and_perturb`."""
    noise_std: tuple[float, ...] | None = None
    """Standard deviation of the noise that `shrink_and_perturb` adds at every step."""
    replacement_rate: tuple[float, ...] | None = None
    """Share of the mature units that the resetting methods replace per step."""
    maturity_threshold: int = 100
    """Updates before a unit may be replaced."""
    decay: float = 0.99
    """Decay of the running utilities."""


Setting = dict[str, float]
"""One value for each hyper-parameter that a method has of its own."""


class Ingredients(NamedTuple):
    """What a method is made from.

    Attributes:
        optimizer: The optimizer underneath.
        units: The hidden layers.
        setting: Values of the method's own hyper-parameters.
        hyperparameters: The hyper-parameters that all share.
        key: Key of the method's own draws.
    """

    optimizer: optax.GradientTransformation
    units: Sequence[gxd.UnitLayer]
    setting: Setting
    hyperparameters: Hyperparameters
    key: PRNGKeyArray | int


class Method(NamedTuple):
    """A method.

    Attributes:
        build: Ingredients -> what is applied to the gradients.
        own: Hyper-parameters that are its own.
        readout: Readout of the sensitivities that it needs, or None.
        resets: Whether it replaces units.
        hidden: False for a learner without hidden layers.
    """

    build: Callable[[Ingredients], optax.GradientTransformation]
    own: tuple[str, ...] = ()
    readout: str | None = None
    resets: bool = False
    hidden: bool = True


def _backprop(given: Ingredients) -> optax.GradientTransformation:
    return given.optimizer


def _l2(given: Ingredients) -> optax.GradientTransformation:
    return optax.chain(optax.add_decayed_weights(given.setting["l2"]), given.optimizer)


def _shrink_and_perturb(given: Ingredients) -> optax.GradientTransformation:
    """The weight decay shrinks, as in [N]; the noise is added after the step."""
    decay = optax.add_decayed_weights(given.setting["perturb_l2"])
    perturb = gxd.methods.shrink_and_perturb(0.0, given.setting["noise_std"], key=given.key)
    return optax.chain(decay, given.optimizer, perturb)


def _resetting(utility: str, readout: str | None = None) -> Method:
    """Returns continual backprop with one of its utilities."""

    def build(given: Ingredients) -> optax.GradientTransformation:
        resets = gxd.continual_backprop(
            given.units,
            utility=utility,
            replacement_rate=given.setting["replacement_rate"],
            maturity_threshold=given.hyperparameters.maturity_threshold,
            decay=given.hyperparameters.decay,
            key=given.key,
        )
        return gxd.chain(given.optimizer, resets)

    return Method(build, own=("replacement_rate",), readout=readout, resets=True)


METHODS: dict[str, Method] = {
    "linear": Method(_backprop, hidden=False),
    "backprop": Method(_backprop),
    "l2": Method(_l2, own=("l2",)),
    "shrink_and_perturb": Method(_shrink_and_perturb, own=("perturb_l2", "noise_std")),
    "cbp_contribution": _resetting("contribution"),
    "cbp_mean_corrected_contribution": _resetting("mean_corrected_contribution"),
    "cbp_adaptable_contribution": _resetting("adaptable_contribution"),
    "gxd": _resetting("gxd", readout="logits"),
    "cbp_random": _resetting("random"),
}


def settings_of(method: Method, hyperparameters: Hyperparameters) -> Iterator[Setting]:
    """Yields every combination of the values given for a method's own hyper-parameters."""
    for values in itertools.product(*(getattr(hyperparameters, name) for name in method.own)):
        yield dict(zip(method.own, values, strict=True))


def shown(setting: Setting) -> str:
    """Returns a setting as text for a table's column."""
    return " ".join(f"{name}={value:g}" for name, value in setting.items())
