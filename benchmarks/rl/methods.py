"""The methods of control: rows of the shared table, with PPO's optimizer underneath."""

from __future__ import annotations

from typing import NamedTuple

import optax

import gxd_jax as gxd
from benchmarks import methods

_STANDARD, _TUNED = (0.9, 0.999), (0.99, 0.99)
"""Decays of Adam's moments: the usual ones, and those that [N] found for control."""


class ControlMethod(NamedTuple):
    """A method of control.

    Attributes:
        label: What tables and figures call it.
        method: What resets units, with all hyper-parameters of its own.
        betas: Decays of Adam's moments.
        decay: Name of its weight decay among the hyper-parameters, or None.
        fresh: Whether every task begins with a fresh agent.
        learns: Whether it learns; else it acts by chance.
    """

    label: str
    method: methods.Method
    betas: tuple[float, float] = _TUNED
    decay: str | None = None
    fresh: bool = False
    learns: bool = True

    def optimizer(self, step_size: float, setting: methods.Setting) -> optax.GradientTransformation:
        """Returns Adam, with the weight decay as a part of the gradient."""
        adam = gxd.adam(step_size, *self.betas)
        return adam if self.decay is None else optax.chain(optax.add_decayed_weights(setting[self.decay]), adam)


def _row(label: str, name: str, decay: str | None = None) -> ControlMethod:
    method = methods.METHODS[name]
    own = method.own if decay is None else (decay, *method.own)
    return ControlMethod(label, method._replace(own=own), decay=decay)


_PLAIN = methods.METHODS["backprop"]

METHODS: dict[str, ControlMethod] = {
    "fresh": ControlMethod("fresh networks with every task", _PLAIN, _STANDARD, fresh=True),
    "ppo": ControlMethod("PPO", _PLAIN, _STANDARD),
    "ppo_betas": ControlMethod("PPO, betas .99", _PLAIN),
    "ppo_l2": _row("PPO + L2", "backprop", decay="l2"),
    "cbp": _row("CBP, `contribution`", "cbp_contribution"),
    "cbp_l2": _row("CBP + L2", "cbp_contribution", decay="reset_l2"),
    "gxd": _row("GXD", "gxd"),
    "gxd_l2": _row("GXD + L2", "gxd", decay="reset_l2"),
    "gxd_adaptation_l2": _row("GXD with `adaptation` + L2", "gxd_adaptation", decay="reset_l2"),
    "redo": _row("ReDo", "redo"),
    "redo_l2": _row("ReDo + L2", "redo", decay="reset_l2"),
    "random": ControlMethod("random actions", _PLAIN, learns=False),
}
