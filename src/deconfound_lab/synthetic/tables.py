"""From `results.json` to numbers: means over seeds with confidence intervals, paired comparisons, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deconfound_lab.harness import Table
from deconfound_lab.harness.estimates import Value, over_seeds
from deconfound_lab.synthetic.images import CEILING

NAMES = {
    "none": "plain CNN",
    "batchnorm": "BatchNorm",
    "adversarial": "adversarial",
    "mdn": "MDN",
    "rmdn": "R-MDN",
    "pmdn-authors": "PMDN, authors' formulation and rates",
    "pmdn-alternating": "PMDN, published",
    "pmdn": "PMDN, one pass",
    "erase": "Erase",
    "dependence": "Dependence",
}
PROBLEMS = {
    "two": "two confounds",
    "sites": "three sites",
    "curved": "curved confound, spline in the design",
    "curved-linear": "curved confound, straight line in the design",
    "width": "the text's reading: the width varies",
}
# The authors' own rate, which their formulation is run at.
AUTHORS_LR = 1e-5
Entry = Mapping[str, Any]
"""One cell of `results.json`."""


class Results:
    """The cells of a `results.json`, to be asked for.

    Attributes:
        content: The file's content.
        cells: Its cells.
        lr: The learning rate that methods are compared at: the paper's, or that of a grid without it.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        self.cells: list[Entry] = list(content["cells"])
        rates = [cell["cell"]["lr"] for cell in self.cells]
        self.lr = 1e-4 if 1e-4 in rates or not rates else rates[0]

    def find(self, method: str, **wanted: Any) -> Entry | None:
        """The first cell of a method with these settings; `lr`, the paper's problem, nothing special if not said."""
        usual: dict[str, Any] = {"lr": self.lr, "problem": "one", "options": {}, "balanced": False, "stages": []}
        fields = {**usual, **wanted, "method": method}
        return next((c for c in self.cells if all(c["cell"][name] == value for name, value in fields.items())), None)

    def along(self, method: str, **wanted: Any) -> list[Entry | None]:
        """The cells of a method, one for each batch size."""
        return [self.find(method, batch=batch, **wanted) for batch in self.batches()]

    def batches(self) -> list[int]:
        """The batch sizes of the paper's problem."""
        return sorted({c["cell"]["batch"] for c in self.cells if c["cell"]["problem"] == "one" and _still(c)})

    def methods(self) -> list[str]:
        """The methods there are, in the order of the tables."""
        present = {c["cell"]["method"] for c in self.cells}
        return [name for name in NAMES if name in present]


def of(cell: Entry, measure: str, when: str = "best") -> Value:
    """A measure of a cell over its seeds; `gap` has no `when`."""
    return over_seeds([seed[measure] if measure == "gap" else seed[when][measure] for seed in cell["seeds"]])


def closer(ours: Entry, theirs: Entry) -> Value:
    """How much nearer the ceiling our accuracy is than theirs, paired over the seeds of both; above zero is nearer."""
    away = [{s["seed"]: abs(s["best"]["accuracy"] - CEILING) for s in cell["seeds"]} for cell in (ours, theirs)]
    return over_seeds([away[1][seed] - away[0][seed] for seed in sorted(away[0].keys() & away[1].keys())])


def main_table(results: Results) -> Table:
    """Accuracy, accuracy with an independent confound, and dcor², for every method and batch size."""
    rows = [(NAMES[m], [_summary(c) for c in results.along(m)]) for m in results.methods()]
    authors = results.along("pmdn-authors", lr=AUTHORS_LR)
    return _by_batch(results, [*rows, (NAMES["pmdn-authors"], [_summary(c) for c in authors])])


def short_table(results: Results) -> Table:
    """The methods in short: as trained, refitted, and refitted with weights, at two batch sizes."""
    shown = [batch for batch in (20, 200) if batch in results.batches()]
    heads = [f"batch {batch}, {what}" for batch in shown for what in ("as trained", "refitted", "with weights")]
    rows = []
    for method in results.methods():
        row = []
        for batch in shown:
            plain, weighted = (results.find(method, batch=batch, balanced=weights) for weights in (False, True))
            row += [_accuracies(plain, "as_trained"), _accuracies(plain if plain and _differs(plain) else None, "best")]
            row.append(_accuracies(weighted, "best"))
        rows.append([NAMES[method], *row])
    return Table(["", *heads], _present(rows))


def _accuracies(cell: Entry | None, when: str) -> str:
    return "–" if cell is None else _summary(cell, when).rpartition(" / ")[0]


def gaps(results: Results) -> list[str]:
    """What of the grid is not trained yet, in a sentence."""
    missing, done = len(results.content["missing"]), len(results.cells)
    return [f"Not trained yet: {missing} of the {missing + done} cells of the grid."] if missing else []


def footing_table(results: Results) -> Table:
    """Every method as trained and refitted, without weights and with them, where all four were trained."""
    weighted = any(c["cell"]["balanced"] and _still(c) for c in results.cells)
    batches = results.batches() if weighted else []
    rows = []
    for method in results.methods():
        for weights in (False, True):
            cells = [results.find(method, batch=batch, balanced=weights) for batch in batches]
            twice = any(cell and _differs(cell) for cell in cells)
            for when, title in (("as_trained", "as trained"), ("best", "refitted")) if twice else (("best", "–"),):
                row = [NAMES[method], "overlap" if weights else "–", title]
                rows.append([*row, *(_summary(cell, when) for cell in cells)])
    shown = [row for row in rows if any(cell != "–" for cell in row[3:])] if batches else []
    return Table(["", "weights", "coefficients", *(f"batch {batch}" for batch in batches)], shown)


