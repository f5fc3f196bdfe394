"""The speed table: its columns, the networks that it times, growth, and the peer's code beside it."""

import jax
import numpy as np
import pandas as pd
import pytest

import gxd_jax as gxd
from benchmarks.running import folder
from benchmarks.speed import cases, growth, measuring, peer, programs, tables


def timed(case, **settings):
    given = measuring.Settings(repeats=3, maturity_threshold=4, **settings)
    return {row["method"]: row for row in measuring.time_case("tiny", case, "sgd", given)}


def test_speed_of_a_tiny_case():
    case = cases.Case((6, 5, 3), batch=2, seeds=2, steps=8, replacement_rate=0.1)
    rows = timed(case, method=("gxd", "redo"))
    assert list(rows) == ["backprop", "gxd", "redo"]
    assert rows["backprop"]["ratio"] == 1.0
    for row in rows.values():
        assert row["runs_x_steps_per_second"] == pytest.approx(2e6 / row["us_per_step"])
        assert np.isfinite(row["loss"])
        assert row["peak_mb"] > 2 * 53 * 4 / 1e6, "more than the parameters, 53 for each of two seeds"
    assert rows["gxd"]["loss"] != rows["backprop"]["loss"], "units were replaced before the timing ended"
    assert rows["backprop"]["bytes_per_unit"] == rows["backprop"]["bytes_per_parameter"] == 0, "SGD has no state"
    program = programs.compile_program("gxd", case, programs.Setup("sgd", "relu", 4))
    assert (program.units, program.parameters) == (10, 2 * 53)
    assert rows["gxd"]["bytes_per_unit"] * 10 == rows["gxd"]["bytes_per_parameter"] * 106 == program.state_bytes
    adam = programs.compile_program("backprop", case, programs.Setup("adam", "relu", 4))
    assert adam.state_bytes == 2 * (2 * 53 * 4 + 4), "two moments and a count for each seed"
    shown = tables.speed_table(pd.DataFrame(rows.values()))
    assert shown.row_count == 3
    ratios = tables.ratio_table(pd.DataFrame(rows.values()))
    assert [column.header for column in ratios.columns] == ["network", "optimizer", "plain, µs", "gxd", "redo"]
    assert ratios.row_count == 1
    assert "public PyTorch code" not in [column.header for column in shown.columns], "only of what was timed"


def test_one_output_has_no_classes():
    case = cases.Case((4, 3, 1), batch=1, seeds=1, steps=2, replacement_rate=0.1)
    assert list(timed(case, method=("gxd_fisher", "gxd_loss"))) == ["backprop", "gxd_loss"]


@pytest.mark.parametrize(
    ("kind", "sizes", "units"),
    [("transformer", (3, 4, 6, 2), {"up": 6}), ("convolutional", (32, 32, 3, 2), {"conv_1": 32, "dense_2": 128})],
)
def test_networks_that_are_timed(kind, sizes, units):
    network, dimensions = cases.KINDS[kind].make(sizes, "relu"), cases.KINDS[kind].dimensions
    found = {layer.name: layer.size for layer in network.units}
    assert units.items() <= found.items()
    params = network.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, *sizes[:dimensions]))
    assert network.apply(params, x).shape == (2, sizes[-1])
    assert gxd.verify_units(network.apply, params, network.units, x).ok


def test_slopes_of_growth_by_hand():
    rows = [
        {"case": name, "optimizer": "sgd", "method": method, "us_per_step": 7.0 * int(name.split()[1]) ** slope}
        for name in growth.CASES
        for method, slope in {"backprop": 1.0, "gxd": 0.5}.items()
    ]
    slopes = growth.slopes_of(pd.DataFrame(rows)).set_index(["what", "method"])["slope"]
    for what in ("units", "layers", "seeds", "batch"):
        np.testing.assert_allclose([slopes[what, "backprop"], slopes[what, "gxd"]], [1.0, 0.5])


def test_growth_is_drawn_and_shown(tmp_path):
    rows = [
        {"case": name, "optimizer": "sgd", "method": method, "us_per_step": 7.0 * int(name.split()[1])}
        for name in growth.CASES
        for method in ("backprop", "gxd")
    ]
    growth.draw(pd.DataFrame(rows), tmp_path / "growth")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    pd.DataFrame(rows).to_csv(tmp_path / "growth.csv", index=False)
    made = tables.markdown_tables([tmp_path])["growth"]
    assert made.splitlines()[3] == "| sgd | CBP, `gxd` | 1.00 | 1.00 | 1.00 | 1.00 |"


