"""The networks that come with the library."""

import sys
from collections import OrderedDict

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from torch import nn

import deconfound as dc
from deconfound.errors import DeconfoundWarning, OptionError
from deconfound.networks import ResNet3D, ResNet18, build_network, load_weights
from deconfound.networks.pretrained import weights_digest


@pytest.mark.parametrize("halving", ["pool", "stride"])
def test_every_block_of_the_3d_network_halves_the_image(halving):
    network = ResNet3D(16, (3, 6, 9, 6), (5, 4), 2, halving=halving)
    edges = []
    for block in network.blocks:
        block.register_forward_hook(lambda module, inputs, output: edges.append(output.shape[-1]))
    assert network(torch.randn(2, 1, 16, 16, 16)).shape == (2, 2)
    assert edges == [8, 4, 2, 1]


def test_a_strided_block_reads_every_voxel():
    network = ResNet3D(16, (3, 6, 9, 6), (5, 4), 2, halving="stride")
    image = torch.randn(1, 1, 16, 16, 16, requires_grad=True)
    network.blocks[0].conv1(image).square().sum().backward()
    assert (image.grad != 0).all()


def test_an_unknown_halving_is_refused():
    with pytest.raises(OptionError, match="halving must be 'pool' or 'stride'; got 'mean'"):
        ResNet3D(halving="mean")


SHAPES = {
    "mlp": (7,),
    "cnn1d": (2, 30),
    "cnn2d": (3, 9, 14),
    "resnet18": (1, 33, 40),
    "resnet3d": (1, 16, 16, 16),
    "synthetic_cnn": (1, 32, 32),
    "monai:DenseNet121": (1, 32, 32),
    "hf:vit": (3, 16, 16),
}
VIT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "patch_size": 8}
SMALL = {
    "resnet18": {"width": 4},
    "resnet3d": {"filters": [2, 2, 2, 2]},
    "monai:DenseNet121": {"init_features": 4, "growth_rate": 4, "block_config": [1, 1]},
    "hf:vit": VIT,
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_layer_at_the_default_places_takes_the_confound_out_of_the_logits_of_each_network(name):
    """On a batch that MDN has fitted, least squares leaves a residual that no regressor explains."""
    random = np.random.default_rng(0)
    age = random.normal(60, 9, 40)
    x = torch.from_numpy(random.normal(size=(40, *SHAPES[name]))).float()
    x += torch.from_numpy((age - 30) / 9).float().reshape(-1, *[1] * len(SHAPES[name]))
    torch.manual_seed(0)
    network = build_network(name, SHAPES[name], 1, SMALL.get(name, {}))
    design = dc.Design(["age"]).fit({"age": age})
    with torch.no_grad():
        plain = network.train()(x).reshape(-1).numpy()
        model = dc.normalize(network, design, layer="mdn", example=x, gram="batch")
        normalised = model.train()(x, metadata=design.encode({"age": age})).reshape(-1).numpy()
    assert model.plan.places
    assert abs(np.corrcoef(plain, age)[0, 1]) > 0.1
    assert abs(np.corrcoef(normalised, age)[0, 1]) < 1e-4


def test_the_names_of_the_2d_residual_network_are_those_of_published_weights():
    names = set(ResNet18().state_dict())
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer2.0.downsample.0.weight"} <= names
    assert {"layer2.0.downsample.1.bias", "layer4.1.bn2.weight", "fc.weight", "fc.bias"} <= names
    assert sum(p.numel() for p in ResNet18(3, 1000).parameters()) == 11_689_512  # as torchvision counts


@pytest.mark.parametrize(
    ("name", "shape", "options", "text"),
    [
        ("cnn2d", (3, 9), {}, r"'cnn2d' must have samples of shape \(channels, height, width\); got \(3, 9\)"),
        ("cnn1d", (3,), {}, r"'cnn1d' must have samples of shape \(channels, length\); got \(3,\)"),
        ("cnn2", (3, 9, 9), {}, "or package.module:callable; got 'cnn2'. Did you mean 'cnn2d'"),
        ("cnn2d", (3, 9, 9), {"filter": [2]}, "must be among: filters, hidden, dropout; got 'filter'. Did you mean"),
        ("monai:DensNet121", (1, 32, 32), {}, "one that the package has; got 'monai:DensNet121'. Did you mean"),
        ("monai:DenseNet121", (1, 32, 32), {"depth": 3}, "network.options must build 'monai:DenseNet121'"),
        ("monai:UNet", (1, 16, 16), {"channels": [2, 4], "strides": [2]}, "must return one row of 1 logits"),
        ("hf:vti", (3, 16, 16), {}, "Did you mean 'vit'. Nothing is downloaded"),
        ("hf:bert", (3, 16, 16), {}, "network.options must build 'hf:bert'"),
        ("hf:vit", (7,), {}, r"'hf:vit' must have images of shape \(channels, height, width\)"),
    ],
)
def test_a_network_that_cannot_be_is_refused_by_name(name, shape, options, text):
    with pytest.raises(OptionError, match=text):
        build_network(name, shape, 1, options)


@pytest.mark.parametrize(
    ("package", "name"), [("monai.networks.nets", "monai:DenseNet121"), ("transformers", "hf:vit")]
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(monkeypatch, package, name):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(OptionError, match=rf"must be installed .* 'deconfound\[{name.split(':')[0]}\]'"):
        build_network(name, (3, 16, 16), 1, {})


def test_a_folder_that_transformers_saved_is_built_with_its_weights_and_a_head_that_differs_is_left_new(tmp_path):
    made = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, **VIT, num_labels=4))
    made.save_pretrained(tmp_path)
    with pytest.warns(DeconfoundWarning, match="left new: classifier.bias, classifier.weight"):
        network = build_network(f"hf:{tmp_path}", (3, 16, 16), 1, {})
    projection = made.vit.embeddings.patch_embeddings.projection.weight
    assert torch.equal(network.model.vit.embeddings.patch_embeddings.projection.weight, projection)
    with pytest.raises(OptionError, match=r"must fit its weights below the head; got vit\.embeddings"):
        build_network(f"hf:{tmp_path}", (3, 16, 16), 1, {"hidden_size": 8})
    first = weights_digest(f"hf:{tmp_path}", None)
    (tmp_path / "model.safetensors").unlink()
    assert first is not None
    assert weights_digest(f"hf:{tmp_path}", None) is None
    fresh = build_network(f"hf:{tmp_path}", (3, 16, 16), 1, {})
    assert not torch.equal(fresh.model.vit.embeddings.patch_embeddings.projection.weight, projection)


