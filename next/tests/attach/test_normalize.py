"""Select, show, check, then change: what `normalize` and `plan` accept, and leave alone."""

import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.attach import plan
from deconfound.errors import OptionError, ShapeError, StateError
from tests.attach.cohort import count_hooks, make_mlp, unchanged


class Untidy(nn.Module):
    """A network in which modules are called twice, never, or out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 1)
        self.body = nn.Linear(6, 8)
        self.twice = nn.Linear(8, 8)
        self.never = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.summary = nn.Flatten(0)
        self.index = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.norm(self.twice(self.twice(self.body(x)))))
        self.index(hidden.argmax(1, keepdim=True))
        self.summary(hidden)
        return self.head(hidden)


class TimeFirst(nn.Module):
    """A recurrent network that moves samples to axis 1 inside."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x.transpose(0, 1))[0][-1])


@pytest.mark.parametrize(
    ("network", "example", "channel", "feature"),
    [
        (nn.Linear(6, 8), (2, 6), (8,), (8,)),
        (nn.Conv1d(1, 4, 3), (2, 1, 9), (4, 1), (4, 7)),
        (nn.Conv2d(1, 4, 3), (2, 1, 9, 8), (4, 1, 1), (4, 7, 6)),
        (nn.Conv3d(1, 4, 3), (2, 1, 5, 5, 5), (4, 1, 1, 1), (4, 3, 3, 3)),
        (nn.LSTM(6, 8, batch_first=True), (2, 5, 6), (1, 8), (5, 8)),
        (nn.Linear(6, 8), (2, 5, 6), (1, 8), (5, 8)),
    ],
    ids=["flat", "conv1d", "conv2d", "conv3d", "lstm", "tokens"],
)
def test_coefficients_are_shared_per_channel_or_stand_for_each_feature(
    cohort, network, example, channel, feature
):
    """Kills mutants that swap channels-first and channels-last, or that ignore `per`."""
    sequential = nn.Sequential(network)
    for per, shape in (("channel", channel), ("feature", feature)):
        (point,) = plan(sequential, cohort.design, "0", torch.randn(example), per=per).points
        assert point.shape == shape
        assert point.features == feature


def test_an_ambiguous_channel_axis_is_an_error_that_shows_what_to_write(cohort):
    """Kills a silent guess of the axis for `(n, 4, 7)` behind a module of unknown kind."""
    network = nn.Sequential(nn.Identity())
    example = torch.randn(2, 4, 7)
    with pytest.raises(ShapeError, match=r"channel_axis=1 .* channel_axis=-1"):
        plan(network, cohort.design, "0", example)
    for axis, shape in ((1, (4, 1)), (2, (1, 7)), (-1, (1, 7))):
        (point,) = plan(network, cohort.design, "0", example, channel_axis=axis).points
        assert point.shape == shape


@pytest.mark.parametrize("axis", [0, 3, -3, 17])
def test_an_impossible_channel_axis_is_refused(cohort, axis):
    """Axis 0 holds the samples. Kills `channel_axis or guess`, which takes 0 for None."""
    network = nn.Sequential(nn.Conv1d(1, 4, 3))
    with pytest.raises(OptionError, match="channel_axis"):
        plan(network, cohort.design, "0", torch.randn(2, 1, 9), channel_axis=axis)


def test_places_come_in_the_order_in_which_features_reach_them(cohort):
    """Refit relies on this order. Kills the order of registration."""
    intended = plan(Untidy(), cohort.design, ["head", "body", "norm"], cohort.inputs[:3])
    assert [point.name for point in intended.points] == ["body", "norm", "head"]


@pytest.mark.parametrize("at", ["0", ["0", "2"], "*", "[02]", nn.Linear, ["2", nn.ReLU]])
def test_names_globs_and_types_select_modules(cohort, at):
    """Kills selectors that match by substring, or that lose part of a list."""
    names = {"0": ["0"], "*": ["0", "1", "2"]}.get(at if isinstance(at, str) else "")
    expected = names or (["1", "2"] if at == ["2", nn.ReLU] else ["0", "2"])
    intended = plan(make_mlp(), cohort.design, at, cohort.inputs[:2])
    assert [point.name for point in intended.points] == expected


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("hed", ["'hed'", "'head'"]),
        ("layer4.*", ["'layer4.*'", "matches no module"]),
        (nn.Conv2d, ["Conv2d", "Linear"]),
        (7, ["7", "at='layer4.*'"]),
        ([], ["at least one module"]),
        ("twice", ["'twice'", "2 times"]),
        ("never", ["'never'", "never"]),
        ("summary", ["'summary'", "(n, …)", "(24,)"]),
        ("index", ["'index'", "int64"]),
        (["hed", "boody"], ["'hed'", "'boody'", "'body'"]),
        (["twice", "never", "summary", "head"], ["'twice'", "'never'", "'summary'"]),
    ],
)
def test_a_wrong_place_is_named_and_the_network_stays_as_it_is(cohort, at, words):
    """All faults at once, and modes, buffers, hooks and random state untouched (acceptance 11).

    Kills an example run in training mode, hooks left behind, and a stop at the first fault.
    """
    network = Untidy()
    network.drop.eval()
    selector = [at] if isinstance(at, int) else at
    with unchanged(network), pytest.raises(OptionError) as caught:
        dc.normalize(network, cohort.design, selector, cohort.inputs[:3])
    for word in words:
        assert word in str(caught.value)


