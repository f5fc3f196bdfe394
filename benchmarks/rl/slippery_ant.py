"""Ant and slippery ant ([N], Methods): PPO on an ant whose friction changes now and then, without a signal.

On MuJoCo in C a loop of NumPy collects for all seeds, and two compiled programs act and learn; on MJX everything is one
compiled program. Both see the same model, observations, schedules and initial weights.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import extras, methods
from benchmarks.experiment import Experiment, Run, config_of, devices_for, fill_in, seed_numbers
from benchmarks.rl import ant, ant_c, ant_mjx, control
from benchmarks.rl.collecting import Returns, Trajectory, collect, start_workers
from benchmarks.rl.environment import NEVER, Schedule
from benchmarks.rl.methods import METHODS, ControlMethod
from gxd_jax.training import TrainState

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

NAME = "slippery-ant"

_METHODS = tuple(name for name, method in METHODS.items() if not method.fresh)
_PROBE_SIZE = 256
_CONSTANT_FRICTION = 1.0


@dataclasses.dataclass(frozen=True)
class Settings(control.ControlOptions):
    """Slippery ant: return of the ant; its friction changes at an episode's end now and then."""

    method: tuple[Literal[_METHODS], ...] | None = None  # type: ignore[valid-type]
    """Methods to compare."""
    backend: Literal["c", "mjx"] | None = None
    """MuJoCo in C with Gymnasium's physics, or MJX with faster ones; by default C where JAX runs on the CPU."""
    constant_friction: bool = False
    """Whether the friction stays that of the standard ant."""
    steps: int | None = None
    """Environment steps of a seed, a multiple of the bin."""
    bin: int | None = None
    """Environment steps over which returns are averaged, a multiple of the batch; each ends with a checkpoint."""
    period: int | None = None
    """Environment steps of a seed after which the friction changes."""


_REFERENCE = {
    "step_size": 1e-4,
    "width": 256,
    "gain": 1.0,
    "minibatch": 128,
    "entropy": 0.0,
    "reward_scale": 1.0,
    "bootstrap": False,
    "l2": (1e-3,),
    "replacement_rate": (1e-4,),
    "maturity_threshold": 10_000,
    "reset_period": 100,
}
"""What the public code of [N] has."""
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        **_REFERENCE,
        "method": ("cbp_l2",),
        "seeds": 2,
        "workers": 1,
        "batch": 1024,
        "steps": 2_048,
        "bin": 1_024,
        "period": 500,
        "width": 64,
        "maturity_threshold": 50,
        "replacement_rate": (1e-2,),
    },
    "default": {
        **_REFERENCE,
        "method": ("ppo", "ppo_l2", "cbp_l2", "gxd_l2"),
        "step_size": 3e-4,
        "l2": (1e-4,),
        "maturity_threshold": 100,
        "seeds": 2,
        "workers": 8,
        "batch": 2048,
        "steps": 307_200,
        "bin": 10_240,
        "period": 100_000,
    },
    "paper": {
        **_REFERENCE,
        "method": ("ppo", "ppo_betas", "ppo_l2", "cbp_l2", "gxd_l2", "gxd_adaptation_l2", "redo_l2"),
        "seeds": 30,
        "workers": 1,
        "batch": 2048,
        "steps": 20_070_400,
        "bin": 102_400,
        "period": 2_000_000,
    },
}
_CONSTANT_PAPER_STEPS = 50_073_600


def make_experiment(settings: Settings) -> Experiment:
    """Returns the experiment that the settings describe.

    Raises:
        ValueError: If the settings do not fit together.
        RefusedError: If MuJoCo is missing.
    """
    if settings.constant_friction and settings.scale == "paper" and settings.steps is None:
        settings = dataclasses.replace(settings, steps=_CONSTANT_PAPER_STEPS)
    settings = fill_in(settings, SCALES)
    if settings.backend is None:
        backend = "c" if jax.default_backend() == "cpu" else "mjx"
        settings = dataclasses.replace(settings, backend=backend)
    control.check_control(settings)
    shortest = settings.workers * ant.TIME_LIMIT
    if settings.bin % settings.batch or settings.bin < shortest:
        raise ValueError(
            f"bin must be a multiple of the batch of {settings.batch}, and at least {shortest}, so that every worker "
            f"ends an episode in it, got {settings.bin}"
        )
    if settings.steps % settings.bin:
        raise ValueError(f"steps must be a multiple of bin, got {settings.steps} and {settings.bin}")
    if settings.period < settings.workers:
        raise ValueError(f"period must be at least the {settings.workers} workers, got {settings.period}")
    make_run = BACKENDS[settings.backend](settings)
    return Experiment(
        problem=NAME,
        config=config_of(NAME, settings) | {"mujoco": extras.require_mujoco().__version__},
        runs=[make_run(*row) for row in control.rows_of(settings)],
        seeds=seed_numbers(settings),
        group=settings.group,
        axis="step",
        ends=np.arange(settings.bin, settings.steps + 1, settings.bin),
        measure="return",
        totals=("replaced",),
        panels=(),
        devices=devices_for(settings.seeds, settings.devices),
        higher_is_better=True,
        diagnostics=(*control.DIAGNOSTICS, "friction"),
        share="quarter",
    )


