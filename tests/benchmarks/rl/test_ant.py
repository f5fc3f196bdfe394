"""The ant: model, observations and friction on MuJoCo in C and on MJX, collecting in C, slippery ant."""

import dataclasses
import importlib.util

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import extras
from benchmarks.rl import ant, ant_c, ant_mjx, slippery_ant, slippery_runs
from benchmarks.rl.ant import Body
from benchmarks.running import checkpoints, folder, runner
from benchmarks.showing import report
from tests.benchmarks.resuming import check_resuming

mujoco = pytest.importorskip("mujoco")
mjx_there = pytest.mark.skipif(importlib.util.find_spec("mujoco.mjx") is None, reason="MJX is missing")

TINY = slippery_ant.Settings(
    scale="smoke",
    method=("cbp_l2",),
    width=8,
    batch=1024,
    minibatch=128,
    epochs=1,
    steps=2048,
    bin=1024,
    period=30,
    maturity_threshold=5,
    replacement_rate=(0.05,),
    backend="c",
    devices=1,
)
SLIDES = {0.02: 8.37, 0.1: 5.81, 0.2: 3.19, 0.5: 1.42, 1.0: 0.73, 2.0: 0.28}
"""Friction -> metres slid in 3 s by an ant that was given 3 m/s, from an independent study."""
MJX_SLIDES = {0.02: 8.37, 0.1: 5.81, 0.2: 3.15, 0.5: 1.43, 1.0: 0.72, 2.0: 0.19}


def standing(count):
    return Body(np.tile(ant.START, (count, 1)), np.zeros((count, 14)), np.zeros((count, 14)))


def warm(scene):
    """The ant of one of Gymnasium's environments."""
    return Body(*(np.array(values)[None] for values in (scene.qpos, scene.qvel, scene.qacc_warmstart)))


# --- Model and physics ---------------------------------------------------------------------------------------------


def gymnasium_ant():
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("imageio")  # Gymnasium's MuJoCo environments import it
    return gymnasium.make(
        "Ant-v5", max_episode_steps=-1, include_cfrc_ext_in_observation=False, contact_cost_weight=0.0
    ).unwrapped


def test_model_equals_gymnasiums():
    ours, theirs = ant.load_model(), gymnasium_ant().model
    arrays = [
        "body_mass", "body_inertia", "body_pos", "body_ipos", "body_iquat", "geom_type", "geom_size", "geom_pos",
        "geom_quat", "geom_friction", "geom_margin", "geom_condim", "geom_contype", "geom_conaffinity", "geom_solref",
        "geom_solimp", "jnt_type", "jnt_axis", "jnt_range", "jnt_limited", "jnt_margin", "dof_armature", "dof_damping",
        "actuator_gear", "actuator_trnid", "actuator_ctrlrange", "actuator_ctrllimited", "qpos0",
    ]  # fmt: skip
    for name in arrays:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    for name in ("timestep", "integrator", "iterations", "ls_iterations", "tolerance", "gravity", "cone", "solver"):
        np.testing.assert_array_equal(getattr(ours.opt, name), getattr(theirs.opt, name), err_msg=name)


def test_observations_equal_gymnasiums_to_the_bit():
    theirs, physics = gymnasium_ant(), ant_c.Physics(3)
    observation, _ = theirs.reset(seed=4)
    body = Body(*(np.tile(values, (3, 1)) for values in warm(theirs.data)))
    np.testing.assert_array_equal(ant.observation(body)[1, :27], observation)
    rng = np.random.default_rng(0)
    for _ in range(50):
        action = rng.normal(size=8)
        observation, reward, terminated, *_ = theirs.step(action)
        after = physics.step(body, np.tile(action, (3, 1)), np.ones(3))
        found = ant.observation(after)
        np.testing.assert_array_equal(found[:, :27], np.tile(observation, (3, 1)))
        assert not found[:, 27:].any()
        rewards, ends = ant.judge(body, after, np.tile(action, (3, 1)))
        assert ends.tolist() == [terminated] * 3
        # The speeds are taken over intervals that are shifted by a part of the step.
        assert abs(rewards[0] - reward) < 1.0
        body = after


