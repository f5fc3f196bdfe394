"""Running statistics, how many units are replaced, and which."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from tests.networks import constant_features, feed, one_hidden_layer, zeros_like


def continual_backprop(units, **settings):
    """Replacement by mean absolute feature, without compensation and with constant fresh weights, unless told else."""
    defaults = dict(
        utility="activation", maturity_threshold=0, compensate=False, kernel_init=jax.nn.initializers.constant(0.5)
    )
    return gxd.continual_backprop(units, **(defaults | settings))


def replaced_units(infos, name="l1"):
    """The replaced units of every update, as a list of lists."""
    return [np.flatnonzero(mask).tolist() for mask in infos.replaced[name]]


# --- How many -----------------------------------------------------------------------------------------------------


def counts_of(size, rates, steps, how):
    """Units replaced at each update of a layer of `size` eligible units, one row for each of the rates."""
    params, units = one_hidden_layer(size)
    observations = constant_features(steps, l1=np.arange(size))
    rows = []
    if how == "written":
        for rate in rates:
            _, infos, _ = feed(continual_backprop(units, replacement_rate=rate), params, observations)
            rows.append(infos.counts["l1"])
    elif how == "injected":
        for rate in rates:
            injected = optax.inject_hyperparams(gxd.continual_backprop)
            tx = injected(units, utility="activation", replacement_rate=rate, maturity_threshold=0)
            _, infos, _ = feed(tx, params, observations)
            rows.append(infos.counts["l1"])
    else:

        def counts(rate):
            _, infos, _ = feed(continual_backprop(units, replacement_rate=rate), params, observations)
            return infos.counts["l1"]

        rows = jax.jit(jax.vmap(counts))(jnp.float32(jnp.array(rates)))
    return np.array(rows)


def expected_counts(every, steps):
    return (np.arange(1, steps + 1) % every == 0).astype(int)


@pytest.mark.parametrize("how", ["written", "injected", "traced"])
def test_100_units_at_a_thousandth_give_one_replacement_every_10_updates(how):
    (counts,) = counts_of(100, [1e-3], 400, how)
    np.testing.assert_array_equal(counts, expected_counts(10, 400))


@pytest.mark.parametrize("how", ["written", "traced"])
def test_2_thousandths_reach_1_at_update_500(how):
    """Float32 adding gets there at 501."""
    (counts,) = counts_of(1, [0.002], 1500, how)
    np.testing.assert_array_equal(counts, expected_counts(500, 1500))


@pytest.mark.parametrize(
    ("how", "rates"), [("written", [0.05, 0.0025]), ("traced", [0.1, 0.05, 0.01, 0.005, 0.0025, 0.001])]
)
def test_the_rate_is_the_decimal_number_that_was_written(how, rates):
    counts = counts_of(10, rates, 200, how)
    for rate, row in zip(rates, counts, strict=True):
        np.testing.assert_array_equal(row, expected_counts(round(1 / (10 * rate)), 200), err_msg=str(rate))


def test_the_carry_stays_exact_for_100_000_updates():
    (counts,) = counts_of(3, [0.003], 100_000, "written")
    due = np.arange(1, 100_001) * 9 // 1000
    np.testing.assert_array_equal(np.cumsum(counts), due)


def test_more_than_one_unit_may_be_due_at_once():
    (counts,) = counts_of(10, [0.25], 8, "written")
    np.testing.assert_array_equal(counts, [2, 3, 2, 3, 2, 3, 2, 3])


def test_a_rate_of_0_replaces_no_unit_and_a_rate_of_1_every_unit():
    counts = counts_of(6, [0.0, 1.0], 5, "written")
    np.testing.assert_array_equal(counts, [[0] * 5, [6] * 5])
    np.testing.assert_array_equal(counts_of(6, [0.0, 1.0], 5, "traced"), counts)


@pytest.mark.parametrize(("size", "rate", "mean"), [(19, 0.1, 1.9), (5, 0.1, 0.5)])
def test_without_a_carry_the_mean_is_right_also_above_1(size, rate, mean):
    params, units = one_hidden_layer(size)
    tx = continual_backprop(units, replacement_rate=rate, accumulate=False, key=3)
    _, infos, _ = feed(tx, params, constant_features(4000, l1=np.arange(size)))
    counts = np.array(infos.counts["l1"])
    assert set(counts.tolist()) == {int(mean), int(mean) + 1}
    # A Bernoulli mean of 4000 draws has a standard error of at most 0.008.
    assert abs(counts.mean() - mean) < 0.025


def test_without_a_carry_layers_draw_their_luck_independently():
    params, units = one_hidden_layer(5)
    params = {**params, "l2": {"kernel": jnp.ones((5, 5)), "bias": jnp.zeros(5)}, "l3": {"kernel": jnp.ones((5, 2))}}
    units = gxd.sequential_units(params, ["l1", "l2", "l3"])
    tx = continual_backprop(units, replacement_rate=0.1, accumulate=False)
    _, infos, _ = feed(tx, params, constant_features(1000, l1=np.arange(5), l2=np.arange(5)))
    first, second = np.array(infos.counts["l1"]), np.array(infos.counts["l2"])
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


# --- Who is old enough --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maturity", [0, 1, 3])
def test_eligible_at_update_m_plus_1_and_again_at_t_plus_m_plus_1(maturity):
    params, units = one_hidden_layer(4)
    tx = continual_backprop(units, replacement_rate=1.0, maturity_threshold=maturity)
    _, infos, _ = feed(tx, params, constant_features(12, l1=np.arange(4)))
    np.testing.assert_array_equal(infos.counts["l1"], 4 * expected_counts(maturity + 1, 12))
    np.testing.assert_array_equal(infos.totals["l1"], np.cumsum(infos.counts["l1"]))
    np.testing.assert_array_equal(infos.ages["l1"], np.tile(np.arange(1, 13) % (maturity + 1), (4, 1)).T)


def test_no_debt_is_built_up_before_maturity():
    params, units = one_hidden_layer(2)
    tx = continual_backprop(units, replacement_rate=0.25, maturity_threshold=10)
    _, infos, _ = feed(tx, params, constant_features(14, l1=[1.0, 2.0]))
    # From update 11 on half a unit is due per update; after update 12 only one unit is eligible: a quarter.
    assert replaced_units(infos) == [[]] * 11 + [[0]] + [[]] * 2


def test_nothing_accumulates_while_no_unit_is_eligible():
    params, units = one_hidden_layer(1)
    tx = continual_backprop(units, replacement_rate=0.5, maturity_threshold=2)
    _, infos, _ = feed(tx, params, constant_features(12, l1=[1.0]))
    # Eligible at updates 3 and 4 (due: .5, then 1), newborn, then again at 7 and 8, and 11 and 12.
    assert np.flatnonzero(infos.counts["l1"]).tolist() == [3, 7, 11]


def test_immature_units_are_never_touched():
    params, units = one_hidden_layer(6)
    tx = continual_backprop(units, replacement_rate=0.3, maturity_threshold=4)
    # The newborn unit has the lowest utility from then on: constant features make it no better than it was.
    history, infos, _ = feed(tx, params, constant_features(40, l1=np.arange(6)))
    ages = np.concatenate([np.zeros((1, 6), int), infos.ages["l1"]])
    replaced = np.array(infos.replaced["l1"])
    assert replaced.sum() > 20
    assert np.all(ages[:-1][replaced] + 1 > 4)
    kernels = np.concatenate([np.array(params["l1"]["kernel"])[None], history["l1"]["kernel"]])
    changed = (kernels[1:] != kernels[:-1]).any(axis=1)
    assert not np.any(changed & ~replaced)


def test_ages_and_maturity_fraction():
    params, units = one_hidden_layer(3)
    tx = continual_backprop(units, replacement_rate=0.0, maturity_threshold=2)
    _, infos, _ = feed(tx, params, constant_features(4, l1=[1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(infos.mature_fraction["l1"], [0.0, 0.0, 1.0, 1.0])
    assert infos.ages["l1"].dtype == jnp.int32


# --- Who is worth least -------------------------------------------------------------------------------------------


def test_ranking_uses_bias_corrected_utilities():
    """Unit A, age 101, is worth 1.0 (raw .638), unit B, age 700, is worth .9 (raw .899): B has to go."""
    params, units = one_hidden_layer(2)
    worth_a = np.where(np.arange(700) < 599, 0.1, 1.0)  # the newborn A is worth more
    features = np.stack([worth_a, np.full(700, 0.9)], axis=1)[:, None]
    rates = np.zeros(700)
    rates[[598, 699]] = 0.5  # half of two units: one of them

    def update(carry, inputs):
        params, state = carry
        rate, h = inputs
        tx = continual_backprop(units, replacement_rate=rate, decay=0.99)
        observation = gxd.Observation({"l1": h})
        updates, state = tx.update(zeros_like(params), state, params, observation=observation)
        return (optax.apply_updates(params, updates), state), gxd.reset_info(state)

    state = continual_backprop(units, replacement_rate=0.5, decay=0.99).init(params)
    _, infos = jax.jit(lambda carry, inputs: jax.lax.scan(update, carry, inputs))(
        (params, state), (jnp.float32(rates), jnp.float32(features))
    )
    np.testing.assert_array_equal(infos.ages["l1"][698], [100, 699])
    np.testing.assert_allclose(infos.utilities["l1"][698], [1.0, 0.9], rtol=1e-4)
    raw = infos.utilities["l1"][698] * (1 - 0.99 ** np.array([101, 700]))
    np.testing.assert_allclose(raw, [0.638, 0.899], atol=5e-4)
    replaced = replaced_units(infos)
    assert (replaced[598], replaced[699]) == ([0], [1])
    assert sum(map(len, replaced)) == 2


def test_running_averages_by_hand():
    params, units = one_hidden_layer(1)
    tx = gxd.continual_backprop(units, utility="activation", replacement_rate=0.0, decay=0.5)
    features = gxd.Observation({"l1": jnp.array([[[1.0]], [[-3.0]], [[2.0]]])})
    _, infos, _ = feed(tx, params, features)
    # 1; (.25 * 1 + .5 * 3) / .75; (.125 * 1 + .25 * 3 + .5 * 2) / .875.
    np.testing.assert_allclose(infos.utilities["l1"][:, 0], [1.0, 7 / 3, 15 / 7], rtol=1e-6)


def test_ties_go_to_the_lowest_index():
    params, units = one_hidden_layer(5)
    tx = continual_backprop(units, replacement_rate=0.4, maturity_threshold=1)
    _, infos, _ = feed(tx, params, constant_features(4, l1=np.zeros(5)))
    # 5 eligible: two due; then 3: 1.2; then units 0, 1, 3 and 4: 1.8.
    assert replaced_units(infos) == [[], [0, 1], [2], [0]]


def test_infinite_utilities_rank_as_the_largest():
    params, units = one_hidden_layer(3)

    def worth(record):
        return jnp.array([jnp.inf, 1e30, 5.0])

    for decay in (0.0, 0.9):
        tx = continual_backprop(units, utility=worth, replacement_rate=0.25, decay=decay)
        _, infos, _ = feed(tx, params, constant_features(6, l1=np.zeros(3)))
        # Three quarters of a unit are due per update.
        assert replaced_units(infos) == [[], [2], [2], [2], [], [2]], decay

    tx = continual_backprop(units, utility=worth, replacement_rate=1.0, maturity_threshold=3)
    _, infos, _ = feed(tx, params, constant_features(4, l1=np.zeros(3)))
    assert replaced_units(infos)[3] == [0, 1, 2]


def test_if_all_utilities_are_infinite_the_lowest_index_goes():
    params, units = one_hidden_layer(3)
    silent = {**params, "l1": {"kernel": jnp.zeros((3, 3)), "bias": jnp.zeros(3)}}
    tx = continual_backprop(
        units, utility="adaptation", replacement_rate=0.5, maturity_threshold=2, kernel_init=jax.nn.initializers.zeros
    )
    _, infos, _ = feed(tx, silent, constant_features(4, l1=np.zeros(3)))
    assert np.all(infos.utilities["l1"][1] > 3e38)  # the largest number, so that it can be forgotten
    assert replaced_units(infos) == [[], [], [0], [1]]


def test_random_utilities_replace_everybody_sooner_or_later():
    params, units = one_hidden_layer(5)
    tx = continual_backprop(units, utility="random", replacement_rate=0.1, decay=0.0, key=1)
    _, infos, _ = feed(tx, params, constant_features(600, l1=np.arange(5)))
    # 300 replacements: 60 of each unit, give or take four standard deviations of 7.
    np.testing.assert_allclose(np.array(infos.replaced["l1"]).sum(axis=0), 60, atol=28)


# --- Batches that are not finite ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_batch_that_is_not_finite_stays_out_of_the_statistics(bad):
    params, units = one_hidden_layer(2)
    tx = continual_backprop(units, replacement_rate=0.0, decay=0.9)
    good = jnp.array([[[1.0, 2.0]], [[3.0, 0.0]]])
    with_bad = jnp.stack([good[0], jnp.array([[bad, 1.0]]), good[1]])
    _, expected, _ = feed(tx, params, gxd.Observation({"l1": good}))
    _, infos, _ = feed(tx, params, gxd.Observation({"l1": with_bad}))

    np.testing.assert_array_equal(infos.skipped_batches, [0, 1, 1])
    np.testing.assert_array_equal(infos.ages["l1"], [[1, 1], [2, 2], [3, 3]])
    np.testing.assert_array_equal(infos.utilities["l1"][1], infos.utilities["l1"][0])
    np.testing.assert_allclose(infos.utilities["l1"][2], expected.utilities["l1"][1], rtol=1e-6)


def test_a_sensitivity_that_is_not_finite_counts_as_well():
    params, units = one_hidden_layer(2)
    tx = continual_backprop(units, utility="gxd", replacement_rate=0.0)
    features = jnp.ones((2, 3, 2)) * jnp.array([1.0, 2.0, 4.0])[:, None]
    sensitivities = jnp.ones((2, 3, 2)).at[1, 0, 0].set(jnp.nan)
    _, infos, _ = feed(tx, params, gxd.Observation({"l1": features}, {"l1": sensitivities}, "loss"))
    np.testing.assert_array_equal(infos.skipped_batches, [0, 1])
    np.testing.assert_array_equal(infos.utilities["l1"][1], infos.utilities["l1"][0])


def test_the_skip_is_per_layer_and_selection_goes_on():
    params = {
        "l1": {"kernel": jnp.ones((3, 2))},
        "l2": {"kernel": jnp.ones((2, 2))},
        "l3": {"kernel": jnp.ones((2, 1))},
    }
    units = gxd.sequential_units(params, ["l1", "l2", "l3"])
    tx = continual_backprop(units, replacement_rate=0.5, maturity_threshold=2)
    first = jnp.array([[[2.0, 1.0]], [[2.0, 1.0]], [[jnp.nan, 1.0]]])
    second = jnp.array([[[1.0, 2.0]], [[1.0, 2.0]], [[1.0, 5.0]]])
    _, infos, _ = feed(tx, params, gxd.Observation({"l1": first, "l2": second}))
    assert replaced_units(infos, "l1") == [[], [], [1]]
    assert replaced_units(infos, "l2") == [[], [], [0]]
    three_batches = (0.99**2 * 2 + 0.99 * 2 + 5) * 0.01 / (1 - 0.99**3)
    np.testing.assert_allclose(infos.utilities["l2"][2][1], three_batches, rtol=1e-5)
    np.testing.assert_allclose(infos.utilities["l1"][2][0], 2.0, rtol=1e-5)
    assert infos.skipped_batches[-1] == 1


def test_a_unit_that_never_saw_a_finite_batch_has_utility_0():
    params, units = one_hidden_layer(2)
    tx = continual_backprop(units, replacement_rate=0.5, compensate=True)
    history, infos, _ = feed(tx, params, constant_features(2, l1=[np.nan, 1.0]))
    np.testing.assert_array_equal(infos.utilities["l1"], np.zeros((2, 2)))
    assert replaced_units(infos) == [[0], [0]]
    assert np.all(np.isfinite(history["l2"]["bias"]))


# --- What is reported ---------------------------------------------------------------------------------------------


def test_before_the_first_update_nothing_was_replaced():
    params, units = one_hidden_layer(3)
    info = gxd.reset_info(continual_backprop(units, replacement_rate=1.0).init(params))
    np.testing.assert_array_equal(info.replaced["l1"], [False] * 3)
    np.testing.assert_array_equal(info.ages["l1"], [0] * 3)
    np.testing.assert_array_equal(info.utilities["l1"], [0.0] * 3)
    assert (info.counts["l1"], info.totals["l1"], info.skipped_batches, info.mature_fraction["l1"]) == (0, 0, 0, 0.0)


def test_replaced_units_start_from_nothing():
    params, units = one_hidden_layer(2)
    tx = gxd.continual_backprop(
        units,
        utility="mean_corrected_contribution",
        replacement_rate=0.5,
        maturity_threshold=2,
        decay=0.5,
        compensate=False,
        kernel_init=jax.nn.initializers.constant(0.5),
    )
    features = jnp.array([1.0, 7.0, 4.0, 6.0])[:, None, None] * jnp.array([[0.0, 1.0]]) + jnp.array([[3.0, 0.0]])
    _, infos, _ = feed(tx, params, gxd.Observation({"l1": features}))
    assert replaced_units(infos) == [[], [], [0], []]
    # Unit 0 never moves: its deviation is 0 in every batch. Reborn in update 3, its age is 1 after update 4.
    np.testing.assert_array_equal(infos.ages["l1"], [[1, 1], [2, 2], [0, 3], [1, 4]])
    # Unit 1's corrected references: 1, 5, 4.428571, 5.266667; |deviation| 0, 2, .428571, .733333.
    magnitude = np.abs(params["l2"]["kernel"][1]).sum()
    deviations = [0.0, 7 - 5.0, 31 / 7 - 4, 6 - 79 / 15]
    average = sum(0.5 ** (4 - i) * value for i, value in enumerate(deviations)) / (1 - 0.5**4)
    np.testing.assert_allclose(infos.utilities["l1"][3][1], average * magnitude, rtol=1e-5)