class Carry(NamedTuple):
    """What one seed's run carries from bin to bin.

    Attributes:
        key: Raw key, from which everything random of the seed is derived.
        batches: Batches so far.
        going: Whether everything was finite so far; else the seed has stopped and the learner stays what it was.
        learner: Parameters and state of the method.
        workers: Where its ants are.
    """

    key: UInt32[Array, " words"]
    batches: Int[Array, ""]
    going: Bool[Array, ""]
    learner: TrainState
    workers: Any


class SeedKeys(NamedTuple):
    """Keys of what is random in a seed's run."""

    agent: PRNGKeyArray
    probe: PRNGKeyArray
    frictions: PRNGKeyArray
    workers: PRNGKeyArray
    batches: PRNGKeyArray


class BatchKeys(NamedTuple):
    """Keys of what is random in a batch."""

    collect: PRNGKeyArray
    update: PRNGKeyArray


def seed_keys(key: UInt32[Array, " words"]) -> SeedKeys:
    """Returns the keys of a seed."""
    return SeedKeys(*jax.random.split(jax.random.wrap_key_data(key), len(SeedKeys._fields)))


def batch_keys(carry: Carry) -> BatchKeys:
    """Returns the keys of the carry's next batch."""
    return BatchKeys(*jax.random.split(jax.random.fold_in(seed_keys(carry.key).batches, carry.batches)))