def test_reward_by_hand():
    before = standing(1)._replace(positions=np.tile(ant.START, (4, 1)), velocities=np.zeros((4, 14)))
    after = before._replace(positions=before.positions.copy())
    after.positions[0, :3] = [0.1, 5, 0.2]
    after.positions[1, 2] = 0.19
    after.positions[2, 2] = 1.01
    after.positions[3, 8] = np.nan
    reward, terminated = ant.judge(before, after, np.full((4, 8), 2.0))
    # 0.1 m in 0.05 s are 2 m/s; the action costs 0.5 * 8 * 4 = 16; 1 for being healthy.
    np.testing.assert_allclose(reward, [2 + 1 - 16, -16, -16, -16])
    assert terminated.tolist() == [False, True, True, True]
    for_jax = ant.judge(*jax.tree.map(jnp.float32, (before, after)), jnp.full((4, 8), 2.0))
    np.testing.assert_allclose(for_jax[0], reward, rtol=1e-6)
    assert for_jax[1].tolist() == terminated.tolist()


def slides(step, body):
    """How far ants slide: a second to settle, a push to 3 m/s, 3 seconds without an action."""
    for _ in range(20):
        body = step(body)
    body.velocities[:, 0] += 3.0
    start = body.positions[:, 0].copy()
    for _ in range(60):
        body = step(body)
    return body.positions[:, 0] - start


def test_ant_slides_by_its_friction_in_c():
    frictions, count = np.array(list(SLIDES)), len(SLIDES)
    physics = ant_c.Physics(count)
    found = slides(lambda body: physics.step(body, np.zeros((count, 8)), frictions), standing(count))
    np.testing.assert_allclose(found, list(SLIDES.values()), rtol=0.05)
    assert (np.diff(found) < 0).all()


def test_a_slippery_floor_alone_changes_nothing():
    model = ant.load_model()
    found = []
    for friction in (1.0, 0.02):
        model.geom("floor").friction[0] = friction
        data = mujoco.MjData(model)
        data.qvel[0] = 3.0
        mujoco.mj_step(model, data, nstep=100)
        found.append(data.qpos.copy())
    np.testing.assert_array_equal(*found)
    slippery = ant_c.Physics(1)
    body = standing(1)._replace(velocities=np.eye(14)[:1] * 3.0)
    for _ in range(20):
        body = slippery.step(body, np.zeros((1, 8)), np.array([0.02]))
    assert abs(body.positions[0, 0] - found[0][0]) > 1.0, "all geoms do"


@mjx_there
@pytest.mark.slow
def test_mjx_slides_and_five_frictions_cost_one_trace():
    environment, frictions, traces = ant_mjx.make_environment(), jnp.array(list(MJX_SLIDES)), []

    @jax.jit
    def slide(friction):
        def step(state, number):
            traces.append(friction)
            push = jnp.where(number == 20, 3.0, 0.0)
            body = state.body._replace(velocities=state.body.velocities.at[0].add(push))
            after, _ = environment.step(jax.random.key(0), state._replace(body=body), jnp.zeros(8), friction)
            return after, body.positions[0]

        body = Body(jnp.float32(ant.START), jnp.zeros(14), jnp.zeros(14))
        end, places = jax.lax.scan(step, ant_mjx.AntState(body, jnp.int32(0)), jnp.arange(80))
        return end.body.positions[0] - places[20]

    found = np.array([slide(friction) for friction in frictions])
    np.testing.assert_allclose(found, list(MJX_SLIDES.values()), rtol=0.05)
    assert (np.diff(found) < 0).all()
    assert len(traces) == 1


@mjx_there
@pytest.mark.slow
def test_mjx_is_close_to_c_with_the_same_options():
    model = ant.load_model(fast=True)
    environment, data = ant_mjx.make_environment(), mujoco.MjData(model)
    step = jax.jit(lambda state, action: environment.step(jax.random.key(0), state, action, jnp.float32(1.0)))
    rng, differences = np.random.default_rng(0), []
    body = ant.draw_start(jax.random.key(0))
    state = ant_mjx.AntState(body, jnp.int32(0))
    for _ in range(30):
        action = rng.normal(size=8)
        data.qpos[:], data.qvel[:], data.qacc_warmstart[:] = state.body
        data.ctrl[:] = action
        mujoco.mj_step(model, data, nstep=ant.FRAME_SKIP)
        state, _ = step(state, jnp.float32(action))
        differences.append(np.abs(np.asarray(state.body.positions) - data.qpos).max())
    assert np.median(differences) < 1e-4


