"""The remedies that reset units: whom they choose, by hand; draws, moments and seeds, for all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from gxd_jax import methods
from tests.networks import constant_features, dense_params, dense_units, feed, one_hidden_layer


def test_redo_recycles_every_so_often_what_is_dormant():
    """Scores of l1: [2, 1/2, 0, 3/2], one of them just at tau; l2 is silent, so all of it is dormant."""
    params = dense_params([3, 4, 3, 2])
    tx = methods.redo(dense_units(params), tau=0.5, period=2)
    observations = constant_features(4, l1=[-4.0, 1.0, 0.0, 3.0], l2=[0.0, 0.0, 0.0])
    history, infos, _ = feed(tx, params, observations)
    dormant = np.array([False, True, True, False])
    for step in range(4):
        np.testing.assert_array_equal(infos.replaced["l1"][step], dormant & (step % 2 == 1))
        np.testing.assert_array_equal(infos.replaced["l2"][step], np.full(3, step % 2 == 1))
    np.testing.assert_array_equal(infos.totals["l1"], [0, 2, 2, 4])
    jax.tree.map(lambda leaf, old: np.testing.assert_array_equal(leaf[0], old), history, params)
    after = jax.tree.map(lambda leaf: np.asarray(leaf[1]), history)
    np.testing.assert_array_equal(after["l1"]["kernel"][:, ~dormant], params["l1"]["kernel"][:, ~dormant])
    assert (after["l1"]["kernel"][:, dormant] != np.asarray(params["l1"]["kernel"])[:, dormant]).all()
    np.testing.assert_array_equal(after["l1"]["bias"][dormant], 0.0)
    assert (after["l2"]["kernel"][~dormant] != 0).all()  # drawn anew
    np.testing.assert_array_equal(after["l2"]["kernel"][dormant], 0.0)
    np.testing.assert_array_equal(after["l3"]["kernel"], 0.0)
    np.testing.assert_array_equal(after["l3"]["bias"], params["l3"]["bias"])  # a mean output of 0 leaves nothing


def test_redo_leaves_out_batches_that_are_not_finite_and_compensates_with_the_mean_of_the_resetting_one():
    params, units = one_hidden_layer(3)
    tx = methods.redo(units, tau=0.3, period=1)
    features = jnp.array([[[4.0, 0.0, jnp.nan], [4.0, 0.0, 3.0]], [[4.0, 0.5, 3.0], [4.0, 0.25, 3.0]]])
    history, infos, _ = feed(tx, params, gxd.Observation({"l1": features}))
    np.testing.assert_array_equal(infos.replaced["l1"], [[False] * 3, [False, True, False]])
    np.testing.assert_array_equal(infos.skipped_batches, [1, 1])
    expected = params["l2"]["bias"] + 0.375 * params["l2"]["kernel"][1]
    np.testing.assert_allclose(history["l2"]["bias"][1], expected, rtol=1e-6)


def test_regrama_resets_what_receives_little_gradient():
    """Mean sizes of the gradients: [1, 0.01, 2, 0.99], their mean 1."""
    params, units = one_hidden_layer(4)
    tx = optax.inject_hyperparams(methods.regrama)(units, tau=0.01, period=3)
    sensitivities = jnp.tile(jnp.array([[1.0, 0.01, 4.0, 0.98], [-1.0, -0.01, 0.0, 1.0]]), (3, 1, 1))
    observation = gxd.Observation({"l1": jnp.ones((3, 2, 4))}, {"l1": sensitivities}, readout="loss")
    _, infos, _ = feed(tx, params, observation)
    np.testing.assert_array_equal(infos.replaced["l1"], [[False] * 4, [False] * 4, [False, True, False, False]])


def test_regrama_refuses_other_sensitivities():
    params, units = one_hidden_layer(3)
    tx = methods.regrama(units)
    observation = gxd.Observation({"l1": jnp.ones((1, 3))}, {"l1": jnp.ones((1, 3))}, readout="logits")
    with pytest.raises(ValueError, match="readout='loss'"):
        jax.eval_shape(lambda: tx.update(params, tx.init(params), params, observation=observation))


def snr_reference(fires, rejection, initial_gap, decay):
    """Resets [T, U] for firing [T, U], unit by unit, with the gaps of each unit's life in a list."""
    resets = np.zeros(fires.shape, bool)
    for unit in range(fires.shape[1]):
        gaps, silence = [], 0
        for step in range(fires.shape[0]):
            silence += 1
            if fires[step, unit]:
                gaps, silence = [*gaps, silence], 0
            weights = decay ** np.arange(len(gaps))[::-1]
            mean_gap = (weights @ np.array(gaps, float) + initial_gap) / (weights.sum() + 1)
            if (1 - 1 / mean_gap) ** silence <= rejection:
                resets[step, unit], gaps, silence = True, [], 0
    return resets