def rate_table(results: Results) -> Table:
    """One-pass PMDN at every learning rate."""
    rates = sorted({c["cell"]["lr"] for c in results.cells if c["cell"]["method"] == "pmdn" and _still(c)})
    return _by_batch(results, [(f"lr {r:g}", [_summary(c) for c in results.along("pmdn", lr=r)]) for r in rates])


def closer_table(results: Results) -> Table:
    """By how many points one-pass PMDN is nearer the ceiling than each other method, paired over seeds."""
    rows = []
    for method in results.methods():
        pairs = zip(results.along("pmdn"), results.along(method), strict=True)
        cells = [closer(ours, theirs).shown("+.1f", 100) if ours and theirs else "–" for ours, theirs in pairs]
        if method != "pmdn":
            rows.append((NAMES[method], cells))
    return _by_batch(results, rows)


def gap_table(results: Results) -> Table:
    """How far training mode lies from eval mode."""
    rows = [
        (NAMES[m], [f"{of(cell, 'gap').mean:.2g}" if cell else "–" for cell in results.along(m)])
        for m in results.methods()
    ]
    return _by_batch(results, rows)


def long_table(results: Results) -> Table:
    """The last network after the usual steps and after many more."""
    rows = []
    for method in results.methods():
        for batch, cell in zip(results.batches(), results.along(method), strict=True):
            if cell and "long" in cell["seeds"][0]:
                rows.append([NAMES[method], str(batch), *(_summary(cell, when) for when in ("best", "last", "long"))])
    return Table(["", "batch", "best validation loss", "last step", "after 6,000 steps"], rows)


def problem_table(results: Results) -> Table:
    """Other kinds of confounds."""
    methods = [method for method in ("none", "mdn", "rmdn", "pmdn") if method in results.methods()]
    rows = [
        [name, *(_summary(results.find(method, problem=problem)) for method in methods)]
        for problem, name in PROBLEMS.items()
    ]
    return Table(["", *(NAMES[method] for method in methods)], _present(rows))


def option_table(results: Results) -> Table:
    """What the options do: LayerNorm before the layer."""
    rows = []
    order = list(NAMES)
    for cell in sorted(
        results.cells,
        key=lambda cell: (order.index(cell["cell"]["method"]), str(cell["cell"]["options"]), cell["cell"]["batch"]),
    ):
        method, batch, options = (cell["cell"][name] for name in ("method", "batch", "options"))
        if options and _still(cell):
            named = ", ".join(f"{name}={value}" for name, value in options.items())
            plain = results.find(method, batch=batch)
            rows.append([f"{NAMES[method]}, {named}", str(batch), _summary(cell), _summary(plain)])
    return Table(["", "batch", "with it", "default"], rows)


def network_table(results: Results) -> Table:
    """Networks other than the CNN, each training judged as it was left and refitted."""
    rows = []
    for cell in results.cells:
        if "network" in cell["cell"]:
            network, method, batch = (str(cell["cell"][name]) for name in ("network", "method", "batch"))
            judged = [_summary(cell, "as_trained"), _summary(cell) if _differs(cell) else "–"]
            weights = "overlap" if cell["cell"]["balanced"] else "–"
            rows.append([network, batch, NAMES[method].replace("CNN", "network"), weights, *judged])
    return Table(["network", "batch", "", "weights", "as trained", "refitted"], rows)


def drift_table(results: Results) -> Table:
    """Mean distance from the ceilings in five drifting stages, in points, as trained and refitted."""
    rows = []
    for cell in results.cells:
        if _still(cell):
            continue
        for judged in ("as trained", "refitted"):
            found = [seed[judged] for seed in cell["seeds"] if judged in seed]
            if found:
                each = [over_seeds([s[name] for s in found]) for name in ("deviation", "backward", "forward")]
                weights = "overlap" if cell["cell"]["balanced"] else "–"
                values = [value.shown(".1f", 100) for value in each]
                rows.append([NAMES[cell["cell"]["method"]], weights, judged, *values])
    return Table(["", "weights", "coefficients", "stage just trained", "earlier stages", "later stages"], rows)


def _by_batch(results: Results, rows: Sequence[tuple[str, Sequence[str]]]) -> Table:
    head = ["", *(f"batch {batch}" for batch in results.batches())]
    return Table(head, _present([[name, *cells] for name, cells in rows]))


def _present(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The rows in which something is trained."""
    return [row for row in rows if any(cell != "–" for cell in row[1:])]


def _summary(cell: Entry | None, when: str = "best") -> str:
    if cell is None:
        return "–"
    accuracy = of(cell, "accuracy", when)
    half = "" if accuracy.single else f" ± {100 * (accuracy.high - accuracy.mean):.1f}"
    free, left = of(cell, "accuracy_independent", when), of(cell, "dcor2", when)
    return f"{100 * accuracy.mean:.1f}{half} / {100 * free.mean:.1f} / {left.mean:.3f}"


def _differs(cell: Entry) -> bool:
    """Whether a refit changed anything."""
    return any(seed["as_trained"] != seed["best"] for seed in cell["seeds"])


def _still(cell: Entry) -> bool:
    return not cell["cell"]["stages"]
