"""Every score of the table, worked out by hand, and GXD against the cost of really resetting a unit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gxd_jax as gxd
from tests.networks import batches, dense_params, dense_units, mlp, numpy_layers, squared_loss
from tests.reference import network

KEY = jax.random.key(0)


def record(**changes):
    """Two examples of three units; unit 0 is a tanh unit at +1 and -1."""
    values = dict(
        features=jnp.array([[1.0, 2.0, 0.0], [-1.0, 4.0, 0.0]]),
        sensitivities=jnp.array([[3.0, -1.0, 5.0], [1.0, 2.0, -5.0]]),
        readout="loss",
        reference=jnp.array([0.5, 3.0, 1.0]),
        incoming_magnitude=jnp.array([0.5, 2.0, 4.0]),
        outgoing_magnitude=jnp.array([2.0, 0.25, 10.0]),
        key=KEY,
    )
    return gxd.UnitRecord(**(values | changes))


HAND_WORKED = {
    # mean |h| = [1, 3, 0], times the outgoing sums.
    "contribution": [2.0, 0.75, 0.0],
    # |h - r| = [.5, 1, 1] and [1.5, 1, 1]: means [1, 1, 1].
    "mean_corrected_contribution": [2.0, 0.25, 10.0],
    "adaptable_contribution": [4.0, 0.125, 2.5],
    "weight": [2.0, 0.25, 10.0],
    "adaptation": [2.0, 0.5, 0.25],
    "activation": [1.0, 3.0, 0.0],
    # Sensitivities are per example; the gradient of the mean loss is half of them with two examples.
    "gradient": [1.0, 0.75, 2.5],
    # |g (h - r)| = [1.5, 1, 5] and [1.5, 2, 5].
    "gxd": [1.5, 1.5, 5.0],
}


@pytest.mark.parametrize("name", sorted(HAND_WORKED))
@pytest.mark.parametrize("mode", ["plain", "jitted", "vmapped"])
def test_hand_worked_scores(name, mode):
    score = gxd.utilities.UTILITIES[name]
    wanted = HAND_WORKED[name]
    if mode == "plain":
        result = score(record())
    elif mode == "jitted":
        result = jax.jit(lambda features: score(record(features=features)))(record().features)
    else:
        twice = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), record().features)
        result = jax.vmap(lambda features: score(record(features=features)))(twice)[1]
    assert result.shape == (3,)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, wanted, rtol=1e-6)


def test_the_table_holds_these_scores():
    assert set(gxd.utilities.UTILITIES) == set(HAND_WORKED) | {"random"}
    assert gxd.utilities.UTILITIES["contribution"] is gxd.utilities.contribution


def test_random_scores_are_uniform_and_follow_the_key():
    wide = record(features=jnp.zeros((1, 4000)), reference=jnp.zeros(4000), sensitivities=None, readout=None)
    wide = wide._replace(incoming_magnitude=jnp.ones(4000), outgoing_magnitude=jnp.ones(4000))
    scores = gxd.utilities.random(wide)
    assert scores.shape == (4000,)
    np.testing.assert_allclose(np.quantile(scores, [0.0, 0.25, 0.5, 0.75, 1.0]), [0, 0.25, 0.5, 0.75, 1], atol=0.02)
    assert jnp.array_equal(gxd.utilities.random(wide), scores)
    assert not jnp.any(gxd.utilities.random(wide._replace(key=jax.random.key(1))) == scores)


def test_gxd_takes_the_positions_of_a_unit_jointly_before_the_absolute_value():
    maps = record(
        features=jnp.array([[[1.0], [2.0]], [[1.0], [0.0]]]),  # two examples, two positions, one unit
        sensitivities=jnp.array([[[1.0], [-1.0]], [[2.0], [3.0]]]),
        reference=jnp.array([0.5]),
        incoming_magnitude=jnp.ones(1),
        outgoing_magnitude=jnp.array([2.0]),
    )
    # 1 * .5 - 1 * 1.5 = -1, and 2 * .5 + 3 * -.5 = -.5; position by position it would be 2 and 2.5.
    np.testing.assert_allclose(gxd.utilities.gxd(maps), [0.75], rtol=1e-6)
    # |h - r| is .5, 1.5, .5, .5; means run over examples and positions.
    np.testing.assert_allclose(gxd.utilities.mean_corrected_contribution(maps), [1.5], rtol=1e-6)
    np.testing.assert_allclose(gxd.utilities.activation(maps), [1.0], rtol=1e-6)
    np.testing.assert_allclose(gxd.utilities.gradient(maps), [0.875], rtol=1e-6)


def test_gxd_takes_the_norm_over_outputs_for_logits_exact():
    two_outputs = record(
        features=jnp.array([[2.0], [3.0]]),
        reference=jnp.array([1.0]),
        sensitivities=jnp.array([[[3.0], [0.0]], [[4.0], [1.0]]]),  # [K, B, U]
        readout="logits_exact",
        incoming_magnitude=jnp.ones(1),
        outgoing_magnitude=jnp.ones(1),
    )
    # Example 0: |(3, 4)| * 1 = 5; example 1: |(0, 1)| * 2 = 2.
    np.testing.assert_allclose(gxd.utilities.gxd(two_outputs), [3.5], rtol=1e-6)


def test_gxd_squares_for_fisher():
    # (g (h - r))^2 = [1.5, 1, 5]^2 and [1.5, 2, 5]^2.
    np.testing.assert_allclose(gxd.utilities.gxd(record(readout="fisher")), [2.25, 2.5, 25.0], rtol=1e-6)


@pytest.mark.parametrize("readout", ["logits", "predicted", "target", "loss"])
def test_gxd_takes_absolute_values_for_every_other_readout(readout):
    np.testing.assert_allclose(gxd.utilities.gxd(record(readout=readout)), HAND_WORKED["gxd"], rtol=1e-6)


@pytest.mark.parametrize("readout", ["logits", "logits_exact", "fisher", "predicted", None])
def test_gradient_refuses_what_is_not_the_loss(readout):
    sensitivities = None if readout is None else record().sensitivities
    with pytest.raises(ValueError, match="needs (the )?sensitivities"):
        gxd.utilities.gradient(record(readout=readout, sensitivities=sensitivities))


def test_gxd_refuses_an_observation_without_sensitivities():
    with pytest.raises(ValueError, match="sensitivities"):
        gxd.utilities.gxd(record(readout=None, sensitivities=None))


def test_gxd_of_units_before_the_linear_output_is_the_cost_of_really_resetting_them():
    """Equation 1 of arXiv 2605.06834 for one unit, with the 2-norm: mean |z_after - z_before|."""
    params = dense_params([6, 5, 4, 3], seed=5)
    units = dense_units(params)
    x, y = batches(1, 16, 6, 3, seed=5)
    observe = jax.jit(gxd.observe(mlp(jnp.tanh), squared_loss, units, readout="logits_exact"))
    _, _, observation = observe(params, x[0], y[0])
    # One update from scratch: the reference is this batch's mean and the utility is this batch's.
    tx = gxd.continual_backprop(units, utility="gxd", replacement_rate=0.0, decay=0.9)
    _, state = jax.jit(tx.update)(
        jax.tree.map(jnp.zeros_like, params), tx.init(params), params, observation=observation
    )

    layers = numpy_layers(params)
    features, outputs = network.forward(layers, x[0], "tanh")
    kernel, bias = layers[2]
    costs = []
    for unit in range(4):
        silenced = features[1].copy()
        silenced[:, unit] = 0.0
        compensated = bias + features[1][:, unit].mean() * kernel[unit]
        after = silenced @ kernel + compensated
        costs.append(np.linalg.norm(after - outputs, axis=1).mean())
    np.testing.assert_allclose(gxd.reset_info(state).utilities["l2"], costs, rtol=1e-5)


def test_a_callable_of_the_user_s_own_is_a_utility():
    params = dense_params([3, 4, 2])
    units = dense_units(params)

    def largest_output(record):
        return record.features.max(axis=0)

    tx = gxd.continual_backprop(units, utility=largest_output, replacement_rate=0.0, decay=0.5)
    features = jnp.array([[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]])
    _, state = tx.update(params, tx.init(params), params, observation=gxd.Observation({"l1": features}))
    np.testing.assert_allclose(gxd.reset_info(state).utilities["l1"], [4.0, 3.0, 3.0, 4.0], rtol=1e-6)


def test_the_record_holds_the_stepped_weights_and_the_reference_with_this_batch():
    params = dense_params([3, 4, 2])
    units = dense_units(params)
    seen = {}

    def spy(record):
        seen.update(record._asdict())
        return record.outgoing_magnitude

    tx = gxd.continual_backprop(units, utility=spy, replacement_rate=0.0, decay=0.9)
    features = jnp.array([[1.0, 2.0, 3.0, 4.0], [3.0, 2.0, 1.0, 0.0]])
    step = jax.tree.map(jnp.ones_like, params)
    tx.update(step, tx.init(params), params, observation=gxd.Observation({"l1": features}))
    np.testing.assert_allclose(seen["reference"], [2.0, 2.0, 2.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(seen["incoming_magnitude"], np.abs(params["l1"]["kernel"] + 1).mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(seen["outgoing_magnitude"], np.abs(params["l2"]["kernel"] + 1).sum(axis=1), rtol=1e-6)
    assert seen["sensitivities"] is None


def test_combine_weighs_cost_against_benefit():
    """Contribution [2, .75, 0] and size of the incoming weights [.5, 2, 4], each over its mean: 11/12 and 13/6."""
    combined = gxd.utilities.combine("contribution", "adaptation", weight=2.0)
    expected = [2 * 24 / 11 - 3 / 13, 2 * 9 / 11 - 12 / 13, -24 / 13]
    np.testing.assert_allclose(combined(record()), expected, rtol=1e-6)
    # GXD [1.5, 1.5, 5], and a benefit of minus the gradient's size [1, .75, 2.5].
    combined = gxd.utilities.combine(benefit="gradient")
    np.testing.assert_allclose(combined(record()), [9 / 16 + 12 / 17, 9 / 16 + 9 / 17, 15 / 8 + 30 / 17], rtol=1e-6)
    # A function, and a cost of 0 everywhere.
    combined = gxd.utilities.combine(lambda record: 0 * record.reference, lambda record: record.reference)
    np.testing.assert_allclose(combined(record()), [-1 / 3, -2, -2 / 3], rtol=1e-6)


def test_combine_by_ranks():
    """Contribution [2, .75, 0] has the ranks [2, 1, 0] of 2, the incoming weights [.5, 2, 4] the ranks [0, 1, 2]."""
    combined = gxd.utilities.combine("contribution", "adaptation", weight=3.0, scale="rank")
    np.testing.assert_allclose(combined(record()), [3.0, 1.0, -1.0], rtol=1e-6)
    # Equal costs (GXD [1.5, 1.5, 5]) in the order of the units.
    combined = gxd.utilities.combine("gxd", lambda record: 0 * record.reference, scale="rank")
    np.testing.assert_allclose(combined(record()), [0.0, 0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scale": "logarithm"}, ValueError, r"unknown scale 'logarithm': allowed are \['mean', 'rank'\]"),
        ({"cost": "usefulness"}, ValueError, "unknown utility 'usefulness'"),
        ({"benefit": "weight"}, ValueError, r"unknown benefit 'weight': allowed are \['adaptation', 'gradient'\]"),
        ({"benefit": 3}, TypeError, "got 3"),
        ({"weight": -1.0}, ValueError, r"weight must lie in \[0, inf\), got -1.0"),
        ({"weight": "much"}, TypeError, r"weight must be a number in \[0, inf\), got 'much'"),
    ],
)
def test_combine_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        gxd.utilities.combine(**arguments)
