"""From `results.json` to numbers: means over seeds with intervals, paired comparisons, and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from deconfound.training.needs import need
from deconfound_lab.harness.sheet import Table
from deconfound_lab.synthetic.images import CEILING

NAMES = {
    "none": "plain CNN",
    "batchnorm": "BatchNorm",
    "adversarial": "adversarial",
    "mdn": "MDN",
    "rmdn": "R-MDN",
    "pmdn-alternating": "PMDN, published",
    "pmdn": "PMDN, one pass",
}
PROBLEMS = {
    "two": "two confounds",
    "sites": "three sites",
    "curved": "curved confound, spline in the design",
    "curved-linear": "curved confound, straight line in the design",
    "width": "the text's reading: the width varies",
}


class Estimate(NamedTuple):
    """A mean over seeds and its 95 % interval."""

    mean: float
    low: float
    high: float
    values: tuple[float, ...]


def estimate(values: Iterable[float]) -> Estimate:
    """Mean and t interval; a single value has no interval."""
    found = tuple(values)
    mean = sum(found) / len(found)
    if len(found) < 2:
        return Estimate(mean, math.nan, math.nan, found)
    variance = sum((value - mean) ** 2 for value in found) / (len(found) - 1)
    student = need("scipy.stats", "train").t(len(found) - 1)
    half = float(student.ppf(0.975)) * math.sqrt(variance / len(found))
    return Estimate(mean, mean - half, mean + half, found)


class Results:
    """The cells of a `results.json`, to be asked for.

    Attributes:
        content: The file's content.
        cells: Its cells.
        lr: The learning rate that methods are compared at: the paper's, or that of a grid without it.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        self.cells: list[dict[str, Any]] = list(content["cells"])
        rates = [cell["cell"]["lr"] for cell in self.cells]
        self.lr = 1e-4 if 1e-4 in rates or not rates else rates[0]

    def find(self, method: str, **wanted: Any) -> dict[str, Any] | None:
        """The first cell of a method with these settings; `lr`, the paper's problem and no options if not said."""
        fields = {"lr": self.lr, "problem": "one", "options": {}, "stages": [], **wanted, "method": method}
        for cell in self.cells:
            if all(_plain(cell["cell"][name]) == _plain(value) for name, value in fields.items()):
                return cell
        return None

    def batches(self) -> list[int]:
        """The batch sizes of the paper's problem."""
        return sorted({c["cell"]["batch"] for c in self.cells if c["cell"]["problem"] == "one" and _still(c)})

    def methods(self) -> list[str]:
        """The methods there are, in the order of the tables."""
        present = {c["cell"]["method"] for c in self.cells}
        return [name for name in NAMES if name in present]


def of(cell: Mapping[str, Any], measure: str, when: str = "best") -> Estimate:
    """A measure of a cell over its seeds; `gap` has no `when`."""
    seeds = cell["seeds"]
    return estimate(seed[measure] if measure == "gap" else seed[when][measure] for seed in seeds)