def test_a_time_first_recurrent_network_is_refused(cohort):
    """Also with as many samples as time steps, where shapes show nothing."""
    for steps in (4, 5):
        with pytest.raises(OptionError, match="batch_first=True"):
            plan(TimeFirst(), cohort.design, "lstm", torch.randn(4, steps, 6))


def test_a_module_registered_under_two_names_gets_one_layer(cohort):
    """Kills a second layer at the same module, which would subtract everything twice."""
    network = make_mlp()
    network.alias = network[0]
    network.forward = lambda x: network[2](network[1](network[0](x)))
    (point,) = plan(network, cohort.design, ["alias", "0"], cohort.inputs[:2]).points
    assert point.name == "0"


def test_a_module_shared_by_two_layers_is_refused(cohort):
    """It is called twice, under two names. Kills a count of calls by name."""
    shared = nn.Linear(6, 6)
    with pytest.raises(OptionError, match=r"'[01]' is called 2 times"):
        plan(nn.Sequential(shared, shared), cohort.design, ["0", "1"], cohort.inputs[:2])


def test_the_plan_is_a_table_and_changes_nothing(cohort):
    """Kills a plan that runs the network in training mode or keeps its hooks."""
    network = Untidy()
    with unchanged(network):
        intended = plan(network, cohort.design, ["body", "head"], cohort.inputs[:3], layer="mdn")
    header, body, head = str(intended).splitlines()
    assert header.split() == ["module", "type", "features", "coefficients", "layer"]
    assert body.split() == ["body", "Linear", "8", "32", "mdn", "after"]
    assert head.split() == ["head", "Linear", "1", "4", "mdn", "after"]


def test_show_prints_the_plan_before_anything_is_changed(cohort, monkeypatch):
    """Kills a plan that is printed when the hooks are in place already."""
    network = make_mlp()
    printed = []
    monkeypatch.setattr("builtins.print", lambda text: printed.append((text, count_hooks(network))))
    model = dc.normalize(network, cohort.design, ["0", "2"], cohort.inputs[:2], show=True)
    assert printed == [(model.plan, 0)]
    assert count_hooks(network) == 2


def test_coefficients_per_feature_are_counted_in_the_plan(cohort):
    """The printed number is the size of β: 4 × 7 × 7 features times age, sex, dx and intercept."""
    network = nn.Sequential(nn.Conv2d(1, 4, 3))
    arguments = network, cohort.design, "0", torch.randn(2, 1, 9, 9)
    model = dc.normalize(*arguments, per="feature")
    assert model.layers["0"].beta.numel() == 4 * 4 * 49
    assert "784" in str(model.plan)
    assert "4 × 7 × 7" in str(model.plan)


def test_wrong_arguments_are_reported_together(cohort):
    """Kills a check that stops at the first fault."""
    with pytest.raises(OptionError) as caught:
        plan("net", "age", "0", cohort.inputs, layer="pmd", per="pixel", where="behind")
    for word in ("network", "design", "'pmdn'", "per", "'pixel'", "where", "'behind'"):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("layer", "options", "words"),
    [
        ("pmdn", {"memry": 5}, ["memry", "'memory'"]),
        ("pmdn", {"memry": 5, "steps": 1}, ["memry", "steps", "'step'"]),
        ("mdn", {"memory": 5}, ["memory", "'mdn'"]),
        ("pmdn", {"memory": 0}, ["memory", "0"]),
        ("rmdn", {"forgetting": 2}, ["forgetting", "2"]),
        ("pmdn-alternating", {"lr": 1}, ["lr", "no options"]),
    ],
)
def test_options_are_checked_before_the_network_is_changed(cohort, layer, options, words):
    """Kills options that are swallowed, or refused when hooks are in place already."""
    network = make_mlp()
    with unchanged(network), pytest.raises(OptionError) as caught:
        dc.normalize(network, cohort.design, "0", cohort.inputs[:2], layer=layer, **options)
    for word in words:
        assert word in str(caught.value)


def test_options_reach_the_layers(cohort):
    """Kills `**options` that are checked and dropped."""
    model = dc.normalize(
        make_mlp(), cohort.design, "0", cohort.inputs[:2], gradient="frozen", memory=7
    )
    assert (model.layers["0"].gradient, model.layers["0"].memory) == ("frozen", 7)


