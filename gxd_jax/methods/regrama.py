"""ReGraMa: all units that receive little gradient are reset every so many updates."""

from __future__ import annotations

from collections.abc import Sequence

import optax

from gxd_jax.keys import KeyLike
from gxd_jax.methods.dormancy import reset_dormant
from gxd_jax.resets.initializers import KernelInit
from gxd_jax.utilities import gradient
from gxd_jax.wiring.layers import UnitLayer


def regrama(
    units: Sequence[UnitLayer],
    *,
    tau: float = 0.01,
    period: int = 1000,
    decay: float = 0.0,
    kernel_init: KernelInit = None,
    compensate: bool = True,
    axis_name: str | None = None,
    key: KeyLike = 0,
) -> optax.GradientTransformationExtraArgs:
    """Replaces, every `period` updates, all units whose gradient magnitude is small relative to their layer's mean.

    With L the loss of one example and h[i] the output of unit i of a layer of U units, these are the units with

        G[i] = mean abs(dL/dh[i]) / ((1 / U) sum_k mean abs(dL/dh[k])) <= tau,

    means over the batch and over positions ([L], the definition of GraMa). All units of a layer that receives no
    gradient at all are replaced. `update` needs `params` and the keyword `observation`, from an `observe` with
    `readout="loss"`; otherwise as in `redo`.

    A replaced unit starts with outgoing weights of 0, and so with a gradient of 0: `period` should leave it enough
    updates for both to grow.

    Args:
        units: The unit layers.
        tau: Threshold of the score, 0 or more.
        period: Updates between resets: they come with updates `period`, 2 `period`, ...
        decay: Decay of running averages of mean abs(dL/dh) and of the mean output, in [0, 1). 0: only the
            batch of the resetting update counts, as in [L].
        kernel_init: As in `continual_backprop`.
        compensate: As in `continual_backprop`.
        axis_name: Mapped axis over which the batch is sharded.
        key: An int or a JAX key; under vmap a key for each replica.

    Returns:
        An `optax.GradientTransformationExtraArgs`.

    Raises:
        TypeError, ValueError: If a hyper-parameter is impossible; else as `continual_backprop`. `update` raises a
            ValueError where the sensitivities are not those of the readout `loss`.

    Differs from: public ports, which take the gradients of the incoming weights, averaged over the batch before the
        absolute value, in place of those of the unit's output.

    References:
        [L] Liu et al., "Measure gradients, not activations! Enhancing neuronal activity in deep reinforcement
        learning", NeurIPS 2025, arXiv 2505.24061.
    """
    return reset_dormant(
        units,
        gradient,
        tau=tau,
        period=period,
        decay=decay,
        kernel_init=kernel_init,
        compensate=compensate,
        axis_name=axis_name,
        key=key,
    )
