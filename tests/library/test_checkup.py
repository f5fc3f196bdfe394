"""The check-up: a hand-worked network, under transformations, beside training, as text and as a figure."""

import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gxd_jax as gxd
from gxd_jax import metrics
from tests.networks import batches, dense_params, dense_units, mlp, squared_loss

# Units of a relu that is cut at 6, on examples 1, 2, 3, 4: dead, saturated, dormant, healthy, active on one example.
PARAMS = {
    "hidden": {"kernel": jnp.array([[-1.0, 10.0, 0.01, 1.0, 1.0]]), "bias": jnp.array([0.0, 0.0, 0.0, 0.0, -3.0])},
    "output": {"kernel": jnp.array([[0.0, 2.0], [1.0, -3.0], [4.0, 4.0], [1.0, 1.0], [0.5, 0.5]])},
}
UNITS = gxd.sequential_units(PARAMS, ["hidden", "output"])
PROBE = jnp.array([[1.0], [2.0], [3.0], [4.0]])
FEATURES = np.array([[0, 6, 0.01, 1, 0], [0, 6, 0.02, 2, 0], [0, 6, 0.03, 3, 0], [0, 6, 0.04, 4, 1]], np.float32)


def apply(params, x):
    h = gxd.tap("hidden", jnp.clip(x @ params["hidden"]["kernel"] + params["hidden"]["bias"], 0.0, 6.0))
    return h @ params["output"]["kernel"]


def check(params, opt_state=None):
    return gxd.check_up(apply, params, UNITS, PROBE, opt_state=opt_state, fraction=0.3)


def opt_state_of_smaller_weights():
    """A state made when the incoming weights were a third of what they are, and three updates old."""
    tx = gxd.continual_backprop(UNITS, replacement_rate=0.0, utility="activation", maturity_threshold=2)
    state = tx.init({**PARAMS, "hidden": jax.tree.map(lambda leaf: leaf / 3, PARAMS["hidden"])})
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    for _ in range(3):
        _, state = tx.update(zeros, state, PARAMS, observation=gxd.Observation({"hidden": FEATURES}))
    return state


@pytest.fixture(scope="module")
def report():
    return jax.jit(check)(PARAMS, opt_state_of_smaller_weights())


def numbers(mask):
    return np.flatnonzero(mask).tolist()


def test_a_network_worked_by_hand(report):
    layer = report["hidden"]
    assert numbers(layer.dead) == [0]
    assert numbers(layer.saturated) == [1]
    assert numbers(layer.dormant) == [0, 2]  # a tenth of the mean activity of 1.755
    assert numbers(layer.low_activity) == [0, 4]
    np.testing.assert_allclose(layer.active_share, [0, 1, 1, 1, 0.25])
    np.testing.assert_allclose(layer.saturated_share, [0, 1, 0, 0, 0])
    np.testing.assert_allclose(layer.activity, [0, 6, 0.025, 2.5, 0.25], rtol=1e-6)
    np.testing.assert_allclose(layer.contribution, [0, 24, 0.2, 5, 0.25], rtol=1e-6)
    np.testing.assert_allclose(layer.incoming, [1, 10, 0.01, 1, 1])
    np.testing.assert_allclose(layer.outgoing, [1, 2, 4, 1, 0.5])
    np.testing.assert_allclose(layer.effective_rank, metrics.effective_rank(FEATURES), rtol=1e-5)
    np.testing.assert_allclose(layer.stable_rank, metrics.stable_rank(FEATURES), rtol=1e-5)
    assert (layer.approximate_rank, layer.highest_rank) == (metrics.approximate_rank(FEATURES), 4)
    np.testing.assert_allclose(layer.growth, 3, rtol=1e-6)
    np.testing.assert_allclose(layer.utilities, layer.activity, rtol=1e-5)
    assert layer.ages.tolist() == [3] * 5
    assert layer.mature_fraction == 1


def test_eager_and_without_a_state(report):
    eager = check(PARAMS)["hidden"]
    assert (eager.growth, eager.ages, eager.utilities, eager.mature_fraction) == (None,) * 4
    for field in eager._fields[:12]:
        np.testing.assert_allclose(getattr(eager, field), getattr(report["hidden"], field), rtol=1e-6)


def test_several_networks_at_once(report):
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), PARAMS)
    mapped = jax.jit(jax.vmap(check))(both)
    assert mapped["hidden"].dead.tolist() == [[True, False, False, False, False], [False, True, True, True, False]]
    np.testing.assert_allclose(mapped["hidden"].effective_rank[0], report["hidden"].effective_rank, rtol=1e-6)
    assert str(mapped).splitlines()[1].split()[:3] == ["hidden", "5", "2"]  # (1 + 3) / 2 dead
    assert "means over 2 networks" in str(mapped)
    with pytest.raises(ValueError, match=r"one of several networks, masks have shape \(2, 5\)"):
        mapped.figure()


def test_the_text_holds_the_numbers(report):
    head, row, _, *which = str(report).splitlines()
    assert head.split()[:6] == ["layer", "units", "dead", "dormant", "saturated", "low"]
    ranks = [f"{report['hidden'].effective_rank:.2f}", f"{report['hidden'].stable_rank:.2f}"]
    approximate = [str(report["hidden"].approximate_rank), "of", "4"]
    sizes = ["1.75", "2.6", "1.7", "3"]  # means of activity (1.755), incoming, outgoing; growth
    assert row.split() == ["hidden", "5", "1", "2", "1", "2", "20%", *ranks, *approximate, *sizes, "100%", "3"]
    assert [line[line.rindex("  ") :].strip() for line in which[1:]] == ["0", "1", "0, 2", "0, 4", "0, 2, 4, 3, 1"]
    assert str(jax.eval_shape(check, PARAMS)).startswith("Report(")


