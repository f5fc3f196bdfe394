"""Small programs that use every part of the library once, for `test_strict_configurations` and `test_export`.

Each part is a function without arguments that returns the arrays that it computed, and how many units (or weights) each
of its methods replaced. Called as a program with the name of a file, this writes there what the shorter parts give.
"""

import json
import sys

import flax.linen as nn
import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import optax

import gxd_jax as gxd

# Its place until JAX 0.8.
enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(6)(x))
        x = nn.relu(nn.Dense(6)(x))
        return nn.Dense(3)(x)


class ConvNetwork(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(6, (3, 3))(x))
        x = nn.relu(nn.Conv(6, (3, 3), strides=2)(x))
        x = nn.relu(nn.Dense(6)(x.reshape(x.shape[0], -1)))
        return nn.Dense(3)(x)


class NormedNetwork(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.gelu(nn.LayerNorm()(nn.Dense(6)(x)))
        x = nn.max_pool(nn.relu(nn.BatchNorm(use_running_average=True)(nn.Dense(6)(x))), (2,), (1,))
        return nn.Dense(3)(x.mean(1))


NETWORK, CONV_NETWORK = Network(), ConvNetwork()


def loss(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def images():
    return np.random.default_rng(0).normal(size=(4, 4, 4, 1)).astype(np.float32), np.arange(4, dtype=np.int32) % 3


def numbers():
    return np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32), np.arange(4, dtype=np.int32) % 3


def dense():
    """Parameters and units of `Network`; the first unit of each layer is dead."""
    params = jax.device_get(NETWORK.init(jax.random.key(0), numbers()[0]))["params"]
    params = jax.tree.map(np.array, params)
    for name in ("Dense_0", "Dense_1"):
        params[name]["bias"][0] = -100
    params = {"params": jax.tree.map(jnp.asarray, params)}
    return params, gxd.sequential_units(params, ["Dense_0", "Dense_1", "Dense_2"])


# --- Methods ----------------------------------------------------------------------------------------------------------

# Of the units' methods, and of that for weights, each replaces something in its first update.
RESETTING = {
    "continual_backprop": lambda units, **more: gxd.continual_backprop(
        units, replacement_rate=0.5, maturity_threshold=0, **more
    ),
    "redo": lambda units, **more: gxd.methods.redo(units, tau=1.0, period=1, **more),
    "regrama": lambda units, **more: gxd.methods.regrama(units, tau=1.0, period=1, **more),
    "self_normalized_resets": lambda units, **more: gxd.methods.self_normalized_resets(units, initial_gap=1.0, **more),
    "selective_weight_reinitialization": lambda units, **more: gxd.methods.selective_weight_reinitialization(
        rate=0.5, period=1, **more
    ),
}
OTHERS = {
    "shrink_and_perturb": lambda: optax.chain(optax.sgd(0.01, momentum=0.9), gxd.methods.shrink_and_perturb(0.1, 0.01)),
    "weight_clipping": lambda: optax.chain(optax.sgd(0.01, momentum=0.9), gxd.methods.weight_clipping(0.5)),
    "l2_init": lambda: optax.chain(gxd.methods.l2_init(0.1), optax.sgd(0.01, momentum=0.9)),
    "spectral_regularization": lambda: optax.chain(
        gxd.methods.spectral_regularization(0.1), optax.sgd(0.01, momentum=0.9)
    ),
    "utility_gated_noise": lambda: optax.chain(gxd.methods.utility_gated_noise(0.01), optax.sgd(0.01)),
}


def readout_of(name):
    return "loss" if name == "regrama" else "logits"


def resetting(name, units, optimizer=None, **more):
    return gxd.chain(optax.sgd(0.01, momentum=0.9) if optimizer is None else optimizer, RESETTING[name](units, **more))


def step_of(observe, tx):
    """Returns (params, state, x, y, key) -> the next parameters and state."""
    tx = optax.with_extra_args_support(tx)

    def step(params, state, x, y, key):
        _, gradients, observation = observe(params, x, y, key=key)
        updates, state = tx.update(gradients, state, params, observation=observation)
        return optax.apply_updates(params, updates), state

    return step


def one_step(name, tx, **settings):
    params, units = dense()
    tx = tx(units)
    observe = gxd.observe(NETWORK.apply, loss, units, readout=readout_of(name), **settings)
    step = jax.jit(step_of(observe, tx))
    return step(params, tx.init(params), *numbers(), jax.random.key(1))


def resetting_part(name):
    def part():
        params, state = one_step(name, lambda units: resetting(name, units))
        return (params, state[0]), gxd.reset_info(state).counts

    return part


def other_part(name):
    def part():
        return one_step(name, lambda units: OTHERS[name]()), {}

    return part


def full_reset():
    params, _ = dense()
    fresh, tx = jax.tree.map(lambda leaf: leaf + 1, params), optax.sgd(0.01, momentum=0.9)
    return jax.jit(lambda p, f: gxd.methods.full_reset(p, tx.init(p), f, tx, paths=[("params", "Dense_2")]))(
        params, fresh
    ), {}


def plasticity_injection():
    params, _ = dense()
    injection = gxd.methods.plasticity_injection(params, jax.tree.map(lambda leaf: leaf + 1, params))
    return jax.jit(gxd.methods.injected(NETWORK.apply))(injection, numbers()[0]), {}


# --- The rest ---------------------------------------------------------------------------------------------------------


def twenty_lines():
    """Those of the README, with updates that heal and Adam whose corrections pass strict promotion."""
    params, _ = dense()
    units = gxd.sequential_units(params, ["Dense_0", "Dense_1", "Dense_2"])
    observe = gxd.observe(NETWORK.apply, loss, units)
    tx = gxd.chain(gxd.adam(1e-3), gxd.continual_backprop(units, replacement_rate=0.1, maturity_threshold=0, key=0))

    @jax.jit
    def step(params, opt_state, x, y, key):
        loss_value, grads, observation = observe(params, x, y, key=key)
        updates, opt_state = tx.update(grads, opt_state, params, observation=observation)
        return gxd.apply_updates(params, updates, opt_state, units), opt_state, loss_value

    opt_state = tx.init(params)
    for t in range(2):
        x = jax.random.normal(jax.random.key(t), (32, 5))
        y = (x[:, :3] * 3).argmax(-1)
        params, opt_state, loss_value = step(params, opt_state, x, y, jax.random.key(t))
    return (params, opt_state, loss_value), gxd.reset_info(opt_state).totals


def conv_scan(name="continual_backprop", key=0):
    """A task loop on images, two seeds at once; returns the function and its arguments."""
    x, y = images()
    params = CONV_NETWORK.init(jax.random.key(0), x)
    units = gxd.find_units(CONV_NETWORK.apply, params, x)

    def run(params, key, x, y):
        tx = resetting(name, units, key=key)
        observe = gxd.observe(CONV_NETWORK.apply, loss, units, readout=readout_of(name))
        step = gxd.training.make_train_step(observe, tx, key=key)
        state = gxd.training.init(params, tx, key)
        state, _, losses = gxd.training.train_task(step, state, lambda state: (state, (x, y)), (), 3)
        return state.params, losses, gxd.reset_info(state.opt_state).totals

    return jax.vmap(run, in_axes=(None, 0, None, None)), (params, jax.random.split(jax.random.key(key), 2), x, y)


def task_loop():
    function, arguments = conv_scan()
    params, losses, totals = jax.jit(function)(*arguments)
    return (params, losses), totals


def utilities():
    """Every utility, in one step each."""
    params, units = dense()
    choices = {name: (name, "loss" if name == "gradient" else "logits") for name in gxd.utilities.UTILITIES}
    choices |= {f"gxd by {readout}": ("gxd", readout) for readout in gxd.readouts.READOUTS}
    choices |= {
        f"combined by {scale}": (gxd.utilities.combine("gxd", "adaptation", scale=scale), "logits")
        for scale in ("mean", "rank")
    }

    @jax.jit
    def step(params, x, y, key):
        found = {}
        for name, (utility, readout) in choices.items():
            observe = gxd.observe(NETWORK.apply, loss, units, readout=readout)
            gradients, observation = observe(params, x, y, key=key)[1:]
            tx = gxd.continual_backprop(units, utility=utility, replacement_rate=0.5, maturity_threshold=0)
            updates, state = tx.update(gradients, tx.init(params), params, observation=observation)
            found[name] = updates, gxd.reset_info(state)
        return found

    found = step(params, *numbers(), jax.random.key(1))
    return found, {name: info.counts for name, (_, info) in found.items()}


def readouts():
    """Every readout."""
    params, units = dense()

    @jax.jit
    def look(params, x, y, key):
        return {
            name: gxd.observe(NETWORK.apply, loss, units, readout=name)(params, x, y, key=key)[2].sensitivities
            for name in gxd.readouts.READOUTS
        }

    return look(params, *numbers(), jax.random.key(1)), {}


def discovery():
    """Units found, described, and verified."""
    sequences = np.random.default_rng(2).normal(size=(4, 3, 5)).astype(np.float32)
    networks = {"dense": (NETWORK, numbers()[0]), "conv": (CONV_NETWORK, images()[0])}
    networks["normed"] = NormedNetwork(), sequences
    sizes = {}
    for name, (network, x) in networks.items():
        variables = network.init(jax.random.key(0), x)
        rest = {key: value for key, value in variables.items() if key != "params"}

        def apply(params, x, network=network, rest=rest):
            return network.apply({"params": params, **rest}, x)

        units = gxd.find_units(apply, variables["params"], x)
        if name == "normed":
            gxd.capture(apply, variables["params"], units, x)
        else:
            report = gxd.verify_units(apply, variables["params"], units, x)
            if not report.ok:
                raise ValueError(report)
        sizes[name] = {layer.name: layer.size for layer in units}
        gxd.describe(units)
    return (), sizes


def check_up():
    params, units = dense()
    x, _ = numbers()
    tx = resetting("continual_backprop", units)
    state = tx.init(params)
    report = jax.jit(lambda params, state: gxd.check_up(NETWORK.apply, params, units, x, opt_state=state))(
        params, state
    )
    str(report)
    return report, {layer: jnp.sum(report[layer].dead) for layer in report.names}


def metrics():
    params, units = dense()
    x, y = numbers()

    def error(params):
        return loss(NETWORK.apply(params, x), y)

    @jax.jit
    def measure(params, key):
        _, features = gxd.capture(NETWORK.apply, params, units, x)
        values = features["Dense_0"]
        gradients = jax.grad(error)(params)
        return [
            gxd.metrics.reset_cost(NETWORK.apply, params, units, x, key=key),
            gxd.metrics.reset_cost(NETWORK.apply, params, units, x, key=key, distance="kl", chunk=1),
            gxd.metrics.hessian_trace(error, params, samples=2, key=key),
            gxd.metrics.top_eigenvalue(error, params, iterations=2, key=key),
            gxd.metrics.plasticity(error, params, optax.sgd(0.1)),
            gxd.metrics.gradient_norm(gradients),
            gxd.metrics.nonzero_gradients(gradients),
            gxd.metrics.mean_weight_magnitude(params),
            gxd.metrics.effective_rank(values),
            gxd.metrics.stable_rank(values),
            gxd.metrics.approximate_rank(values),
            gxd.metrics.saturated_units(values, lower=0.0),
            gxd.metrics.saturated_share(NETWORK.apply, params, units, x),
        ]

    return measure(params, jax.random.key(1)), {}


def wiring():
    """What only some wirings need: a flattened map, several positions a unit, norms' statistics, Adam a weight."""
    x, y = images()
    params = CONV_NETWORK.init(jax.random.key(0), x)
    units = gxd.find_units(CONV_NETWORK.apply, params, x)
    tx = resetting("continual_backprop", units, gxd.adam(0.01), kernel_init=jax.nn.initializers.orthogonal())
    step = jax.jit(step_of(gxd.observe(CONV_NETWORK.apply, loss, units), tx))
    params, state = step(params, tx.init(params), x, y, jax.random.key(1))
    stats = {"Conv_0": {"mean": jnp.ones(6)}}
    fresh = gxd.reset_collection(stats, {"Conv_0": {"mean": jnp.zeros(6)}}, units, gxd.reset_info(state).replaced)
    return (params, state, fresh), gxd.reset_info(state).counts


PARTS = {
    "twenty lines": twenty_lines,
    "task loop": task_loop,
    **{name: resetting_part(name) for name in RESETTING},
    **{name: other_part(name) for name in OTHERS},
    "full_reset": full_reset,
    "plasticity_injection": plasticity_injection,
    "utilities": utilities,
    "readouts": readouts,
    "discovery": discovery,
    "check-up": check_up,
    "metrics": metrics,
    "wiring": wiring,
}
LONG = {"task loop", "utilities", "readouts", "discovery", "metrics", "wiring"}
RESETS = {"twenty lines", "task loop", "utilities", "discovery", "check-up", "wiring", *RESETTING}
"""Parts that replace (or find) units."""


def run(name):
    """Returns whether every array of a part is finite, and how many units were replaced (or found) in each layer."""
    arrays, counts = PARTS[name]()
    finite = [bool(np.isfinite(np.asarray(leaf, np.float64)).all()) for leaf in jax.tree.leaves(arrays)]
    return all(finite), [int(np.min(count)) for count in jax.tree.leaves(counts)]


def main(file):
    found = {name: run(name) for name in PARTS if name not in LONG}
    with open(file, "w", encoding="utf-8") as out:
        json.dump(found, out)


if __name__ == "__main__":
    main(sys.argv[1])
