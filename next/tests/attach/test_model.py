"""`NormalizedModel`: calls, errors, remove, checkpoints, copies and threads."""

import copy
import inspect
import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.errors import DeconfoundWarning, OptionError, ShapeError, StateError
from deconfound.layers import alternating_step, frozen_statistics, split_parameters
from tests.attach.cohort import count_hooks, make_cohort, make_mlp, unchanged

LAYERS = ["pmdn", "mdn", "rmdn", "pmdn-alternating"]


def make_model(cohort, layer="pmdn", at=("0", "2"), seed=0):
    """Return an MLP with layers that have learned from one pass over the cohort."""
    model = dc.normalize(make_mlp(seed), cohort.design, at, cohort.inputs[:2], layer=layer)
    if layer == "pmdn-alternating":
        model.refit(cohort.batches(120))
    for inputs, metadata in cohort.batches(20):
        model(inputs, metadata=metadata)
    return model


def evaluate(model, cohort):
    """Return the outputs in evaluation mode."""
    return model.eval()(cohort.inputs, metadata=cohort.metadata)


def save_and_load(state, weights_only=True):
    """Return what a file gives back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_model_subtracts_the_confounds_times_their_coefficients(cohort, layer):
    """Eval output = f − Σ confound · coefficient, in the user's own units, with one layer.

    Kills coefficients in standardised units, and label columns that are subtracted.
    """
    model = make_model(cohort, layer, at="2")
    effects = model.coefficients()["2"]
    assert set(effects) == {"age", "sex[M]"}
    slopes = torch.stack([effects["age"], effects["sex[M]"]])
    columns = np.concatenate([cohort.confound("age"), cohort.confound("sex")], axis=1)
    removed = torch.from_numpy(columns).float() @ slopes
    residual = evaluate(model, cohort)
    plain = model.remove()(cohort.inputs)
    change = plain - residual - removed
    # Encoding centres the columns, so that the change is known but for a constant.
    torch.testing.assert_close(change, change.mean(0).expand_as(change), atol=1e-4, rtol=0)
    assert (plain - residual).std() > 0.01


@pytest.mark.parametrize("layer", LAYERS)
def test_remove_gives_the_old_outputs_bit_for_bit(cohort, layer):
    """Kills hooks left behind, and layers that change the network's own parameters."""
    network = make_mlp().eval()
    before = network(cohort.inputs)
    model = dc.normalize(network, cohort.design, ["0", "2"], cohort.inputs[:2], layer=layer)
    model.train()(cohort.inputs, metadata=cohort.metadata)
    model.refit([(cohort.inputs, cohort.metadata)], prior=0)
    assert (evaluate(model, cohort) - before).abs().max() > 0.1
    assert model.remove() is network
    assert torch.equal(network(cohort.inputs), before)
    assert count_hooks(network) == 0
    with pytest.raises(StateError, match="were removed"):
        model(cohort.inputs, metadata=cohort.metadata)
    for method in (model.refit, model.report):
        with pytest.raises(StateError, match="were removed"):
            method(cohort.batches(20))


def test_in_evaluation_labels_are_not_read_and_rows_do_not_depend_on_each_other(cohort):
    """Acceptance 09. Kills layers that read labels or batch statistics in evaluation."""
    model = make_model(cohort).eval()
    whole = model(cohort.inputs, metadata=cohort.metadata)
    unlabelled = cohort.design.encode(cohort.table[["age", "sex"]])
    assert np.isnan(unlabelled[:, 2]).all()
    assert torch.equal(model(cohort.inputs, metadata=unlabelled), whole)
    for row in (0, 57, 119):
        alone = model(cohort.inputs[row : row + 1], metadata=unlabelled[row : row + 1])
        torch.testing.assert_close(alone, whole[row : row + 1])


def test_evaluation_learns_nothing_and_training_does(cohort):
    """Kills statistics that move in evaluation; training is the positive control."""
    model = make_model(cohort).eval()
    with unchanged(model):
        model(cohort.inputs, metadata=cohort.metadata)
    with unchanged(model.train()), frozen_statistics(model):
        model(cohort.inputs, metadata=cohort.metadata)
    before = model.layers["0"].beta.clone()
    model(cohort.inputs, metadata=cohort.metadata)
    assert not torch.equal(model.layers["0"].beta, before)


def test_metadata_may_be_arrays_or_tensors_of_any_float(cohort):
    """Kills a path that takes tensors only, or that computes in float64 for numpy's sake."""
    outputs = []
    for metadata in (cohort.metadata, cohort.metadata.numpy(), cohort.metadata.double()):
        model = dc.normalize(make_mlp(), cohort.design, "0", cohort.inputs[:2])
        outputs.append(model(cohort.inputs, metadata=metadata))
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0])