def frictions_of(settings: Settings, key: UInt32[Array, " words"]) -> Float[Array, " C"]:
    """Returns the frictions of a seed, one after the other; all methods see the same."""
    if settings.constant_friction:
        return jnp.full(1, _CONSTANT_FRICTION)
    return ant.draw_frictions(seed_keys(key).frictions, settings.steps // settings.period + 1)


def worker_period(settings: Settings) -> int:
    """Returns the steps after which one of a seed's workers gets its next friction."""
    return NEVER if settings.constant_friction else settings.period // settings.workers


class Program(NamedTuple):
    """What both backends share: pure functions of one seed.

    Attributes:
        start: Seed's number -> carry, with no workers yet.
        learn: (carry, batch) -> carry.
        measure: (carry before a bin, after it, returns of its batches, friction) -> measures of the bin.
        learner: The method.
    """

    start: Callable[[jax.Array], Carry]
    learn: Callable[[Carry, Trajectory], Carry]
    measure: Callable[[Carry, Carry, Returns, jax.Array], dict[str, jax.Array]]
    learner: control.Learner


def make_program(settings: Settings, method: ControlMethod, setting: methods.Setting) -> Program:
    """Returns the parts of a run that do not depend on the simulator."""
    learner = control.make_learner(ant.SPACES, method, setting, settings)

    def start(seed: Int[Array, ""]) -> Carry:
        key = jax.random.key_data(jax.random.key(seed))
        return Carry(key, jnp.int32(0), jnp.array(True), learner.start(seed_keys(key).agent), ())

    def learn(carry: Carry, seen: Trajectory) -> Carry:
        going = carry.going & ant.is_finite((seen.observations, seen.next_observations, seen.rewards))
        learned = learner.update(carry.learner, seen, batch_keys(carry).update)
        state = jax.tree.map(lambda new, old: jnp.where(going, new, old), learned, carry.learner)
        return carry._replace(batches=carry.batches + 1, going=going, learner=state)

    def measure(
        before: Carry, after: Carry, returns: Returns, friction: Float[Array, " workers"]
    ) -> dict[str, Float[Array, ""]]:
        probe = ant.probe(seed_keys(after.key).probe, _PROBE_SIZE)
        return {
            "return": jnp.where(after.going, returns.mean, jnp.nan),
            "replaced": learner.replaced(after.learner) - learner.replaced(before.learner),
            "friction": friction.mean(),
            **learner.diagnose(after.learner.params, probe),
        }

    return Program(start, learn, measure, learner)


MakeRun = Callable[[dict[str, str], ControlMethod, methods.Setting], Run]


def _on_mjx(settings: Settings) -> MakeRun:
    """Returns what makes runs that are one compiled program; the runner maps it over the seeds."""
    environment = ant_mjx.make_environment()
    steps, batches = settings.batch // settings.workers, settings.bin // settings.batch

    def schedule_of(carry: Carry) -> Schedule:
        return Schedule(frictions_of(settings, carry.key), worker_period(settings))

    def make_run(labels: dict[str, str], method: ControlMethod, setting: methods.Setting) -> Run:
        program = make_program(settings, method, setting)

        def start(seed: Int[Array, ""], data: Any) -> Carry:
            del data
            carry = program.start(seed)
            key = seed_keys(carry.key).workers
            return carry._replace(workers=start_workers(environment, schedule_of(carry), key, settings.workers))

        def chunk(carry: Carry, data: Any) -> tuple[Carry, dict[str, Array]]:
            del data
            schedule = schedule_of(carry)

            def batch(carry: Carry, _: None) -> tuple[Carry, Returns]:
                act, key = program.learner.policy(carry.learner.params), batch_keys(carry).collect
                workers, seen, returns = collect(environment, act, schedule, carry.workers, key, steps)
                return program.learn(carry, seen)._replace(workers=workers), returns

            end, returns = jax.lax.scan(batch, carry, length=batches)
            friction = jax.vmap(schedule.params)(end.workers.clocks)
            return end, program.measure(carry, end, returns, friction)

        return Run(labels, start, chunk)

    return make_run


def _on_c(settings: Settings) -> MakeRun:
    """Returns what makes runs of all seeds at once, whose ants are stepped together."""
    physics = ant_c.Physics(settings.seeds * settings.workers)
    steps, batches = settings.batch // settings.workers, settings.bin // settings.batch

    def make_run(labels: dict[str, str], method: ControlMethod, setting: methods.Setting) -> Run:
        program = make_program(settings, method, setting)
        measure = jax.jit(jax.vmap(program.measure))
        # One seed after the other, each on all cores: XLA is slower at the products of many small matrices on CPU.
        learn = jax.jit(lambda carry, seen: jax.lax.map(lambda both: program.learn(*both), (carry, seen)))

        @jax.jit
        @jax.vmap
        def begin(seed: Int[Array, ""]) -> tuple[Carry, ant.Body]:
            carry = program.start(seed)
            keys = jax.random.split(seed_keys(carry.key).workers, settings.workers)
            return carry, jax.vmap(ant.draw_start)(keys)

        @jax.jit
        @jax.vmap
        def draw(carry: Carry) -> tuple[PRNGKeyArray, ant.Body]:
            """Draws a batch's key of actions, and where new episodes would begin."""
            act_key, start_key = jax.random.split(batch_keys(carry).collect)
            keys = jax.random.split(start_key, (steps, settings.workers))
            return act_key, jax.vmap(jax.vmap(ant.draw_start))(keys)

        @jax.jit
        @functools.partial(jax.vmap, in_axes=(0, 0, 0, None))
        def act(params: Any, key: PRNGKeyArray, observations: Float[Array, "N 111"], number: Int[Array, ""]) -> Array:
            return program.learner.policy(params)(jax.random.fold_in(key, number), observations)

        def start(seeds: Int[Array, " S"], data: Any) -> Carry:
            del data
            carry, bodies = begin(seeds)
            return carry._replace(workers=ant_c.start_herd(bodies))

        def chunk(carry: Carry, data: Any) -> tuple[Carry, dict[str, Array]]:
            del data
            before, herd, all_returns = carry._replace(workers=()), carry.workers, []
            after, frictions = before, np.asarray(jax.vmap(lambda key: frictions_of(settings, key))(carry.key))
            for _ in range(batches):
                keys, starts = draw(after)
                policy = functools.partial(act, after.learner.params, keys)
                herd, seen, returns = ant_c.collect(physics, policy, starts, frictions, worker_period(settings), herd)
                after = learn(after, seen)
                all_returns.append(returns)
            returns = Returns(*(np.concatenate(values, axis=1) for values in zip(*all_returns, strict=True)))
            measures = measure(before, after, returns, ant_c.frictions_now(frictions, herd))
            return after._replace(workers=herd), measures

        return Run(labels, start, chunk, mapped=False)

    return make_run


BACKENDS: dict[str, Callable[[Settings], MakeRun]] = {"c": _on_c, "mjx": _on_mjx}
"""Backend -> settings -> what makes the run of a method."""