def checkout_of(tmp_path, learn):
    """A folder laid out like the peer's code, whose learners do what is given."""
    for name in peer._FILES:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (tmp_path / "lop/nets/ffnn.py").write_text("def FFNN(*sizes, **given): return None")
    (tmp_path / "lop/nets/deep_ffnn.py").write_text("DeepFFNN = None")
    learner = "class Learner:\n  def __init__(self, net, **given): self.given = given\n"
    learner += f"  def learn(self, x, target): {learn}\n"
    (tmp_path / "lop/algos/bp.py").write_text(learner + "Backprop = Learner")
    (tmp_path / "lop/algos/cbp.py").write_text(learner + "ContinualBackprop = Learner")
    return tmp_path


def test_peer_is_checked_before_anything_is_timed(tmp_path):
    with pytest.raises(folder.RefusedError, match=r"is no checkout of .*: lop/algos/bp\.py is missing"):
        peer.check(tmp_path, None, "relu")
    checkout = checkout_of(tmp_path, "raise")
    with pytest.raises(folder.RefusedError, match="no activation gelu: choose one of sigmoid"):
        peer.check(checkout, None, "gelu")
    with pytest.raises(folder.RefusedError, match="cannot start /no/python"):
        peer.check(checkout, "/no/python", "relu")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho ModuleNotFoundError: no torch >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(folder.RefusedError, match=r"it needs torch and numpy.*: ModuleNotFoundError: no torch"):
        peer.check(checkout, str(python), "relu")


def test_peer_sees_the_same_data(tmp_path, monkeypatch):
    """Its program runs with a stand-in for torch, which may not be there; the learner tells what it was shown."""
    (tmp_path / "stand_in").mkdir()
    stand_in = "import numpy\nfrom_numpy, stack = numpy.asarray, numpy.stack\ndef manual_seed(seed): pass\n"
    (tmp_path / "stand_in" / "torch.py").write_text(stand_in)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stand_in"))
    checkout = checkout_of(tmp_path, "return x.mean() * target.mean() * self.given.get('decay_rate', 1)")
    case = cases.Case((6, 5, 1), batch=2, seeds=1, steps=70, replacement_rate=0.1)
    task = peer.Task(case.sizes, "relu", "adam", 0.1, 4, case.steps, warm_up=1, repeats=2)
    peer.check(checkout, None, "relu")
    inputs, targets = map(np.asarray, cases.pool_of(case))
    shown = [inputs[step % 64].mean() * targets[step % 64].mean() for step in range(70)]
    for method, factor in {"backprop": 1, "cbp_contribution": 0.99}.items():
        found = peer.measure(task, method, case, checkout, None)
        assert found["pytorch_loss"] == pytest.approx(factor * np.mean(shown), rel=1e-4)
        assert found["pytorch_runs_x_steps_per_second"] > 0


def test_tables_of_the_readme(tmp_path):
    at = {"case": "20-5-1", "optimizer": "sgd", "batch": 1, "seeds": 100, "loss": 0.5, "compile_seconds": 1.0}
    at |= {"runs_x_steps_per_second": 4e6, "peak_mb": 8.06, "bytes_per_unit": 17, "bytes_per_parameter": 0.1}
    plain = at | {"method": "backprop", "us_per_step": 1234.0, "ratio": 1.0}
    rows = [plain, at | {"method": "gxd", "us_per_step": 1500.0, "ratio": 1.216}]
    pd.DataFrame(rows).to_csv(tmp_path / "speed.csv", index=False)
    made = tables.markdown_tables([tmp_path])
    assert list(made) == ["ratios-sgd", "details-sgd"]
    assert made["ratios-sgd"].splitlines()[::2] == [
        "| network, batch x seeds | plain step, µs | CBP, `gxd` |",
        "| 20-5-1, 1 x 100 | 1,234 | 1.22 |",
    ]
    assert made["details-sgd"].splitlines()[2:] == [
        "| 20-5-1 | SGD | 4,000,000 | 0.5000 | 1.0 | 8.1 | 17 | 0.1 |",
        "| 20-5-1 | CBP, `gxd` | 4,000,000 | 0.5000 | 1.0 | 8.1 | 17 | 0.1 |",
    ]
    peers = [row | {"pytorch_runs_x_steps_per_second": 6389.2, "pytorch_loss": 0.25} for row in rows[:1]]
    (tmp_path / "peer").mkdir()
    pd.DataFrame(peers).to_csv(tmp_path / "peer" / "speed.csv", index=False)
    made = tables.markdown_tables([tmp_path / "peer"])["peer-sgd"]
    assert made.splitlines()[2] == "| 20-5-1, 100 seeds | SGD | 4,000,000 | 6,389 | 0.5000 | 0.2500 |"
