"""A run on eight CPU devices, for `test_sharding`: the same training on one device, and sharded in several ways.

Called as a program with the name of a file, it writes there what each way gives.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import gxd_jax as gxd
from tests.networks import batches, dense_params, dense_units, mlp, squared_loss

DEVICES, SEEDS, STEPS, SIZES = 8, 16, 40, (6, 16, 24, 3)
READOUT = "logits_exact"  # draws nothing, so that shards of a batch see what the whole batch sees

params = dense_params(SIZES)
units = dense_units(params)
xs, ys = batches(STEPS, 32, SIZES[0], SIZES[-1])
observe = gxd.observe(mlp(jnp.tanh), squared_loss, units, readout=READOUT)


def transform(key=0, axis_name=None):
    resets = gxd.continual_backprop(units, replacement_rate=0.02, maturity_threshold=5, axis_name=axis_name, key=key)
    return gxd.chain(gxd.adam(0.01), resets)


def step(tx, params, opt_state, x, y, mean=lambda tree: tree):
    _, gradients, observation = observe(params, x, y)
    updates, opt_state = tx.update(mean(gradients), opt_state, params, observation=observation)
    return optax.apply_updates(params, updates), opt_state, gxd.reset_info(opt_state).replaced


def train(one_step, params, opt_state, xs, ys):
    """Returns the last parameters and state, and who was replaced at every step."""
    replaced = []
    for x, y in zip(xs, ys, strict=True):
        params, opt_state, masks = one_step(params, opt_state, x, y)
        replaced.append(masks)
    return params, opt_state, jax.tree.map(lambda *masks: np.stack(masks), *replaced)


def weights(key=0, axis_name=None):
    """Resets single weights."""
    del axis_name  # they are chosen by their size
    resets = gxd.methods.selective_weight_reinitialization(rate=0.1, period=3, key=key)
    return gxd.chain(gxd.adam(0.01), resets)


def many(key=0, axis_name=None):
    """Resets nearly all units, whose weights are drawn in place."""
    resets = gxd.continual_backprop(units, replacement_rate=0.9, maturity_threshold=5, axis_name=axis_name, key=key)
    return gxd.chain(gxd.adam(0.01), resets)


def on_one_device(transform=transform, steps=STEPS):
    tx = transform()
    return train(jax.jit(functools.partial(step, tx)), params, tx.init(params), xs[:steps], ys[:steps])


def with_sharded_batch(mesh):
    """jit finds the reductions over the shards of a batch by itself."""
    tx = transform()
    everywhere = jax.device_put((params, tx.init(params)), NamedSharding(mesh, P()))
    split = jax.device_put((xs, ys), NamedSharding(mesh, P(None, "data")))
    return train(jax.jit(functools.partial(step, tx)), *everywhere, *split)


def with_sharded_params(mesh):
    """The units of a layer are spread over the devices: columns of its kernel, rows of the next one."""
    layouts = {
        "l1": {"kernel": P(None, "data"), "bias": P("data")},
        "l2": {"kernel": P(None, "data"), "bias": P("data")},
        "l3": {"kernel": P("data", None), "bias": P()},
    }
    shardings = jax.tree.map(functools.partial(NamedSharding, mesh), layouts, is_leaf=lambda leaf: isinstance(leaf, P))
    tx, spread = transform(), jax.device_put(params, shardings)
    one_step = jax.jit(functools.partial(step, tx))
    end, opt_state, replaced = train(one_step, spread, tx.init(spread), xs, ys)
    moments = opt_state[0][0].mu
    for kept, wanted in ((end, shardings), (moments, shardings)):
        jax.tree.map(lambda a, s: check(a.sharding.is_equivalent_to(s, a.ndim), a.sharding), kept, wanted)
    return end, opt_state, replaced


def with_shard_map(mesh):
    """Every device has a part of the batch; JAX itself sums the gradients of parameters that all devices share."""
    tx = transform(axis_name="data")

    def mean(gradients):
        return jax.tree.map(lambda total: total / DEVICES, gradients)

    def on_device(params, opt_state, x, y):
        return step(tx, params, opt_state, x, y, mean)

    specs = (P(), P(), P("data"), P("data"))
    mapped = jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=P()))
    everywhere = jax.device_put((params, tx.init(params)), NamedSharding(mesh, P()))
    split = jax.device_put((xs, ys), NamedSharding(mesh, P(None, "data")))
    return train(mapped, *everywhere, *split)


def with_replicas(mesh, transform, steps):
    """Every device has a part of the batch, and a replica of the rest that must not drift from the others."""
    tx = transform(axis_name="data")
    mean = functools.partial(jax.lax.pmean, axis_name="data")

    def on_device(replica, x, y):
        params, opt_state = jax.tree.map(lambda leaf: leaf[0], replica)
        out = step(tx, params, opt_state, x, y, mean)
        return jax.tree.map(lambda leaf: leaf[None], out)

    mapped = jax.jit(
        jax.shard_map(on_device, mesh=mesh, in_specs=(P("data"), P("data"), P("data")), out_specs=P("data"))
    )
    start = jax.tree.map(lambda leaf: jnp.stack([leaf] * DEVICES), (params, tx.init(params)))
    replicas = jax.device_put(start, NamedSharding(mesh, P("data")))
    split = jax.device_put((xs[:steps], ys[:steps]), NamedSharding(mesh, P(None, "data")))
    end, opt_state, replaced = train(
        lambda params, opt_state, x, y: mapped((params, opt_state), x, y), *replicas, *split
    )
    for leaf in jax.tree.leaves((end, opt_state)):
        check((np.asarray(leaf) == np.asarray(leaf)[:1]).all(), "replicas drifted apart")
    first = jax.tree.map(lambda leaf: np.asarray(leaf)[0], (end, opt_state))
    return *first, jax.tree.map(lambda masks: masks[:, 0], replaced)


def seeds(sharding=None):
    """Many seeds, each with its own key; spread over the devices if given a sharding."""

    def start(key):
        return params, transform(key).init(params)

    keys = jax.random.split(jax.random.key(1), SEEDS)
    carry = jax.jit(jax.vmap(start))(keys if sharding is None else jax.device_put(keys, sharding))
    mapped = jax.jit(jax.vmap(functools.partial(step, transform()), in_axes=(0, 0, None, None)))
    return train(mapped, *carry, xs, ys)


def check(holds, message):
    if not holds:
        raise AssertionError(message)


def named(way, end, opt_state, replaced):
    """Returns arrays under names that tell where they are from."""
    info = gxd.reset_info(opt_state)
    trees = {"params": end, "ages": info.ages, "replaced": replaced}
    flat, _ = jax.tree.flatten_with_path(trees)
    return {way + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in flat}


if __name__ == "__main__":
    mesh = jax.make_mesh((DEVICES,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    found = {
        **named("one", *on_one_device()),
        **named("batch", *with_sharded_batch(mesh)),
        **named("params", *with_sharded_params(mesh)),
        **named("shard_map", *with_shard_map(mesh)),
        **named("replicas", *with_replicas(mesh, transform, STEPS)),
        **named("one_weights", *on_one_device(weights, 8)),
        **named("weights", *with_replicas(mesh, weights, 8)),
        **named("one_many", *on_one_device(many, 8)),
        **named("many", *with_replicas(mesh, many, 8)),
        **named("seeds", *seeds()),
        **named("sharded_seeds", *seeds(NamedSharding(mesh, P("data")))),
    }
    np.savez(sys.argv[1], **found)