def test_frictions_are_even_in_their_logarithm():
    frictions = np.asarray(ant.draw_frictions(jax.random.key(0), 10_000))
    assert 0.02 <= frictions.min() < 0.0203 and 1.97 < frictions.max() <= 2.0
    quantiles = np.quantile(np.log(frictions), [0.25, 0.5, 0.75])
    np.testing.assert_allclose(quantiles, np.log(0.02) + np.log(100) * np.array([0.25, 0.5, 0.75]), atol=0.1)


def test_probe_is_of_ants():
    observations = np.asarray(ant.probe(jax.random.key(0), 500))
    assert observations.shape == (500, 111)
    assert 0.2 <= observations[:, 0].min() and observations[:, 0].max() <= 1.0
    np.testing.assert_allclose(np.linalg.norm(observations[:, 1:5], axis=1), 1, rtol=1e-5)
    model = ant.load_model()
    lower, upper = model.jnt_range[1:].T
    joints = observations[:, 5:13]
    assert (joints > lower - 1e-6).all() and (joints < upper + 1e-6).all()
    assert (np.ptp(joints, axis=0) > 0.9 * (upper - lower)).all()
    assert not observations[:, 27:].any()


# --- Collecting in C -----------------------------------------------------------------------------------------------


class Lifts:
    """Physics that lifts each ant by its first action and leaves the rest."""

    def __init__(self):
        self.frictions = []

    def step(self, body, action, friction):
        self.frictions.append(friction.copy())
        positions = body.positions.copy()
        positions[:, 2] += action[:, 0]
        return body._replace(positions=positions)


def test_collecting_by_hand():
    # Ant 0 rises by 0.1 each step and leaves [0.2, 1] at its third; ant 1 stays, and its time is up at the third.
    start = Body(*(values[None] for values in standing(2)))
    herd = ant_c.start_herd(start)._replace(steps=np.array([[0, 997]], np.int32))
    lifts, actions = np.zeros((1, 2, 8), np.float32), []
    lifts[0, 0, 0] = 0.1
    physics, frictions = Lifts(), np.array([[1.0, 0.5]], np.float32)
    starts = Body(*(np.broadcast_to(values[:, None], (1, 5, *values.shape[1:])) for values in start))

    def act(observations, number):
        actions.append((observations.copy(), number))
        return lifts

    herd, seen, returns = ant_c.collect(physics, act, starts, frictions, 2, herd)
    assert [number for _, number in actions] == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(seen.terminated[0].T, [[0, 0, 1, 0, 0], [0] * 5])
    np.testing.assert_array_equal(seen.truncated[0].T, [[0] * 5, [0, 0, 1, 0, 0]])
    np.testing.assert_allclose(seen.observations[0, :, 0, 0], [0.75, 0.85, 0.95, 0.75, 0.85], rtol=1e-6)
    np.testing.assert_allclose(seen.next_observations[0, :, 0, 0], [0.85, 0.95, 1.05, 0.85, 0.95], rtol=1e-6)
    np.testing.assert_allclose(seen.rewards[0, :, 0], [0.995, 0.995, -0.005, 0.995, 0.995], rtol=1e-4)
    np.testing.assert_allclose(returns.total[0], [0, 0, 1.985 + 3, 0, 0], rtol=1e-5)
    np.testing.assert_array_equal(returns.episodes[0], [0, 0, 2, 0, 0])
    np.testing.assert_array_equal(herd.steps, [[2, 2]])
    np.testing.assert_allclose(herd.returns, [[1.99, 2.0]], rtol=1e-5)
    # More than 2 steps have passed at the ends of the episodes: the friction changes with the fourth step.
    np.testing.assert_array_equal(physics.frictions, [[1.0, 1.0]] * 3 + [[0.5, 0.5]] * 2)
    np.testing.assert_array_equal(ant_c.frictions_now(frictions, herd), [[0.5, 0.5]])


# --- Slippery ant --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def experiment():
    """Its programs are compiled once for all tests."""
    return slippery_ant.PROBLEM.experiment(dataclasses.replace(TINY, method=("cbp_l2", "ppo")))


def only_first(experiment):
    return experiment._replace(runs=experiment.runs[:1])


