"""Attaching: which modules, the plan, shapes, what is refused and in which words, and taking the layers out again."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import deconfound as dc
from deconfound.errors import DeconfoundError, NotFittedError, OptionError, ShapeError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
        self.fc1 = nn.Linear(2 * 4 * 4, 6)
        self.fc2 = nn.Linear(6, 1)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(self.stem(x).flatten(1))))


@pytest.fixture
def images():
    return torch.randn(400, 1, 6, 6)


def paths(network, design, at, **options):
    return [place.path for place in dc.normalize(network, design, at=at, dry_run=True, **options).places]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("fc1", ["fc1"]),
        (["fc2", "fc1"], ["fc1", "fc2"]),
        ("fc*", ["fc1", "fc2"]),
        ("stem.*", ["stem.0", "stem.1"]),
        (nn.Linear, ["fc1", "fc2"]),
        ([nn.Conv2d, "fc2"], ["stem.0", "fc2"]),
        (lambda path, module: path.startswith("fc") and module.out_features > 1, ["fc1"]),
    ],
)
def test_at_takes_names_globs_types_and_predicates(cohort, at, expected):
    assert paths(Net(), cohort.design, at) == expected


def test_no_match_shows_the_nearest_names_and_every_fault(cohort):
    with pytest.raises(OptionError, match=r"got 'fc11'\. Nearest: fc1") as fault:
        dc.normalize(Net(), cohort.design, at=["fc11", "fc2", "steem.*", nn.LSTM])
    assert "got 'steem.*'. Nearest: stem" in str(fault.value)
    assert "got LSTM, which none is. It has: Conv2d, Linear, ReLU, Sequential" in str(fault.value)


@pytest.mark.parametrize(("at", "words"), [([], "empty list"), ([3], "got 3"), (lambda p, m: False, "a predicate")])
def test_a_selector_that_is_none_is_refused(cohort, at, words):
    with pytest.raises(OptionError, match=words):
        dc.normalize(Net(), cohort.design, at=at)


def test_the_plan_is_a_table_of_what_would_happen_and_changes_nothing(cohort, images):
    network = Net().train()
    network.stem.eval()
    before = torch.get_rng_state()
    plan = dc.normalize(network, cohort.design, at=["stem", "fc2"], example=images[:2], dry_run=True)
    # 6 regressors (age, sex, two sites, dx, intercept) for 2 × 4 × 4 and for 1 feature, 4 bytes each.
    assert str(plan).splitlines() == [
        "path  module      features  coefficients  bytes  action",
        "stem  Sequential  2×4×4     192           768    insert pmdn after",
        "fc2   Linear      1         6             24     insert pmdn after",
    ]
    assert not any(module._forward_hooks for module in network.modules())
    assert network.training
    assert not network.stem[0].training
    assert torch.equal(before, torch.get_rng_state())


def test_the_plan_counts_the_coefficients_that_the_layer_has(cohort, images):
    model = dc.normalize(Net(), cohort.design, at=["stem", "fc1"], example=images[:2], share="positions")
    counted = [model.plan.rows * place.features for place in model.plan.places]
    assert counted == [layer.beta.numel() for layer in model.layers.values()] == [12, 36]
    assert "2×?×?" in str(model.plan)
    wide = nn.Sequential(nn.Linear(3, 12))
    erasing = dc.normalize(wide, cohort.design, at="0", layer="erase", example=torch.zeros(2, 3))
    assert f" {erasing.layers['0'].beta.numel()} " in str(erasing.plan)


def test_shapes_from_an_example_and_from_the_first_forward_are_the_same(cohort, images):
    network = Net()
    early = dc.normalize(copy.deepcopy(network), cohort.design, at=["stem", "fc1"], example=images[:2])
    late = dc.normalize(network, cohort.design, at=["stem", "fc1"])
    assert "at first forward" in str(late.plan)
    assert len(late.layers) == 0
    outputs = [model(images, metadata=cohort.metadata.float()) for model in (early, late)]
    assert torch.equal(*outputs)
    assert late.plan == early.plan
    assert late.state_dict().keys() == early.state_dict().keys()


@pytest.mark.parametrize("layer", ["mdn", "pmdn", "rmdn"])
def test_a_layer_built_in_inference_mode_can_be_trained(cohort, images, layer):
    model = dc.normalize(Net(), cohort.design, at="fc1", layer=layer)
    with torch.inference_mode():
        model.eval()(images, metadata=cohort.metadata.float())
    model.train()(images, metadata=cohort.metadata.float()).square().mean().backward()
    assert model.layers["fc1"].beta.abs().max() > 0


def test_a_layer_built_at_the_first_forward_trains_when_the_model_does(cohort, images):
    network = Net()
    model = dc.normalize(network, cohort.design, at="fc1").train()
    network.eval()  # a frozen backbone
    model(images, metadata=cohort.metadata)
    assert model.layers["fc1"].beta.abs().max() > 0


def test_before_normalises_the_input_of_a_module(cohort, images):
    network = Net()
    model = dc.normalize(network, cohort.design, at="fc2", where="before", layer="mdn", gram="batch")
    seen = []
    network.fc2.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model(images, metadata=cohort.metadata.float())
    assert model.plan.places[0].feature_shape == (6,)
    twin = dc.MDN(cohort.design, 6, gram="batch")
    features = torch.relu(model.remove().fc1(network.stem(images).flatten(1)))
    assert torch.allclose(seen[0], twin(features, cohort.metadata.float()), atol=1e-6)


def test_no_place_picks_the_fully_connected_head_or_else_the_last_convolution(cohort, images):
    assert paths(Net(), cohort.design, None, example=images[:2]) == ["fc1", "fc2"]
    convolutional = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3))
    assert paths(convolutional, cohort.design, None, example=images[:2]) == ["2"]
    with pytest.raises(OptionError, match="got neither"):
        dc.normalize(nn.Sequential(nn.Flatten()), cohort.design, example=images[:2])


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_layer_norm_leaves_a_lone_logit_alone_which_it_would_make_a_constant(cohort, shape):
    network = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 1), nn.Unflatten(1, shape))
    x = cohort.features.float()
    model = dc.normalize(network, cohort.design, at=["0", "2"], layer_norm=True, example=x[:2])
    logits = model(x, metadata=cohort.metadata)
    assert list(model.layer_norms) == ["0"]
    assert logits.std() > 1e-3
    assert nn.functional.layer_norm(logits, shape).std() == 0  # what it would have been


def test_layer_norm_comes_before_the_layer_and_trains(cohort, images):
    network = Net()
    model = dc.normalize(network, cohort.design, at="fc1", layer_norm=True, layer="rmdn", example=images[:2])
    seen = []
    network.fc1.register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(images, metadata=cohort.metadata.float()).sum().backward()
    assert model.layer_norms["fc1"].weight.grad is not None
    plain = model.remove().fc1(network.stem(images).flatten(1))
    expected = dc.RMDN(cohort.design, 6)(nn.functional.layer_norm(plain, (6,)), cohort.metadata.float())
    assert torch.allclose(seen[0], expected, atol=1e-6)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.fc(x)))


def test_a_module_used_twice_is_refused_in_the_plan_and_at_the_first_forward(cohort):
    x = cohort.features.float()
    with pytest.raises(OptionError, match=r"'fc' must be called once per forward; got 2 calls of Linear\."):
        dc.normalize(Twice(), cohort.design, at="fc", example=x)
    with pytest.raises(DeconfoundError, match="'fc' must be called once per forward; got a second call"):
        dc.normalize(Twice(), cohort.design, at="fc")(x, metadata=cohort.metadata)


def test_a_module_with_two_names_takes_one_layer(cohort):
    network = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
    network.alias = network[0]
    network.forward = lambda x: network[1](network[0](x))
    model = dc.normalize(network, cohort.design, at=nn.Linear, example=cohort.features.float())
    assert list(model.layers) == ["0"]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0].mean(1)


def test_a_module_that_is_never_called_is_refused_with_the_reason(cohort):
    x = torch.randn(400, 3, 4)
    with pytest.raises(OptionError, match=r"'attention\.out_proj' must be called.*read directly by the module around"):
        dc.normalize(Attention(), cohort.design, at="attention.out_proj", example=x)
    model = dc.normalize(Attention(), cohort.design, at="attention.out_proj")
    with pytest.raises(OptionError, match=r"got no call of .*Call model\.remove\(\)"):
        model(x, metadata=cohort.metadata)
    assert dc.normalize(Attention(), cohort.design, at="attention")(x, metadata=cohort.metadata).shape == (400, 4)


def test_all_unfit_places_are_named_at_once(cohort):
    network = nn.ModuleDict({"twice": nn.Linear(5, 5), "never": nn.Linear(5, 5)})
    network.forward = lambda x: network["twice"](network["twice"](x))
    with pytest.raises(OptionError) as fault:
        dc.normalize(network, cohort.design, at=nn.Linear, example=cohort.features.float())
    assert "'twice'" in str(fault.value)
    assert "'never'" in str(fault.value)
    assert not network["twice"]._forward_hooks


class Sequence(nn.Module):
    def __init__(self, batch_first=True):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=batch_first)
        self.axis = 1 if batch_first else 0

    def forward(self, x):
        outputs, (_, state) = self.lstm(x)
        return outputs.mean(self.axis) + state[0]


def test_the_outputs_of_an_lstm_are_normalised_and_the_plan_says_which_part(cohort):
    model = dc.normalize(Sequence(), cohort.design, at="lstm", example=torch.randn(2, 7, 3))
    assert "?×4" in str(model.plan)
    assert "on output[0] only, positions share" in str(model.plan)
    assert model(torch.randn(400, 9, 3), metadata=cohort.metadata).shape == (400, 4)


@pytest.mark.parametrize("example", [True, False])
def test_samples_on_the_second_axis_give_the_result_of_samples_on_the_first(cohort, example):
    first, second = Sequence(), Sequence(batch_first=False)
    second.load_state_dict(first.state_dict())
    x = torch.randn(400, 6, 3)
    options = [{"example": x[:2]}, {"example": x[:2].transpose(0, 1)}] if example else [{}, {}]
    models = [dc.normalize(n, cohort.design, at="lstm", **o) for n, o in zip((first, second), options, strict=True)]
    one = models[0](x, metadata=cohort.metadata)
    two = models[1](x.transpose(0, 1), metadata=cohort.metadata)
    assert torch.allclose(one, two, atol=1e-6)
    assert torch.allclose(*(model.layers["lstm"].beta for model in models), atol=1e-6)


def test_a_module_inside_a_batch_second_transformer_finds_its_samples(cohort):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
    network = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    model = dc.normalize(network, cohort.design, at="layers.0.linear1", example=torch.randn(400, 400, 4)[:5, :6])
    assert model.plan.places[0].batch_axis == 1
    assert model(torch.randn(5, 400, 4), metadata=cohort.metadata).shape == (5, 400, 4)


def test_channels_of_a_convolution_over_time_are_not_taken_for_positions(cohort):
    network = nn.Sequential(nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU()), nn.Flatten(), nn.Linear(4 * 6, 1))
    plan = dc.normalize(network, cohort.design, at="0", example=torch.randn(2, 3, 8), dry_run=True)
    assert plan.places[0].feature_shape == (4, 6)
    assert plan.places[0].share is None


@dataclass
class Answer:
    name: str
    hidden: Tensor


class Dataclass(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        return Answer("kept", self.fc(x))


class AroundDataclass(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Dataclass()

    def forward(self, x):
        return self.inner(x)


def test_a_dataclass_output_is_normalised_in_its_first_tensor(cohort):
    x = cohort.features.float()
    model = dc.normalize(AroundDataclass(), cohort.design, at="inner", layer="mdn", gram="batch", example=x)
    assert "on output.hidden only" in str(model.plan)
    answer = model(x, metadata=cohort.metadata.float())
    assert answer.name == "kept"
    expected = dc.MDN(cohort.design, 3, gram="batch")(model.network.inner.fc(x), cohort.metadata.float())
    assert torch.allclose(answer.hidden, expected, atol=1e-6)


def test_a_hugging_face_output_keeps_its_type_and_its_other_parts(cohort):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    network = transformers.BertModel(config).eval()
    words = torch.randint(0, 20, (400, 5))
    model = dc.normalize(network, cohort.design, at="encoder", example={"input_ids": words[:2]})
    assert "on output.last_hidden_state only" in str(model.plan)
    model.train()
    network.eval()
    output = model(input_ids=words, metadata=cohort.metadata, output_hidden_states=True)
    assert type(output).__name__ == "BaseModelOutputWithPoolingAndCrossAttentions"
    assert len(output.hidden_states) == 2
    assert output[0] is output.last_hidden_state
    plain = model.remove()(input_ids=words).last_hidden_state
    expected = dc.PMDN(cohort.design, (None, 8), share="positions", channel_axis=-1)(plain, cohort.metadata)
    assert torch.allclose(output.last_hidden_state, expected, atol=1e-5)


def test_what_cannot_be_normalised_is_refused_with_the_reason(cohort):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, x):
            self.inner(self.given)
            return x

    network, x = Words(), cohort.features.float()
    for given, words in [
        ("text", "must return a tensor.*got str"),
        (torch.zeros(4), r"shape \(n, …\); got torch.float32 of shape \(4,\)"),
        (torch.zeros(4, 2, dtype=torch.long), "floating-point features.*int64"),
    ]:
        network.given = given
        with pytest.raises(DeconfoundError, match=words):
            dc.normalize(network, cohort.design, at="inner", example=x)
    keywords = nn.Sequential(nn.Linear(5, 2))
    keywords.forward = lambda x: keywords[0](input=x)
    with pytest.raises(ShapeError, match="must be given a tensor as a positional argument"):
        dc.normalize(keywords, cohort.design, at="0", where="before", example=x)


def test_a_lazy_network_is_refused_until_it_is_built(cohort):
    network = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(OptionError, match=r"uninitialised '0.weight'\. Run one forward"):
        dc.normalize(network, cohort.design, at="0")
    network(cohort.features.float())
    model = dc.normalize(network, cohort.design, at="0")
    assert model(cohort.features.float(), metadata=cohort.metadata).shape == (400, 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer": "pmdm"}, "layer must be one of 'mdn', 'pmdn'"),
        ({"where": "around"}, "where must be 'after' or 'before'; got 'around'"),
        ({"share": "all"}, "share must be 'auto', 'positions' or None; got 'all'"),
        ({"gradient": "biased"}, "gradient must be"),
        ({"gradiant": "frozen"}, "got 'gradiant'. Did you mean 'gradient'"),
        ({"exemple": 3}, "Did you mean 'example'"),
        ({"layer_norm": True}, "example must be given with layer_norm=True"),
        ({"layer": "pmdn-joint"}, "example must be given with layer='pmdn-joint'"),
        ({"layer": "pmdn-alternating"}, "example must be given with layer='pmdn-alternating'"),
        ({"at": None}, "example must be given with at=None"),
    ],
)
def test_wrong_options_are_refused_before_the_network_is_touched(cohort, options, words):
    network = Net()
    with pytest.raises(OptionError, match=words):
        dc.normalize(network, cohort.design, **{"at": "fc1", **options})
    assert not any(module._forward_hooks for module in network.modules())


def test_what_is_no_network_or_no_design_is_refused(cohort):
    with pytest.raises(OptionError, match="network must be a torch module; got function"):
        dc.normalize(lambda x: x, cohort.design, at="fc1")
    with pytest.raises(OptionError, match="design must be a fitted Design; got list"):
        dc.normalize(Net(), ["age"], at="fc1")


def test_an_unfitted_design_is_refused_before_the_network_is_touched():
    with pytest.raises(NotFittedError):
        dc.normalize(Net(), dc.Design(confounds=["age"]), at="fc1")


def test_a_crash_while_the_example_runs_leaves_the_network_as_it_was(cohort):
    network = Net().train()
    with pytest.raises(RuntimeError) as caught:
        dc.normalize(network, cohort.design, at="fc1", example=torch.randn(2, 3))
    assert caught.value.__notes__ == [
        "The network was run on `example` to find its features: pass one batch of inputs that it reads."
    ]
    assert network.training
    assert not any(module._forward_hooks for module in network.modules())


def test_a_network_that_has_layers_already_is_refused(cohort):
    network = Net()
    model = dc.normalize(network, cohort.design, at="fc1")
    for again in (network, model):
        with pytest.raises(OptionError, match="network must be plain; got one with a layer at"):
            dc.normalize(again, cohort.design, at="*fc2")
    assert dc.normalize(model.remove(), cohort.design, at="fc2").plan.places[0].path == "fc2"


@pytest.mark.parametrize("layer", ["mdn", "pmdn", "rmdn"])
def test_remove_gives_back_outputs_and_keys_bit_for_bit(cohort, images, layer):
    network = Net()
    before, state = network(images), copy.deepcopy(network.state_dict())
    model = dc.normalize(network, cohort.design, at="*", layer=layer, example=images[:2])
    attached = model(images, metadata=cohort.metadata)
    assert not torch.equal(before, attached)
    assert network.state_dict().keys() == state.keys()
    back = model.remove()
    assert back is network
    assert torch.equal(before, back(images))
    assert all(torch.equal(state[key], value) for key, value in back.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in back.modules())
    with pytest.raises(DeconfoundError, match=r"got one after remove\(\)"):
        model(images, metadata=cohort.metadata)


def test_coefficients_are_by_path_and_confound_in_the_users_units():
    table = {"age": [61.0, 70.0, 78.0, 55.0], "dx": [0, 1, 0, 1]}
    design = dc.Design(confounds=["age"], keep=["dx"]).fit(table)
    network = nn.Sequential(nn.Identity())
    model = dc.normalize(network, design, at="0", layer="rmdn", ridge=1e-6)
    age = torch.tensor(table["age"])
    model(torch.stack([0.5 * age + 3, -2 * age], 1), metadata=design.encode(table))
    assert torch.allclose(model.coefficients()["0"]["age"], torch.tensor([0.5, -2.0]), atol=1e-4)


def test_penalty_sums_the_layers_and_is_refused_where_beta_trains_itself(cohort, images):
    model = dc.normalize(Net(), cohort.design, at=["fc1", "fc2"], layer="pmdn-joint", example=images[:2])
    model(images, metadata=cohort.metadata)
    assert model.penalty() == model.layers["fc1"].penalty + model.layers["fc2"].penalty
    with pytest.raises(OptionError, match="got layer='pmdn', which learns β by itself"):
        dc.normalize(Net(), cohort.design, at="fc1").penalty()


@pytest.mark.parametrize("layer", ["mdn", "pmdn", "rmdn"])
def test_frozen_statistics_change_nothing_in_training_mode(cohort, images, layer):
    model = dc.normalize(Net(), cohort.design, at=["fc1", "fc2"], layer=layer, example=images[:2])
    model(images, metadata=cohort.metadata).sum().backward()
    before = copy.deepcopy(model.state_dict())
    with model.frozen_statistics():
        model(images, metadata=cohort.metadata).square().sum().backward()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    model(images, metadata=cohort.metadata).sum().backward()
    assert not torch.equal(before["layers.fc1.beta"], model.layers["fc1"].beta)


def test_layers_that_do_not_exist_yet_cannot_be_frozen(cohort):
    with pytest.raises(DeconfoundError, match="must exist before they are frozen"):
        dc.normalize(Net(), cohort.design, at="fc1").frozen_statistics()
