"""The methods that the experiments compare: one row each.

A new method is one row of `METHODS`; a new hyper-parameter one field of `Hyperparameters`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
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
    l2_init: tuple[float, ...] = (1e-3,)
    """Weight decay towards the initial weights of `l2_init`."""
    dropout: tuple[float, ...] = (0.1,)
    """Share of the hidden units that `dropout` leaves out."""
    replacement_rate: tuple[float, ...] | None = None
    """Share of the mature units that continual backprop replaces per step."""
    cost_weight: tuple[float, ...] = (1.0,)
    """Weight of the cost of a reset against its benefit in `gxd_adaptation` and `gxd_adaptation_rank`."""
    dormancy_tau: tuple[float, ...] = (0.1,)
    """Score, as a share of the layer's mean, below which `redo` and `regrama` reset a unit."""
    rejection: tuple[float, ...] = (0.01,)
    """Chance of taking a living unit for dead in `self_normalized_resets`."""
    weight_rate: tuple[float, ...] = (0.01,)
    """Share of the weights that `selective_weight_reinitialization` re-initialises each time."""
    spectral_strength: tuple[float, ...] = (1e-3,)
    """Weight of the regulariser of `spectral_regularization`."""
    clip: tuple[float, ...] = (2.0,)
    """Multiple of the initial bound that `weight_clipping` allows."""
    gated_noise_std: tuple[float, ...] = (1e-2,)
    """Standard deviation of the noise of `utility_gated_noise`."""
    reset_period: int = 1000
    """Updates between the resets of the methods that reset now and then."""
    maturity_threshold: int = 100
    """Updates before continual backprop may replace a unit."""
    decay: float = 0.99
    """Decay of the running utilities of continual backprop."""


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
    """A method: what is applied to the gradients, and what it asks of the network and the task loop.

    Attributes:
        label: What tables and figures call it.
        build: Ingredients -> what is applied to the gradients.
        own: Hyper-parameters that are its own.
        readout: Readout of the sensitivities that it needs, or None.
        resets: Whether it replaces units.
        hidden: False for a network without hidden layers.
        normalization: Of the network's hidden layers, a name of `networks.layers.NORMALIZATIONS`.
        resets_head: Whether the output layer is reset with every task.
    """

    label: str
    build: Callable[[Ingredients], optax.GradientTransformation]
    own: tuple[str, ...] = ()
    readout: str | None = None
    resets: bool = False
    hidden: bool = True
    normalization: str = "none"
    resets_head: bool = False

    def total_replaced(self, opt_state: Any) -> jax.Array:
        """Units replaced since the start."""
        return sum(gxd.reset_info(opt_state).totals.values()) if self.resets else jnp.int32(0)

    @property
    def supports_regression(self) -> bool:
        """Whether it can be used where one number is predicted, without batches and without a signal of the task."""
        of_batches_or_tasks = self.normalization != "none" or self.resets_head or "dropout" in self.own
        return not gxd.readouts.readout_of(self.readout).needs_classes and not of_batches_or_tasks


def _backprop(given: Ingredients) -> optax.GradientTransformation:
    return given.optimizer


def _l2(given: Ingredients) -> optax.GradientTransformation:
    return optax.chain(optax.add_decayed_weights(given.setting["l2"]), given.optimizer)


def _l2_init(given: Ingredients) -> optax.GradientTransformation:
    return optax.chain(gxd.methods.l2_init(given.setting["l2_init"]), given.optimizer)


def _shrink_and_perturb(given: Ingredients) -> optax.GradientTransformation:
    """The weight decay shrinks, as in [N]; the noise is added after the step."""
    decay = optax.add_decayed_weights(given.setting["perturb_l2"])
    perturb = gxd.methods.shrink_and_perturb(0.0, given.setting["noise_std"], key=given.key)
    return optax.chain(decay, given.optimizer, perturb)


def _spectral_regularization(given: Ingredients) -> optax.GradientTransformation:
    penalty = gxd.methods.spectral_regularization(given.setting["spectral_strength"], key=given.key)
    return optax.chain(penalty, given.optimizer)


def _weight_clipping(given: Ingredients) -> optax.GradientTransformation:
    return optax.chain(given.optimizer, gxd.methods.weight_clipping(given.setting["clip"]))


def _utility_gated_noise(given: Ingredients) -> optax.GradientTransformation:
    noise = gxd.methods.utility_gated_noise(given.setting["gated_noise_std"], key=given.key)
    return optax.chain(noise, given.optimizer)


def _continual_backprop(given: Ingredients, utility: str | gxd.utilities.Utility) -> optax.GradientTransformation:
    resets = gxd.continual_backprop(
        given.units,
        utility=utility,
        replacement_rate=given.setting["replacement_rate"],
        maturity_threshold=given.hyperparameters.maturity_threshold,
        decay=given.hyperparameters.decay,
        key=given.key,
    )
    return gxd.chain(given.optimizer, resets)


def _cbp(label: str, utility: str, readout: str | None = None) -> Method:
    """Returns continual backprop with one of its utilities."""
    build = functools.partial(_continual_backprop, utility=utility)
    return Method(label, build, own=("replacement_rate",), readout=readout, resets=True)