def test_self_normalized_resets_test_each_unit_against_its_own_past():
    rejection, initial_gap, decay, steps = 0.05, 8.0, 0.9, 60
    fires = np.random.default_rng(0).random((steps, 5)) < np.array([1.0, 0.7, 0.2, 0.0, 1.0])
    fires[30:, :2] = fires[20, 4] = False
    params, units = one_hidden_layer(5)
    tx = methods.self_normalized_resets(units, rejection=rejection, initial_gap=initial_gap, decay=decay)
    features = jnp.stack([jnp.where(fires, 0.3, -1.0), jnp.full(fires.shape, -1.0)], axis=1)
    _, infos, _ = feed(tx, params, gxd.Observation({"l1": jnp.float32(features)}))
    expected = snr_reference(fires, rejection, initial_gap, decay)
    np.testing.assert_array_equal(infos.replaced["l1"], expected)
    # By hand: never fired, (7/8)^a <= 1/20 first at a = 23, and again 23 updates after the reset.
    np.testing.assert_array_equal(np.flatnonzero(expected[:, 3]), [22, 45])
    # Thirty firings in a row and then none: mean gap (9.58 + 8) / 10.58, q^3 = 0.063, q^4 = 0.025.
    assert np.flatnonzero(expected[:, 0])[0] == 33
    assert not expected[:, 4].any()  # a single silent update after twenty firings is no death


REST = dict(compensate=False)
RESETTING = {
    "redo": lambda units, key: methods.redo(units, tau=0.3, period=1, key=key, **REST),
    "regrama": lambda units, key: methods.regrama(units, tau=0.3, period=1, key=key, **REST),
    "self_normalized_resets": lambda units, key: methods.self_normalized_resets(
        units, rejection=0.5, initial_gap=1.5, key=key, **REST
    ),
}


@pytest.mark.parametrize("name", RESETTING)
def test_seeds_are_reset_each_by_itself_and_the_optimizer_s_moments_with_them(name):
    """Three seeds, vmapped: in the first two unit 1 of 3 is replaced, in the third none is."""
    params, units = one_hidden_layer(3)
    values = jnp.array([[[2.0, 0.0, 2.0]], [[2.0, 0.0, 2.0]], [[2.0, 2.0, 2.0]]])
    grads = jax.tree.map(jnp.ones_like, params)

    def run(seed, values):
        tx = gxd.chain(optax.sgd(0.25, momentum=0.5), RESETTING[name](units, seed))
        observation = gxd.Observation({"l1": values}, {"l1": values}, readout="loss")
        updates, state = tx.update(grads, tx.init(params), params, observation=observation)
        return optax.apply_updates(params, updates), state[0], gxd.reset_info(state)

    after, optimizer_state, info = jax.jit(jax.vmap(run))(jnp.arange(3), values)
    replaced = np.array([False, True, False])
    np.testing.assert_array_equal(info.replaced["l1"], [replaced, replaced, [False] * 3])
    np.testing.assert_array_equal(info.totals["l1"], [1, 1, 0])
    trace = optimizer_state[0].trace
    for seed, mask in enumerate(info.replaced["l1"]):
        kept = np.where(mask, 0.0, 1.0)
        np.testing.assert_array_equal(trace["l1"]["kernel"][seed], np.tile(kept, (3, 1)))
        np.testing.assert_array_equal(trace["l1"]["bias"][seed], kept)
        np.testing.assert_array_equal(trace["l2"]["kernel"][seed], np.tile(kept, (2, 1)).T)
        np.testing.assert_array_equal(trace["l2"]["bias"][seed], [1.0, 1.0])
        stepped = jax.tree.map(lambda leaf: leaf - 0.25, params)
        np.testing.assert_array_equal(
            after["l2"]["kernel"][seed], np.where(mask[:, None], 0.0, stepped["l2"]["kernel"])
        )
        np.testing.assert_array_equal(after["l1"]["kernel"][seed][:, ~mask], stepped["l1"]["kernel"][:, ~mask])
        np.testing.assert_array_equal(after["l2"]["bias"][seed], stepped["l2"]["bias"])
    assert (after["l1"]["kernel"][0][:, 1] != after["l1"]["kernel"][1][:, 1]).all()


@pytest.mark.parametrize(
    ("method", "settings", "error", "message"),
    [
        (methods.redo, {"tau": -0.1}, ValueError, r"tau must lie in \[0, inf\), got -0.1"),
        (methods.redo, {"tau": "small"}, TypeError, "tau must be a number"),
        (methods.redo, {"period": 0}, ValueError, "period must be 1 or more, got 0"),
        (methods.regrama, {"period": 2.5}, TypeError, "period must be a whole number of updates, got 2.5"),
        (methods.regrama, {"compensate": 1}, TypeError, "compensate must be True or False, got 1"),
        (methods.self_normalized_resets, {"rejection": 1.0}, ValueError, r"rejection must lie in \(0, 1\), got 1.0"),
        (methods.self_normalized_resets, {"initial_gap": 0.5}, ValueError, r"initial_gap must lie in \[1, inf\)"),
        (methods.self_normalized_resets, {"decay": 1.0}, ValueError, r"decay must lie in \[0, 1\), got 1.0"),
    ],
)
def test_hyper_parameters_out_of_range(method, settings, error, message):
    _, units = one_hidden_layer(3)
    with pytest.raises(error, match=message):
        method(units, **settings)
