"""Every optimizer, wrapper, container, key and transformation that the library promises to work with."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import FrozenDict
from flax.training.train_state import TrainState

import gxd_jax as gxd
from tests.networks import batches, dense_params, dense_units, mlp, numpy_layers, squared_loss
from tests.reference import continual_backprop as reference

PARAMS = dense_params([6, 5, 4, 3])
UNITS = dense_units(PARAMS)
X, Y = batches(12, 4, 6, 3)
LOSS_OBSERVE = gxd.observe(mlp(jnp.tanh), squared_loss, UNITS, readout="loss")
observe = jax.jit(LOSS_OBSERVE)


def resetting(rate=0.2, **settings):
    """Replaces about one unit a layer in every update from the third on; fresh weights are 1/2."""
    defaults = dict(
        utility="gxd", maturity_threshold=2, compensate=False, kernel_init=jax.nn.initializers.constant(0.5)
    )
    return gxd.continual_backprop(UNITS, replacement_rate=rate, **(defaults | settings))


def compile_exactly(function):
    """Compiles without fusion: fused operations are rounded differently when other code follows them."""
    return jax.jit(function, compiler_options={"xla_disable_hlo_passes": "fusion,cpu-instruction-fusion"})


def train(tx, steps, params=PARAMS, compile=jax.jit):
    """A plain Python loop around compiled steps; returns parameters and state after every step."""

    @compile
    def step(params, state, x, y):
        _, grads, observation = LOSS_OBSERVE(params, x, y)
        updates, state = tx.update(grads, state, params, observation=observation)
        return optax.apply_updates(params, updates), state

    state, trail = tx.init(params), []
    for x, y in zip(X[:steps], Y[:steps], strict=True):
        params, state = step(params, state, x, y)
        trail.append((params, state))
    return trail


def touched_entries(info):
    """`PARAMS`-shaped masks of the entries that belong to the units replaced in the last update."""
    masks = [np.asarray(info.replaced[name]) for name in ("l1", "l2")]
    touched = reference.touched(numpy_layers(PARAMS), masks)
    return {
        name: {"kernel": kernel, "bias": bias} for name, (kernel, bias) in zip(sorted(PARAMS), touched, strict=True)
    }


# --- Optimizers -------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": optax.sgd(0.05),
    "momentum": optax.sgd(0.05, momentum=0.9),
    "nesterov": optax.sgd(0.05, momentum=0.9, nesterov=True),
    "adam": optax.adam(0.01),
    "adamw": optax.adamw(0.01, weight_decay=0.1),
    "per-weight adam": gxd.adam(0.01),
    "adagrad": optax.adagrad(0.05, initial_accumulator_value=0.25),
    "rmsprop": optax.rmsprop(0.01, initial_scale=0.5, momentum=0.9, centered=True),
    "lion": optax.lion(0.001),
    "clip by value + adam": optax.chain(optax.clip(0.01), optax.adam(0.01)),
    "clip by norm + momentum": optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.05, momentum=0.9)),
    "schedule": optax.adam(optax.linear_schedule(0.1, 0.0, 10)),
    "weight decay + sgd": optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.05)),
    "injected learning rate": optax.inject_hyperparams(optax.adam)(learning_rate=0.01),
}


ALIKE = {"nesterov", "clip by value + adam", "clip by norm + momentum", "rmsprop", "injected learning rate"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in OPTIMIZERS]
)
def test_an_optimizer_is_reset_where_units_were_replaced_and_left_alone_elsewhere(name):
    """Each step is compared, bit by bit, with what the optimizer alone makes of the same gradients and state."""
    optimizer = OPTIMIZERS[name]
    tx = gxd.chain(optimizer, resetting())
    together, alone = compile_exactly(tx.update), compile_exactly(optimizer.update)
    fresh = optimizer.init(PARAMS)
    params, state = PARAMS, tx.init(PARAMS)
    replaced = 0
    for x, y in zip(X[:8], Y[:8], strict=True):
        _, grads, observation = observe(params, x, y)
        plain_updates, plain_state = alone(grads, state[0], params)
        updates, state = together(grads, state, params, observation=observation)
        info = gxd.reset_info(state)
        touched = touched_entries(info)

        def same_elsewhere(value, plain, mask):
            np.testing.assert_array_equal(np.asarray(value)[~mask], np.asarray(plain)[~mask])

        jax.tree.map(same_elsewhere, updates, plain_updates, touched)
        touched_state = optax.tree_utils.tree_map_params(
            optimizer,
            lambda leaf, mask: mask,
            state[0],
            touched,
            transform_non_params=lambda leaf: np.zeros(np.shape(leaf), bool),
        )
        jax.tree.map(same_elsewhere, state[0], plain_state, touched_state)
        jax.tree.map(
            lambda value, new, mask: np.testing.assert_array_equal(np.asarray(value)[mask], np.asarray(new)[mask]),
            state[0],
            fresh,
            touched_state,
        )
        params = optax.apply_updates(params, updates)
        for layer, following in (("l1", "l2"), ("l2", "l3")):
            units = np.asarray(info.replaced[layer])
            np.testing.assert_array_equal(np.asarray(params[following]["kernel"])[units], 0.0)
            np.testing.assert_array_equal(np.asarray(params[layer]["bias"])[units], 0.0)
        first = np.asarray(info.replaced["l1"])
        np.testing.assert_allclose(np.asarray(params["l1"]["kernel"])[:, first], 0.5, rtol=1e-6)
        replaced += int(info.counts["l1"] + info.counts["l2"])
    assert replaced >= 5


@pytest.mark.parametrize("name", ["momentum", "per-weight adam", "rmsprop"])
def test_rate_0_is_the_optimizer_alone(name):
    optimizer = OPTIMIZERS[name]
    for (params, state), (plain_params, plain_state) in zip(
        train(gxd.chain(optimizer, resetting(rate=0.0, compensate=True)), 4, compile=compile_exactly),
        train(optax.with_extra_args_support(optimizer), 4, compile=compile_exactly),
        strict=True,
    ):
        chex.assert_trees_all_equal(params, plain_params)
        chex.assert_trees_all_equal(state[0], plain_state)


# --- Wrappers ---------------------------------------------------------------------------------------------------------


def assert_same_trail(trail, wanted, read=lambda state: state):
    for (params, state), (wanted_params, wanted_state) in zip(trail, wanted, strict=True):
        chex.assert_trees_all_close(params, wanted_params, rtol=1e-5, atol=1e-7)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), read(state), read(wanted_state)
        )
    assert gxd.reset_info(trail[-1][1]).totals["l1"] >= 2


@pytest.fixture(scope="module")
def momentum_trail():
    return train(gxd.chain(optax.sgd(0.05, momentum=0.9), resetting()), 8)


def test_in_plain_optax_chain_it_resets_the_same_parameters(momentum_trail):
    trail = train(optax.chain(optax.sgd(0.05, momentum=0.9), resetting()), 3)
    chex.assert_trees_all_close(trail[2][0], momentum_trail[2][0], rtol=1e-6, atol=1e-8)
    assert gxd.reset_info(trail[2][1]).counts["l1"] == 1


def test_rate_and_decay_may_be_injected_and_traced(momentum_trail):
    injected = optax.inject_hyperparams(gxd.continual_backprop, static_args=("kernel_init",))(
        UNITS,
        utility="gxd",
        replacement_rate=0.2,
        maturity_threshold=2,
        decay=0.99,
        compensate=False,
        kernel_init=jax.nn.initializers.constant(0.5),
    )
    trail = train(gxd.chain(optax.sgd(0.05, momentum=0.9), injected), 8)
    assert_same_trail(trail, momentum_trail, read=lambda state: (state[0], gxd.reset_info(state)))


def test_the_rate_may_follow_a_schedule():
    scheduled = optax.inject_hyperparams(gxd.continual_backprop, static_args=("kernel_init",))(
        UNITS,
        utility="gxd",
        replacement_rate=optax.piecewise_constant_schedule(1.0, {4: 0.0}),
        maturity_threshold=0,
        kernel_init=jax.nn.initializers.constant(0.5),
    )
    trail = train(gxd.chain(optax.sgd(0.05), scheduled), 7)
    counts = [int(gxd.reset_info(state).counts["l1"]) for _, state in trail]
    assert counts == [5, 5, 5, 5, 0, 0, 0]


def test_the_whole_chain_may_be_masked():
    """A parameter outside the mask gets its gradient as it is; the rest is reset as ever."""
    params = {**PARAMS, "temperature": jnp.ones(2)}
    mask = {**jax.tree.map(lambda leaf: True, PARAMS), "temperature": False}
    chain = gxd.chain(optax.sgd(0.05, momentum=0.9), resetting())
    tx = optax.masked(chain, mask)

    @jax.jit
    def step(params, state, x, y):
        layers = {name: params[name] for name in PARAMS}
        _, grads, observation = LOSS_OBSERVE(layers, x, y)
        grads = {**grads, "temperature": jnp.full(2, 0.25)}
        updates, state = tx.update(grads, state, params, observation=observation)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for x, y in zip(X[:8], Y[:8], strict=True):
        params, state = step(params, state, x, y)
    np.testing.assert_allclose(params.pop("temperature"), 1 + 8 * 0.25, rtol=1e-6)
    wanted = train(chain, 8)[-1]
    chex.assert_trees_all_close(params, wanted[0], rtol=1e-5, atol=1e-7)
    assert gxd.reset_info(state).totals["l1"] == gxd.reset_info(wanted[1]).totals["l1"] >= 2


def test_an_optimizer_of_kernels_only_is_cleared_too():
    kernels = jax.tree.map(lambda leaf: leaf.ndim == 2, PARAMS)
    tx = gxd.chain(optax.masked(optax.trace(0.5), kernels), optax.scale(-0.05), resetting())
    _, state = train(tx, 3)[-1]
    trace = state[0].inner_state.trace
    touched = touched_entries(gxd.reset_info(state))
    for name in PARAMS:
        zero = np.asarray(trace[name]["kernel"]) == 0
        np.testing.assert_array_equal(zero, touched[name]["kernel"])
    assert isinstance(trace["l1"]["bias"], optax.MaskedNode)


def test_an_optimizer_partitioned_by_parameter_is_cleared_too():
    labels = {"l1": "slow", "l2": "fast", "l3": "fast"}
    partition = optax.transforms.partition({"slow": optax.adam(0.001), "fast": optax.sgd(0.05, momentum=0.9)}, labels)
    _, state = train(gxd.chain(partition, resetting()), 3)[-1]
    touched = touched_entries(gxd.reset_info(state))
    slow = state[0].inner_states["slow"].inner_state[0]
    fast = state[0].inner_states["fast"].inner_state[0]
    np.testing.assert_array_equal(np.asarray(slow.mu["l1"]["kernel"]) == 0, touched["l1"]["kernel"])
    np.testing.assert_array_equal(np.asarray(slow.nu["l1"]["bias"]) == 0, touched["l1"]["bias"])
    np.testing.assert_array_equal(np.asarray(fast.trace["l2"]["kernel"]) == 0, touched["l2"]["kernel"])
    np.testing.assert_array_equal(np.asarray(fast.trace["l3"]["kernel"]) == 0, touched["l3"]["kernel"])


def test_a_resetting_chain_may_be_one_part_of_a_partition(momentum_trail):
    params = {"net": PARAMS, "other": jnp.ones(3)}
    units = [
        layer._replace(
            incoming=tuple(axis._replace(path=("net", *axis.path)) for axis in layer.incoming),
            own=tuple((axis._replace(path=("net", *axis.path)), value) for axis, value in layer.own),
            outgoing=tuple(axis._replace(path=("net", *axis.path)) for axis in layer.outgoing),
            outgoing_bias=tuple(("net", *path) for path in layer.outgoing_bias),
        )
        for layer in UNITS
    ]
    member = gxd.continual_backprop(
        units,
        utility="gxd",
        replacement_rate=0.2,
        maturity_threshold=2,
        compensate=False,
        kernel_init=jax.nn.initializers.constant(0.5),
    )
    tx = optax.transforms.partition(
        {"net": gxd.chain(optax.sgd(0.05, momentum=0.9), member), "other": optax.sgd(0.1)},
        {"net": "net", "other": "other"},
    )

    @jax.jit
    def step(params, state, x, y):
        _, grads, observation = LOSS_OBSERVE(params["net"], x, y)
        grads = {"net": grads, "other": jnp.ones(3)}
        updates, state = tx.update(grads, state, params, observation=observation)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for x, y in zip(X[:8], Y[:8], strict=True):
        params, state = step(params, state, x, y)
    wanted = momentum_trail[-1]
    chex.assert_trees_all_close(params["net"], wanted[0], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(params["other"], 0.2, rtol=1e-5)
    assert gxd.reset_info(state).totals["l1"] == gxd.reset_info(wanted[1]).totals["l1"]


def test_multi_steps_ages_units_once_per_real_update():
    tx = optax.MultiSteps(gxd.chain(optax.sgd(0.05, momentum=0.9), resetting()), every_k_schedule=2)
    trail = train(tx, 12)
    ages = [gxd.reset_info(state).ages["l1"].max() for _, state in trail]
    assert ages[:4] == [0, 1, 1, 2]
    totals = [int(gxd.reset_info(state).totals["l1"]) for _, state in trail]
    assert totals[:5] == [0, 0, 0, 0, 0]  # the third real update is the sixth call
    assert totals[5] == 1
    assert totals[-1] >= 2
    for number, (params, _) in enumerate(trail[:-1]):
        if number % 2 == 1:  # the call after a real update only gathers gradients
            chex.assert_trees_all_equal(trail[number + 1][0], params)


def test_apply_if_finite_around_the_chain_skips_a_bad_gradient_as_a_whole(momentum_trail):
    tx = optax.apply_if_finite(gxd.chain(optax.sgd(0.05, momentum=0.9), resetting()), max_consecutive_errors=3)
    assert_same_trail(train(tx, 8), momentum_trail, read=gxd.reset_info)

    params, state = momentum_trail[3][0], train(tx, 4)[-1][1]
    _, grads, observation = observe(params, X[4], Y[4])
    bad = jax.tree.map(lambda leaf: leaf * jnp.nan, grads)
    updates, after = jax.jit(tx.update)(bad, state, params, observation=observation)
    jax.tree.map(lambda update: np.testing.assert_array_equal(update, 0.0), updates)
    np.testing.assert_array_equal(gxd.reset_info(after).ages["l1"], gxd.reset_info(state).ages["l1"])
    np.testing.assert_array_equal(gxd.reset_info(after).totals["l1"], gxd.reset_info(state).totals["l1"])


def test_flax_train_state(momentum_trail):
    tx = gxd.chain(optax.sgd(0.05, momentum=0.9), resetting())
    state = TrainState.create(apply_fn=mlp(jnp.tanh), params=PARAMS, tx=tx)

    @jax.jit
    def step(state, x, y):
        _, grads, observation = LOSS_OBSERVE(state.params, x, y)
        return gxd.apply_gradients(state, grads, observation=observation)

    for x, y in zip(X[:8], Y[:8], strict=True):
        state = step(state, x, y)
    assert state.step == 8
    assert_same_trail([(state.params, state.opt_state)], momentum_trail[-1:])


def test_flax_modules_and_batch_statistics_come_through():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            h = nn.relu(nn.Dense(5)(x))
            h = nn.BatchNorm(use_running_average=not train)(h)
            return nn.Dense(3)(h)

    variables = Net().init(jax.random.key(0), X[0], train=False)
    params, statistics = variables["params"], variables["batch_stats"]
    units = gxd.sequential_units(params, ["Dense_0", "Dense_1"])

    def apply(params, x):
        outputs, changed = Net().apply(
            {"params": params, "batch_stats": statistics}, x, train=True, mutable=["batch_stats"]
        )
        return outputs, changed["batch_stats"]

    observe = jax.jit(gxd.observe(apply, squared_loss, units, readout="loss", has_aux=True))
    (_, changed), _, observation = observe(params, X[0], Y[0])
    mean = jax.nn.relu(X[0] @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]).mean(axis=0)
    np.testing.assert_allclose(changed["BatchNorm_0"]["mean"], 0.01 * mean, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(observation.features["Dense_0"].mean(axis=0), 0.0, atol=1e-5)  # what Dense_1 reads


# --- Containers and keys ----------------------------------------------------------------------------------------------


def test_frozen_parameters(momentum_trail):
    tx = gxd.chain(optax.sgd(0.05, momentum=0.9), resetting())
    params, state = train(tx, 8, params=FrozenDict(PARAMS))[-1]
    assert isinstance(params, FrozenDict)
    assert_same_trail([(params.unfreeze(), state)], momentum_trail[-1:], read=gxd.reset_info)


def test_bfloat16_parameters_train_and_keep_their_dtypes():
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    tx = gxd.chain(optax.adam(0.01), resetting(compensate=True))
    trail = train(tx, 8, params=params)
    before = tx.init(params)
    params, state = trail[-1]
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
    assert gxd.reset_info(state).totals["l1"] >= 2
    for params, state in trail:
        units = np.asarray(gxd.reset_info(state).replaced["l2"])
        np.testing.assert_array_equal(np.float32(params["l3"]["kernel"])[units], 0.0)


KEYS = {
    "typed": lambda: jax.random.key(11),
    "raw": lambda: jax.random.PRNGKey(11),
    "numpy int": lambda: np.int64(11),
    "array": lambda: jnp.int32(11),
}


def all_replaced(key):
    """Fresh incoming weights of l1 in the first and the second update."""
    tx = resetting(rate=1.0, maturity_threshold=0, kernel_init=jax.nn.initializers.he_normal(), key=key)
    return [params["l1"]["kernel"] for params, _ in train(gxd.chain(optax.sgd(0.01), tx), 2)]


@pytest.fixture(scope="module")
def draws_of_11():
    return all_replaced(11)


@pytest.mark.parametrize("kind", sorted(KEYS))
def test_keys_of_every_kind_draw_the_same(kind, draws_of_11):
    first, second = all_replaced(KEYS[kind]())
    np.testing.assert_array_equal(first, draws_of_11[0])
    np.testing.assert_array_equal(second, draws_of_11[1])
    assert not np.any(first == second)


def test_another_key_draws_something_else(draws_of_11):
    assert not np.any(draws_of_11[0] == all_replaced(12)[0])


def test_rbg_keys_keep_their_implementation(draws_of_11):
    first, second = all_replaced(jax.random.key(11, impl="rbg"))
    np.testing.assert_array_equal(first, all_replaced(jax.random.key(11, impl="rbg"))[0])
    assert len(np.unique(np.concatenate([first, second]))) == 60
    assert not np.any(first == draws_of_11[0])


# --- Transformations --------------------------------------------------------------------------------------------------


def test_jit_with_donated_parameters_and_state(momentum_trail):
    tx = gxd.chain(optax.sgd(0.05, momentum=0.9), resetting())

    def step(params, state, x, y):
        _, grads, observation = LOSS_OBSERVE(params, x, y)
        updates, state = tx.update(grads, state, params, observation=observation)
        return optax.apply_updates(params, updates), state

    donating = jax.jit(step, donate_argnums=(0, 1))
    params = jax.tree.map(jnp.copy, PARAMS)
    state = tx.init(params)
    for x, y in zip(X[:8], Y[:8], strict=True):
        params, state = donating(params, state, x, y)
    assert_same_trail([(params, state)], momentum_trail[-1:])


def scanned(key, rate, params):
    tx = gxd.chain(optax.adam(0.01), resetting(rate=rate, key=key, kernel_init=jax.nn.initializers.he_normal()))

    def step(carry, batch):
        params, state = carry
        _, grads, observation = LOSS_OBSERVE(params, *batch)
        updates, state = tx.update(grads, state, params, observation=observation)
        return (optax.apply_updates(params, updates), state), gxd.reset_info(state)

    (params, _), infos = jax.lax.scan(step, (params, tx.init(params)), (X, Y))
    return params, infos


def assert_row_is(many, one, row):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[row], b, rtol=1e-3, atol=1e-5), many[0], one[0])
    chex.assert_trees_all_equal(jax.tree.map(lambda a: a[row], many[1].replaced), one[1].replaced)


@pytest.fixture(scope="module")
def run_of_seed_1():
    return jax.jit(lambda key: scanned(key, 0.2, PARAMS))(1)


@pytest.mark.parametrize("kind", ["int", "typed", "raw"])
def test_vmapped_keys_give_every_seed_its_own_resets_and_its_solo_run(kind, run_of_seed_1):
    make = {"int": lambda i: i, "typed": jax.random.key, "raw": jax.random.PRNGKey}[kind]
    many = jax.jit(jax.vmap(lambda i: scanned(make(i), 0.2, PARAMS)))(jnp.arange(3))
    assert run_of_seed_1[1].totals["l1"][-1] >= 3
    assert_row_is(many, run_of_seed_1, 1)
    first, second, third = many[0]["l1"]["kernel"]
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, third)


def test_vmap_over_rates_inside_a_vmap_over_seeds():
    rates = jnp.array([0.0, 0.2], jnp.float32)
    over_rates = jax.vmap(scanned, in_axes=(None, 0, None))
    many = jax.jit(jax.vmap(over_rates, in_axes=(0, None, None)))(jnp.arange(2), rates, PARAMS)
    assert many[1].totals["l1"].shape == (2, 2, 12)
    np.testing.assert_array_equal(many[1].totals["l1"][:, 0, -1], 0)
    one = jax.jit(scanned)(1, 0.2, PARAMS)
    assert_row_is(jax.tree.map(lambda leaf: leaf[1], many), one, 1)


def test_vmapped_seeds_reset_at_different_steps_without_disturbing_one_another():
    """Without a carry seeds replace at different steps: the branch that runs for some must not touch the others."""

    def run(key):
        tx = gxd.chain(
            optax.trace(0.5), resetting(rate=0.04, maturity_threshold=0, accumulate=False, utility="random", key=key)
        )
        zeros = jax.tree.map(jnp.zeros_like, PARAMS)

        def step(carry, x):
            params, state = carry
            observation = gxd.Observation({"l1": x[:, :5], "l2": x[:, :4]})
            updates, state = tx.update(zeros, state, params, observation=observation)
            return (optax.apply_updates(params, updates), state), (params, gxd.reset_info(state))

        return jax.lax.scan(step, (PARAMS, tx.init(PARAMS)), X)[1]

    history, infos = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 4))
    counts = np.asarray(infos.counts["l1"] + infos.counts["l2"])
    assert len({tuple(row) for row in counts.tolist()}) == 4
    kernels = np.asarray(history["l1"]["kernel"])
    quiet = (counts[:, :-1] == 0).nonzero()
    assert len(quiet[0]) > 10
    np.testing.assert_array_equal(kernels[:, 1:][quiet], kernels[:, :-1][quiet])


def test_one_batch_sharded_over_a_mapped_axis_is_one_batch():
    """With `axis_name` the statistics are those of the whole batch, on every shard."""
    whole = resetting(maturity_threshold=0)
    sharded = resetting(maturity_threshold=0, axis_name="shards")
    _, grads, observation = observe(PARAMS, X[0], Y[0])
    split = jax.tree.map(lambda leaf: leaf.reshape(2, 2, -1), observation)

    def update(tx, observation):
        return tx.update(grads, tx.init(PARAMS), PARAMS, observation=observation)

    updates, state = jax.jit(lambda o: update(whole, o))(observation)
    many, states = jax.jit(jax.vmap(lambda o: update(sharded, o), axis_name="shards"))(split)
    for shard in (0, 1):
        jax.tree.map(lambda a, b, i=shard: np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-6), many, updates)
        np.testing.assert_allclose(
            gxd.reset_info(states).utilities["l1"][shard], gxd.reset_info(state).utilities["l1"], rtol=1e-5, atol=1e-7
        )


def test_the_state_survives_a_checkpoint_through_numpy():
    tx = gxd.chain(optax.adam(0.01), resetting(kernel_init=jax.nn.initializers.he_normal(), key=jax.random.key(3)))
    trail = train(tx, 6)
    params, state = jax.tree.map(np.asarray, trail[3])

    @jax.jit
    def step(params, state, x, y):
        _, grads, observation = LOSS_OBSERVE(params, x, y)
        updates, state = tx.update(grads, state, params, observation=observation)
        return optax.apply_updates(params, updates), state

    for x, y in zip(X[4:6], Y[4:6], strict=True):
        params, state = step(params, state, x, y)
    chex.assert_trees_all_equal((params, state), trail[-1])
