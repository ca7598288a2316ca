"""A normalised model in use: its metadata, its threads, its copies and its checkpoints."""

import copy
import io
import pickle
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import deconfound as dc
from deconfound.errors import DeconfoundError, DeconfoundWarning, ShapeError
from tests.conftest import make_cohort, make_table

LAYERS = ["mdn", "pmdn", "rmdn", "pmdn-alternating"]


def network():
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))


def trained(cohort, layer="pmdn", **options):
    """A model with a β to speak of."""
    model = dc.normalize(network(), cohort.design, at=["0", "2"], layer=layer, example=torch.randn(2, 5), **options)
    for rows in torch.arange(cohort.n).split(100):
        model(cohort.features[rows].float(), metadata=cohort.metadata[rows]).square().mean().backward()
    if layer == "pmdn-alternating":
        for part in model.layers.values():
            nn.init.normal_(part.beta)
    return model


@pytest.fixture
def model(cohort):
    return trained(cohort)


def same_state(one, two):
    one, two = one.state_dict(), two.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def test_forgetting_metadata_says_what_to_write(model, cohort):
    for mode in (True, False):
        model.train(mode)
        with pytest.raises(ShapeError, match=r"Write model\(inputs, metadata=design.encode\(rows\)\)"):
            model(cohort.features.float())


def test_no_metadata_is_the_population_mean_and_for_eval_alone(model, cohort):
    with pytest.raises(ShapeError, match=r"metadata must be given in training; got None"):
        model(cohort.features.float(), metadata=None)
    model.eval()
    mean = torch.zeros(cohort.n, cohort.metadata.shape[1])
    without = model(cohort.features.float(), metadata=None)
    assert torch.allclose(without, model(cohort.features.float(), metadata=mean), atol=1e-6)
    assert not torch.allclose(without, model(cohort.features.float(), metadata=cohort.metadata), atol=1e-3)


@pytest.mark.parametrize("mode", [True, False])
def test_a_wrong_number_of_rows_is_refused_and_changes_nothing(model, cohort, mode):
    model.train(mode)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ShapeError, match=r"got 7 rows for 8 samples at '0'\. Encode the table rows of exactly this"):
        model(cohort.features[:8].float(), metadata=cohort.metadata[:7])
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_metadata_that_are_no_matrix_of_the_design_are_refused(model, cohort):
    x = cohort.features[:4].float()
    for metadata, words in [
        (cohort.metadata[:4, :2], r"metadata must have shape \(n, 5\).*got \(4, 2\)"),
        ({"age": [1.0]}, "got dict. Write metadata=design.encode"),
        (torch.full((4, 5), torch.nan), "got NaN in"),
    ]:
        with pytest.raises(ShapeError, match=words):
            model(x, metadata=metadata)


def test_a_numpy_table_and_a_tensor_give_the_same_output(model, cohort):
    model.eval()
    encoded = cohort.design.encode(cohort.table)
    assert isinstance(encoded, np.ndarray)
    x = cohort.features.float()
    assert torch.equal(model(x, metadata=encoded), model(x, metadata=torch.from_numpy(encoded)))


def test_the_output_in_eval_does_not_depend_on_labels(model, cohort):
    model.eval()
    unlabelled = {name: column for name, column in cohort.table.items() if name != "dx"}
    x = cohort.features.float()
    with_labels = model(x, metadata=cohort.design.encode(cohort.table))
    assert torch.equal(with_labels, model(x, metadata=cohort.design.encode(unlabelled)))


def test_fit_on_chooses_the_rows_that_beta_is_learned_from(cohort):
    x, controls = cohort.features.float(), torch.from_numpy(cohort.table["dx"] == 0)
    design = dc.Design(confounds=["age", "sex", "site"]).fit(cohort.table)
    metadata = torch.from_numpy(design.encode(cohort.table))
    chosen, only = (dc.normalize(nn.Sequential(nn.Identity()), design, at="0", layer="rmdn") for _ in range(2))
    chosen(x, metadata=metadata, fit_on=controls)
    only(x[controls], metadata=metadata[controls])
    assert torch.allclose(chosen.layers["0"].beta, only.layers["0"].beta, atol=1e-5)
    with pytest.raises(ShapeError, match="fit_on must be one boolean per sample"):
        chosen(x, metadata=metadata, fit_on=controls[:3])


class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 2)
        self.broken = False

    def forward(self, x):
        x = self.fc(x)
        if self.broken:
            raise ZeroDivisionError
        return x


def test_a_crash_in_the_network_leaves_no_metadata_behind(cohort):
    fragile, x = Fragile(), cohort.features.float()
    model = dc.normalize(fragile, cohort.design, at="fc", example=x).eval()
    fragile.broken = True
    with pytest.raises(ZeroDivisionError):
        model(x, metadata=cohort.metadata)
    fragile.broken = False
    assert model._carrier._by_thread == {}
    with pytest.raises(DeconfoundError, match="the network must be called through its normalised model"):
        fragile(x)
    assert model(x[:3], metadata=cohort.metadata[:3]).shape == (3, 2)


def test_a_direct_call_of_the_inner_network_is_refused_with_the_way_out(model, cohort):
    with pytest.raises(DeconfoundError, match=r"direct call that reached '0'.*model\.remove\(\) to have the plain"):
        model.network(cohort.features.float())


