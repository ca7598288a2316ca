"""Pace of the product beside loops by hand that do the same work, as ratios within one run.

    OMP_NUM_THREADS=1 python benchmarks/pace.py [--part images table compare help] [--rounds 7]

`images`: one fold of 2,000 images of PACS, three epochs. `table`: five folds of a table of
2,000 × 60, ten epochs. `compare`: six methods on these folds with two jobs, beside thirty loops by
hand one after the other. `help`: `deconfound --help` beside an empty Python.

Product and loop take turns, and the ratio is that of each round. Everything is imported before the
first round, the pool of workers has run once, and images are in the product's cache. Audits are
left out; what they cost is a line of its own.

The folder of data is $DECONFOUND_DATA, or `../shared/data` beside the repository.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn
from torch.nn import functional

import deconfound as dc
from deconfound.methods import METHODS, Batch, Setting, make_method
from deconfound.networks import MLP, ConvNet
from deconfound.runs import Config, compare, fit

ROOT = pathlib.Path(__file__).parent.parent
ROWS, FEATURES = 2000, 60
# The product's own: a seventh for validation, batches of 64, AdamW.
VALIDATION_FOLDS, BATCH_SIZE = 7, 64
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-4

Rows = NDArray[np.intp]
Result = dict[str, object]


@dataclass(frozen=True)
class Problem:
    """What both sides are trained on.

    Attributes:
        config: The run of the product. The label is the column `label`.
        folds: How many of five folds are trained.
        epochs: Passes over the training rows.
        read: Reads inputs and table for the loop by hand, as part of its work.
    """

    config: Mapping[str, Any]
    folds: int
    epochs: int
    read: Callable[[], tuple[Tensor, pd.DataFrame]]

    def fit_product(self, method: str, *, audit: bool = False) -> None:
        """Fit through the product, into a new folder."""
        with tempfile.TemporaryDirectory() as folder:
            config = Config.load(self.config).change(
                {"method": method, "run.folder": f"{folder}/run", "training.epochs": self.epochs}
            )
            fit(config, audit=audit)

    def compare_product(self) -> None:
        """Compare all methods through the product, with two jobs."""
        with tempfile.TemporaryDirectory() as folder:
            changes = {
                "run.folder": f"{folder}/run",
                "training.epochs": self.epochs,
                "compare.variants": {name: {"method": name} for name in METHODS},
            }
            compare(Config.load(self.config).change(changes), jobs=2, audit=False)

    def fit_by_hand(self, method: str) -> None:
        """Read the rows, and train one network for each fold."""
        x, table = self.read()
        target = (table["label"] == "yes").to_numpy(int)
        folds = StratifiedKFold(5, shuffle=True, random_state=0).split(target, target)
        for _, (others, tested) in zip(range(self.folds), folds, strict=False):
            inner = StratifiedKFold(VALIDATION_FOLDS, shuffle=True, random_state=0)
            train, validation = next(inner.split(others, target[others]))
            logits = fit_fold_by_hand(
                x,
                table,
                (others[train], others[validation], tested),
                method,
                self.config["design"]["confounds"],
                self.epochs,
            )
            assert bool(logits.isfinite().all())


def fit_fold_by_hand(
    x: Tensor,
    table: pd.DataFrame,
    parts: tuple[Rows, Rows, Rows],
    method: str,
    confounds: list[str],
    epochs: int,
) -> Tensor:
    """Train one network, keep the state of the best epoch, and return logits of the test rows.

    The layers, heads and regressions of the methods are deconfound's. The rest is written here.

    Args:
        x: All inputs, shape `(n, 60)`, or bytes of images, shape `(n, 3, height, width)`.
        table: The same rows, with the label and the confounds.
        parts: Training, validation and test rows.
        method: A name of `deconfound.methods.METHODS`.
        confounds: Columns of the table.
        epochs: Passes over the training rows.
    """
    train, validation, tested = map(torch.from_numpy, parts)
    design = dc.Design(confounds, keep=["label"]).fit(table.iloc[parts[0]])
    metadata = torch.from_numpy(design.encode(table)).float()
    target = torch.tensor((table["label"] == "yes").to_numpy(), dtype=torch.float32)[:, None]
    fitted, axes = x[train].float(), (0, *range(2, x.ndim))
    mean, sd = fitted.mean(axes, keepdim=True), fitted.std(axes, keepdim=True)

    def take(rows: Tensor) -> Batch:
        return Batch((x[rows] - mean) / sd, metadata[rows], target[rows])

    def loss(logits: Tensor, batch: Batch) -> Tensor:
        return functional.binary_cross_entropy_with_logits(logits, batch.target)

    def held_out() -> list[Batch]:
        return [take(validation)]

    shape = tuple(x.shape[1:])
    network: nn.Module = MLP(shape, 1) if len(shape) == 1 else ConvNet(shape, 1)
    model = make_method(method, network, Setting(design, take(train[:2]).x))
    model.fit(lambda: [take(train)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    best_loss, best_state = float("inf"), {}
    for _ in range(epochs):
        model.train()
        for rows in train[torch.randperm(len(train))].split(BATCH_SIZE):
            optimizer.zero_grad()
            model.loss(take(rows), loss).backward()
            optimizer.step()
        model.eval()
        batch = take(validation)
        with torch.no_grad(), model.refitted(held_out):
            validation_loss = float(loss(model(batch.x, batch.metadata), batch))
        if validation_loss < best_loss:
            best_loss, best_state = validation_loss, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    model.eval()
    model.refit(held_out)
    with torch.no_grad():
        batch = take(tested)
        return model(batch.x, batch.metadata)


def compare_paces(product: Callable[[], None], by_hand: Callable[[], None], rounds: int) -> Result:
    """Let both take turns, after one round that does not count; return medians and quartiles.

    `cpu_ratio` compares seconds of the processor in this process. Other people's work on the
    machine changes it less than the ratio of the times that a user waits.
    """
    clocks = {"wait": time.perf_counter, "cpu": time.process_time}
    ratios: dict[str, list[float]] = {name: [] for name in clocks}
    waits: dict[str, list[float]] = {"product": [], "hand": []}
    for number in range(-1, rounds):
        seconds = {}
        # What runs first may find a colder processor, so the order changes.
        sides = [("product", product), ("hand", by_hand)]
        for side, run in sides if number % 2 else reversed(sides):
            starts = {name: clock() for name, clock in clocks.items()}
            run()
            seconds[side] = {name: clock() - starts[name] for name, clock in clocks.items()}
        if number >= 0:
            for side, times in waits.items():
                times.append(seconds[side]["wait"])
            for name, values in ratios.items():
                values.append(seconds["product"][name] / max(seconds["hand"][name], 1e-6))
    wait, cpu = (quartiles_of(values) for values in ratios.values())
    return {
        "product_s": round(statistics.median(waits["product"]), 2),
        "hand_s": round(statistics.median(waits["hand"]), 2),
        "ratio": wait[1],
        "quartiles": [wait[0], wait[2]],
        "cpu_ratio": cpu[1],
        "cpu_quartiles": [cpu[0], cpu[2]],
    }


def quartiles_of(values: list[float]) -> list[float]:
    """Return the lower quartile, the median and the upper quartile."""
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return [round(value, 2) for value in quartiles]


def seconds_of_audit(problem: Problem, rounds: int) -> Result:
    """Return how much longer a fit takes with its audit."""
    differences = []
    for _ in range(min(3, rounds)):
        times = []
        for audit in (True, False):
            start = time.perf_counter()
            problem.fit_product("none", audit=audit)
            times.append(time.perf_counter() - start)
        differences.append(times[0] - times[1])
    return {"seconds": round(statistics.median(differences), 2)}


def make_images(folder: pathlib.Path) -> Problem:
    """Return 2,000 images of PACS as files, and decoded in memory for the loop by hand."""
    source = data_folder()
    rows = pd.read_csv(source / "labels.csv").sample(ROWS, random_state=0)
    is_animal = rows["category"].isin(["dog", "elephant", "giraffe", "horse"])
    table = pd.DataFrame(
        {"id": rows["file"], "label": np.where(is_animal, "yes", "no"), "domain": rows["domain"]}
    )
    table.to_csv(folder / "images.csv", index=False)
    with zipfile.ZipFile(source / "images.zip") as archive:
        archive.extractall(folder / "images", members=table["id"])
    pixels = np.stack([np.asarray(Image.open(folder / "images" / name)) for name in table["id"]])
    x = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())
    config = {
        "data": {
            "source": str(folder / "images"),
            "table": str(folder / "images.csv"),
            "id": "id",
            "labels": ["label"],
            "positive": "yes",
        },
        "design": {"confounds": ["domain"]},
        "splits": {"kind": "holdout"},
        "run": {"features": False},
    }
    return Problem(config, 1, 3, lambda: (x, pd.read_csv(folder / "images.csv")))


def data_folder() -> pathlib.Path:
    """Return the folder of PACS."""
    data = os.environ.get("DECONFOUND_DATA", ROOT.parent.parent / "shared" / "data")
    folder = pathlib.Path(data) / "pacs64"
    if not folder.exists():
        raise SystemExit(f"There is no folder {str(folder)!r}. Set DECONFOUND_DATA.")
    return folder


def make_table(folder: pathlib.Path) -> Problem:
    """Return a table of 2,000 rows whose 60 features depend on label, age and site."""
    random = np.random.default_rng(0)
    label, site = random.integers(0, 2, ROWS), random.integers(0, 4, ROWS)
    age = random.normal(60 + 5 * label, 8)
    effects = random.normal(size=(3, FEATURES)) / 4
    features = np.stack([label, site, (age - 60) / 8], axis=1) @ effects
    features += random.normal(size=features.shape)
    table = pd.DataFrame(features, columns=[f"feature {place}" for place in range(FEATURES)])
    table.insert(0, "label", np.where(label, "yes", "no"))
    table.insert(1, "age", age)
    table.insert(2, "site", [f"site {code}" for code in site])
    path = folder / "table.csv"
    table.to_csv(path, index=False)
    config = {
        "data": {"source": str(path), "labels": ["label"], "positive": "yes"},
        "design": {"confounds": ["age", "site"]},
        "splits": {"kind": "k-fold", "folds": 5},
        "run": {"features": False},
    }

    def read() -> tuple[Tensor, pd.DataFrame]:
        rows = pd.read_csv(path)
        return torch.from_numpy(rows.iloc[:, 3:].to_numpy(np.float32)), rows

    return Problem(config, 5, 10, read)


@contextmanager
def opened_images() -> Iterator[list[object]]:
    """Collect the names of image files that are opened in this context."""
    names: list[object] = []
    original = Image.open

    def count(file: Any, *arguments: Any, **options: Any) -> Image.Image:
        names.append(file)
        return original(file, *arguments, **options)

    Image.open = count
    try:
        yield names
    finally:
        Image.open = original


def measure_images(folder: pathlib.Path, rounds: int) -> Iterator[Result]:
    """Compare fits of images, after counting what the first and the second command decode."""
    problem = make_images(folder)
    for command in ("first", "second"):
        with opened_images() as names:
            problem.fit_product("none")
        goal = {} if command == "first" else {"goal": 0}
        yield {"case": f"image files opened by the {command} command", "files": len(names)} | goal
    for method, goal in (("none", 1.15), ("pmdn", 1.35)):
        yield compare_fits("images", problem, method, goal, rounds)
    yield {"case": "audit of the fold of images", **seconds_of_audit(problem, rounds)}


def measure_table(folder: pathlib.Path, rounds: int) -> Iterator[Result]:
    """Compare fits of a table."""
    problem = make_table(folder)
    for method in ("none", "pmdn"):
        yield compare_fits("table", problem, method, 1.5, rounds)
    yield {"case": "audit of the folds of the table", **seconds_of_audit(problem, rounds)}


def compare_fits(name: str, problem: Problem, method: str, goal: float, rounds: int) -> Result:
    """Compare one fit of the product with its loop by hand."""
    result = compare_paces(
        lambda: problem.fit_product(method), lambda: problem.fit_by_hand(method), rounds
    )
    return {"case": f"{name}, {method}", **result, "goal": goal}


def measure_comparison(folder: pathlib.Path, rounds: int) -> Iterator[Result]:
    """Compare a comparison with two jobs with all of its trainings by hand, one by one."""
    problem = make_table(folder)

    def by_hand() -> None:
        for method in METHODS:
            problem.fit_by_hand(method)

    result = compare_paces(problem.compare_product, by_hand, rounds)
    # The product's workers are other processes.
    del result["cpu_ratio"], result["cpu_quartiles"]
    yield {"case": f"comparison of {len(METHODS)} methods, two jobs", **result, "goal": 1.0}


def measure_help(folder: pathlib.Path, rounds: int) -> Iterator[Result]:
    """Compare the start of the command with that of an empty Python."""
    script = pathlib.Path(sys.executable).with_name("deconfound")

    def run(*command: str) -> Callable[[], None]:
        return lambda: subprocess.run(command, check=True, capture_output=True, cwd=folder) and None

    result = compare_paces(run(str(script), "--help"), run(sys.executable, "-c", "pass"), rounds)
    more = round(result["product_s"] - result["hand_s"], 2)
    yield {"case": "deconfound --help", "seconds_more": more, "goal": 0.4}


PARTS = {
    "images": measure_images,
    "table": measure_table,
    "compare": measure_comparison,
    "help": measure_help,
}


def main() -> None:
    """Measure the parts, print a line for each result, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", nargs="*", choices=PARTS, default=[*PARTS])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch in this process")
    parser.add_argument("--out", default=str(ROOT / "docs" / "results" / "pace.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["DECONFOUND_CACHE"] = f"{scratch}/cache"
        for part in arguments.part:
            for result in PARTS[part](pathlib.Path(scratch), arguments.rounds):
                print("  ".join(f"{name} {value}" for name, value in result.items()), flush=True)
                results.append(result)
    page = {**circumstances(arguments), "results": results}
    pathlib.Path(arguments.out).write_text(json.dumps(page, indent=1) + "\n")


def circumstances(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the command, the commit, the machine and the versions."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "command": " ".join(["python benchmarks/pace.py", *sys.argv[1:]]),
        "commit": commit,
        "cores": os.cpu_count(),
        "threads": arguments.threads,
        "processor": platform.machine(),
        "versions": {
            "deconfound": dc.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "pandas": pd.__version__,
        },
    }


if __name__ == "__main__":
    main()
