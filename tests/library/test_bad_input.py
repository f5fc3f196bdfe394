"""Bad input: each mistake has an error that names it."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest

import gxd_jax as gxd
from tests.networks import batches, dense_params, dense_units, mlp, one_hidden_layer, squared_loss, zeros_like

PARAMS, UNITS = one_hidden_layer(4)
FEATURES = jnp.ones((2, 4))


def update(tx, observation=None, params=PARAMS, **changes):
    arguments = {"observation": observation} if observation is not None else {}
    return tx.update(zeros_like(PARAMS), tx.init(PARAMS), params, **(arguments | changes))


def contribution(units=UNITS, **changes):
    return gxd.continual_backprop(units, **({"utility": "contribution"} | changes))


def hidden(**changes):
    """The only layer of UNITS, wired by hand, with some of its wiring changed."""
    layer = gxd.UnitLayer(
        name="l1",
        size=4,
        incoming=(gxd.ParamAxis(("l1", "kernel"), 1),),
        own=((gxd.ParamAxis(("l1", "bias"), 0), 0.0),),
        outgoing=(gxd.ParamAxis(("l2", "kernel"), 0),),
        outgoing_bias=(("l2", "bias"),),
    )
    return layer._replace(**changes)


# --- update -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda tx: tx, gxd.chain, lambda tx: optax.chain(optax.sgd(0.1), tx)])
def test_update_without_params(wrap):
    with pytest.raises(ValueError, match="param"):
        update(wrap(contribution()), gxd.Observation({"l1": FEATURES}), params=None)


def test_update_without_an_observation():
    with pytest.raises(ValueError, match="needs an observation"):
        update(contribution())


def test_update_with_something_else_than_an_observation():
    with pytest.raises(TypeError, match="gxd_jax.Observation"):
        update(contribution(), {"l1": FEATURES})


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({}, "no features of layer 'l1'"),
        ({"l2": FEATURES}, r"no features of layer 'l1'.*\['l2'\]"),
        ({"l1": jnp.ones((2, 5))}, r"'l1' have shape \(2, 5\).*4"),
        ({"l1": jnp.ones(4)}, r"'l1' have shape \(4,\).*batch"),
    ],
    ids=["none", "another layer's", "wrong width", "no batch axis"],
)
def test_features_that_do_not_fit(features, message):
    with pytest.raises(ValueError, match=message):
        update(contribution(), gxd.Observation(features))


@pytest.mark.parametrize(
    ("sensitivities", "readout", "message"),
    [
        ({}, "logits", "none of layer 'l1'"),
        ({"l1": jnp.ones((2, 3))}, "logits", r"\(2, 3\)"),
        ({"l1": jnp.ones((5, 2, 4))}, "logits", r"\(5, 2, 4\)"),
        ({"l1": jnp.ones((2, 4))}, "logits_exact", r"\(2, 4\)"),
    ],
)
def test_sensitivities_that_do_not_fit(sensitivities, readout, message):
    with pytest.raises(ValueError, match=message):
        update(contribution(utility="gxd"), gxd.Observation({"l1": FEATURES}, sensitivities, readout))


def test_gxd_without_sensitivities():
    with pytest.raises(ValueError, match="'gxd' needs sensitivities"):
        update(contribution(utility="gxd"), gxd.Observation({"l1": FEATURES}))


@pytest.mark.parametrize("readout", ["logits", "target", "fisher"])
def test_gradient_with_sensitivities_of_something_else_than_the_loss(readout):
    with pytest.raises(ValueError, match=f"'gradient' needs.*'loss'.*'{readout}'"):
        update(contribution(utility="gradient"), gxd.Observation({"l1": FEATURES}, {"l1": FEATURES}, readout))


def test_a_utility_that_does_not_give_one_score_a_unit():
    with pytest.raises(ValueError, match=r"\(2, 4\).*'l1'.*\(4,\)"):
        update(contribution(utility=lambda record: record.features), gxd.Observation({"l1": FEATURES}))


# --- Hyper-parameters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replacement_rate", -0.1),
        ("replacement_rate", 1.5),
        ("replacement_rate", float("nan")),
        ("replacement_rate", jnp.float32(2.0)),
        ("decay", -0.1),
        ("decay", 1.0),
        ("decay", float("nan")),
        ("maturity_threshold", -1),
    ],
)
def test_hyper_parameters_out_of_range(name, value):
    with pytest.raises(ValueError, match=f"{name} must lie in"):
        contribution(**{name: value})


@pytest.mark.parametrize("name", ["replacement_rate", "decay", "maturity_threshold"])
@pytest.mark.parametrize("value", ["much", None, True, [0.1, 0.2]])
def test_hyper_parameters_that_are_no_numbers(name, value):
    with pytest.raises(TypeError, match=f"{name} must be a number"):
        contribution(**{name: value})


def test_unknown_utility():
    with pytest.raises(ValueError, match="unknown utility 'usefulness'.*mean_corrected_contribution"):
        contribution(utility="usefulness")
    with pytest.raises(TypeError, match="utility must be"):
        contribution(utility=3)


def test_unknown_readout():
    with pytest.raises(ValueError, match="unknown readout 'logit'.*logits_exact"):
        gxd.observe(mlp(jnp.tanh), squared_loss, UNITS, readout="logit")
    with pytest.raises(TypeError, match="readout must be"):
        gxd.observe(mlp(jnp.tanh), squared_loss, UNITS, readout=3)


@pytest.mark.parametrize("key", ["seed", 0.5, jnp.zeros(3), jnp.ones(2)])
def test_keys_that_are_none(key):
    with pytest.raises(TypeError, match="key must be"):
        contribution(key=key)


def test_initializers_that_are_none():
    with pytest.raises(TypeError, match="kernel_init must be"):
        contribution(kernel_init="he")
    with pytest.raises(TypeError, match="kernel_init must be"):
        contribution(kernel_init={"l1": 0.1})
    with pytest.raises(ValueError, match=r"kernel_init names the layers \['l7'\]"):
        contribution(kernel_init={"l7": jax.nn.initializers.zeros})


# --- Wiring -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"incoming": (gxd.ParamAxis(("l9", "kernel"), 1),)}, r"'l1'.*\('l9', 'kernel'\).*no such path"),
        ({"own": ((gxd.ParamAxis(("l1", "gain"), 0), 1.0),)}, r"\('l1', 'gain'\).*no such path"),
        ({"outgoing_bias": (("l2", "offset"),)}, r"\('l2', 'offset'\).*no such path"),
        ({"incoming": (gxd.ParamAxis(("l1", "kernel"), 0),)}, r"\('l1', 'kernel'\) axis 0.*\(3, 4\).*3 entr.*4 units"),
        ({"incoming": (gxd.ParamAxis(("l1", "kernel"), 2),)}, r"\('l1', 'kernel'\) axis 2.*\(3, 4\).*no such axis"),
        ({"size": 5}, r"\('l1', 'kernel'\) axis 1.*\(3, 4\).*5 units"),
        ({"outgoing_bias": (("l1", "bias"),)}, r"\('l1', 'bias'\).*\(4,\).*\('l2', 'kernel'\) \(4, 2\)"),
        ({"outgoing": (), "outgoing_bias": ()}, "'l1' has no outgoing kernel.*output layer is not hidden"),
        ({"incoming": ()}, "'l1' has no incoming kernel"),
        ({"outgoing_bias": ()}, "outgoing_bias must have one entry"),
        (
            {"incoming": (gxd.ParamAxis(("l1", "kernel"), 1), gxd.ParamAxis(("l1", "kernel"), -1))},
            r"\('l1', 'kernel'\) axis -1.*used twice",
        ),
        (
            {"outgoing": (gxd.ParamAxis(("l2", "kernel"), 0, gxd.flatten_index(2, 4)),)},
            r"\('l2', 'kernel'\) axis 0.*index must lie in \[0, 4\)",
        ),
        (
            {"outgoing": (gxd.ParamAxis(("l2", "kernel"), 0, gxd.flatten_index(1, 3)),)},
            r"\('l2', 'kernel'\) axis 0.*\[4, P\].*\(3, 1\)",
        ),
        (
            {"outgoing": (gxd.ParamAxis(("l2", "kernel"), 0, jnp.zeros((4, 1), int)),)},
            "twice",
        ),
    ],
    ids=[
        "missing kernel", "missing own parameter", "missing bias", "wrong axis", "no such axis", "wrong size",
        "wrong bias", "no consumer", "no producer", "too few biases", "axis twice", "index too large",
        "index of too few units", "position twice",
    ],
)  # fmt: skip
def test_wiring_that_does_not_fit_the_parameters(changes, message):
    with pytest.raises(ValueError, match=message):
        contribution([hidden(**changes)]).init(PARAMS)
    with pytest.raises(ValueError, match=message):
        observe = gxd.observe(mlp(jnp.tanh), squared_loss, [hidden(**changes)], readout=None)
        observe(PARAMS, jnp.ones((2, 3)), jnp.ones((2, 2)))


def test_two_layers_that_claim_the_same_units():
    twin = hidden(name="twin")
    with pytest.raises(ValueError, match=r"'twin'.*used twice.*'l1'"):
        contribution([hidden(), twin]).init(PARAMS)
    with pytest.raises(ValueError, match="names of unit layers must differ"):
        contribution([hidden(), hidden()])


@pytest.mark.parametrize("units", [UNITS[0], "l1", [("l1", 4)], {"l1": UNITS[0]}])
def test_units_that_are_no_list_of_unit_layers(units):
    with pytest.raises(TypeError, match="units must be a list of UnitLayer"):
        contribution(units)


def test_no_units_at_all():
    with pytest.raises(ValueError, match="at least one layer"):
        contribution([])


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        (["l1", "l9"], ValueError, "no layer 'l9'"),
        (["l2", "l1"], ValueError, r"\('l2', 'kernel'\) \(4, 2\) gives 2 units.*\('l1', 'kernel'\) \(3, 4\) reads 3"),
        (["l1"], ValueError, "at least a hidden layer and the output layer"),
        (["l1", "l1"], ValueError, "layers must differ"),
        ("l1", TypeError, "list of layer names"),
    ],
    ids=["missing", "wrong order", "only one", "twice", "a string"],
)
def test_sequential_units_of_layers_that_do_not_fit(layers, error, message):
    with pytest.raises(error, match=message):
        gxd.sequential_units(PARAMS, layers)


def test_sequential_units_of_something_that_is_no_dense_layer():
    params = {"l1": {"q": jnp.ones((3, 4)), "k": jnp.ones((3, 4))}, "l2": {"kernel": jnp.ones((4, 2))}}
    with pytest.raises(ValueError, match="'l1' must hold exactly one kernel"):
        gxd.sequential_units(params, ["l1", "l2"])


def test_the_order_of_a_flattened_map():
    with pytest.raises(ValueError, match="unknown order 'CHWN'"):
        gxd.flatten_index(2, 3, order="CHWN")


# --- observe ----------------------------------------------------------------------------------------------------------


def look(apply, units=UNITS, x=None, y=None, readout="logits", loss=squared_loss, **arguments):
    x, y = jnp.ones((2, 3)) if x is None else x, jnp.ones((2, 2)) if y is None else y
    return gxd.observe(apply, loss, units, readout=readout)(PARAMS, x, y, **arguments)


@pytest.mark.parametrize("readout", ["logits", "fisher"])
def test_a_readout_that_draws_without_a_key(readout):
    with pytest.raises(ValueError, match=f"'{readout}' draws.*key"):
        look(mlp(jnp.tanh), readout=readout)


def test_a_model_without_taps():
    def apply(params, x):
        return jnp.tanh(x @ params["l1"]["kernel"]) @ params["l2"]["kernel"]

    with pytest.raises(ValueError, match="'l1'.*tap"):
        look(apply, key=0)


def test_a_tap_passed_twice():
    def apply(params, x):
        h = gxd.tap("l1", jnp.tanh(x @ params["l1"]["kernel"]))
        return gxd.tap("l1", h) @ params["l2"]["kernel"]

    with pytest.raises(ValueError, match="'l1' was passed twice"):
        look(apply, key=0)


def test_a_tap_of_the_wrong_width():
    def apply(params, x):
        gxd.tap("l1", x)
        return x @ params["l1"]["kernel"] @ params["l2"]["kernel"]

    with pytest.raises(ValueError, match=r"'l1'.*\(2, 3\).*4"):
        look(apply, key=0)


def test_a_single_example_without_a_batch_axis():
    with pytest.raises(ValueError, match="batch axis"):
        look(mlp(jnp.tanh), x=jnp.ones(3), y=jnp.ones(2), key=0)


def test_labels_that_are_no_integers():
    with pytest.raises(ValueError, match=r"'target' needs.*labels"):
        look(mlp(jnp.tanh), y=jnp.ones(2), readout="target", loss=lambda z, y: z.mean())


@pytest.mark.parametrize("readout", ["predicted", "target", "fisher"])
def test_readouts_of_classes_need_one_array_of_logits(readout):
    plain = mlp(jnp.tanh)
    with pytest.raises(ValueError, match=f"'{readout}' needs.*one array of logits"):
        look(lambda params, x: {"a": plain(params, x)}, readout=readout, loss=lambda z, y: z["a"].mean(), key=0)


def test_a_callable_readout_that_does_not_give_one_number_per_example():
    with pytest.raises(ValueError, match=r"one number for each example.*\(2, 2\)"):
        look(mlp(jnp.tanh), readout=lambda z, y, key: z)


def test_a_flax_module_that_is_not_known_to_read_its_input_as_it_comes():
    class Odd(nn.Module):
        @nn.compact
        def __call__(self, x):
            return (2 * x) @ self.param("kernel", nn.initializers.ones, (4, 2))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Odd(name="l2")(nn.relu(nn.Dense(4, name="l1")(x)))

    x, y = batches(1, 2, 3, 2)
    params = Net().init(jax.random.key(0), x[0])["params"]
    units = gxd.sequential_units(params, ["l1", "l2"])
    observe = gxd.observe(lambda params, x: Net().apply({"params": params}, x), squared_loss, units)
    with pytest.raises(ValueError, match="Odd.*tap"):
        observe(params, x[0], y[0], key=0)


# --- chain and reset_info ---------------------------------------------------------------------------------------------


def test_something_after_the_resetting_member_that_changes_its_updates():
    with pytest.raises(ValueError, match="after the resetting member"):
        gxd.chain(optax.adam(1e-3), contribution(), optax.scale(0.5))


def test_a_member_that_is_no_transformation():
    with pytest.raises(TypeError, match="gradient transformations"):
        gxd.chain(optax.adam, contribution())


def test_an_optimizer_whose_statistics_are_not_kept_weight_by_weight():
    params = dense_params([130, 140, 150])
    units = dense_units(params)
    tx = gxd.chain(optax.adafactor(1e-3), contribution(units))
    with pytest.raises(ValueError, match="cannot be cleared for single units"):
        observation = gxd.Observation({"l1": jnp.ones((1, 140))})
        jax.eval_shape(tx.update, params, tx.init(params), params, observation=observation)


def test_reset_info_of_a_state_that_resets_nothing():
    with pytest.raises(ValueError, match="no state of continual_backprop"):
        gxd.reset_info(optax.adam(1e-3).init(PARAMS))


def test_two_resetting_members_with_the_same_layer():
    tx = gxd.chain(contribution(), contribution())
    with pytest.raises(ValueError, match="same name"):
        gxd.reset_info(tx.init(PARAMS))


# --- What a new user tried ------------------------------------------------------------------------------------------

INPUTS, LABELS = jnp.ones((3, 3)), jnp.zeros((3, 2))
APPLY = mlp(jnp.tanh)
SELECTIVE = gxd.methods.selective_weight_reinitialization
COST = functools.partial(gxd.metrics.reset_cost, APPLY, PARAMS, UNITS, INPUTS)
FULL = gxd.Observation({"l1": FEATURES})
OTHER_STATE = contribution([hidden(name="l9")]).init(PARAMS)
RBG = gxd.training.init(PARAMS, optax.sgd(1), jax.random.key(0, impl="rbg"))
FRESH = jax.tree.map(lambda leaf: leaf[..., :1], PARAMS)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gxd.observe(nn.Dense(2), squared_loss, UNITS), TypeError, r"apply .* Flax module: pass its \.apply"),
        (lambda: gxd.find_units(nn.Dense(2), PARAMS, INPUTS), TypeError, r"pass its \.apply"),
        (
            lambda: gxd.observe(APPLY, squared_loss, UNITS)(PARAMS, INPUTS[:0], LABELS[:0], key=0),
            ValueError,
            "the batch is empty",
        ),
        (lambda: gxd.verify_units(APPLY, PARAMS, UNITS, INPUTS[:0]), ValueError, "the outputs are empty"),
        (lambda: COST(sets={"l1": [[9]]}), ValueError, r"'l1' name the units \[9\]: allowed are 0 to 3"),
        (lambda: COST(sets={"l1": [[-1]]}), ValueError, r"units \[-1\]"),
        (lambda: COST(sets={"l1": [[0, 0]]}), ValueError, r"a unit twice: \[0, 0\]"),
        (lambda: COST(sets={"l1": [[0.7]]}), TypeError, "must be indices of units, got float64"),
        (lambda: COST(chunk=0), ValueError, "chunk must be 1 or more, got 0"),
        (lambda: COST(compensate="no"), TypeError, "compensate must be True or False"),
        (lambda: COST(references={}), ValueError, r"references of layer 'l1' must have shape \(4,\), got none"),
        (lambda: COST(distance=3), TypeError, r"distance must be one of \['kl', 'norm2'\] or a function, got 3"),
        (
            lambda: contribution(kernel_init=nn.initializers.lecun_normal).init(PARAMS),
            TypeError,
            r"kernel_init of layer 'l1' must return an array, got <function .*lecun_normal\(\)",
        ),
        (
            lambda: contribution(kernel_init=lambda *given: jnp.ones(3)).init(PARAMS),
            ValueError,
            r"must return shape \(3, 4\), it returned \(3,\)",
        ),
        (lambda: SELECTIVE(kernel_init=lambda *given: None).init(PARAMS), TypeError, "'l1/kernel' .*, got None"),
        (lambda: SELECTIVE(kernels="l1"), TypeError, "kernels must be a list of paths .*, got 'l1'"),
        (lambda: SELECTIVE(kernels=UNITS), TypeError, "kernels must be a list of paths"),
        (lambda: SELECTIVE(kernels=[("l1", "kernel")] * 2), ValueError, "the paths of kernels must differ"),
        (lambda: contribution(axis_name=3), TypeError, "axis_name must be the name of a mapped axis"),
        (
            lambda: contribution(key=2**63),
            ValueError,
            r"key must lie in \[-2\*\*63, 2\*\*63\), got 9223372036854775808",
        ),
        (lambda: update(contribution(utility=lambda r: None), FULL), TypeError, "the utility returned None .*'l1'"),
        (
            lambda: contribution().update(PARAMS, OTHER_STATE, PARAMS, observation=FULL),
            ValueError,
            r"the state holds the layers \['l9'\], the method resets \['l1'\]",
        ),
        (
            lambda: gxd.methods.weight_clipping(1.0, bounds=jax.tree.map(lambda _: -0.1, PARAMS)).init(PARAMS),
            ValueError,
            r"a bound of weight_clipping must lie in \(0, inf\], got -0.1",
        ),
        (lambda: gxd.methods.weight_clipping(1.0, bounds=1.0).init(PARAMS), ValueError, "bounds must be a tree like"),
        (
            lambda: gxd.methods.full_reset(PARAMS, (), None, optax.sgd(1)),
            ValueError,
            "fresh must be a tree like params",
        ),
        (
            lambda: gxd.methods.full_reset(PARAMS, (), FRESH, optax.sgd(1)),
            ValueError,
            r"has shape \(4,\) in params and",
        ),
        (
            lambda: gxd.methods.full_reset(PARAMS, (), PARAMS, optax.sgd(1), paths="l1"),
            TypeError,
            "paths must be a list of tuples",
        ),
        (lambda: gxd.methods.shrink_and_perturb("x", 0.0), TypeError, "shrink must be a number in"),
        (
            lambda: gxd.sequential_units(PARAMS, None),
            TypeError,
            "layers must be a list of layer names in order, got None",
        ),
        (lambda: gxd.sequential_units(PARAMS, [None, "l1"]), TypeError, "layers must be names or paths"),
        (lambda: gxd.sequential_units(PARAMS, ["l1", "l2"], order="NC"), ValueError, "unknown order 'NC'"),
        (lambda: contribution([hidden(name=3)]), TypeError, "name of a UnitLayer must be a string .*, got 3"),
        (lambda: contribution([hidden(size="4")]), TypeError, "size must be a whole number of 1 or more, got '4'"),
        (lambda: contribution([hidden(incoming=None)]), TypeError, "incoming must be a tuple, got None"),
        (
            lambda: contribution([hidden(own=((gxd.ParamAxis(("l1", "bias"), 0), float("nan")),))]),
            ValueError,
            r"the reset value of \('l1', 'bias'\) must lie in \(-inf, inf\), got nan",
        ),
        (lambda: gxd.check_up(APPLY, PARAMS, UNITS, INPUTS, bounds=("a", "b")), TypeError, "a bound of layer 'l1'"),
        (lambda: gxd.utilities.combine(scale=["mean"]), ValueError, r"unknown scale \['mean'\]"),
        (lambda: gxd.metrics.approximate_rank(INPUTS, 2.0), ValueError, r"threshold must lie in \(0, 1\], got 2.0"),
        (lambda: gxd.metrics.saturated_units(INPUTS, lower=1, upper=-1), ValueError, "lower must be below upper"),
        (lambda: gxd.metrics.dormant_units(INPUTS, -1.0), ValueError, "tau must lie in"),
        (lambda: gxd.metrics.low_activity_units(INPUTS, fraction=5.0), ValueError, "fraction must lie in"),
        (
            lambda: gxd.training.train_task(None, None, None, None, -1),
            ValueError,
            "num_steps must be 0 or more, got -1",
        ),
        (
            lambda: gxd.training.make_train_step(None, optax.sgd(1))(RBG, INPUTS, LABELS),
            ValueError,
            r"key has shape \(4,\), not \(2,\): give make_train_step a key",
        ),
    ],
)
def test_odd_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