def test_weights_say_how_many_samples_a_row_counts_for(cohort):
    """Rows of weight 0 teach nothing, and are normalised. Kills a dropped `weight`."""
    models = [dc.normalize(make_mlp(), cohort.design, "0", cohort.inputs[:2]) for _ in range(2)]
    weight = torch.arange(120) < 80
    output = models[0](cohort.inputs, metadata=cohort.metadata, weight=weight.float())
    expected = models[1](cohort.inputs[:80], metadata=cohort.metadata[:80])
    torch.testing.assert_close(output[:80], expected)
    torch.testing.assert_close(models[0].layers["0"].beta, models[1].layers["0"].beta)
    assert output.shape[0] == 120


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda metadata: None, ["None", "design.encode"]),
        (lambda metadata: metadata.tolist(), ["list", "design.encode"]),
        (lambda metadata: metadata[:7], ["7 rows", "10 samples"]),
        (lambda metadata: metadata[:, :2], ["(10, 2)", "age", "sex[M]", "dx[well]"]),
        (lambda metadata: metadata.long(), ["int64"]),
        (lambda metadata: metadata[0], ["(3,)"]),
        (lambda metadata: metadata.index_fill(1, torch.tensor(2), torch.nan), ["dx[well]", "eval"]),
        (lambda metadata: metadata.index_fill(1, torch.tensor(0), torch.inf), ["age", "10 rows"]),
    ],
    ids=["none", "list", "rows", "columns", "integers", "one row", "labels", "infinity"],
)
def test_wrong_metadata_are_refused_and_nothing_is_learned(cohort, change, words):
    """Kills checks that come after the first layer has learned (faults: state untouched)."""
    model = make_model(cohort)
    with unchanged(model), pytest.raises(ShapeError) as caught:
        model(cohort.inputs[:10], metadata=change(cohort.metadata[:10]))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("weight", [torch.ones(9), -torch.ones(10), torch.full((10,), torch.nan)])
def test_wrong_weights_are_refused_and_nothing_is_learned(cohort, weight):
    """Kills weights that broadcast, and negative ones."""
    model = make_model(cohort)
    with unchanged(model), pytest.raises(ShapeError, match="weight must be"):
        model(cohort.inputs[:10], metadata=cohort.metadata[:10], weight=weight)


def test_a_direct_call_of_the_network_is_refused(cohort):
    """Before any pass, after one, and after one that crashed.

    Kills a batch that stays behind and serves rows it does not belong to.
    """
    model = dc.normalize(make_mlp(), cohort.design, "0", cohort.inputs[:2])
    for _ in range(2):
        with unchanged(model), pytest.raises(StateError, match=r"metadata=design\.encode"):
            model.network(cohort.inputs)
        model(cohort.inputs, metadata=cohort.metadata)
    with pytest.raises(RuntimeError, match="shapes"):
        model(cohort.inputs[:, :5], metadata=cohort.metadata)
    with pytest.raises(StateError, match=r"model\.remove\(\)"):
        model.network(cohort.inputs)


class Loop(nn.Module):
    """Calls its layer as often as it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(6, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor, steps: int = 1) -> torch.Tensor:
        for _ in range(steps):
            x = self.step(x)
        return self.head(x)


def test_a_module_called_twice_later_is_refused(cohort):
    """The example called it once. Kills a layer that mixes features of two calls."""
    model = dc.normalize(Loop(), cohort.design, "step", cohort.inputs[:2])
    model(cohort.inputs, metadata=cohort.metadata, steps=1)
    with pytest.raises(StateError, match=r"'step' was called twice"):
        model(cohort.inputs, metadata=cohort.metadata, steps=2)
    model(cohort.inputs, metadata=cohort.metadata)


def test_the_signature_is_the_networks_plus_metadata_and_weight(cohort):
    """Fault 8: Hugging Face's Trainer drops columns that the signature does not name."""
    model = dc.normalize(Loop(), cohort.design, "step", cohort.inputs[:2])
    assert [*inspect.signature(model.forward).parameters] == ["x", "steps", "metadata", "weight"]
    again = copy.deepcopy(model)
    assert inspect.signature(again.forward) == inspect.signature(model.forward)


