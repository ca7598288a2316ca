"""`erase` in a network: no metadata at inference, by any way out of Python."""

import copy

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import deconfound as dc
from deconfound.errors import DeconfoundWarning, OptionError, ShapeError
from tests.conftest import make_cohort
from tests.surgery.test_compile import step


def attach(design, at=("0",), where="after"):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
    return dc.normalize(network, design, at=at, layer="erase", where=where, example=torch.zeros(2, 5))


@pytest.fixture
def trained(cohort):
    model = attach(cohort.design)
    for rows in torch.arange(cohort.n).split(50):
        step(model, model, cohort.features[rows].float(), cohort.metadata[rows].float())
    return model.eval()


def test_eval_needs_no_metadata_and_training_does(cohort, trained):
    x = cohort.features.float()
    assert torch.equal(trained(x), trained(x, metadata=cohort.metadata))
    assert not torch.allclose(
        trained(x), trained.network[2](torch.relu(nn.functional.linear(x, *trained.network[0].parameters())))
    )
    with pytest.raises(ShapeError, match="metadata must be given; got none"):
        trained.train()(x)


def test_before_the_last_layer_no_output_follows_a_confound_within_any_label(cohort):
    model = attach(cohort.design, at=["2"], where="before").double()
    parts = [(cohort.features[r], cohort.metadata[r]) for r in torch.arange(cohort.n).split(150)]

    def strongest():
        scores, dx = model.eval()(cohort.features).detach().numpy()[:, 0], cohort.table["dx"]
        z = cohort.metadata.numpy()[:, : cohort.confounds]
        return max(abs(np.corrcoef(scores[dx == g], z[dx == g][:, j])[0, 1]) for g in (0, 1) for j in range(z.shape[1]))

    assert strongest() > 0.2  # the control: nothing is fitted yet
    model.refit(parts, prior=0)
    assert strongest() < 1e-8


def test_a_refit_lets_the_moments_of_training_count_for_so_many_rows(cohort):
    def refitted(prior, parts):
        model = attach(cohort.design).double()
        model(cohort.features[:200], metadata=cohort.metadata[:200])
        before = copy.deepcopy(model.state_dict())
        with model.refitted(parts, prior=prior):
            found = model.layers["0"].beta.clone(), model.layers["0"].report().rows
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        return found

    parts = [(cohort.features[r], cohort.metadata[r]) for r in torch.arange(200, 400).split(70)]
    both = [(cohort.features, cohort.metadata)]
    (counted, rows), (pooled, of_all) = refitted(200, parts), refitted(0, both)
    assert rows == of_all == pytest.approx(400)
    torch.testing.assert_close(counted, pooled)
    assert not torch.allclose(refitted(0, parts)[0], pooled, atol=1e-3)


def test_the_whole_graph_compiles_once_for_train_and_once_for_eval(cohort):
    torch._dynamo.reset()
    eager = attach(cohort.design)
    model = copy.deepcopy(eager)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    x, metadata = cohort.features.float(), cohort.metadata.float()
    for rows in torch.arange(cohort.n).split(50):
        got = step(compiled, model, x[rows], metadata[rows])
        torch.testing.assert_close(got, step(eager, eager, x[rows], metadata[rows]), atol=1e-4, rtol=1e-4)
    assert counter.frame_count == 1
    model.eval()
    eager.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x[:50]), eager(x[:50]), atol=1e-4, rtol=1e-4)
        compiled(x[50:100])
    assert counter.frame_count == 2


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_onnx_takes_the_inputs_alone_and_gives_the_outputs_of_torch(cohort, trained, tmp_path):
    x = cohort.features.float()
    shapes = {"inputs": ({0: torch.export.Dim("batch")},)}
    torch.onnx.export(
        trained, (x[:4],), tmp_path / "m.onnx", input_names=["x"], dynamic_shapes=shapes, dynamo=True, verbose=False
    )
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert [given.name for given in session.get_inputs()] == ["x"]
    for n in (1, 33):
        (got,) = session.run(None, {"x": x[:n].numpy()})
        assert np.abs(got - trained(x[:n]).detach().numpy()).max() <= 1e-5


def test_a_checkpoint_loads_into_a_model_that_waits_for_its_first_forward(cohort, trained, tmp_path):
    torch.save(trained.state_dict(), tmp_path / "model.pt")
    other = make_cohort(90, seed=7)
    network = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
    twin = dc.normalize(network, other.design, at="0", layer="erase")
    with pytest.warns(DeconfoundWarning, match="brings the design"):
        twin.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True), strict=True)
    x = cohort.features.float()
    assert torch.equal(twin.eval()(x), trained(x))


def test_places_of_which_nothing_would_be_left_are_refused_or_passed_over(cohort):
    with pytest.raises(OptionError, match=r"at least 9 for layer='erase', which takes 8 directions away; got 1 at '2'"):
        attach(cohort.design, at=["0", "2"])
    assert [place.path for place in attach(cohort.design, at=None).plan.places] == ["0"]
