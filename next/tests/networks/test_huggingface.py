"""Image classifiers of transformers, saved to a folder and loaded without a network connection."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.nn.functional import interpolate

import deconfound as dc
from deconfound.errors import DeconfoundError, OptionError
from deconfound.networks import HuggingFaceClassifier, build
from tests.helpers import encode, fit_design, make_people

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Any request to the hub fails at once."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A ViT of 16 × 16 images with three labels, in half precision."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    images = {"intermediate_size": 16, "image_size": 16, "patch_size": 8, "num_labels": 3}
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, **images))
    folder = str(tmp_path_factory.mktemp("vit"))
    model.half().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """A ResNet with two labels, which reads images of any size."""
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    torch.manual_seed(0)
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))
    folder = str(tmp_path_factory.mktemp("resnet"))
    model.save_pretrained(folder)
    return folder


def test_the_saved_model_s_logits_are_returned(vit):
    """With as many outputs as labels even the head is the saved one. Kills a head that is new."""
    network = build("huggingface", (3, 16, 16), 3, {"model": vit}).eval()
    saved = transformers.ViTForImageClassification.from_pretrained(vit).float().eval()
    x = torch.randn(4, 3, 16, 16)
    expected = saved(pixel_values=x).logits
    torch.testing.assert_close(network(x), expected, atol=1e-5, rtol=1e-5)


def test_another_number_of_outputs_has_a_new_head_on_the_saved_body(vit):
    """Kills a body that is not loaded; training needs single precision."""
    network = HuggingFaceClassifier((3, 16, 16), 1, model=vit)
    assert network(torch.randn(2, 3, 16, 16)).shape == (2, 1)
    saved = transformers.ViTForImageClassification.from_pretrained(vit).float().vit.state_dict()
    for name, value in network.model.vit.state_dict().items():
        torch.testing.assert_close(value, saved[name])
        assert value.dtype == torch.float32
    assert all(module.training for module in network.modules())


def test_images_are_resized_only_for_a_model_that_needs_its_own_size(vit, resnet):
    network = HuggingFaceClassifier((3, 40, 24), 3, model=vit).eval()
    assert network.size == (16, 16)
    x = torch.randn(2, 3, 40, 24)
    small = interpolate(x, (16, 16), mode="bilinear", antialias=True)
    expected = network.model(pixel_values=small).logits
    torch.testing.assert_close(network(x), expected, atol=1e-5, rtol=1e-5)
    assert HuggingFaceClassifier((3, 16, 16), 3, model=vit).size is None
    assert HuggingFaceClassifier((3, 40, 24), 2, model=resnet).size is None


def test_grey_images_are_repeated_for_three_channels(resnet):
    network = HuggingFaceClassifier((1, 30, 30), 2, model=resnet).eval()
    x = torch.randn(2, 1, 30, 30)
    expected = network.model(pixel_values=torch.cat([x, x, x], dim=1)).logits
    torch.testing.assert_close(network(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_the_head_is_where_layers_go_by_default(kind, request):
    """Kills a default that puts layers on every token of a transformer."""
    folder = request.getfixturevalue(kind)
    _, table = make_people(12)
    design = fit_design(table, confounds=["age"])
    network = HuggingFaceClassifier((1, 32, 32), 2, model=folder)
    assert (
        network.default_at
        == {
            "vit": ("model.classifier",),
            "resnet": ("model.classifier.1",),
        }[kind]
    )
    x = torch.randn(12, 1, 32, 32)
    model = dc.normalize(network, design, at=network.default_at, example=x[:2])
    assert model(x, metadata=encode(design, table).float()).shape == (12, 2)


def test_models_that_cannot_be_used_are_refused(vit, tmp_path):
    """A config without weights, other weights, a wrong path, too many channels, no image."""
    transformers.ViTConfig(hidden_size=8).save_pretrained(tmp_path / "config")
    saved = transformers.ViTForImageClassification.from_pretrained(vit)
    torch.save(saved.state_dict(), tmp_path / "config" / "pytorch_model.bin")
    deeper = transformers.ViTForImageClassification.from_pretrained(vit)
    state = {key: value for key, value in deeper.state_dict().items() if "embeddings" not in key}
    deeper.save_pretrained(tmp_path / "holes", state_dict=state)
    cases = [
        ((3, 16, 16), str(tmp_path / "config"), "cannot be loaded"),
        ((3, 16, 16), str(tmp_path / "holes"), "weights below its head, such as vit.embeddings"),
        ((3, 16, 16), str(tmp_path / "absent"), "Write a folder that save_pretrained wrote"),
        ((4, 16, 16), vit, r"reads images with 3 channels, and cannot read shape \(4, 16, 16\)"),
        ((16,), vit, r"reads samples of shape \(channels, height, width\); got \(16,\)"),
    ]
    for shape, model, text in cases:
        with pytest.raises(OptionError, match=text):
            HuggingFaceClassifier(shape, 1, model=model)


def test_code_of_a_model_is_never_run(vit, tmp_path):
    """Kills `trust_remote_code=True`: the folder's own class would write a file."""
    folder = tmp_path / "remote"
    config = transformers.ViTConfig.from_pretrained(vit)
    config.auto_map = {"AutoModelForImageClassification": "own.Own"}
    config.model_type = "not-a-known-type"
    config.save_pretrained(folder)
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    with pytest.raises(OptionError):
        HuggingFaceClassifier((3, 16, 16), 1, model=str(folder))
    assert not (tmp_path / "ran").exists()


def test_without_transformers_the_error_shows_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DeconfoundError, match=r"pip install 'deconfound\[hf\]'"):
        HuggingFaceClassifier((3, 16, 16), 1, model="anything")