@pytest.mark.parametrize("layer", LAYERS)
def test_broken_batches_are_counted_as_skipped(cohort, layer):
    """Kills β that turns NaN for good after one overflow in the features."""
    model = make_model(cohort, layer)
    assert model.skipped() == {"0": 0, "2": 0}
    before = model.layers["0"].beta.clone()
    model(cohort.inputs[:10] * torch.inf, metadata=cohort.metadata[:10])
    if layer == "pmdn-alternating":
        model.penalty().backward()
        assert torch.isfinite(model.layers["0"].beta.grad).all()
    assert model.skipped() == {"0": 1, "2": 1}
    torch.testing.assert_close(model.layers["0"].beta, before, rtol=0, atol=0)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_checkpoint_brings_coefficients_and_design(cohort, layer):
    """Acceptance 12: strict, `weights_only=True`, into a model with another design.

    Kills a checkpoint without the design, and whitening that stays that of the old design.
    """
    model = make_model(cohort, layer)
    other = make_cohort(seed=5)
    design = dc.Design(["age", "sex"], keep=["dx"]).fit(other.table)
    fresh = dc.normalize(make_mlp(1), design, ["0", "2"], cohort.inputs[:2], layer=layer)
    with pytest.warns(DeconfoundWarning, match=r"model\.design"):
        fresh.load_state_dict(save_and_load(model.state_dict()))
    assert fresh.design.to_dict() == cohort.design.to_dict()
    torch.testing.assert_close(evaluate(fresh, cohort), evaluate(model, cohort))
    # The same design loads without a warning, and training goes on alike.
    fresh.load_state_dict(save_and_load(model.state_dict()))
    inputs, metadata = cohort.inputs[:9], cohort.metadata[:9]
    outputs = [part.train()(inputs, metadata=metadata) for part in (model, fresh)]
    torch.testing.assert_close(*outputs)


def test_a_checkpoint_of_other_places_is_refused(cohort):
    """Kills a load that ignores what does not fit."""
    model = dc.normalize(make_mlp(), cohort.design, "2", cohort.inputs[:2])
    with pytest.raises(RuntimeError, match=r"layers\.0"):
        model.load_state_dict(make_model(cohort, at="0").state_dict())


def test_a_checkpoint_of_another_design_is_refused_and_the_design_stays(cohort):
    """The model still takes its own metadata. Kills a design of one shape beside β of another."""
    model = make_model(cohort)
    wider = dc.Design(["age"]).fit(cohort.table)
    other = dc.normalize(make_mlp(), wider, ["0", "2"], cohort.inputs[:2])
    with pytest.raises(ShapeError, match="The design of the checkpoint has the columns age; that"):
        model.load_state_dict(other.state_dict())
    assert model.design.names == cohort.design.names
    assert evaluate(model, cohort).shape == (120, 1)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": lambda model: save_and_load(model, weights_only=False),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
def test_copies_are_equal_and_independent(cohort, layer, make_copy):
    """Kills a copy whose hooks still call the layers, or hold the batch, of the original."""
    model = make_model(cohort, layer)
    twin = make_copy(model)
    torch.testing.assert_close(evaluate(twin, cohort), evaluate(model, cohort))
    with unchanged(model):
        twin.train()(cohort.inputs, metadata=cohort.metadata)
        twin.refit(cohort.batches(120), prior=0)
    assert (evaluate(twin, cohort) - evaluate(model, cohort)).abs().max() > 0.01
    assert count_hooks(twin.remove()) == 0
    assert count_hooks(model.network) == 2
    model(cohort.inputs, metadata=cohort.metadata)


def test_threads_do_not_mix_their_batches(cohort):
    """Eight threads in evaluation give the numbers of one. Kills a batch shared by all threads."""
    model = make_model(cohort).eval()
    batches = cohort.batches(15)
    assert len(batches) == 8
    expected = [model(inputs, metadata=metadata) for inputs, metadata in batches]

    # All threads are within the network at the same time.
    barrier = threading.Barrier(8, timeout=60)

    def wait(*_):
        barrier.wait()

    handle = model.network[0].register_forward_pre_hook(wait)

    def run(index):
        inputs, metadata = batches[index]
        return model(inputs, metadata=metadata)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run, range(8)))
    handle.remove()
    for ours, output in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, output)


def test_the_mode_and_the_precision_of_the_model_reach_its_layers(cohort):
    """Kills layers outside the module tree."""
    network = make_mlp().eval()
    model = dc.normalize(network, cohort.design, "0", cohort.inputs[:2])
    assert not model.training
    assert not model.layers["0"].training
    model.train().double()
    assert model.layers["0"].training
    assert model(cohort.inputs.double(), metadata=cohort.metadata).dtype == torch.float64


def test_the_literal_form_trains_in_two_passes(cohort):
    """`alternating_step` finds the layers and their penalty. Kills β without gradients."""
    model = dc.normalize(
        make_mlp(), cohort.design, "0", cohort.inputs[:2], layer="pmdn-alternating"
    )
    network, coefficients = split_parameters(model)
    assert len(network) == 4
    optimizers = torch.optim.SGD(network, 0.1), torch.optim.SGD(coefficients, 0.5)

    def closure():
        logits = model(cohort.inputs, metadata=cohort.metadata)
        return nn.functional.binary_cross_entropy_with_logits(logits[:, 0], cohort.target)

    losses = [alternating_step(model, closure, *optimizers) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert model.layers["0"].beta.abs().max() > 0.1
    torch.testing.assert_close(model.penalty(), model.layers["0"].penalty)
    with pytest.raises(OptionError, match="'pmdn'"):
        make_model(cohort).penalty()
