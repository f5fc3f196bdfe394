"""The examples of both READMEs run as they stand, in order, and compute what the text says."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import gxd_jax as gxd

ROOT = Path(__file__).parents[1]
README, GUIDE = ROOT / "README.md", ROOT / "gxd_jax" / "README.md"


def sections(path):
    """Yields the title and the Python blocks of every section that has some."""
    for section in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
        if blocks:
            yield section.splitlines()[0], blocks


def totals(opt_state):
    return {name: int(total) for name, total in gxd.reset_info(opt_state).totals.items()}


def test_the_twenty_lines(capsys):
    ((title, (example,)),) = sections(README)
    assert title == "Twenty lines"
    names = {}
    exec(compile(example, str(README), "exec"), names)
    assert np.isfinite(names["loss_value"])
    assert str(names["loss_value"]) in capsys.readouterr().out
    # 64 units, eligible from update 101 on: a thousandth of them in 100 updates are 6.4, less for the newborn.
    assert list(totals(names["opt_state"]).values()) == [6, 6]


def test_the_first_page_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_links_lead_somewhere():
    for path in (README, GUIDE):
        text = path.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (path.parent / link).exists(), link
        titles = re.findall(r"^##+ (.*)$", text, flags=re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= anchors


def the_step(names, printed, folder):
    # 32 units, eligible from update 21 on: a hundredth of them in 80 updates are 25.6, less for the newborn.
    assert totals(names["opt_state"]) == {"first": 21, "second": 21}
    assert names["loss_value"] < 0.01
    losses = names["losses"]
    assert losses.shape == (200,)
    assert losses[-20:].mean() < losses[:20].mean()
    assert names["state"].count == 200


def which_units(names, printed, folder):
    assert [(layer.name, layer.size) for layer in names["conv_units"]] == [("Conv_0", 8), ("Dense_0", 16)]
    assert "params/Dense_0/kernel[0] x 36" in printed  # 6 x 6 positions of each channel
    assert "params/value/kernel[1]" in printed.split("left out:")[1]
    assert names["hand_report"].ok
    (found,) = gxd.find_units(names["two_heads"], names["heads"], names["x"])
    assert found.outgoing == names["hidden"].outgoing
    assert found.own == names["hidden"].own


def other_libraries(names, printed, folder):
    for units in ("nnx_units", "eqx_units", "haiku_units"):
        assert [(layer.name, layer.size) for layer in names[units]] == [("hidden", 16)]
        assert not names[units].untapped
    rest = names["new_rest"]
    assert rest["dropout"]["rngs"]["count"][...] == 30  # a mask of its own at each step
    initial = jax.random.key_data(names["rest"]["dropout"]["rngs"]["key"][...])
    np.testing.assert_array_equal(jax.random.key_data(rest["dropout"]["rngs"]["key"][...]), initial)
    replaced = gxd.reset_info(names["nnx_state"]).replaced["hidden"]
    np.testing.assert_array_equal(rest["norm"]["mean"][...] == 0, replaced)  # others follow the batches
    assert totals(names["nnx_state"]) == {"hidden": 3}  # 16 units at a hundredth in the 20 updates from 11 on
    assert names["nnx_loss"] < 0.2
    assert names["train_state"].step == 1
    loss = names["loss"](names["network"].apply(names["train_state"].params, names["x"]), names["y"])
    assert loss < names["first_loss"]


def utilities_and_readouts(names, printed, folder):
    record = gxd.UnitRecord(
        features=np.array([[1.0, -2.0], [-3.0, 0.5]]),
        sensitivities=None,
        readout=None,
        reference=np.zeros(2),
        incoming_magnitude=np.ones(2),
        outgoing_magnitude=np.array([0.5, 4.0]),
        key=jax.random.key(0),
    )
    np.testing.assert_allclose(names["peak"](record), [1.5, 8.0])
    # The readout is one output, so its sensitivities at the last layer are a column of the outgoing weights.
    _, _, observation = jax.jit(names["by_first_output"])(names["params"], names["x"], names["y"])
    kernel = names["params"]["params"]["output"]["kernel"]
    np.testing.assert_allclose(observation.sensitivities["second"], np.tile(kernel[:, 0], (64, 1)), rtol=1e-5)


def what_happened(names, printed, folder):
    info = names["info"]
    assert str(info.totals) in printed
    np.testing.assert_allclose(info.mature_fraction["first"], (info.ages["first"] > 20).mean())
    assert info.skipped_batches == 0
    _, features = gxd.capture(names["network"].apply, names["params"], names["units"], names["probe"])
    np.testing.assert_allclose(names["report"]["first"].activity, abs(features["first"]).mean(0), rtol=1e-5)
    assert "lowest utility" in printed
    assert (folder / "check_up.png").read_bytes().startswith(b"\x89PNG")


def the_other_remedies(names, printed, folder):
    assert np.isfinite(names["both_loss"])
    before = names["params"]["params"]["output"]["kernel"]
    after = names["both_params"]["params"]["output"]["kernel"]
    assert (before != after).all()
    assert totals(names["both_state"]) == {"first": 0, "second": 0}


def batch_norm(names, printed, folder):
    assert totals(names["norm_state"]) == {"Dense_0": 1}
    replaced = np.asarray(gxd.reset_info(names["norm_state"]).replaced["Dense_0"])
    assert replaced.sum() == 1
    for name, initial in (("mean", 0.0), ("var", 1.0)):
        np.testing.assert_array_equal(np.asarray(names["stats"]["BatchNorm_0"][name]) == initial, replaced)


def fresh_weights(names, printed, folder):
    initial = names["initial"]
    assert initial.mean == 0
    np.testing.assert_allclose(initial.std, 5**-0.5, rtol=0.1)
    assert list(names["mixed_state"][-1].layers) == ["first", "second"]


def replacement_rates(names, printed, folder):
    np.testing.assert_array_equal(names["counts"], np.arange(1, 101) % 10 == 0)


def many_seeds_and_devices(names, printed, folder):
    losses = np.asarray(names["seed_losses"])
    assert losses.shape == (4, 200)
    assert (losses[:, -20:].mean(1) < losses[:, :20].mean(1) / 2).all()
    assert len(set(losses[:, -1])) == 4
    # 180 updates of 32 units at a hundredth are 57.6, less for the newborn: the number is the same for every seed.
    np.testing.assert_array_equal(names["seed_info"].totals["first"], [48] * 4)
    assert names["loss_value"] < 0.01


def how_to_add(names, printed, folder):
    info = gxd.reset_info(names["oldest_state"].opt_state)
    # Ties go to the lowest index: units 0, 1, 2 and 3 were replaced at updates 5, 10, 15 and 20.
    np.testing.assert_array_equal(info.ages["first"], [15, 10, 5, 0] + [20] * 28)


CHECKS = {
    "The step": the_step,
    "Which units": which_units,
    "Other libraries": other_libraries,
    "Utilities and readouts": utilities_and_readouts,
    "What happened": what_happened,
    "The other remedies": the_other_remedies,
    "Batch norm": batch_norm,
    "Fresh weights": fresh_weights,
    "Replacement rates": replacement_rates,
    "Many seeds and devices": many_seeds_and_devices,
    "How to add": how_to_add,
}


@pytest.fixture
def quick_compilation():
    """Most of the time goes into compiling small programs that run for an instant."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.usefixtures("quick_compilation")
def test_the_guide(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    guide = list(sections(GUIDE))
    assert [title for title, _ in guide] == list(CHECKS)  # no block is left out, and none unchecked
    for title, blocks in guide:
        for block in blocks:
            exec(compile(block, f"{GUIDE}: {title}", "exec"), names)
        CHECKS[title](names, capsys.readouterr().out, tmp_path)
