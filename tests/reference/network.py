"""A multilayer perceptron with its derivatives written out.

Parameters are a list of layers, each a pair (kernel [in, out], bias [out]). Every layer but the last is followed by the
activation; its value after the activation is the layer's feature.
"""

import numpy as np

ACTIVATIONS = {
    "relu": (lambda z: np.maximum(z, 0.0), lambda h: (h > 0).astype(np.float64)),
    "tanh": (np.tanh, lambda h: 1.0 - h**2),
}
"""Name -> (the function, its derivative written in terms of the function's value)."""


def forward(layers, x, activation):
    """Returns the features, one array [B, U] a hidden layer, and the outputs [B, K]."""
    function, _ = ACTIVATIONS[activation]
    features = []
    h = np.asarray(x, np.float64)
    for kernel, bias in layers[:-1]:
        h = function(h @ kernel + bias)
        features.append(h)
    kernel, bias = layers[-1]
    return features, h @ kernel + bias


def sensitivities(layers, features, cotangents, activation):
    """Pulls cotangents [B, K] of the outputs back to every hidden layer's features: a list of arrays [B, U]."""
    _, derivative = ACTIVATIONS[activation]
    pulled = []
    g = cotangents
    for layer in reversed(range(len(features))):
        kernel, _ = layers[layer + 1]
        g = g @ kernel.T
        pulled.insert(0, g)
        g = g * derivative(features[layer])
    return pulled


def parameter_gradients(layers, x, features, cotangents, activation):
    """The gradient of sum(cotangents * outputs) with respect to every kernel and bias."""
    _, derivative = ACTIVATIONS[activation]
    pulled = sensitivities(layers, features, cotangents, activation)
    inputs = [np.asarray(x, np.float64), *features]
    gradients = []
    for layer in range(len(layers)):
        is_output = layer == len(layers) - 1
        g = cotangents if is_output else pulled[layer] * derivative(features[layer])
        gradients.append((inputs[layer].T @ g, g.sum(axis=0)))
    return gradients


def squared_loss(outputs, y):
    """mean (outputs - y)^2 over examples and outputs."""
    return np.mean((outputs - y) ** 2)


def squared_loss_cotangents(outputs, y):
    """The gradient of `squared_loss` with respect to the outputs, [B, K]."""
    return 2.0 * (outputs - y) / outputs.size


def softmax(z):
    exponentials = np.exp(z - z.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
