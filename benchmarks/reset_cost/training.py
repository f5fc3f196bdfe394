"""The networks along a continual run: tasks of permuted images, and the utilities that are followed on the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gxd_jax as gxd
from benchmarks import datasets, methods
from benchmarks.experiment import Run, TaskCarry
from benchmarks.learner import cross_entropy, make_learner
from benchmarks.networks import small
from benchmarks.networks.layers import Network, scale_bytes
from benchmarks.problems.permuted_mnist import Task
from benchmarks.problems.permuted_mnist import draw_task as draw_part_of_images
from benchmarks.reset_cost.measuring import Subject, measure
from benchmarks.reset_cost.settings import AT_ONCE, NOW, SCORES, Settings

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray

Trackers = dict[str, Any]
"""Score -> state of what follows it."""


class Follower(NamedTuple):
    """The utilities that are followed while a network learns.

    Attributes:
        network: The network.
        decay: Decay of the running averages that have none of their own.
    """

    network: Network
    decay: float

    def start(self, params: Any, key: PRNGKeyArray) -> Trackers:
        """Returns the trackers before the first batch."""
        return {name: self._tracker(name, key).init(params) for name in SCORES}

    def follow(self, trackers: Trackers, params: Any, x: Array, y: Array, key: PRNGKeyArray) -> Trackers:
        """Lets a batch enter the running utilities."""
        observed = {}
        for readout in {SCORES[name].readout for name in trackers}:
            observe = gxd.observe(self.network.apply, cross_entropy, self.network.units, readout=readout)
            observed[readout] = observe(params, x, y, key=key)[2]
        nothing = jax.tree.map(jnp.zeros_like, params)
        return {
            name: self._tracker(name, 0).update(nothing, state, params, observation=observed[SCORES[name].readout])[1]
            for name, state in trackers.items()
        }

    def _tracker(self, name: str, key: PRNGKeyArray | int) -> optax.GradientTransformationExtraArgs:
        """Returns what follows a utility: continual backprop that replaces no unit; its key is in its state."""
        score = SCORES[name]
        return gxd.continual_backprop(
            self.network.units,
            utility=score.utility,
            replacement_rate=0.0,
            decay=score.decay or self.decay,
            key=key,
        )


class Images(NamedTuple):
    """The images, flat bytes, and their labels.

    Attributes:
        train: Training images [N, D].
        labels: Their labels [N].
        test: Images that are held back [M, D].
        test_labels: Their labels [M].
    """

    train: Array
    labels: Array
    test: Array
    test_labels: Array


def flat(images: datasets.Images) -> Images:
    """Returns the images as the runs read them."""
    train, test = (values.reshape(len(values), -1) for values in (images.images, images.test_images))
    return Images(train, images.labels, test, images.test_labels)


def make_run(settings: Settings, images: datasets.Images, name: str) -> Run:
    """Returns the run of one seed: a chunk learns the tasks up to the next moment and measures there."""
    kind, shape = small.KINDS[name], images.images.shape[1:]
    network = small.make(kind, shape, images.classes)
    method = methods.METHODS[settings.method]
    setting = next(methods.settings_of(method, settings))
    optimizer = methods.OPTIMIZERS[settings.optimizer](settings.step_size)
    learner = make_learner(network, cross_entropy, method, setting, settings, optimizer)
    subject, follower = Subject(kind, network, learner), Follower(network, settings.decay)

    def start(seed: Int[Array, ""], data: Images) -> TaskCarry:
        del data
        stream_key, params_key, method_key, step_key = jax.random.split(jax.random.key(seed), 4)
        state = learner.start(params_key, method_key, step_key)
        return TaskCarry(jax.random.key_data(stream_key), jnp.int32(0), state)

    def draw_task(carry: TaskCarry, data: Images, examples: int) -> Task:
        there = len(data.labels)
        rounds = -(-examples // there)  # a small set is seen several times in a task
        task = draw_part_of_images(carry.key, carry.task, int(np.prod(shape)), there, min(there, examples))
        return task._replace(order=jnp.tile(task.order, rounds)[:examples])

    def learn_task(carry: TaskCarry, data: Images, trackers: Trackers | None) -> tuple[TaskCarry, Trackers | None]:
        """Learns the next task, and follows the utilities if given their trackers."""
        task = draw_task(carry, data, settings.steps * settings.batch)

        def learn(both: tuple, place: Int[Array, ""]) -> tuple[tuple, None]:
            state, trackers = both
            indices = jax.lax.dynamic_slice_in_dim(task.order, place * settings.batch, settings.batch)
            x, y = inputs_of(data.train, indices, task), data.labels[indices]
            if trackers is not None:
                key = jax.random.fold_in(task.dropout_key, place)
                trackers = follower.follow(trackers, state.params, x, y, key)
            state, _ = learner.step(state, x, y)
            return (state, trackers), None

        (state, trackers), _ = jax.lax.scan(learn, (carry.training, trackers), jnp.arange(settings.steps))
        return TaskCarry(carry.key, carry.task + 1, state), trackers

    def chunk(carry: TaskCarry, data: Images) -> tuple[TaskCarry, dict[str, Any]]:
        def next_task(carry: TaskCarry, _: None) -> tuple[TaskCarry, None]:
            return learn_task(carry, data, None)[0], None

        carry, _ = jax.lax.scan(next_task, carry, length=settings.tasks_between - 1)
        # The images of the next task, held back for the cost, and some of those learned once more, for the recovery.
        task = draw_task(carry, data, settings.recovery * settings.batch)
        draw_key, noise_key, order_key, utility_key = jax.random.split(task.dropout_key, 4)
        fresh = follower.start(carry.training.params, utility_key)
        carry, trackers = learn_task(carry, data, fresh)
        held_back = jax.random.permutation(order_key, len(data.test_labels))[: settings.probe]
        x, y = inputs_of(data.test, held_back, task), data.test_labels[held_back]
        params = carry.training.params
        now = follower.follow({name: fresh[name] for name in AT_ONCE}, params, x, y, noise_key)
        scores = {name: gxd.reset_info(state).utilities for name, state in trackers.items()}
        scores |= {name + NOW: gxd.reset_info(state).utilities for name, state in now.items()}
        again = inputs_of(data.train, task.order, task), data.labels[task.order]
        batches = jax.tree.map(lambda a: a.reshape(settings.recovery, settings.batch, *a.shape[1:]), again)
        return carry, measure(settings, subject, params, scores, (x, y), batches, draw_key)

    return Run({"network": name}, start, chunk)


def inputs_of(images: Array, indices: Int[Array, " B"], task: Task) -> Float[Array, "B D"]:
    """Returns some of the images as a task permutes them."""
    return scale_bytes(images[indices[:, None], task.permutation])