def test_weights_of_a_body_are_found_below_the_module_that_they_fit(tmp_path):
    path = tmp_path / "w.safetensors"
    saved(path)
    body = {name: values for name, values in safetensors.torch.load_file(path).items() if not name.startswith("fc")}
    safetensors.torch.save_file({"odd": torch.zeros(1), **body}, path)
    network = nn.Sequential(OrderedDict(body=ResNet18(1, 7, 4), out=nn.Linear(7, 1)))
    network.body.fc = nn.Identity()
    with pytest.warns(DeconfoundWarning, match=r"out is left new \(no out.weight, no out.bias\); .* no place for odd"):
        load_weights(network, path)
    assert torch.equal(network.body.conv1.weight, body["conv1.weight"])


def saved(path, **options):
    network = build_network("resnet18", (1, 16, 16), 1, {"width": 4, **options})
    safetensors.torch.save_file(network.state_dict(), path)
    return network


def test_weights_of_a_file_are_loaded_and_only_a_head_may_differ(tmp_path):
    path = tmp_path / "w.safetensors"
    torch.manual_seed(1)
    there = saved(path)
    torch.manual_seed(2)
    same = build_network("resnet18", (1, 16, 16), 1, {"width": 4}, str(path))
    assert all(torch.equal(a, b) for a, b in zip(there.state_dict().values(), same.state_dict().values(), strict=True))
    with pytest.warns(DeconfoundWarning, match=r"fc is left new \(fc.weight \(1, 32\) for \(3, 32\), fc.bias"):
        other = build_network("resnet18", (1, 16, 16), 3, {"width": 4}, str(path))
    assert torch.equal(there.layer4[1].conv2.weight, other.layer4[1].conv2.weight)
    with pytest.raises(OptionError, match=r"below its last linear layer; got conv1.weight \(4, 1, 7, 7\) for \(4, 3"):
        build_network("resnet18", (3, 16, 16), 1, {"width": 4}, str(path))
    (tmp_path / "text").write_text("no weights")
    with pytest.raises(OptionError, match=r"must be a safetensors file; got .*Other formats can hold code"):
        build_network("resnet18", (1, 16, 16), 1, {"width": 4}, str(tmp_path / "text"))
    with pytest.raises(OptionError, match=r"must be a file; got .*where there is none"):
        build_network("resnet18", (1, 16, 16), 1, {"width": 4}, "absent.safetensors")


def test_frozen_stages_do_not_change_while_the_others_learn():
    network = build_network("resnet18", (1, 16, 16), 1, {"width": 4}, frozen=("conv1", "bn1", "layer[12]"))
    before = {name: values.clone() for name, values in network.state_dict().items()}
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(2):
        network.train()(torch.randn(8, 1, 16, 16)).square().sum().backward()
        optimizer.step()
    changed = {name for name, values in network.state_dict().items() if not torch.equal(values, before[name])}
    assert not {name for name in changed if name.startswith(("conv1", "bn1", "layer1", "layer2"))}
    assert {"layer3.0.conv1.weight", "layer3.0.bn1.running_mean", "fc.weight"} <= changed


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("layer9", "network.freeze must match modules of the network; got 'layer9'"),
        ("*", "must leave something to train"),
    ],
)
def test_stages_that_cannot_be_frozen_are_refused(names, text):
    with pytest.raises(OptionError, match=text):
        build_network("resnet18", (1, 16, 16), 1, {"width": 4}, frozen=(names,))
