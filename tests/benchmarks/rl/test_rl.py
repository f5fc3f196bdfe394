"""Control: environments, collecting, PPO against a slow NumPy port, the table of methods, offset CartPole."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gxd_jax as gxd
from benchmarks import methods
from benchmarks.rl import agents, cartpole, collecting, control, offset_cartpole, ppo
from benchmarks.rl import environment as environments
from benchmarks.rl.environment import Environment, Schedule, Spaces, Transition
from benchmarks.rl.methods import METHODS
from tests.benchmarks.resuming import check_resuming
from tests.reference import optimizers
from tests.reference import ppo as reference

TINY = offset_cartpole.Settings(
    scale="smoke",
    method=("ppo",),
    width=6,
    workers=2,
    batch=64,
    minibatch=16,
    epochs=2,
    task_steps=2048,
    devices=1,
)
GIVEN = ppo.Hyperparameters(
    discount=0.9,
    trace_decay=0.8,
    clip=0.1,
    entropy=0.02,
    epochs=2,
    minibatch=6,
    reward_scale=0.5,
    bootstrap=True,
)
DISCRETE, CONTINUOUS = cartpole.CARTPOLE.spaces, Spaces(3, 2, "continuous")


# --- Environments and collecting -----------------------------------------------------------------------------------


def test_cartpole_equals_gymnasium():
    gymnasium = pytest.importorskip("gymnasium")
    theirs = gymnasium.make("CartPole-v1").unwrapped
    theirs.reset(seed=0)
    offset = jnp.array([1.0, -2.0, 3.0, 0.5])
    state = cartpole.CartPoleState(jnp.float32(theirs.state), jnp.int32(0))
    step = jax.jit(cartpole.step)
    for number in range(60):
        action = number // 3 % 2
        observation, reward, terminated, *_ = theirs.step(action)
        state, found = step(jax.random.key(0), state, jnp.int32(action), offset)
        np.testing.assert_allclose(found.observation - offset, observation, rtol=2e-4, atol=2e-5)
        assert (bool(found.terminated), float(found.reward)) == (terminated, reward)
        if terminated:
            break
    assert number > 10


def test_cartpole_by_hand():
    # At rest and upright, a push of 10 N to the right: with cos 1 and sin 0 the push is 10 / 1.1 m/s^2, the pole's
    # angular acceleration -(10 / 1.1) / (0.5 (4/3 - 0.1 / 1.1)) = -14.634, the cart's 10 / 1.1 + 0.05 14.634 / 1.1.
    rest = cartpole.CartPoleState(jnp.zeros(4), jnp.int32(498))
    after, found = cartpole.step(jax.random.key(0), rest, jnp.int32(1), jnp.zeros(4))
    np.testing.assert_allclose(after.body, [0, 0.02 * 9.756098, 0, 0.02 * -14.634146], rtol=1e-5)
    assert not found.truncated
    assert cartpole.step(jax.random.key(0), after, jnp.int32(0), jnp.zeros(4))[1].truncated
    for place, value in ((0, 2.39), (2, 12 * np.pi / 180 - 1e-3)):
        for beyond in (0, 0.02):
            state = cartpole.CartPoleState(jnp.zeros(4).at[place].set(-value - beyond), jnp.int32(0))
            assert bool(cartpole.step(jax.random.key(0), state, jnp.int32(0), jnp.zeros(4))[1].terminated) is (
                beyond > 0
            )


def test_offset_moves_observations_only():
    key, offset = jax.random.key(1), jnp.array([1.0, -2.0, 3.0, 0.5])
    (state, seen), (moved, seen_moved) = (cartpole.reset(key, o) for o in (jnp.zeros(4), offset))
    np.testing.assert_array_equal(state.body, moved.body)
    np.testing.assert_allclose(seen_moved - seen, offset, atol=1e-6)
    drawn = jax.vmap(lambda k: offset_cartpole.draw_offset(k, 2.0))(jax.random.split(key, 4000))
    np.testing.assert_allclose(drawn.std(0), 2.0, rtol=0.05)
    np.testing.assert_allclose(drawn.mean(0), 0.0, atol=0.1)


def counting(time_limit):
    """An environment whose observation and reward are the params; its state counts the steps."""

    def reset(key, params):
        return jnp.int32(0), jnp.stack([params, jnp.float32(0)])

    def step(key, state, action, params):
        state = state + 1
        seen = Transition(
            jnp.stack([params, jnp.float32(state)]), params, (action == 1) & (state == 2), state == time_limit
        )
        return state, seen

    return Environment(reset, step, Spaces(2, 2, "discrete"))


def test_collecting_by_hand():
    # Worker 0 chooses 1 and dies at its second step; worker 1 lives to its time limit of 3. The conditions change at
    # the first end of an episode after more than 3 steps.
    environment, schedule = counting(3), Schedule(jnp.array([1.0, 10.0]), period=3)
    workers = collecting.start_workers(environment, schedule, jax.random.key(0), 2)
    first, seen, returns = collecting.collect(
        environment, lambda key, x: jnp.array([1, 0]), schedule, workers, jax.random.key(0), 6
    )
    np.testing.assert_array_equal(seen.terminated[:, 0], [False, True, False, True, False, True])
    np.testing.assert_array_equal(seen.truncated[:, 1], [False, False, True, False, False, True])
    np.testing.assert_array_equal(seen.truncated[:, 0], [False] * 6)
    np.testing.assert_array_equal(seen.rewards[:, 0], [1, 1, 1, 1, 10, 10])
    np.testing.assert_array_equal(seen.rewards[:, 1], [1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(seen.observations[:, 1, 1], [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(seen.next_observations[:, 1, 1], [1, 2, 3, 1, 2, 3])
    np.testing.assert_array_equal(returns.total, [0, 2, 3, 2, 0, 20 + 3])
    np.testing.assert_array_equal(returns.episodes, [0, 1, 1, 1, 0, 2])
    assert float(returns.mean) == 30 / 5
    np.testing.assert_array_equal(first.clocks.index, [1, 1])
    np.testing.assert_array_equal(first.clocks.steps, [2, 0])
    np.testing.assert_array_equal(first.observations, [[10, 0], [10, 0]])


def test_collecting_goes_on_where_it_stopped():
    environment, schedule = cartpole.CARTPOLE, Schedule(jnp.zeros((1, 4)))
    keys = jax.random.split(jax.random.key(3), 40)

    @jax.jit
    def collect(workers, key):
        def act(key, observations):
            return jax.random.bernoulli(key, 0.5, (3,)).astype(jnp.int32)

        return collecting.collect(environment, act, schedule, workers, key, 20)

    workers = collecting.start_workers(environment, schedule, keys[0], 3)
    total = np.zeros(3)
    for number in range(5):
        workers, seen, returns = collect(workers, keys[number])
        ended = np.asarray(seen.terminated | seen.truncated)
        found = []
        for t in range(20):
            total += np.asarray(seen.rewards[t])
            found.append(total[ended[t]].sum())
            total[ended[t]] = 0
        np.testing.assert_allclose(returns.total, found)
        np.testing.assert_allclose(workers.returns, total)
        inside = ~ended[:-1]
        np.testing.assert_array_equal(seen.observations[1:][inside], seen.next_observations[:-1][inside])
        assert np.abs(np.asarray(seen.observations[1:][ended[:-1]])).max(initial=0) <= 0.05


def test_clock_never_changes_without_a_period():
    clock = environments.Clock(jnp.int32(0), jnp.int32(environments.NEVER - 1))
    clock = environments.tick(clock, jnp.array(True), environments.NEVER)
    assert int(clock.index) == 0


# --- PPO against a slow NumPy port ---------------------------------------------------------------------------------


def experience(spaces, seed=0):
    """A batch of 6 steps of 2 workers, with a death, and time that is up, inside."""
    rng = np.random.default_rng(seed)
    size, shape = spaces.observation_size, (6, 2)
    discrete = spaces.actions == "discrete"
    actions = rng.integers(0, 2, shape) if discrete else rng.normal(size=(*shape, spaces.action_size))
    terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
    terminated[1, 0] = truncated[3, 1] = truncated[5, 0] = True
    return collecting.Trajectory(
        jnp.float32(rng.normal(size=(*shape, size))),
        jnp.int32(actions) if discrete else jnp.float32(actions),
        jnp.float32(rng.normal(size=shape)),
        jnp.float32(rng.normal(size=(*shape, size))),
        jnp.array(terminated),
        jnp.array(truncated),
    )


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("bootstrap", [True, False])
def test_ppo_equals_a_slow_port(spaces, bootstrap):
    given, seen = dataclasses.replace(GIVEN, bootstrap=bootstrap), experience(spaces)
    agent = agents.make_agent(spaces, [5, 4], 1.0)
    params = agent.init(jax.random.key(0))
    observations, targets = jax.jit(lambda p: ppo.make_targets(agent, p, seen, given))(params)
    expected = reference.targets(params, seen, given)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(targets, name), value, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(observations, np.asarray(seen.observations).reshape(12, -1))
    # At other parameters the ratios are not 1 and some are clipped.
    moved = jax.tree.map(lambda p: p + 0.3 * jax.random.normal(jax.random.key(1), p.shape), params)
    value = ppo.make_loss(agent.distribution, given)(agent.apply(moved, observations), targets)
    expected_loss, clipped = reference.loss(moved, np.asarray(observations), expected, given)
    np.testing.assert_allclose(value, expected_loss, rtol=1e-5, atol=1e-5)
    assert 0 < clipped < 12


def test_truncation_is_worth_its_future_and_death_nothing():
    shape = (1, 2)
    terminated, truncated = jnp.array([[True, False]]), jnp.array([[False, True]])
    estimates = ppo.advantages(jnp.ones(shape), jnp.zeros(shape), jnp.full(shape, 5.0), terminated, truncated, GIVEN)
    np.testing.assert_allclose(estimates, [[1.0, 1 + 0.9 * 5]])
    as_death = dataclasses.replace(GIVEN, bootstrap=False)
    estimates = ppo.advantages(jnp.ones(shape), jnp.zeros(shape), jnp.full(shape, 5.0), terminated, truncated, as_death)
    np.testing.assert_allclose(estimates, [[1.0, 1.0]])


def test_optimizer_with_weight_decay_equals_numpy():
    rng = np.random.default_rng(0)
    weights, gradients = rng.normal(size=(2, 3)), rng.normal(size=(20, 2, 3))
    optimizer = METHODS["ppo_l2"].optimizer(1e-2, {"l2": 0.1})
    params, numpy_params = jnp.float32(weights), weights.copy()
    state = optimizer.init(params)
    adam = optimizers.Adam([(weights, np.zeros(3))], 1e-2, per_weight=False, b1=0.99, b2=0.99)
    for gradient in gradients:
        updates, state = optimizer.update(jnp.float32(gradient), state, params)
        params = params + updates
        ((step, _),) = adam.step([(gradient + 0.1 * numpy_params, np.zeros(3))])
        numpy_params = numpy_params + step
    np.testing.assert_allclose(params, numpy_params, atol=1e-6)


def test_update_goes_over_the_batch_in_shuffled_minibatches():
    # The gradient step is replaced by one that notes what it was given.
    agent, seen = agents.make_agent(DISCRETE, [4], 1.0), experience(DISCRETE)
    state = gxd.training.init(agent.init(jax.random.key(0)), METHODS["ppo"].optimizer(1e-3, {}), 0)

    def note(state, inputs, targets):
        return state, inputs[:, 0]

    _, noted = ppo.update(agent, note, state, seen, jax.random.key(1), GIVEN)
    assert noted.shape == (2, 2, 6)
    everything = np.sort(np.asarray(seen.observations)[..., 0].ravel())
    for epoch in np.asarray(noted).reshape(2, 12):
        np.testing.assert_array_equal(np.sort(epoch), everything)
    assert not np.array_equal(noted[0], noted[1])


def test_distributions():
    logits = jnp.log(jnp.array([[0.2, 0.8], [0.5, 0.5]]))
    discrete = agents.DISTRIBUTIONS["discrete"]
    np.testing.assert_allclose(discrete.log_prob(logits, jnp.array([1, 0])), np.log([0.8, 0.5]), rtol=1e-6)
    np.testing.assert_allclose(discrete.entropy(logits)[1], np.log(2), rtol=1e-6)
    drawn = discrete.sample(jax.random.key(0), jnp.broadcast_to(logits[0], (4000, 2)))
    assert abs(float(drawn.mean()) - 0.8) < 0.02
    continuous = agents.DISTRIBUTIONS["continuous"]
    given = agents.Gaussian(jnp.zeros((4000, 2)), jnp.broadcast_to(jnp.log(jnp.array([1.0, 3.0])), (4000, 2)))
    np.testing.assert_allclose(continuous.sample(jax.random.key(0), given).std(0), [1, 3], rtol=0.05)
    # Two normals at their means: densities 1 / sqrt(2 pi) and 1 / (3 sqrt(2 pi)).
    np.testing.assert_allclose(
        continuous.log_prob(given, jnp.zeros((4000, 2)))[0], -np.log(2 * np.pi) - np.log(3), rtol=1e-5
    )
    np.testing.assert_allclose(continuous.entropy(given)[0], np.log(2 * np.pi * np.e) + np.log(3), rtol=1e-5)


# --- Agents and methods --------------------------------------------------------------------------------------------


def test_agent_has_two_separate_networks():
    agent = agents.make_agent(CONTINUOUS, [7, 5], 1.0)
    params = agent.init(jax.random.key(0))
    assert [layer.name for layer in agent.units] == [
        "policy/hidden_1",
        "policy/hidden_2",
        "value/hidden_1",
        "value/hidden_2",
    ]
    outputs = agent.apply(params, jnp.ones((4, 3)))
    assert outputs.policy.mean.shape == outputs.policy.log_std.shape == (4, 2)
    assert outputs.value.shape == (4,)
    np.testing.assert_array_equal(params["log_std"], [0, 0])
    for name, inputs in (("hidden_1", 3), ("hidden_2", 7), ("output", 5)):
        kernel = np.abs(params["policy"][name]["kernel"])
        assert 0.8 * np.sqrt(3 / inputs) < kernel.max() <= np.sqrt(3 / inputs)
        assert not np.array_equal(kernel[:, :1], np.abs(params["value"][name]["kernel"][:, :1]))
        assert not params["policy"][name]["bias"].any()


def test_sensitivities_of_a_network_do_not_see_the_other():
    agent = agents.make_agent(CONTINUOUS, [7, 5], 1.0)
    params = agent.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, 3))

    def value_only(outputs, targets, key):
        return outputs.value

    observe = gxd.observe(agent.apply, lambda outputs, y: outputs.value.mean(), agent.units, readout=value_only)
    _, _, observation = observe(params, x, None)
    assert not observation.sensitivities["policy/hidden_2"].any()
    np.testing.assert_allclose(
        observation.sensitivities["value/hidden_2"],
        jnp.broadcast_to(params["value"]["output"]["kernel"][:, 0], (4, 5)),
        rtol=1e-6,
    )


def filled(**changes):
    return offset_cartpole.PROBLEM.fill_in(dataclasses.replace(TINY, **changes))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_every_row_of_the_table_can_learn(name, spaces):
    settings = filled(minibatch=6)
    setting = next(methods.settings_of(METHODS[name].method, settings))
    learner = control.make_ppo(spaces, METHODS[name], setting, settings)
    state = jax.eval_shape(learner.start, jax.random.key(0))
    after = jax.eval_shape(learner.update, state, experience(spaces), jax.random.key(0))
    kinds = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), s) for s in (state, after)]
    assert kinds[0] == kinds[1]
    found = jax.eval_shape(learner.diagnose, state.params, jnp.zeros((8, spaces.observation_size)))
    assert {k: v.shape for k, v in found.items()} == dict.fromkeys(control.DIAGNOSTICS, ())


def test_rows_have_their_own_weight_decay():
    settings = filled(method=("ppo", "ppo_l2", "cbp_l2", "gxd_adaptation_l2"), l2=(0.3, 0.1), reset_l2=(0.2,))
    assert [(labels["method"], setting) for labels, _, setting in control.rows_of(settings)] == [
        ("ppo", {}),
        ("ppo_l2", {"l2": 0.3}),
        ("ppo_l2", {"l2": 0.1}),
        ("cbp_l2", {"reset_l2": 0.2, "replacement_rate": 1e-4}),
        ("gxd_adaptation_l2", {"reset_l2": 0.2, "replacement_rate": 1e-4, "cost_weight": 1.0}),
    ]


def test_units_of_both_networks_are_replaced():
    settings = filled(replacement_rate=(0.2,), maturity_threshold=2, minibatch=6)
    learner = control.make_ppo(DISCRETE, METHODS["cbp_l2"], {"reset_l2": 1e-4, "replacement_rate": 0.2}, settings)
    state = learner.update(learner.start(jax.random.key(0)), experience(DISCRETE), jax.random.key(1))
    # 4 gradient steps; from the third on 6 eligible units at rate 0.2 owe 1.2 units a step, 1 of them whole each time.
    totals = gxd.reset_info(state.opt_state).totals
    assert {name: int(total) for name, total in totals.items()} == dict.fromkeys(totals, 2)
    assert int(learner.replaced(state)) == 8


def test_diagnostics_by_hand():
    agent = agents.make_agent(DISCRETE, [4], 1.0)
    params = agent.init(jax.random.key(0))
    params["policy"]["hidden_1"]["kernel"] = jnp.eye(4)
    params["policy"]["hidden_1"]["bias"] = jnp.array([0.0, 0.0, -9.0, 0.0])
    params["value"]["hidden_1"]["bias"] = jnp.full(4, -99.0)
    found = control.diagnose(agent, params, jnp.array([[1.0, 0, 2, 0], [0, 3, 0, 0]]))
    # Of the policy's units the first two speak, with singular values 3 and 1; of the value's none.
    assert float(found["dead"]) == 6 / 8
    np.testing.assert_allclose(found["stable_rank"], (9 + 1) / 9, rtol=1e-6)


# --- Offset CartPole -----------------------------------------------------------------------------------------------


def test_methods_share_offsets_and_initial_weights():
    runs = offset_cartpole.PROBLEM.experiment(dataclasses.replace(TINY, method=("ppo", "gxd_l2"))).runs
    first, second = (run.start(jnp.int32(7), ()) for run in runs)
    chex.assert_trees_all_equal(first.training.params, second.training.params)
    np.testing.assert_array_equal(first.key, second.key)
    offsets = [
        offset_cartpole.draw_offset(offset_cartpole.task_keys(first.key, jnp.int32(t)).offset, 2.0) for t in (0, 1)
    ]
    assert not np.allclose(*offsets)


def test_chance_does_not_learn_and_fresh_starts_anew():
    experiment = offset_cartpole.PROBLEM.experiment(dataclasses.replace(TINY, method=("random", "fresh")))
    by_chance, fresh = experiment.runs
    carry = by_chance.start(jnp.int32(0), ())
    end, measures = jax.jit(by_chance.chunk)(carry, ())
    chex.assert_trees_all_equal(end.training, carry.training)
    assert 15 < float(measures["return"]) < 30, "Gymnasium's random policy lives for about 22 steps"
    chunk = jax.jit(fresh.chunk)
    carry = fresh.start(jnp.int32(0), ())
    spoilt = carry._replace(training=jax.tree.map(jnp.zeros_like, carry.training))
    (end, _), (other, _) = chunk(carry, ()), chunk(spoilt, ())
    chex.assert_trees_all_equal(end.training, other.training)
    assert int(end.task) == 1


@pytest.mark.slow
def test_interrupted_run_resumes_to_the_same_bits(tmp_path):
    settings = {"method": ("gxd_l2",), "tasks": 3, "replacement_rate": (0.05,), "maturity_threshold": 3}
    experiment = offset_cartpole.PROBLEM.experiment(dataclasses.replace(TINY, **settings))
    whole, _ = check_resuming(experiment, tmp_path, 1)
    assert list(whole["task"]) == 2 * [1, 2, 3]
    assert whole["replaced"].sum() > 0
    assert whole["return"].between(5, 500).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minibatch": 48}, "batch must be a multiple of minibatch, got 64 and 48"),
        ({"workers": 3}, "batch must be a multiple of workers, got 64 and 3"),
        ({"epochs": 0}, "epochs must be 1 or more, got 0"),
        ({"tasks": 0}, "tasks must be 1 or more, got 0"),
        ({"discount": 1.5}, "discount must lie between 0 and 1, got 1.5"),
        ({"task_steps": 1024}, "task_steps must be a multiple of two batches, 128, and at least 2000"),
        ({"task_steps": 2100}, "task_steps must be a multiple of two batches, 128, and at least 2000"),
        ({"method": ("cbp",), "replacement_rate": (2.0,)}, "replacement_rate"),
    ],
)
def test_impossible_offset_cartpole_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        offset_cartpole.PROBLEM.experiment(dataclasses.replace(TINY, **changes))