def test_a_network_is_normalized_once(cohort):
    """The network, the model, a part and a container are refused, until remove() is called."""
    network = make_mlp()
    arguments = cohort.design, "0", cohort.inputs[:2]
    model = dc.normalize(network, *arguments)
    for again in (network, model, nn.Sequential(model), nn.Sequential(network)):
        with unchanged(again), pytest.raises(StateError, match=r"model\.remove\(\)"):
            dc.normalize(again, *arguments)
    dc.normalize(model.remove(), *arguments)


def test_frozen_parts_keep_their_mode(cohort):
    """Kills `model.train()`, which would let a frozen BatchNorm drift."""
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).train()
    network[1].eval()
    model = dc.normalize(network, cohort.design, "0", cohort.inputs[:2])
    assert model.training
    assert all(layer.training for layer in model.layers.values())
    assert not network[1].training


def test_inputs_that_the_model_needs_itself_are_refused(cohort):
    """Kills a network's own `weight` that never arrives."""

    class Scaled(nn.Linear):
        def forward(self, x, weight=None):
            return super().forward(x)

    network = Scaled(6, 8)
    with unchanged(network), pytest.raises(OptionError, match=r"an input 'weight'.*Rename"):
        dc.normalize(nn.Sequential(network)[0], cohort.design, "0", cohort.inputs[:2])


def test_a_transformer_may_mask_its_tokens(cohort):
    """In evaluation torch packs masked sequences into tensors without a shape.

    Kills a model that trains, and fails afterwards; and an encoder that stays changed.
    """
    block = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
    network = nn.TransformerEncoder(block, 1)
    tokens = cohort.inputs[:, None, :].repeat(1, 3, 1)
    mask = torch.zeros(120, 3, dtype=torch.bool)
    mask[:, 2] = True
    keywords = {"src": tokens[:2], "src_key_padding_mask": mask[:2]}
    model = dc.normalize(network, cohort.design, "layers.0.linear2", keywords)
    inputs = {"src": tokens, "src_key_padding_mask": mask}
    model.refit([(inputs, cohort.metadata)])
    with torch.no_grad():
        assert model.eval()(**inputs, metadata=cohort.metadata).shape == (120, 3, 6)
        assert torch.isfinite(model.eval()(**inputs, metadata=cohort.metadata)).all()
    assert model.remove().use_nested_tensor


def test_the_modules_that_work_are_listed(cohort):
    """A type also selects modules whose parents read their weights directly."""
    network = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
    with pytest.raises(OptionError, match=r"never called[\s\S]*at=\['linear1', 'linear2'\]"):
        dc.normalize(network, cohort.design, nn.Linear, torch.zeros(2, 3, 6))


@pytest.mark.parametrize("at", [5, None, nn.Linear(2, 2)])
def test_what_is_no_selector_is_refused(cohort, at):
    with pytest.raises(OptionError, match="at must consist of module names"):
        dc.normalize(make_mlp(), cohort.design, at, cohort.inputs[:2])


def test_lazy_modules_are_refused(cohort):
    """Kills an example run that would initialise parameters: a change by a mere plan."""
    network = nn.Sequential(nn.LazyLinear(8))
    with pytest.raises(StateError, match=r"'0\.weight' is not initialised"):
        plan(network, cohort.design, "0", cohort.inputs[:2])
    assert isinstance(network[0], nn.LazyLinear)


@pytest.mark.parametrize("example", [None, torch.randn(2, 5), {"x": torch.randn(2, 6)}, "rows"])
def test_a_wrong_example_raises_the_networks_own_error_with_a_note(cohort, example):
    """Kills an error of a matrix product that does not say where it comes from."""
    network = make_mlp()
    with unchanged(network), pytest.raises(Exception) as caught:  # noqa: PT011
        dc.normalize(network, cohort.design, "0", example)
    assert "`example`" in "".join(caught.value.__notes__)


def test_the_example_is_required(cohort):
    """There is no second, lazy way to find shapes."""
    with pytest.raises(TypeError, match="example"):
        dc.normalize(make_mlp(), cohort.design, "0")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_layers_follow_the_networks_dtype_and_keep_float32_at_least(cohort, dtype):
    """Kills layers in float32 in a float64 network, and statistics in bfloat16."""
    network, inputs = make_mlp().to(dtype), cohort.inputs.to(dtype)
    model = dc.normalize(network, cohort.design, "0", inputs[:2])
    assert model(inputs, metadata=cohort.metadata).dtype == dtype
    assert model.layers["0"].beta.dtype == torch.promote_types(dtype, torch.float32)
    assert model.layers["0"].beta.isfinite().all()


def test_a_layer_before_a_module_normalises_its_input(cohort):
    """A layer before the head equals a layer after the ReLU. Kills a swapped `where`."""
    outputs = []
    for at, where in (("1", "after"), ("2", "before")):
        network = make_mlp()
        model = dc.normalize(network, cohort.design, at, cohort.inputs[:2], where=where)
        model.refit([(cohort.inputs, cohort.metadata)], prior=0)
        outputs.append(model.eval()(cohort.inputs, metadata=cohort.metadata))
    torch.testing.assert_close(outputs[0], outputs[1])
