"""Every kind of network: the confound is in the features without the layers and leaves with them; the label stays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.networks import ResNet3D
from tests.surgery.confounded import (
    Outcome,
    Probed,
    auc,
    image_inputs,
    people,
    probe,
    run,
    sequence_inputs,
    table_inputs,
    token_inputs,
    train,
)

# β learned from n people errs so that a probe of d features finds R² = d / n in other people, and a network that has
# learned its training people by heart shows their confound otherwise than other people's: many people, few epochs.
TRAINED_ON = 6000


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(4, 12, batch_first=True)
        self.fc1 = nn.Linear(12, 8)
        self.fc2 = nn.Linear(8, 1)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(self.rnn(x)[0][:, -1])))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.fc1 = nn.Linear(16, 8)
        self.fc2 = nn.Linear(8, 1)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(self.encoder(self.embed(x)).mean(1))))


def mlp():
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(150, 16), nn.ReLU(), nn.Linear(16, 1)
    )


def hugging_face_vit():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=12,
        patch_size=4,
        num_channels=1,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=1,
    )
    return transformers.ViTForImageClassification(config)


def hugging_face_bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=5,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForSequenceClassification(config)


def monai_densenet():
    pytest.importorskip("monai")
    from monai.networks.nets import DenseNet

    return DenseNet(3, 1, 1, init_features=8, growth_rate=4, block_config=(2, 2))


def monai_vit():
    pytest.importorskip("monai")
    pytest.importorskip("einops")
    from monai.networks.nets import ViT

    return ViT(1, (12, 12, 12), (6, 6, 6), 16, 32, 2, 2, classification=True, num_classes=1, post_activation=None)


@dataclass(frozen=True)
class Case:
    network: Callable[[], nn.Module]
    inputs: Callable[..., torch.Tensor]
    at: list[str]
    probed: str
    where: str = "after"
    training: dict[str, Any] = field(default_factory=dict)
    people: int = TRAINED_ON


online = {"batch": 1}
long = {"epochs": 2}
CASES = {
    "mlp": Case(mlp, table_inputs, ["0", "2", "4"], "2"),
    "cnn": Case(cnn, image_inputs, ["4", "6"], "4"),
    "resnet3d": Case(
        lambda: ResNet3D(16, (3, 6, 9, 6), (16, 8), 1),
        partial(image_inputs, rank=3, size=16),
        ["fc1", "fc2", "fc3"],
        "fc2",
    ),
    "lstm": Case(lambda: Recurrent(nn.LSTM), sequence_inputs, ["fc1", "fc2"], "fc1", training=online, people=2000),
    "gru": Case(lambda: Recurrent(nn.GRU), sequence_inputs, ["fc1", "fc2"], "fc1", training=online, people=2000),
    "transformer": Case(Encoder, sequence_inputs, ["fc1", "fc2"], "fc1"),
    "hugging face vit": Case(hugging_face_vit, image_inputs, ["classifier"], "classifier", "before", long, 12000),
    "hugging face bert": Case(hugging_face_bert, token_inputs, ["classifier"], "classifier", "before", long, 12000),
    "monai densenet": Case(
        monai_densenet, partial(image_inputs, rank=3), ["class_layers.out"], "class_layers.out", "before"
    ),
    "monai vit": Case(
        monai_vit,
        partial(image_inputs, rank=3),
        ["classification_head"],
        "classification_head",
        "before",
        long,
    ),
}


def outcome(case, layer):
    torch.manual_seed(0)
    who, free = people(case.people, seed=1), people(1000, seed=3, tied=False)
    design = dc.Design(confounds=["age"], keep=["dx"]).fit(who.table)
    options = {} if layer is None else {"at": case.at, "layer": layer, "where": case.where}
    model = train(case.network(), case.inputs(who, seed=4), design, who, **case.training, **options)
    if layer is not None:
        held_out = people(case.people, seed=7)
        model.refit([(case.inputs(held_out, seed=8), torch.from_numpy(design.encode(held_out.table)))])
    probed = []
    for seed in (2, 102, 202):
        tied = people(500, seed=seed)
        _, features = run(model, case.inputs(tied, seed=seed + 3), tied, case.probed, case.where)
        probed.append(Probed(*probe(features, tied)))
    logits, _ = run(model, case.inputs(free, seed=6), free, case.probed, case.where)
    return Outcome(probed, auc(logits, free.label))


def above_chance(groups):
    excess = sum(group.r2 - group.chance for group in groups)
    return excess / sum(group.spread**2 for group in groups) ** 0.5


# A network of each kind stays: bert for the transformers of packages, lstm for recurrent ones.
SLOW = {"resnet3d", "gru", "hugging face vit", "monai vit"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES])
def test_the_confound_leaves_and_the_label_stays(name):
    case = CASES[name]
    control, treated = outcome(case, None), outcome(case, "pmdn")
    # Three groups of people tell more than each: the mean of what is found, in standard errors of what chance gives.
    assert above_chance(treated.probed) < 3
    assert above_chance(control.probed) > 15
    assert all(group.r2 >= 0.3 for group in control.probed)
    assert treated.auc >= control.auc
