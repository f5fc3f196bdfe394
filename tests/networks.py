"""What several test files need: tiny networks, their losses, and a loop over given observations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gxd_jax as gxd


def dense_params(sizes, seed=0):
    """Float32 parameters {"l1": {"kernel", "bias"}, ...} of a stack of dense layers of these sizes."""
    rng = np.random.default_rng(seed)
    params = {}
    for number, (inputs, outputs) in enumerate(zip(sizes[:-1], sizes[1:], strict=True), start=1):
        kernel = rng.normal(size=(inputs, outputs)) / np.sqrt(inputs)
        bias = rng.normal(size=outputs) / 10
        params[f"l{number}"] = {"kernel": jnp.float32(kernel), "bias": jnp.float32(bias)}
    return params


def dense_units(params):
    """The hidden layers of `dense_params`: all but the last."""
    return gxd.sequential_units(params, sorted(params))


def mlp(activation):
    """Returns `apply(params, x)` for `dense_params`, with a tap after each hidden layer."""

    def apply(params, x):
        *hidden, output = sorted(params)
        h = x
        for name in hidden:
            h = gxd.tap(name, activation(h @ params[name]["kernel"] + params[name]["bias"]))
        return h @ params[output]["kernel"] + params[output]["bias"]

    return apply


def squared_loss(outputs, y):
    return jnp.mean((outputs - y) ** 2)


def batches(steps, examples, inputs, outputs, seed=0):
    """Returns x [T, B, inputs] and y [T, B, outputs], float32."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(steps, examples, inputs))
    y = rng.normal(size=(steps, examples, outputs))
    return jnp.float32(x), jnp.float32(y)


def numpy_layers(params):
    """`dense_params` as the reference wants them: a list of (kernel, bias) in float64."""
    return [(np.float64(params[name]["kernel"]), np.float64(params[name]["bias"])) for name in sorted(params)]


def zeros_like(tree):
    return jax.tree.map(jnp.zeros_like, tree)


def feed(tx, params, observations):
    """Updates with zero gradients, once for each of the observations stacked along their first axis.

    Returns the parameters and the `ResetInfo` after every update, stacked, and the last optimizer state.
    """

    def update(carry, observation):
        params, state = carry
        updates, state = tx.update(zeros_like(params), state, params, observation=observation)
        params = optax.apply_updates(params, updates)
        return (params, state), (params, gxd.reset_info(state))

    @jax.jit
    def loop(params, observations):
        (_, state), (history, infos) = jax.lax.scan(update, (params, tx.init(params)), observations)
        return history, infos, state

    return loop(params, observations)


def constant_features(steps, **values):
    """Observations [T, 1, U] in which every layer shows the same features at every step."""
    return gxd.Observation({name: jnp.tile(jnp.float32(value), (steps, 1, 1)) for name, value in values.items()})


def one_hidden_layer(size, inputs=3, outputs=2, seed=0):
    """Parameters and units of a network whose only hidden layer is "l1"."""
    params = dense_params([inputs, size, outputs], seed)
    return params, dense_units(params)
