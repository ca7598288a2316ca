"""What the layers cost: a training step with them over the plain network's, and import times.

    OMP_NUM_THREADS=1 python benchmarks/steps.py [--device cuda] [--compile] [--out FILE]

Plain and normalised steps take turns within one process, and the median of the ratios of rounds is
printed, so that another load on the machine reaches both alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import deconfound as dc

ROUNDS = 15
SECONDS_PER_ROUND = 0.4


@dataclass(frozen=True)
class Case:
    """A network, the modules that are normalised, and the goal for the ratio of steps."""

    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    at: list[str]
    options: dict[str, str]
    goal: float


class ResidualBlock(nn.Module):
    """Two 3D convolutions around a shortcut; halves the volume."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv3d(inputs, outputs, 3, stride=2, padding=1)
        self.second = nn.Conv3d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv3d(inputs, outputs, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        return (self.second(self.first(x).relu()) + self.shortcut(x)).relu()


def synthetic_cnn() -> nn.Module:
    """Build the CNN of the paper's synthetic experiment."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.Flatten(),
        nn.Linear(18_432, 84), nn.ReLU(), nn.Linear(84, 1),
    )  # fmt: skip


def small_mlp() -> nn.Module:
    """Build a network so small that the layers' fixed cost dominates."""
    return nn.Sequential(
        nn.Linear(200, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
    )


def volume_resnet() -> nn.Module:
    """Build a 3D network like the one of the paper's MRI experiment."""
    blocks = [ResidualBlock(*pair) for pair in ((1, 16), (16, 32), (32, 64), (64, 32))]
    head = [nn.Linear(2048, 128), nn.ReLU(), nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 2)]
    return nn.Sequential(*blocks, nn.Flatten(), *head)


PER_FEATURE = {"per": "feature"}
CASES = (
    Case("MLP 200-64-32-1, batch 64", small_mlp, (64, 200), ["0", "2", "4"], {}, 3.0),
    Case("CNN, batch 200", synthetic_cnn, (200, 1, 32, 32), ["0", "2", "5"], {}, 1.2),
    Case("CNN per pixel", synthetic_cnn, (200, 1, 32, 32), ["0", "2", "5"], PER_FEATURE, 1.2),
    Case("3D ResNet, batch 4", volume_resnet, (4, 1, 64, 64, 64), ["5", "7", "9"], {}, 1.05),
)  # fmt: skip


def make_metadata(rows: int, device: str) -> tuple[dc.Design, Tensor]:
    """Return a design of age, sex and three sites with a label, and the metadata of some rows."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": draw.normal(70, 8, 1000),
            "sex": draw.choice(["F", "M"], 1000),
            "site": draw.choice(["A", "B", "C"], 1000),
            "dx": draw.choice(["AD", "CN"], 1000),
        }
    )
    design = dc.Design(["age", "sex", "site"], keep=["dx"]).fit(table)
    return design, torch.from_numpy(design.encode(table[:rows])).to(device)


def make_steps(case: Case, device: str, compiles: bool) -> tuple[Callable[[], None], ...]:
    """Return one training step of the plain network and one of the normalised network."""
    rows = case.inputs[0]
    x = torch.randn(case.inputs, device=device)
    target = torch.rand(rows, device=device).round()
    design, metadata = make_metadata(rows, device)
    plain, network = case.build().to(device), case.build().to(device)
    model = dc.normalize(network, design, case.at, x[:2], **case.options)
    loss = nn.BCEWithLogitsLoss()

    def make(module: nn.Module, **inputs: Tensor) -> Callable[[], None]:
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
        run = torch.compile(module) if compiles else module

        def step() -> None:
            value = loss(run(x, **inputs)[:, 0], target)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()

        return step

    return make(plain), make(model, metadata=metadata)


def seconds_per_step(step: Callable[[], None], repeats: int, device: str) -> float:
    """Time some steps."""
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def compare_steps(case: Case, device: str, compiles: bool) -> dict[str, object]:
    """Return the median ratio of a normalised step to a plain one, with the range of rounds."""
    plain, normalised = make_steps(case, device, compiles)
    for _ in range(3):
        plain(), normalised()
    repeats = max(1, int(SECONDS_PER_ROUND / 2 / seconds_per_step(plain, 3, device)))
    ratios, times = [], []
    for _ in range(ROUNDS):
        times.append(seconds_per_step(plain, repeats, device))
        ratios.append(seconds_per_step(normalised, repeats, device) / times[-1])
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "case": case.name,
        "plain_ms": round(1000 * statistics.median(times), 3),
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)],
        "goal": case.goal,
    }


@contextmanager
def peak_memory(device: str) -> Iterator[list[int]]:
    """Measure the largest number of bytes that torch holds inside this context."""
    peak: list[int] = []
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        yield peak
        peak.append(torch.cuda.max_memory_allocated())
        return
    with torch.profiler.profile(profile_memory=True) as profile:
        yield peak
    held = highest = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            highest = max(highest, held)
    peak.append(highest)


def compare_memory(case: Case, device: str) -> dict[str, object]:
    """Return the ratio of the memory that one step allocates."""
    bytes_of_step = []
    for step in make_steps(case, device, compiles=False):
        step()
        with peak_memory(device) as peak:
            step()
        bytes_of_step.append(peak[0])
    plain, normalised = bytes_of_step
    return {
        "case": f"memory of a step, {case.name}",
        "plain_mb": round(plain / 1e6, 1),
        "ratio": round(normalised / plain, 3),
        "goal": 1.1,
    }


def compare_imports() -> dict[str, object]:
    """Return the ratio of `import deconfound` with its layers to `import torch`."""
    commands = ("import torch", "import torch, deconfound; deconfound.PMDN, deconfound.Design")
    lazy = "import deconfound"
    times: dict[str, list[float]] = {command: [] for command in (*commands, lazy)}
    for _ in range(7):
        for command, seconds in times.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", command], check=True)
            seconds.append(time.perf_counter() - start)
    torch_only, both, alone = (statistics.median(seconds) for seconds in times.values())
    return {
        "case": "import deconfound over import torch",
        "ratio": round(alone / torch_only, 3),
        "ratio_with_layers": round(both / torch_only, 3),
        "goal": 1.15,
    }


def main() -> None:
    """Measure everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    results = [compare_steps(case, arguments.device, arguments.compile) for case in CASES]
    if not arguments.compile:
        results += [compare_memory(case, arguments.device) for case in CASES[1:3]]
    if arguments.device == "cpu":
        results.append(compare_imports())
    for result in results:
        print("  ".join(f"{name} {value}" for name, value in result.items()), flush=True)
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump({"torch": torch.__version__, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