@pytest.mark.parametrize("built", [True, False])
def test_eight_threads_get_the_answers_of_a_serial_run(cohort, built):
    model = trained(cohort).eval()
    if not built:
        state = model.state_dict()
        model = dc.normalize(model.remove(), cohort.design, at=["0", "2"]).eval()
        model.load_state_dict(state)
    x = cohort.features[:50].float()
    metadata = [torch.randn(50, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
    serial = [model(x, metadata=each) for each in metadata]
    answers = [[] for _ in range(8)]
    together = threading.Barrier(8)

    def infer(index):
        together.wait()
        for _ in range(40):
            answers[index].append(model(x, metadata=metadata[index]))

    threads = [threading.Thread(target=infer, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(each) == 40 for each in answers)
    assert all(torch.equal(answer, serial[index]) for index in range(8) for answer in answers[index])
    assert not torch.equal(serial[0], serial[1])


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_is_equal_and_independent(cohort, layer, how):
    model = trained(cohort, layer)
    if how == "deepcopy":
        twin = copy.deepcopy(model)
    elif how == "pickle":
        twin = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    assert same_state(model, twin)
    x = cohort.features.float()
    outputs = [each.eval()(x, metadata=cohort.metadata) for each in (model, twin)]
    assert torch.equal(*outputs)
    before = copy.deepcopy(model.state_dict())
    twin.train()(x + 1, metadata=cohort.metadata)
    if layer != "pmdn-alternating":
        assert not same_state(model, twin)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    plain = twin.remove()
    assert plain(x).shape == (400, 2)
    assert torch.equal(model(x, metadata=cohort.metadata), outputs[0])


def fresh(layer, wait):
    other = make_cohort(90, seed=7)  # another design: the checkpoint's must replace it
    example = None if wait else torch.randn(2, 5)
    return dc.normalize(network(), other.design, at=["0", "2"], layer=layer, example=example)


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("layer", ["mdn", "pmdn", "rmdn"])
def test_a_checkpoint_loads_strictly_and_safely_and_carries_the_design(cohort, layer, wait, tmp_path):
    model = trained(cohort, layer)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    twin = fresh(layer, wait)
    with pytest.warns(DeconfoundWarning, match="fitted on other rows. Write metadata=model.design.encode"):
        twin.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True), strict=True)
    twin.load_state_dict(model.state_dict())  # not said again: the design is the checkpoint's by now
    assert same_state(model, twin)
    assert twin.design.to_dict() == cohort.design.to_dict()
    x, new = cohort.features[:50].float(), make_table(50, seed=3)
    outputs = [each.eval()(x, metadata=each.design.encode(new)) for each in (model, twin)]
    assert torch.equal(*outputs)
    assert "at first forward" not in str(twin.plan)
    assert twin.coefficients().keys() == model.coefficients().keys()


def test_a_checkpoint_with_other_columns_says_which_ones_metadata_must_have_now(cohort):
    table = make_table(90, seed=7)
    design = dc.Design(confounds=["age"]).fit(table)
    twin = dc.normalize(network(), design, at=["0", "2"])
    with pytest.warns(DeconfoundWarning, match=rf"columns {cohort.design.names[0]}, .* instead of age\. Write"):
        twin.load_state_dict(trained(cohort).state_dict())


def test_a_checkpoint_goes_through_safetensors(cohort, tmp_path):
    model = trained(cohort, layer_norm=True)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    twin = dc.normalize(network(), cohort.design, at=["0", "2"], layer_norm=True, example=torch.randn(2, 5))
    twin.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    assert same_state(model, twin)


def test_training_goes_on_after_a_checkpoint_as_if_it_had_not_stopped(cohort):
    model = trained(cohort)
    twin = fresh("pmdn", wait=True)
    with pytest.warns(DeconfoundWarning, match="brings the design"):
        twin.load_state_dict(model.state_dict())
    for each in (model, twin):
        each.zero_grad()
        each(cohort.features.float(), metadata=cohort.metadata).square().mean().backward()
    assert same_state(model, twin)
    for one, two in zip(model.network.parameters(), twin.network.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)


def test_sequence_layers_load_into_a_model_that_waits(cohort):
    def make(example):
        inner = nn.Sequential(nn.GRU(3, 4))
        inner.forward = lambda x: inner[0](x)[0]
        return dc.normalize(inner, cohort.design, at="0", example=example)

    model, waiting = make(torch.randn(5, 2, 3)), make(None)
    x = torch.randn(5, 400, 3)
    model(x, metadata=cohort.metadata)
    waiting.load_state_dict(model.state_dict())
    assert waiting.plan.places[0].batch_axis == 1
    outputs = [each.eval()(x, metadata=cohort.metadata) for each in (model, waiting)]
    assert torch.equal(*outputs)


def test_beta_moves_with_the_model_and_keeps_its_precision(model):
    model.to(torch.bfloat16)
    assert model.network[0].weight.dtype == torch.bfloat16
    assert model.layers["0"].beta.dtype == torch.float32
    assert model.to("meta").layers["0"].beta.device.type == "meta"
