"""Leaving Python: torch.export, ONNX, and inference where torch is not installed."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.layers import functional
from tests.conftest import make_table

LAYERS = ["mdn", "pmdn", "rmdn"]
GUIDES = Path(__file__).parents[2] / "docs" / "guides"

# Torch's exporter copies its own deprecated class, and gives the two inputs one axis name on purpose.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:# The axis name. batch will not be used:UserWarning"),
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.fc1 = nn.Linear(3 * 4 * 4, 5)
        self.fc2 = nn.Linear(5, 2)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(torch.relu(self.conv(x)).flatten(1))))


@pytest.fixture(scope="module")
def table():
    return make_table(300)


def trained(layer, table, **options):
    torch.manual_seed(0)
    design = dc.Design(confounds=["age", "sex", "site"], keep=["dx"]).fit(table)
    images = torch.randn(300, 1, 6, 6) + torch.from_numpy(design.encode(table))[:, :1, None, None]
    network = Net()
    model = dc.normalize(network, design, at=["conv", "fc1", "fc2"], layer=layer, example=images[:2], **options)
    for rows in torch.arange(300).split(50):
        metadata = design.encode({name: column[rows] for name, column in table.items()})
        model(images[rows], metadata=metadata).square().mean().backward()
    return model.eval(), images, torch.from_numpy(design.encode(table))


class Called(nn.Module):
    """The model with both inputs by position, as tracing wants them."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, metadata):
        return self.model(images, metadata=metadata)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_traced_model_gives_the_numbers_of_eager_and_scripts_are_refused_as_the_guide_says(table, monkeypatch):
    model, images, metadata = trained("pmdn", table)
    traced = torch.jit.trace(Called(model), (images[:4], metadata[:4]))
    with torch.no_grad():
        torch.testing.assert_close(traced(images, metadata), model(images, metadata=metadata))
    monkeypatch.setattr(functional, "FEW_NUMBERS", 0)  # as with wide features, whose products go by parts
    monkeypatch.setattr(functional, "MANY_NUMBERS", 0)
    with torch.no_grad():
        wide = torch.jit.trace(Called(model), (images[:40], metadata[:40]))
        for n in (7, 33, 40, 300):
            torch.testing.assert_close(wide(images[:n], metadata[:n]), model(images[:n], metadata=metadata[:n]))
    with pytest.raises(ValueError, match="Unknown type annotation"):
        torch.jit.script(model)
    assert "`torch.jit.script` is not supported" in (GUIDES / "attach.md").read_text()


def shapes():
    batch = torch.export.Dim("batch")
    return {"inputs": ({0: batch},), "metadata": {0: batch}}


@pytest.mark.parametrize("options", [{}, {"share": "positions"}])
@pytest.mark.parametrize("layer", LAYERS)
def test_an_exported_program_takes_any_number_of_rows(table, layer, options):
    model, images, metadata = trained(layer, table, **options)
    program = torch.export.export(model, (images[:4],), {"metadata": metadata[:4]}, dynamic_shapes=shapes())
    for n in (2, 4, 33):
        got = program.module()(images[:n], metadata=metadata[:n])
        torch.testing.assert_close(got, model(images[:n], metadata=metadata[:n]))
    other = program.module()(images[:4], metadata=metadata[4:8])
    assert not torch.allclose(other, program.module()(images[:4], metadata=metadata[:4]), atol=1e-3)


@pytest.mark.parametrize("layer", LAYERS)
def test_onnx_gives_the_outputs_of_torch_for_any_number_of_rows(table, layer, tmp_path):
    model, images, metadata = trained(layer, table)
    to_onnx(model, images, metadata, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for n in (1, 4, 33):
        (got,) = session.run(None, {"image": images[:n].numpy(), "metadata": metadata[:n].numpy()})
        assert np.abs(got - model(images[:n], metadata=metadata[:n]).detach().numpy()).max() <= 1e-5


def to_onnx(model, images, metadata, file):
    torch.onnx.export(
        model,
        (images[:4],),
        file,
        kwargs={"metadata": metadata[:4]},
        input_names=["image", "metadata"],
        dynamic_shapes=shapes(),
        dynamo=True,
        verbose=False,
    )


def test_inference_needs_onnxruntime_numpy_and_the_designs_json_alone(table, tmp_path):
    model, images, metadata = trained("pmdn", table)
    to_onnx(model, images, metadata, tmp_path / "model.onnx")
    (tmp_path / "design.json").write_text(model.design.to_json())
    np.save(tmp_path / "images.npy", images[:7].numpy())
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        import numpy as np
        import onnxruntime
        from deconfound.design import Design

        design = Design.from_json(Path("design.json").read_text())
        people = {"age": [61.0, 70.5, 48.0, 80.0, 55.0, 66.0, 72.0], "sex": list("FMFMFMF"), "site": list("ABCABCA")}
        session = onnxruntime.InferenceSession("model.onnx")
        (logits,) = session.run(None, {"image": np.load("images.npy"), "metadata": design.encode(people)})
        np.save("logits.npy", logits)
        assert "torch" not in sys.modules, "torch was imported"
    """)
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60)
    people = {"age": [61.0, 70.5, 48.0, 80.0, 55.0, 66.0, 72.0], "sex": list("FMFMFMF"), "site": list("ABCABCA")}
    expected = model(images[:7], metadata=model.design.encode(people)).detach().numpy()
    assert np.abs(np.load(tmp_path / "logits.npy") - expected).max() <= 1e-5