@pytest.mark.slow
def test_seeds_are_shared_by_methods(experiment):
    settings = slippery_ant.PROBLEM.fill_in(TINY)
    one, other = (run.start(np.arange(2, dtype=np.int32), ()) for run in experiment.runs)
    for get in (lambda carry: carry.training.params, lambda carry: carry.workers, lambda carry: carry.key):
        chex.assert_trees_all_equal(get(one), get(other))
    frictions = [np.asarray(slippery_runs.frictions_of(settings, key)) for key in one.key]
    assert frictions[0].shape == (2048 // 30 + 1,)
    assert not np.allclose(*frictions)
    assert slippery_runs.worker_period(settings) == 30
    assert slippery_runs.worker_period(dataclasses.replace(settings, workers=4)) == 7
    constant = dataclasses.replace(settings, constant_friction=True)
    assert slippery_runs.frictions_of(constant, one.key[0]).tolist() == [1.0]


@pytest.mark.slow
def test_interrupted_run_resumes_to_the_same_bits(experiment, tmp_path):
    curves, _ = check_resuming(only_first(experiment), tmp_path, 1)
    assert list(curves["step"]) == 2 * [1024, 2048]
    assert (curves["replaced"] > 0).all()
    assert curves["friction"].nunique() == 4
    assert curves["return"].notna().all()


def test_checkpoint_keeps_numpy_arrays(tmp_path):
    carry = {"host": np.array([np.pi], np.float64), "device": jnp.float32(1)}
    with checkpoints.open_manager(tmp_path / "run") as manager:
        checkpoints.save(manager, {}, carry, {"error": np.zeros((1, 1))})
        found, _ = checkpoints.load(manager, {}, jax.tree.map(lambda leaf: leaf * 0, carry))
    assert isinstance(found["host"], np.ndarray) and found["host"].dtype == np.float64
    np.testing.assert_array_equal(found["host"], carry["host"])


@pytest.mark.slow
def test_what_is_not_finite_stops_its_seed_alone(experiment, tmp_path):
    run, ends = experiment.runs[0], []

    def start(seeds, data):
        carry = run.start(seeds, data)
        carry.workers.body.velocities[0, 0, 3] = np.inf
        return carry

    def chunk(carry, data):
        ends.append((carry.training.params, *run.chunk(carry, data)))
        return ends[-1][1:]

    spoilt = only_first(experiment)._replace(runs=[run._replace(start=start, chunk=chunk)])
    curves = runner.run_experiment(spoilt, tmp_path / "out")
    assert curves.loc[curves["seed"] == 0, "return"].isna().all()
    assert curves.loc[curves["seed"] == 1, "return"].notna().all()
    # The ants of the stopped seed begin anew, its learner stays what it was for good.
    for before, after, _ in ends:
        assert np.isfinite(after.workers.body.velocities).all()
        assert after.going.tolist() == [False, True]
        one, other = (
            jax.tree.map(lambda a, b, seed=seed: np.array_equal(a[seed], b[seed]), before, after.training.params)
            for seed in (0, 1)
        )
        assert all(jax.tree.leaves(one)) and not any(jax.tree.leaves(other))
    (message,) = report.stopped(spoilt, curves)
    assert message.startswith("cbp_l2 ") and "seed 0: stopped after the start" in message


@mjx_there
@pytest.mark.slow
def test_interrupted_run_on_mjx_resumes_to_the_same_bits(tmp_path):
    curves, _ = check_resuming(slippery_ant.PROBLEM.experiment(dataclasses.replace(TINY, backend="mjx")), tmp_path, 1)
    assert curves["friction"].nunique() == 4
    assert curves["return"].notna().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bin": 1000}, "bin must be a multiple of the batch of 1024, and at least 1000"),
        ({"batch": 256, "bin": 768}, "bin must be a multiple of the batch of 256, and at least 1000"),
        ({"steps": 3000}, "steps must be a multiple of bin, got 3000 and 1024"),
        ({"workers": 2, "bin": 2048, "period": 1}, "period must be at least the 2 workers, got 1"),
    ],
)
def test_impossible_slippery_ant_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        slippery_ant.PROBLEM.experiment(dataclasses.replace(TINY, **changes))


def test_missing_mujoco_is_named(monkeypatch):
    monkeypatch.setattr(extras, "_is_there", lambda module: False)
    for backend in ("c", "mjx"):
        with pytest.raises(folder.RefusedError, match=r'needs mujoco.*: pip install "gxd_jax\[experiments,mujoco\]"'):
            slippery_ant.PROBLEM.experiment(dataclasses.replace(TINY, backend=backend))
