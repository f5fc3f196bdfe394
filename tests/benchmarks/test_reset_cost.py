"""The study of reset costs: its networks, its measurements, its tables."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import gxd_jax as gxd
from benchmarks import commands, datasets
from benchmarks.networks import small
from benchmarks.reset_cost import figures, measuring, settings, study, tables, training
from benchmarks.running.folder import RefusedError
from gxd_jax.metrics import costs

SETTINGS = settings.check(
    settings.Settings(
        scale="smoke", network=("tanh",), seeds=2, batch=4, steps=6, tasks_between=2, probe=40, recovery=3, devices=1
    )
)


def test_reset_units_resets_like_a_person():
    network = small.make(small.KINDS["tanh"], (8, 8, 1), 10)
    params, x = network.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (5, 64))
    params["hidden_2"]["bias"] = jnp.ones(64)
    _, features = gxd.capture(network.apply, params, network.units, x)
    means = {name: values.mean(0) for name, values in features.items()}
    kernel_init = measuring.initializer(small.Kind("tanh"))
    numbers = {layer.name: jnp.array([64, 64]) for layer in network.units} | {"hidden_2": jnp.array([3, 7])}
    after = costs.reset_units(network.units, params, numbers, means, jax.random.key(2), kernel_init)
    chex.assert_trees_all_equal(after["hidden_1"], params["hidden_1"])
    kernel, others = after["hidden_2"]["kernel"], np.delete(np.arange(64), [3, 7])
    np.testing.assert_array_equal(kernel[:, others], params["hidden_2"]["kernel"][:, others])
    bound = 5 / 3 * np.sqrt(3 / 64)
    assert 0.9 * bound < np.abs(kernel[:, [3, 7]]).max() <= bound
    np.testing.assert_array_equal(after["hidden_2"]["bias"][jnp.array([3, 7])], 0)
    np.testing.assert_array_equal(after["hidden_3"]["kernel"][jnp.array([3, 7])], 0)
    taken_up = means["hidden_2"][jnp.array([3, 7])] @ params["hidden_3"]["kernel"][jnp.array([3, 7])]
    np.testing.assert_allclose(after["hidden_3"]["bias"], params["hidden_3"]["bias"] + taken_up, atol=1e-6)


def test_spearman_by_hand():
    assert tables.spearman(np.array([1.0, 2, 3]), np.array([10.0, 20, 25])) == pytest.approx(1)
    assert tables.spearman(np.array([1.0, 2, 3]), np.array([5.0, 4, -1])) == pytest.approx(-1)
    # Ranks 1.5, 1.5, 3, 4 against 1, 2, 3, 4: covariance 1.125, variances 1.125 and 1.25.
    assert tables.spearman(np.array([0.0, 0, 7, 9]), np.array([1.0, 2, 3, 4])) == pytest.approx(0.9**0.5)
    assert np.isnan(tables.spearman(np.zeros(3), np.arange(3.0)))


def test_lowest():
    np.testing.assert_array_equal(measuring.lowest(jnp.array([3.0, 1, 2, 5]), 0.5), [1, 2])
    np.testing.assert_array_equal(measuring.lowest(jnp.array([3.0, 1, 2, 5]), 0.1), [1])


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:  # a small program: it is compiled for the test
        few = ("random", "gradient", "gxd", "gxd_exact")
        patch.setattr(training, "SCORES", {name: settings.SCORES[name] for name in few})
        patch.setattr(training, "AT_ONCE", ("gxd_exact",))
        return study.measure_seeds(SETTINGS, datasets.load(None, None, None), "tanh")


def test_exact_gxd_is_the_cost_of_the_last_hidden_layer(found):
    (measures,) = found
    np.testing.assert_allclose(measures["scores"]["gxd_exact_now"]["hidden_3"], measures["cost"]["hidden_3"], rtol=1e-3)
    assert not np.allclose(measures["scores"]["gxd_exact_now"]["hidden_1"], measures["cost"]["hidden_1"], rtol=1e-2)


def test_sets_and_shocks(found):
    (measures,) = found
    # A set of the last hidden layer is a sum of its units before the norm: at most the sum of their costs.
    for place in range(SETTINGS.seeds):
        cheapest = np.sort(measures["cost"]["hidden_3"][place])[:6]
        assert 0 < measures["sets"]["hidden_3"]["cheapest"][place] <= cheapest.sum() * 1.001
    assert set(measures["shocks"]) == {*measures["scores"], "cheapest"}
    by_chance = measures["scores"]["random"]["hidden_1"]
    assert not np.array_equal(by_chance[0], by_chance[1]), "each seed has its own chance"
    shock = measures["shocks"]["random"]
    assert (np.abs(shock["loss_rise"]) > 0).all()
    assert ((1 <= shock["recovery_steps"]) & (shock["recovery_steps"] <= SETTINGS.recovery)).all()


def test_tables(found):
    shocks, sets, units = tables.tidy(found, "tanh", np.arange(2))
    assert len(units) == 2 * 3 * 64 and units.groupby(["seed", "layer"]).size().eq(64).all()
    np.testing.assert_array_equal(
        units[(units.seed == 1) & (units.layer == "hidden_2")].cost, found[0]["cost"]["hidden_2"][1]
    )
    correlations = tables.correlate(units)
    last = correlations[(correlations.layer == "hidden_3") & (correlations.score == "gxd_exact_now")]
    np.testing.assert_allclose(last.spearman, 1, atol=1e-3)
    summary = tables.summarise(correlations, sets, shocks).set_index("score")
    assert summary.loc["cheapest", "cost_over_cheapest_mean"] == pytest.approx(1)
    assert summary.loc["random", "cost_over_random_mean"] == pytest.approx(1)
    mine, theirs = (sets[sets.score == name].groupby("seed").cost.sum() for name in ("gxd", "random"))
    assert summary.loc["gxd", "cost_over_random_mean"] == pytest.approx((mine / theirs).mean())
    assert summary.loc["gxd", "cost_over_random_se"] == pytest.approx((mine / theirs).sem())


def test_command_writes_and_continues(found, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study.processes, "start", lambda given: None)
    monkeypatch.setattr(study, "measure_seeds", lambda settings, images, name: found)
    monkeypatch.setattr(figures, "SCATTERED", ("gradient", "gxd"))
    monkeypatch.setattr(figures, "BARS", ("gradient", "gxd"))
    out = tmp_path / "results"
    study.run(dataclasses.replace(SETTINGS, out=out))
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "summary.csv", "correlations.csv", "sets.csv", "shocks.csv"} <= names
    assert {f"{name}.{kind}" for name in ("scatter", "correlations") for kind in ("png", "svg")} <= names
    printed = capsys.readouterr().out
    assert "rank correlation" in printed
    assert "measured tanh, 1 of 1" in printed, "off a terminal each network tells that it is done"
    before = pd.read_csv(out / "summary.csv")
    monkeypatch.setattr(study, "measure_seeds", lambda *_: pytest.fail("a finished network is not computed again"))
    study.run(dataclasses.replace(SETTINGS, out=out, resume=True))
    pd.testing.assert_frame_equal(before, pd.read_csv(out / "summary.csv"))
    with pytest.raises(RefusedError, match="already holds results"):
        study.run(dataclasses.replace(SETTINGS, out=out))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be 1 or more, got 0"),
        ({"share": 1.0}, "share must lie between 0 and 1, got 1.0"),
        ({"replacement_rate": (0.1, 0.2)}, "one replacement_rate is needed"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(RefusedError, match=message):
        settings.check(dataclasses.replace(SETTINGS, **change))


def test_it_is_a_command():
    assert commands.COMMANDS["reset-cost"].settings is settings.Settings


def test_tables_of_the_readme(tmp_path):
    rows = [
        {"network": network, "score": score, "spearman_mean": value}
        for network, value in (("tanh", 0.5), ("relu_norm_after", 0.25), ("swish", 0.75))
        for score in ("gxd", "activation")
    ]
    rows.append({"network": "tanh", "score": "cheapest", "spearman_mean": float("nan")})
    costs = dict.fromkeys(tables._HEADINGS, 1.236)
    pd.DataFrame([row | costs for row in rows]).to_csv(tmp_path / "summary.csv", index=False)
    (tmp_path / "config.json").write_text('{"problem": "reset-cost"}')
    made = tables.markdown_tables([tmp_path])
    assert made["correlations"] == (
        "| | tanh | relu norm after |\n|---|---|---|\n"
        "| `activation` | 0.50 | 0.25 |\n| `gxd`, `logits` (default) | 0.50 | 0.25 |\n"
    )
    assert made["closer"].splitlines()[0::2] == [
        "| | without norms | with norms |",
        "| `gxd`, `logits` (default) | 0.50 to 0.75 | 0.25 |",
    ]
    assert made["sets"].splitlines()[2] == "| `activation` | 1.24 | 1.24 | 1.24 | 1.24 | 1.24 |"
