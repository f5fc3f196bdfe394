"""One update of continual backprop, sub-step by sub-step, in the order of Algorithm 1 of [N].

Hidden layer l is made by layers[l] and read by layers[l + 1]. Fresh weights cannot be predicted here, so `update` is
handed them; everything else it works out by itself.
"""

from fractions import Fraction

import numpy as np


class HiddenLayer:
    """The statistics of one hidden layer of U units."""

    def __init__(self, size):
        self.age = np.zeros(size, int)
        self.batches = np.zeros(size, int)  # averaged since the unit's birth: the age less the skipped batches
        self.utility = np.zeros(size)
        self.reference = np.zeros(size)
        self.owed = Fraction(0)
        self.skipped = 0


def is_usable(features, sensitivities):
    """A batch with a feature or sensitivity that is not finite stays out of the statistics."""
    return bool(np.isfinite(features).all() and (sensitivities is None or np.isfinite(sensitivities).all()))


def corrected(average, batches, decay):
    """A running average from 0, divided by the weight it has given to its data so far; 0 before any data."""
    weight = 1.0 - decay**batches
    return np.where(batches > 0, average / np.where(batches > 0, weight, 1.0), 0.0)


def track_reference(hidden, features, decay):
    hidden.reference = decay * hidden.reference + (1 - decay) * features.mean(axis=0)


def track_utility(hidden, utility, decay):
    hidden.utility = decay * hidden.utility + (1 - decay) * utility


def count_owed(hidden, eligible, rate):
    """How many units to replace now; the fraction is carried. The rate is the decimal number as it was written."""
    hidden.owed += Fraction(repr(rate)) * int(eligible.sum())
    count = min(int(hidden.owed), int(eligible.sum()))
    hidden.owed -= count
    return count


def select(utility, eligible, count):
    """The mask of the `count` eligible units of lowest utility; of equal ones, those of lowest index."""
    candidates = sorted(np.flatnonzero(eligible), key=lambda unit: (utility[unit], unit))
    mask = np.zeros(len(utility), bool)
    mask[candidates[:count]] = True
    return mask


def compensate(layers, masks, references):
    """Hands what replaced units sent on average to the biases of those that read them."""
    compensated = [bias.copy() for _, bias in layers]
    for layer, (mask, reference) in enumerate(zip(masks, references, strict=True)):
        outgoing, _ = layers[layer + 1]
        for unit in np.flatnonzero(mask):
            compensated[layer + 1] += outgoing[unit] * reference[unit]
    return [(kernel, bias) for (kernel, _), bias in zip(layers, compensated, strict=True)]


def replace(layers, masks, fresh_kernels):
    """Incoming weights drawn afresh, biases to 0, and last of all outgoing weights to 0."""
    layers = [(kernel.copy(), bias.copy()) for kernel, bias in layers]
    for layer, mask in enumerate(masks):
        kernel, bias = layers[layer]
        kernel[:, mask] = fresh_kernels[layer][:, mask]
        bias[mask] = 0.0
    for layer, mask in enumerate(masks):
        outgoing, _ = layers[layer + 1]
        outgoing[mask] = 0.0
    return layers


def touched(layers, masks):
    """The entries whose optimizer state a reset clears: incoming, own and outgoing, not the compensated biases."""
    result = [(np.zeros(kernel.shape, bool), np.zeros(bias.shape, bool)) for kernel, bias in layers]
    for layer, mask in enumerate(masks):
        result[layer][0][:, mask] = True
        result[layer][1][mask] = True
        result[layer + 1][0][mask] = True
    return result


def forget(hidden, mask):
    hidden.age[mask] = 0
    hidden.batches[mask] = 0
    hidden.utility[mask] = 0.0
    hidden.reference[mask] = 0.0


class Learner:
    """Parameters, optimizer and statistics, advanced by one `update` a batch."""

    def __init__(self, layers, optimizer, utility, *, rate, maturity, decay, compensates=True):
        self.layers = [(np.asarray(kernel, np.float64), np.asarray(bias, np.float64)) for kernel, bias in layers]
        self.hidden = [HiddenLayer(kernel.shape[1]) for kernel, _ in self.layers[:-1]]
        self.optimizer = optimizer
        self.utility = utility
        self.rate, self.maturity, self.decay, self.compensates = rate, maturity, decay, compensates

    def update(self, gradients, features, sensitivities, fresh_kernels):
        """Advances by one batch; returns the masks of the replaced units and the corrected utilities they fell by.

        `fresh_kernels` holds one kernel-shaped array a layer, read only at the incoming weights of replaced units.
        """
        steps = self.optimizer.step(gradients)
        stepped = [(w + dw, b + db) for (w, b), (dw, db) in zip(self.layers, steps, strict=True)]

        masks, references, rankings = [], [], []
        for layer, hidden in enumerate(self.hidden):
            h, g = features[layer], sensitivities[layer]
            hidden.age += 1
            if is_usable(h, g):
                hidden.batches += 1
                track_reference(hidden, h, self.decay)
                reference = corrected(hidden.reference, hidden.batches, self.decay)
                w_in, w_out = stepped[layer][0], stepped[layer + 1][0]
                track_utility(hidden, self.utility(h, g, reference, w_in, w_out), self.decay)
            else:
                hidden.skipped += 1
            references.append(corrected(hidden.reference, hidden.batches, self.decay))
            rankings.append(corrected(hidden.utility, hidden.batches, self.decay))
            eligible = hidden.age > self.maturity
            masks.append(select(rankings[-1], eligible, count_owed(hidden, eligible, self.rate)))

        after = compensate(stepped, masks, references) if self.compensates else stepped
        self.layers = replace(after, masks, fresh_kernels)
        self.optimizer.clear(touched(self.layers, masks))
        for hidden, mask in zip(self.hidden, masks, strict=True):
            forget(hidden, mask)
        return masks, rankings
