"""`torch.export` and ONNX: the model leaves Python with its layers inside."""

import io

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import deconfound as dc
from tests.attach.cohort import make_mlp

BATCH = torch.export.Dim("batch")


def make_cnn():
    """Return a small network of signals 6 long, with an in-place ReLU."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.ReLU(True), nn.Flatten(), nn.Linear(16, 1)
    )


CASES = [(make_mlp, ("0", "2"), layer) for layer in ("pmdn", "mdn", "rmdn", "pmdn-alternating")]
CASES.append((make_cnn, ("1", "4"), "pmdn"))


def make_exportable(cohort, make_network, at, layer):
    """Return a refitted model in evaluation mode, and outputs of the plain network."""
    network = make_network()
    plain = network(cohort.inputs)
    model = dc.normalize(network, cohort.design, at, cohort.inputs[:2], layer=layer)
    model.refit([(cohort.inputs, cohort.metadata)], prior=0)
    return model.eval(), plain


@pytest.mark.parametrize(("make_network", "at", "layer"), CASES)
def test_an_exported_program_takes_any_batch_size(cohort, make_network, at, layer):
    """Kills a batch size that is fixed by `len(x)`, and layers that export leaves out."""
    model, plain = make_exportable(cohort, make_network, at, layer)
    program = torch.export.export(
        model,
        (cohort.inputs[:5],),
        {"metadata": cohort.metadata[:5]},
        dynamic_shapes=({0: BATCH}, {0: BATCH}),
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    exported = torch.export.load(file).module()
    for rows in (1, 5, 120):
        inputs, metadata = cohort.inputs[:rows], cohort.metadata[:rows]
        expected = model(inputs, metadata=metadata)
        torch.testing.assert_close(exported(inputs, metadata=metadata), expected)
    assert (expected - plain).abs().max() > 0.1  # the positive control


# Torch's exporter warns that both inputs share the one dimension, which is the point.
@pytest.mark.filterwarnings("ignore:# The axis name")
@pytest.mark.parametrize(("make_network", "at", "layer"), [CASES[0], CASES[-1]])
def test_onnx_runs_without_torch_and_agrees(cohort, tmp_path, make_network, at, layer):
    """Acceptance 13: to 1e-5, with any batch size and without labels. Kills a fixed batch."""
    model, plain = make_exportable(cohort, make_network, at, layer)
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        model,
        (cohort.inputs[:5],),
        path,
        kwargs={"metadata": cohort.metadata[:5]},
        dynamic_shapes=({0: BATCH}, {0: BATCH}),
        input_names=["inputs", "metadata"],
        verbose=False,
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    unlabelled = cohort.design.encode(cohort.table[["age", "sex"]])
    for rows in (1, 120):
        feed = {"inputs": cohort.inputs[:rows].numpy(), "metadata": unlabelled[:rows]}
        (output,) = session.run(None, feed)
        expected = model(cohort.inputs[:rows], metadata=unlabelled[:rows]).detach().numpy()
        np.testing.assert_allclose(output, expected, atol=1e-5)
    assert np.abs(output - plain.detach().numpy()).max() > 0.1
