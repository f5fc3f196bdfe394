"""Optimizers with state that a reset must clear. Each steps layer by layer and clears entries by mask.

`step(gradients)` returns the updates (to be added to the parameters), in the layers' structure; `clear(masks)` takes
one pair of Boolean arrays (kernel, bias) a layer, True where the state goes back to its initial value.
"""

import numpy as np


class Sgd:
    def __init__(self, layers, learning_rate):
        self.learning_rate = learning_rate

    def step(self, gradients):
        return [tuple(-self.learning_rate * g for g in layer) for layer in gradients]

    def clear(self, masks):
        pass


class Momentum:
    def __init__(self, layers, learning_rate, momentum):
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.trace = [[np.zeros_like(p) for p in layer] for layer in layers]

    def step(self, gradients):
        for trace, gradient in zip(self.trace, gradients, strict=True):
            for i in range(2):
                trace[i] = gradient[i] + self.momentum * trace[i]
        return [tuple(-self.learning_rate * t for t in trace) for trace in self.trace]

    def clear(self, masks):
        for trace, mask in zip(self.trace, masks, strict=True):
            for i in range(2):
                trace[i][mask[i]] = 0.0


class Adam:
    """Adam, whose bias-correction count is one number for all (`per_weight=False`) or one a weight."""

    def __init__(self, layers, learning_rate, per_weight, b1=0.9, b2=0.999, eps=1e-8):
        self.learning_rate, self.per_weight, self.b1, self.b2, self.eps = learning_rate, per_weight, b1, b2, eps
        self.mu = [[np.zeros_like(p) for p in layer] for layer in layers]
        self.nu = [[np.zeros_like(p) for p in layer] for layer in layers]
        self.count = [[np.zeros(p.shape, int) for p in layer] for layer in layers]

    def step(self, gradients):
        updates = []
        for layer, gradient in enumerate(gradients):
            steps = []
            for i in range(2):
                self.count[layer][i] += 1
                self.mu[layer][i] = self.b1 * self.mu[layer][i] + (1 - self.b1) * gradient[i]
                self.nu[layer][i] = self.b2 * self.nu[layer][i] + (1 - self.b2) * gradient[i] ** 2
                mu_hat = self.mu[layer][i] / (1 - self.b1 ** self.count[layer][i])
                nu_hat = self.nu[layer][i] / (1 - self.b2 ** self.count[layer][i])
                steps.append(-self.learning_rate * mu_hat / (np.sqrt(nu_hat) + self.eps))
            updates.append(tuple(steps))
        return updates

    def clear(self, masks):
        for layer, mask in enumerate(masks):
            for i in range(2):
                self.mu[layer][i][mask[i]] = 0.0
                self.nu[layer][i][mask[i]] = 0.0
                if self.per_weight:
                    self.count[layer][i][mask[i]] = 0