def test_the_figure_names_and_colours_worn_out_units(report, tmp_path):
    figure = report.figure()
    states = figure.axes[0]
    assert states.get_title() == "hidden: 4 of 5 units worn out"
    colours = states.collections[0].get_facecolors()
    assert len(np.unique(colours, axis=0)) == 5
    figure.savefig(tmp_path / "report.png")


def test_the_figure_without_matplotlib(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        report.figure()


def test_known_bounds_take_the_place_of_the_intervention(report):
    layer = gxd.check_up(apply, PARAMS, UNITS, PROBE, bounds={"hidden": (0.0, 6.0)}, saturated_at=1.0)["hidden"]
    np.testing.assert_allclose(layer.saturated_share, [1, 1, 1, 0, 0.75])
    assert layer.saturated.tolist() == metrics.saturated_units(FEATURES, lower=0.0, upper=6.0).tolist()


def test_maps_count_every_position_as_an_example():
    params = {"map": {"w": jnp.eye(2, 3)}, "output": {"w": jnp.ones((3, 1))}}
    x = jax.random.normal(jax.random.key(0), (2, 2, 1, 2))

    def network(params, x):
        return gxd.tap("map", x @ params["map"]["w"]).mean((1, 2)) @ params["output"]["w"]

    units = gxd.sequential_units(params, ["map", "output"])
    layer = jax.jit(lambda params: gxd.check_up(network, params, units, x))(params)["map"]
    assert numbers(layer.dead) == [2]
    assert layer.highest_rank == 3
    np.testing.assert_allclose(layer.stable_rank, metrics.stable_rank(x.reshape(4, 2)), rtol=1e-5)


def test_training_goes_on_with_the_same_bits():
    params = dense_params([3, 8, 6, 2])
    units, network = dense_units(params), mlp(jnp.tanh)
    observe = gxd.observe(network, squared_loss, units)
    tx = gxd.chain(optax.adam(0.01), gxd.continual_backprop(units, replacement_rate=0.05, maturity_threshold=5))
    x, y = batches(30, 4, 3, 2)
    keys = jax.random.split(jax.random.key(0), 30)

    def train(log):
        def step(carry, batch):
            params, state = carry
            *data, key = batch
            _, grads, observation = observe(params, *data, key=key)
            updates, state = tx.update(grads, state, params, observation=observation)
            params = optax.apply_updates(params, updates)
            return (params, state), log(params, state)

        return jax.jit(lambda params: jax.lax.scan(step, (params, tx.init(params)), (x, y, keys)))(params)

    silent, _ = train(lambda *_: None)
    logged, reports = train(lambda params, state: gxd.check_up(network, params, units, x[0], opt_state=state))
    chex.assert_trees_all_equal(silent, logged)
    assert reports["l1"].ages.shape == (30, 8)
    assert reports["l1"].ages.max() > 20
    assert (reports["l1"].ages[-1] < 30).any()


OTHER_UNITS = [UNITS[0]._replace(name="other", feature="hidden")]
STATE = gxd.continual_backprop(UNITS).init(PARAMS)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"apply": "mlp"}, TypeError, "apply must be a function"),
        ({"units": UNITS[0]}, TypeError, "units must be a list of UnitLayer"),
        ({"units": [UNITS[0]._replace(size=4)]}, ValueError, r"\('hidden', 'kernel'\) axis 1.*4 units"),
        ({"probe": None}, ValueError, "probe must hold at least one example"),
        ({"probe": jnp.zeros((0, 1))}, ValueError, r"at least one example.*\(0, 1\)"),
        ({"probe": jnp.ones((4, 2))}, TypeError, r"on a probe of shapes \(4, 2\)"),
        ({"probe": jnp.ones(1)}, ValueError, "leading batch axis"),
        ({"tau": -0.1}, ValueError, "tau must lie in"),
        ({"fraction": 2}, ValueError, "fraction must lie in"),
        ({"epsilon": "small"}, TypeError, "epsilon must be a number"),
        ({"saturated_at": 0}, ValueError, "saturated_at must lie in"),
        ({"bounds": (1.0, -1.0)}, ValueError, r"lower < upper, got \(1.0, -1.0\) for layer 'hidden'"),
        ({"bounds": {"hiden": (-1.0, 1.0)}}, ValueError, r"bounds names the layers \['hiden'\]"),
        ({"opt_state": optax.adam(0.1).init(PARAMS)}, ValueError, "holds no state of continual_backprop"),
        ({"opt_state": STATE, "units": OTHER_UNITS}, ValueError, r"knows the layers \['hidden'\], none of.*'other'"),
        (
            {"opt_state": jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), STATE)},
            ValueError,
            r"ages of shape \(2, 5\).*vmap",
        ),
    ],
)
def test_bad_input(changes, error, message):
    arguments = {"apply": apply, "params": PARAMS, "units": UNITS, "probe": PROBE} | changes
    with pytest.raises(error, match=message):
        gxd.check_up(**arguments)
