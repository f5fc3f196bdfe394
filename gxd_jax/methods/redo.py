"""ReDo: all tau-dormant units are reset every so many updates."""

from __future__ import annotations

from collections.abc import Sequence

import optax

from gxd_jax.keys import KeyLike
from gxd_jax.methods.dormancy import reset_dormant
from gxd_jax.resets.initializers import KernelInit
from gxd_jax.utilities import activation
from gxd_jax.wiring.layers import UnitLayer


def redo(
    units: Sequence[UnitLayer],
    *,
    tau: float = 0.1,
    period: int = 1000,
    decay: float = 0.0,
    kernel_init: KernelInit = None,
    compensate: bool = True,
    axis_name: str | None = None,
    key: KeyLike = 0,
) -> optax.GradientTransformationExtraArgs:
    """Replaces, every `period` updates, all tau-dormant units.

    A unit i of a layer of U units is tau-dormant where its score

        s[i] = mean abs(h[i]) / ((1 / U) sum_k mean abs(h[k])) <= tau,

    means over the batch and over positions ([S], eq. 1). All units of a layer whose outputs are all 0 are dormant.
    Goes where `continual_backprop` goes and resets in the same way, with the optimizer's moments under `gxd_jax.chain`.
    `update` needs `params` and the keyword `observation`; no sensitivities.

    Args:
        units: The unit layers.
        tau: Threshold of the score, 0 or more.
        period: Updates between resets: they come with updates `period`, 2 `period`, ...
        decay: Decay of running averages of mean abs(h) and of the mean output, in [0, 1). 0: only the batch of the
            resetting update counts, as in [S].
        kernel_init: As in `continual_backprop`.
        compensate: As in `continual_backprop`.
        axis_name: Mapped axis over which the batch is sharded.
        key: An int or a JAX key; under vmap a key for each replica.

    Returns:
        An `optax.GradientTransformationExtraArgs`.

    Raises:
        TypeError, ValueError: If a hyper-parameter is impossible; else as `continual_backprop`.

    Differs from: the public code of [S], which adds 1e-9 to the layer's mean, draws every kernel from one distribution
        (Xavier-uniform) whatever the network was initialised from, keeps the optimizer's moments of biases, and does
        not compensate the consumers' biases (`compensate=False`).

    References:
        [S] Sokar et al., "The dormant neuron phenomenon in deep reinforcement learning", ICML 2023, arXiv 2302.12902.
    """
    return reset_dormant(
        units,
        activation,
        tau=tau,
        period=period,
        decay=decay,
        kernel_init=kernel_init,
        compensate=compensate,
        axis_name=axis_name,
        key=key,
    )