def _gxd_adaptation(given: Ingredients, scale: Literal["mean", "rank"]) -> optax.GradientTransformation:
    """Cost minus benefit: units with large incoming weights have more to gain from a reset."""
    utility = gxd.utilities.combine("gxd", "adaptation", weight=given.setting["cost_weight"], scale=scale)
    return _continual_backprop(given, utility)


def _combined(label: str, scale: Literal["mean", "rank"]) -> Method:
    build = functools.partial(_gxd_adaptation, scale=scale)
    return Method(label, build, own=("replacement_rate", "cost_weight"), readout="logits", resets=True)


def _redo(given: Ingredients) -> optax.GradientTransformation:
    tau, period = given.setting["dormancy_tau"], given.hyperparameters.reset_period
    return gxd.chain(given.optimizer, gxd.methods.redo(given.units, tau=tau, period=period, key=given.key))


def _regrama(given: Ingredients) -> optax.GradientTransformation:
    tau, period = given.setting["dormancy_tau"], given.hyperparameters.reset_period
    return gxd.chain(given.optimizer, gxd.methods.regrama(given.units, tau=tau, period=period, key=given.key))


def _self_normalized_resets(given: Ingredients) -> optax.GradientTransformation:
    resets = gxd.methods.self_normalized_resets(given.units, rejection=given.setting["rejection"], key=given.key)
    return gxd.chain(given.optimizer, resets)


def _selective_weight_reinitialization(given: Ingredients) -> optax.GradientTransformation:
    rate, period = given.setting["weight_rate"], given.hyperparameters.reset_period
    resets = gxd.methods.selective_weight_reinitialization(rate=rate, period=period, key=given.key)
    return gxd.chain(given.optimizer, resets)


OPTIMIZERS: dict[str, Callable[[float], optax.GradientTransformation]] = {"sgd": optax.sgd, "adam": gxd.adam}
"""Optimizers underneath the methods: step size -> optimizer."""

METHODS: dict[str, Method] = {
    "linear": Method("linear learner (no activation)", _backprop, hidden=False),
    "backprop": Method("backprop", _backprop),
    "l2": Method("L2", _l2, own=("l2",)),
    "shrink_and_perturb": Method("shrink-and-perturb", _shrink_and_perturb, own=("perturb_l2", "noise_std")),
    "l2_init": Method("L2-init", _l2_init, own=("l2_init",)),
    "spectral_regularization": Method("spectral regularisation", _spectral_regularization, own=("spectral_strength",)),
    "weight_clipping": Method("weight clipping", _weight_clipping, own=("clip",)),
    "utility_gated_noise": Method("UPGD", _utility_gated_noise, own=("gated_noise_std",)),
    "dropout": Method("dropout", _backprop, own=("dropout",)),
    "layer_norm": Method("layer norm", _backprop, normalization="layer"),
    "batch_norm": Method("batch norm", _backprop, normalization="batch"),
    "head_reset": Method("head reset", _backprop, resets_head=True),
    "redo": Method("ReDo", _redo, own=("dormancy_tau",), resets=True),
    "regrama": Method("ReGraMa", _regrama, own=("dormancy_tau",), readout="loss", resets=True),
    "self_normalized_resets": Method(
        "self-normalised resets", _self_normalized_resets, own=("rejection",), resets=True
    ),
    "selective_weight_reinitialization": Method(
        "selective weight re-initialisation", _selective_weight_reinitialization, own=("weight_rate",), resets=True
    ),
    "cbp_contribution": _cbp("CBP, `contribution`", "contribution"),
    "cbp_mean_corrected_contribution": _cbp("CBP, `mean_corrected_contribution`", "mean_corrected_contribution"),
    "cbp_adaptable_contribution": _cbp("CBP, `adaptable_contribution`", "adaptable_contribution"),
    "cbp_weight": _cbp("CBP, `weight`", "weight"),
    "cbp_adaptation": _cbp("CBP, `adaptation`", "adaptation"),
    "cbp_activation": _cbp("CBP, `activation`", "activation"),
    "cbp_gradient": _cbp("CBP, `gradient`", "gradient", readout="loss"),
    "cbp_random": _cbp("CBP, `random`", "random"),
    "gxd": _cbp("CBP, `gxd`", "gxd", readout="logits"),
    "gxd_exact": _cbp("CBP, `gxd`, `logits_exact`", "gxd", readout="logits_exact"),
    "gxd_predicted": _cbp("CBP, `gxd`, `predicted`", "gxd", readout="predicted"),
    "gxd_target": _cbp("CBP, `gxd`, `target`", "gxd", readout="target"),
    "gxd_fisher": _cbp("CBP, `gxd`, `fisher`", "gxd", readout="fisher"),
    "gxd_loss": _cbp("CBP, `gxd`, `loss`", "gxd", readout="loss"),
    "gxd_adaptation": _combined("CBP, `gxd` and `adaptation` combined", "mean"),
    "gxd_adaptation_rank": _combined("CBP, `gxd` and `adaptation` by ranks", "rank"),
}


def settings_of(method: Method, hyperparameters: Hyperparameters) -> Iterator[Setting]:
    """Yields every combination of the values given for a method's own hyper-parameters."""
    for values in itertools.product(*(getattr(hyperparameters, name) for name in method.own)):
        yield dict(zip(method.own, values, strict=True))


def shown(setting: Setting) -> str:
    """Returns a setting as text for a table's column."""
    return " ".join(f"{name}={value:g}" for name, value in setting.items())