def closer(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Estimate:
    """How much nearer the ceiling our accuracy is than theirs, paired over the seeds of both; above zero is nearer."""
    away = [{s["seed"]: abs(s["best"]["accuracy"] - CEILING) for s in cell["seeds"]} for cell in (ours, theirs)]
    return estimate(away[1][seed] - away[0][seed] for seed in sorted(away[0].keys() & away[1].keys()))


def main_table(results: Results) -> Table:
    """Accuracy, accuracy with an independent confound, and dcor², for every method and batch size."""
    batches = results.batches()
    rows = []
    for method in results.methods():
        cells = [results.find(method, batch=batch) for batch in batches]
        if any(cells):
            rows.append([NAMES[method], *(_summary(cell) for cell in cells)])
    return Table(["", *(f"batch {batch}" for batch in batches)], rows)


def rate_table(results: Results) -> Table:
    """One-pass PMDN at every learning rate."""
    batches = results.batches()
    rates = sorted({c["cell"]["lr"] for c in results.cells if c["cell"]["method"] == "pmdn" and _still(c)})
    rows = [
        [f"lr {rate:g}", *(_summary(results.find("pmdn", batch=batch, lr=rate)) for batch in batches)] for rate in rates
    ]
    return Table(["", *(f"batch {batch}" for batch in batches)], rows)


def closer_table(results: Results) -> Table:
    """By how many points one-pass PMDN is nearer the ceiling than each other method, paired over seeds."""
    batches = results.batches()
    rows = []
    for method in results.methods():
        cells = [(results.find("pmdn", batch=b), results.find(method, batch=b)) for b in batches]
        if method != "pmdn" and any(theirs for _, theirs in cells):
            rows.append([NAMES[method], *(_points(closer(a, b)) if a and b else "–" for a, b in cells)])
    return Table(["", *(f"batch {batch}" for batch in batches)], rows)


def long_table(results: Results) -> Table:
    """The last network after the usual steps and after many more."""
    rows = []
    for method in results.methods():
        for batch in results.batches():
            cell = results.find(method, batch=batch)
            if cell and "long" in cell["seeds"][0]:
                when = [_triple(cell, name) for name in ("best", "last", "long")]
                rows.append([NAMES[method], str(batch), *when])
    return Table(["", "batch", "best validation loss", "last step", "after 6,000 steps"], rows)


def gap_table(results: Results) -> Table:
    """How far training mode lies from eval mode."""
    batches = results.batches()
    rows = []
    for method in results.methods():
        cells = [results.find(method, batch=batch) for batch in batches]
        if any(cells):
            rows.append([NAMES[method], *(f"{of(cell, 'gap').mean:.2g}" if cell else "–" for cell in cells)])
    return Table(["", *(f"batch {batch}" for batch in batches)], rows)


def problem_table(results: Results) -> Table:
    """Other kinds of confounds."""
    methods = [method for method in ("none", "mdn", "rmdn", "pmdn") if method in results.methods()]
    rows = []
    for problem, name in PROBLEMS.items():
        cells = [results.find(method, problem=problem) for method in methods]
        if any(cells):
            rows.append([name, *(_summary(cell) for cell in cells)])
    return Table(["", *(NAMES[method] for method in methods)], rows)


def option_table(results: Results) -> Table:
    """What the options do: refitting on held-out rows, and LayerNorm before the layer."""
    rows = []
    order = list(NAMES)
    for cell in sorted(
        results.cells,
        key=lambda cell: (order.index(cell["cell"]["method"]), str(cell["cell"]["options"]), cell["cell"]["batch"]),
    ):
        options = cell["cell"]["options"]
        if options and _still(cell):
            said = ", ".join(f"{name}={value}" for name, value in options.items())
            plain = results.find(cell["cell"]["method"], batch=cell["cell"]["batch"])
            name = NAMES[cell["cell"]["method"]]
            rows.append([f"{name}, {said}", str(cell["cell"]["batch"]), _summary(cell), _summary(plain)])
    return Table(["", "batch", "with it", "default"], rows)


def drift_table(results: Results) -> Table:
    """Mean distance from the ceilings in five drifting stages, in points."""
    rows = []
    for cell in results.cells:
        if not _still(cell):
            each = [estimate(100 * s[name] for s in cell["seeds"]) for name in ("deviation", "backward", "forward")]
            said = [f"{e.mean:.1f} ({e.low:.1f} to {e.high:.1f})" for e in each]
            rows.append([NAMES[cell["cell"]["method"]], *said])
    return Table(["", "stage just trained", "earlier stages", "later stages"], rows)


def _summary(cell: Mapping[str, Any] | None) -> str:
    return _triple(cell, "best") if cell else "–"


def _triple(cell: Mapping[str, Any], when: str) -> str:
    accuracy = of(cell, "accuracy", when)
    half = "" if math.isnan(accuracy.low) else f" ± {100 * (accuracy.high - accuracy.mean):.1f}"
    free, left = of(cell, "accuracy_independent", when), of(cell, "dcor2", when)
    return f"{100 * accuracy.mean:.1f}{half} / {100 * free.mean:.1f} / {left.mean:.3f}"


def _points(difference: Estimate) -> str:
    if math.isnan(difference.low):
        return f"{100 * difference.mean:+.1f}"
    return f"{100 * difference.mean:+.1f} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"


def _still(cell: Mapping[str, Any]) -> bool:
    return not cell["cell"]["stages"]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
