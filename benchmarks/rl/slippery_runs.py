"""The runs of slippery ant: carries, keys, frictions, and what makes a run with either simulator.

On MuJoCo in C a loop of NumPy collects for all seeds, and two compiled programs act and learn; on MJX everything is one
compiled program. Both see the same model, observations, schedules and initial weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import methods
from benchmarks.experiment import Run
from benchmarks.rl import ant, ant_c, ant_mjx, control
from benchmarks.rl.collecting import Returns, Trajectory, collect, start_workers
from benchmarks.rl.environment import NEVER, Schedule
from benchmarks.rl.methods import ControlMethod
from gxd_jax.training import TrainState

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

    from benchmarks.rl.slippery_ant import Settings

_PROBE_SIZE = 256
_CONSTANT_FRICTION = 1.0


class Carry(NamedTuple):
    """What one seed's run carries from bin to bin.

    Attributes:
        key: Raw key, from which everything random of the seed is derived.
        batches: Batches so far.
        going: Whether everything was finite so far; else the seed has stopped and its training state stays what it was.
        training: Parameters and state of the method.
        workers: Where its ants are.
    """

    key: UInt32[Array, " words"]
    batches: Int[Array, ""]
    going: Bool[Array, ""]
    training: TrainState
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
        ppo: PPO with the method.
    """

    start: Callable[[jax.Array], Carry]
    learn: Callable[[Carry, Trajectory], Carry]
    measure: Callable[[Carry, Carry, Returns, jax.Array], dict[str, jax.Array]]
    ppo: control.PPO


def make_program(settings: Settings, method: ControlMethod, setting: methods.Setting) -> Program:
    """Returns the parts of a run that do not depend on the simulator."""
    ppo = control.make_ppo(ant.SPACES, method, setting, settings)

    def start(seed: Int[Array, ""]) -> Carry:
        key = jax.random.key_data(jax.random.key(seed))
        return Carry(key, jnp.int32(0), jnp.array(True), ppo.start(seed_keys(key).agent), ())

    def learn(carry: Carry, seen: Trajectory) -> Carry:
        going = carry.going & ant.is_finite((seen.observations, seen.next_observations, seen.rewards))
        learned = ppo.update(carry.training, seen, batch_keys(carry).update)
        state = jax.tree.map(lambda new, old: jnp.where(going, new, old), learned, carry.training)
        return carry._replace(batches=carry.batches + 1, going=going, training=state)

    def measure(
        before: Carry, after: Carry, returns: Returns, friction: Float[Array, " workers"]
    ) -> dict[str, Float[Array, ""]]:
        probe = ant.probe(seed_keys(after.key).probe, _PROBE_SIZE)
        return {
            "return": jnp.where(after.going, returns.mean, jnp.nan),
            "replaced": ppo.replaced(after.training) - ppo.replaced(before.training),
            "friction": friction.mean(),
            **ppo.diagnose(after.training.params, probe),
        }

    return Program(start, learn, measure, ppo)


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
                act, key = program.ppo.policy(carry.training.params), batch_keys(carry).collect
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
            return program.ppo.policy(params)(jax.random.fold_in(key, number), observations)

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
                policy = functools.partial(act, after.training.params, keys)
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
