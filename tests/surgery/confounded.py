"""Data with a label and a confound that go together, inputs that carry both, and what a network makes of them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import deconfound as dc

# Label and confound correlate by .6 where they are tied.
SLOPE = 1.5


@dataclass(frozen=True)
class People:
    """Who is in a data set.

    Attributes:
        label: 0 or 1.
        age: The confound, in years.
        sign: What the inputs show of the label.
        look: What the inputs show of the confound: its standard score with some noise.
    """

    label: torch.Tensor
    age: torch.Tensor
    sign: torch.Tensor
    look: torch.Tensor

    @property
    def table(self):
        return {"age": self.age.numpy(), "dx": self.label.numpy()}


def people(n, seed, tied=True):
    """Draw people; untied, the confound has the same spread and nothing to do with the label."""
    rng = torch.Generator().manual_seed(seed)
    label = torch.arange(n) % 2
    normal = torch.randn(3, n, generator=rng)
    spread = (1 + SLOPE**2 / 4) ** 0.5
    confound = SLOPE * (label - 0.5) + normal[0] if tied else spread * normal[0]
    confound = confound / spread
    sign = SLOPE * (label - 0.5) + normal[1]
    return People(label, 65 + 8 * confound, sign, confound + 0.3 * normal[2])


def table_inputs(who, seed):
    """`(n, 10)`: the two signals and noise, mixed by one rotation."""
    rng = torch.Generator().manual_seed(seed)
    mix, _ = torch.linalg.qr(torch.randn(10, 10, generator=torch.Generator().manual_seed(99)))
    noise = torch.randn(len(who.label), 8, generator=rng)
    return torch.cat([who.sign[:, None], who.look[:, None], noise], 1) @ mix


def image_inputs(who, seed, rank=2, size=12):
    """`(n, 1, size, …)`: two bumps in opposite corners, as high as the signals, and noise."""
    rng = torch.Generator().manual_seed(seed)
    axis = torch.arange(size)
    near, far = (torch.exp(-0.5 * ((axis - at * size) / (0.12 * size)) ** 2) for at in (0.25, 0.75))
    image = torch.zeros(len(who.label), *[size] * rank)
    for signal, bump in ((who.sign, near), (who.look, far)):
        shape = bump
        for _ in range(rank - 1):
            shape = shape[..., None] * bump
        image += signal.reshape(-1, *[1] * rank) * shape
    return (image + 0.1 * torch.randn(image.shape, generator=rng))[:, None]


def sequence_inputs(who, seed, length=6):
    """`(n, length, 4)`: the signals rise and fall over time on mixed channels, with noise."""
    rng = torch.Generator().manual_seed(seed)
    time = torch.linspace(0.5, 1, length)
    courses = torch.stack([time, time.flip(0)], 1)
    mix = torch.tensor([[1.0, 0.5, 0.0, -0.5], [0.5, -1.0, 0.5, 0.0]])
    signals = torch.stack([who.sign, who.look], 1)[:, None] * courses
    return signals @ mix + 0.3 * torch.randn(len(who.label), length, 4, generator=rng)


def token_inputs(who, seed, length=48):
    """`(n, length)` words: half of the places hold word 1 or 2 by the sign, half 3 or 4 by the look."""
    rng = torch.Generator().manual_seed(seed)
    chance = torch.rand(len(who.label), length, generator=rng)
    half = length // 2
    by_sign = 1 + (chance[:, :half] < torch.sigmoid(1.5 * who.sign)[:, None]).long()
    by_look = 3 + (chance[:, half:] < torch.sigmoid(1.5 * who.look)[:, None]).long()
    return torch.cat([by_sign, by_look], 1)


@dataclass(frozen=True)
class Probed:
    """What a probe finds of the confound in the features of some people.

    Attributes:
        r2: R² of a cross-validated linear probe for the confound within label groups.
        chance: The mean of the same probe where the confound is permuted within label groups.
        spread: And its standard deviation.
    """

    r2: float
    chance: float
    spread: float


@dataclass(frozen=True)
class Outcome:
    """How a trained network does on new people.

    Attributes:
        probed: What a probe finds in three groups of people.
        auc: Of the label, from the network's output, where label and confound are independent.
    """

    probed: list[Probed]
    auc: float


def train(network, inputs, design, who, *, at=None, batch=50, epochs=1, lr=3e-3, **options):
    """Train `network` plainly, or for `at` with layers; the loop is the same but for `metadata=`."""
    model, metadata = network, torch.from_numpy(design.encode(who.table))
    if at is not None:
        model = dc.normalize(network, design, at=at, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    steps = epochs * -(-len(who.label) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rng = torch.Generator().manual_seed(5)
    for _ in range(epochs):
        for rows in torch.randperm(len(who.label), generator=rng).split(batch):
            keywords = {} if at is None else {"metadata": metadata[rows]}
            logits = as_logits(model(inputs[rows], **keywords))
            loss = nn.functional.binary_cross_entropy_with_logits(logits, who.label[rows].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def as_logits(output):
    output = getattr(output, "logits", output)
    return (output[0] if isinstance(output, tuple) else output).squeeze(-1)


@torch.no_grad()
def run(model, inputs, who, path, where):
    """The logits for new people, and the features after (or before) the module at `path`; no labels are given."""
    network, keywords = model, {}
    if isinstance(model, dc.NormalizedModel):
        network, keywords = model.network, {"metadata": model.design.encode({"age": who.age.numpy()})}
    kept = []
    handle = network.get_submodule(path).register_forward_hook(
        lambda _, given, output: kept.append(output if where == "after" else given[0])
    )
    logits = as_logits(model(inputs, **keywords))
    handle.remove()
    return logits, kept[0].double().numpy()


def probe(features, who, permutations=200):
    """R² of the probe, and mean and standard deviation of what it is by chance, all within label groups."""
    rng, label = np.random.default_rng(0), who.label.numpy()
    age, features = who.age.numpy().astype(float), features.copy()
    for group in (0, 1):
        age[label == group] -= age[label == group].mean()
        features[label == group] -= features[label == group].mean(0)
    null = []
    for _ in range(permutations):
        permuted = age.copy()
        for group in (0, 1):
            permuted[label == group] = rng.permutation(age[label == group])
        null.append(probe_r2(features, permuted))
    return probe_r2(features, age), np.mean(null), np.std(null)


def auc(logits, label):
    """How often a positive scores above a negative."""
    positive, negative = logits[label == 1], logits[label == 0]
    return (positive[:, None] > negative).double().mean().item()


def probe_r2(features, target, folds=5):
    """Five-fold R² of ridge regression, written out."""
    features = (features - features.mean(0)) / (features.std(0) + 1e-9)
    predicted = np.empty_like(target)
    for fold in range(folds):
        held = np.arange(len(target)) % folds == fold
        x, y = features[~held], target[~held]
        gram = x.T @ x + 0.01 * len(x) * np.eye(x.shape[1])
        weights = np.linalg.solve(gram, x.T @ (y - y.mean()))
        predicted[held] = features[held] @ weights + y.mean()
    return 1 - np.sum((target - predicted) ** 2) / np.sum((target - target.mean()) ** 2)
