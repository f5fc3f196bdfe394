"""The utility of every unit of one layer for one batch, before averaging over time.

Every function takes the same five things: features h [B, U], sensitivities g ([B, U], or [K, B, U] for the readout
`logits_exact`), the corrected reference r [U], and the kernels w_in [in, U] and w_out [U, out] after the optimizer's
step.
"""

import numpy as np


def contribution(h, g, r, w_in, w_out):
    """[N] equation 1."""
    return np.abs(h).mean(axis=0) * np.abs(w_out).sum(axis=1)


def mean_corrected_contribution(h, g, r, w_in, w_out):
    """[A]: what is left of a contribution when the consumer's bias carries the mean."""
    return np.abs(h - r).mean(axis=0) * np.abs(w_out).sum(axis=1)


def adaptable_contribution(h, g, r, w_in, w_out):
    """[A]: the mean-corrected contribution, divided by how slowly the unit can change."""
    return mean_corrected_contribution(h, g, r, w_in, w_out) / np.abs(w_in).mean(axis=0)


def weight(h, g, r, w_in, w_out):
    return np.abs(w_out).sum(axis=1)


def adaptation(h, g, r, w_in, w_out):
    return 1.0 / np.abs(w_in).mean(axis=0)


def activation(h, g, r, w_in, w_out):
    return np.abs(h).mean(axis=0)


def gradient(h, g, r, w_in, w_out):
    """The activity of the mean loss's gradient; g is the loss's sensitivity per example, len(g) times as large."""
    return np.abs(g / len(g)).mean(axis=0)


def gxd(h, g, r, w_in, w_out):
    """[G]: the mean size of the output change of a reset; over outputs, where there are several, the 2-norm."""
    change = g * (h - r)
    size = np.abs(change) if g.ndim == 2 else np.sqrt((change**2).sum(axis=0))
    return size.mean(axis=0)
