"""Tables 1 and 2, all arms on one footing, the forest plot and t-SNE, from the results alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deconfound.metrics import Estimate, nadeau_bengio
from deconfound_lab.cohort import GROUPS, TABLE_ONE, bayes_accuracy, count_table_one
from deconfound_lab.harness import Page, Results
from deconfound_lab.mri.arms import ARMS, TABLE_ARMS
from deconfound_lab.mri.measures import CONFOUNDS, LABELS, measure_associations, pool_folds
from deconfound_lab.mri.training import BATCHES, SETTINGS, SHOWN_ARMS, SHOWN_BATCH, SHOWN_FOLD
from deconfound_lab.report import FEWEST_FOR_INTERVAL, GAP, make_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Measures = Mapping[str, Any]
# From the measures of one training to a number.
Pick = Callable[[Measures], float]

STATES = {"as_trained": "as trained", "refitted": "refitted"}
CHANCE, RANDOM_SCORES, NEIGHBOURS = 0.25, 20, 10
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")

HOW_TO_READ = f"""\
Numbers are means over test folds with 95 % intervals, corrected for overlapping training sets
(Nadeau and Bengio); fewer than {FEWEST_FOR_INTERVAL} folds have none. What is left within groups is
the mean of the three measures over people of all folds, with its 95 % interval over people. {GAP}
is not computed."""


@dataclass(frozen=True)
class Line:
    """An arm at a batch size, in one state of its coefficients.

    Attributes:
        measures: What was measured in each fold that is computed.
        left: What is left within groups, over people of all folds; None if it is not known.
        folds: The number of folds of the experiment.
        release: The release that made it.
    """

    measures: Mapping[int, Measures]
    left: Estimate | None
    folds: int
    release: str

    def estimate(self, pick: Pick) -> Estimate | None:
        """Return a mean over folds, with its interval if there are enough folds."""
        values = [pick(one) for one in self.measures.values()]
        if len(values) < FEWEST_FOR_INTERVAL:
            return Estimate(float(np.mean(values))) if values else None
        return nadeau_bengio(values, test_share=1 / self.folds)

    def origin(self) -> str:
        """Return the number of folds, and the release if it is an earlier one."""
        release = f", {self.release}" if self.release.startswith("0.") else ""
        return f"{len(self.measures)} of {self.folds}{release}" if self.measures else GAP


class Lines:
    """All lines of some results.

    Args:
        results: The results; cells may be missing.
        settings: What the trainings share, as in `SETTINGS`.

    Attributes:
        people: The test people of each fold.
        arms: The arms of which something is trained.
    """

    def __init__(self, results: Results, settings: Mapping[str, Any]) -> None:
        self._results, self._settings = results, settings
        shared = {name: settings[name] for name in ("seed", "folds", "people")}
        cells = results.find(arm="people", **shared)
        self.people = {cell["config"]["fold"]: pd.DataFrame(cell["result"]) for cell in cells}
        keys = [(arm, batch, state) for arm in ARMS for batch in BATCHES for state in STATES]
        self._lines = {key: self._make_line(*key) for key in keys}
        is_trained = {arm for (arm, _, _), line in self._lines.items() if line.measures}
        self.arms = [arm for arm in ARMS if arm in is_trained]

    def find(self, arm: str, batch: int, state: str | None = None) -> Line:
        """Return a line; by default refitted where that exists, but published arms as trained."""
        refitted = self._lines[arm, batch, "refitted"]
        if state is None and ARMS[arm].is_refitted and refitted.measures:
            return refitted
        return self._lines[arm, batch, state or "as_trained"]

    def features(self, arm: str) -> list[list[float]] | None:
        """Return the features of an arm for the t-SNE figure, if they are computed."""
        shown = {"arm": arm, "batch": SHOWN_BATCH, "fold": SHOWN_FOLD, **self._settings}
        results = [cell["result"] for cell in self._results.find(**shown)]
        return next((one["features"] for one in results if "features" in one), None)

    def _make_line(self, arm: str, batch: int, state: str) -> Line:
        cells = self._results.find(arm=arm, batch=batch, **self._settings)
        # A mean never mixes releases, which divide the people into other folds.
        newest = max((cell["release"] for cell in cells), default="")
        cells = [cell for cell in cells if cell["release"] == newest and state in cell["result"]]
        measures = {cell["config"]["fold"]: cell["result"][state] for cell in cells}
        left = None
        if measures and all("left" in one for one in measures.values()):
            # Release 0.2 kept what is left over all folds instead of scores.
            left = Estimate(*next(iter(measures.values()))["left"])
        elif measures and measures.keys() <= self.people.keys():
            folds = [(one["scores"], self.people[fold]) for fold, one in measures.items()]
            left = pool_folds(folds)
        return Line(measures, left, self._settings["folds"], newest)


def make_page(results: Results, settings: Mapping[str, Any] = SETTINGS) -> Page:
    """Return Tables 1 and 2, the footing table and both figures, with gaps for missing cells.

    Args:
        results: The results.
        settings: What the shown trainings share. The default is the paper's experiment.
    """
    lines = Lines(results, settings)
    return Page(
        title="The MRI experiment",
        text={"summary": summarise(lines), "how to read the tables": HOW_TO_READ},
        tables={
            "Table 1": make_table_one(lines),
            "Table 2": make_table_two(lines),
            "one footing": make_footing_table(lines),
        },
        figures={"forest plot": draw_forest(lines), "t-SNE": draw_tsne(lines)},
    )


def show(estimate: Estimate | None, digits: int = 3, scale: float = 1.0) -> str:
    """Return a number with its interval as text.

    Example:
        >>> show(Estimate(0.5531, 0.5, 0.6), 1, 100), show(Estimate(0.4)), show(None)
        ('55.3 (50.0 to 60.0)', '0.400', '–')
    """
    if estimate is None:
        return GAP
    numbers = (estimate.value, estimate.low, estimate.high)
    value, low, high = (f"{scale * number:.{digits}f}" for number in numbers)
    return value if np.isnan(estimate.low) else f"{value} ({low} to {high})"


def show_independent(line: Line) -> str:
    """Return the accuracy on independent people in %."""
    return show(line.estimate(independent_accuracy), 1, 100)


def group_mean(measures: Measures) -> float:
    """Return the paper's accuracy: both labels right, averaged over the four groups."""
    return float(np.mean(list(measures["groups"].values())))


def independent_accuracy(measures: Measures) -> float:
    """Return the accuracy on people whose labels are independent of the confounds."""
    return float(measures["independent"])


def association(name: str, measures: Measures) -> float:
    """Return the paper's correlation with a confound."""
    return float(measures["associations"][name])


def summarise(lines: Lines) -> str:
    """Return what the plain network, PMDN and the oracle reach on independent people."""
    best = f"{100 * bayes_accuracy():.1f}"
    sentences = [
        "On people whose labels are independent of age, sex and site, the best possible accuracy "
        f"is {best} %, and chance is 25 %."
    ]
    for arm in ("plain", "pmdn", "oracle"):
        estimates = [lines.find(arm, batch).estimate(independent_accuracy) for batch in BATCHES]
        values = [100 * estimate.value for estimate in estimates if estimate is not None]
        if values:
            sentences.append(f"{ARMS[arm].title}: {min(values):.1f} to {max(values):.1f} %.")
    return " ".join(sentences)


def make_table_one(lines: Lines) -> pd.DataFrame:
    """Return Table 1 of the test people of all folds, with the paper's numbers in brackets."""
    people = pd.concat([pd.DataFrame({"site": []}), *lines.people.values()])
    counts, rows = count_table_one(people), []
    for name, site in TABLE_ONE.items():
        paper = [*site.counts, "/".join(map(str, site.sexes)), "{:.2f} ± {:.2f}".format(*site.age)]
        own = counts.loc[name] if name in counts.index else [GAP] * len(paper)
        rows.append([name, *[f"{x} ({y})" for x, y in zip(own, paper, strict=True)]])
    return pd.DataFrame(rows, columns=["site", *GROUPS, "F/M", "age"])


def make_table_two(lines: Lines) -> pd.DataFrame:
    """Return Table 2, with our arm and the numbers of the true labels beside the paper's arms."""
    folds = [measure_associations(own[list(LABELS)], own) for own in lines.people.values()]
    means = pd.DataFrame(folds, columns=[*CONFOUNDS], dtype=np.float64).mean()
    truth = [GAP if np.isnan(mean) else f"{mean:.3f}" for mean in means]
    rows = []
    for batch in BATCHES:
        own = [lines.find(arm, batch) for arm in TABLE_ARMS]
        for name, true in zip(CONFOUNDS, truth, strict=True):
            entries = [show(line.estimate(partial(association, name))) for line in own]
            rows.append([str(batch), f"{name.title()} corr ↓", *entries, true])
        entries = [show(line.estimate(group_mean), 1, 100) for line in own]
        best = f"{100 * bayes_accuracy(confounds=True):.1f}"
        rows.append([str(batch), "Accuracy ↑", *entries, best])
        rows.append([str(batch), "folds", *[line.origin() for line in own], ""])
    titles = [ARMS[arm].title for arm in TABLE_ARMS]
    return pd.DataFrame(rows, columns=["batch", "", *titles, "true labels"])


def make_footing_table(lines: Lines) -> pd.DataFrame:
    """Return what is left within groups, and accuracy on independent people, of every arm."""
    rows = []
    for batch, arm in [(batch, arm) for batch in BATCHES for arm in lines.arms]:
        own = [lines.find(arm, batch, state) for state in STATES]
        entries = [*[show(line.left) for line in own], *map(show_independent, own)]
        if own[0].measures:
            rows.append([str(batch), ARMS[arm].title, *entries, own[0].origin()])
    chance, best = show_chance(lines), f"{100 * bayes_accuracy():.1f}"
    rows.append(["", "random scores", chance, chance, *[f"{100 * CHANCE:.1f}"] * 2, ""])
    rows.append(["", "best possible", "", "", best, best, ""])
    left = [f"left within groups ↓, {state}" for state in STATES.values()]
    accuracy = [f"independent accuracy ↑, {state}" for state in STATES.values()]
    return pd.DataFrame(rows, columns=["batch", "arm", *left, *accuracy, "folds"])


def show_chance(lines: Lines) -> str:
    """Return what is left within groups of random scores, of as many people."""
    random, values = np.random.default_rng(0), []
    for _ in range(RANDOM_SCORES if lines.people else 0):
        folds = [(random.standard_normal((len(own), 2)), own) for own in lines.people.values()]
        values.append(pool_folds(folds, draws=1).value)
    return f"{np.mean(values):.3f}" if values else GAP


def draw_forest(lines: Lines) -> Figure:
    """Draw accuracy on independent people and what is left within groups, a row for each arm."""
    titles = ("accuracy on independent people", "left within groups (lower is better)")
    figure, panels = make_panels(2, (5.5, 0.36 * len(lines.arms) + 1.8))
    for place, (batch, colour) in enumerate(zip(BATCHES, COLOURS, strict=True)):
        own = [lines.find(arm, batch) for arm in lines.arms]
        columns = [line.estimate(independent_accuracy) for line in own], [one.left for one in own]
        for panel, estimates in zip(panels, columns, strict=True):
            rows = [row for row, estimate in enumerate(estimates) if estimate is not None]
            points = [one for one in estimates if one is not None]
            values = np.array([(one.value, one.low, one.high) for one in points]).reshape(-1, 3)
            reach = np.nan_to_num(np.abs(values[:, 1:] - values[:, :1])).T
            heights = np.array(rows) + 0.15 * (place - 1.5)
            style = {"color": colour, "marker": "o", "markersize": 4, "linestyle": "none"}
            panel.errorbar(values[:, 0], heights, xerr=reach, label=f"batch {batch}", **style)
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title, fontsize=10)
        panel.set_yticks(range(len(lines.arms)), [ARMS[arm].title for arm in lines.arms])
        panel.set_ylim(max(len(lines.arms), 1) - 0.5, -0.5)
    for level in (CHANCE, bayes_accuracy()):
        panels[0].axvline(level, color="#444444", linewidth=1, linestyle="--")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def draw_tsne(lines: Lines) -> Figure:
    """Draw test people by their last hidden features, coloured by site and by sex.

    A title has the share of each person's nearest neighbours with the same level, and that share in
    a random order.
    """
    from sklearn.manifold import TSNE

    people = lines.people.get(SHOWN_FOLD)
    features = {arm: lines.features(arm) for arm in SHOWN_ARMS if people is not None}
    arms = [arm for arm, rows in features.items() if rows is not None]
    pairs = [(arm, name) for arm in arms for name in ("site", "sex")]
    figure, panels = make_panels(max(len(pairs), 1), (3.4, 3.6))
    panels[0].set_title("not computed yet", fontsize=9)
    for panel, (arm, name) in zip(panels, pairs, strict=False):
        assert people is not None
        x, levels = np.array(features[arm]), people[name].to_numpy()
        perplexity = min(30.0, (len(x) - 1) / 3)
        places = TSNE(perplexity=perplexity, random_state=0).fit_transform(x)
        for level, colour in zip(np.unique(levels), COLOURS, strict=False):
            panel.scatter(*places[levels == level].T, s=9, color=colour, label=level)
        agreement, chance = neighbour_agreement(x, levels)
        title = (
            f"{ARMS[arm].title} by {name}\nneighbours agree {agreement:.0%}, chance {chance:.0%}"
        )
        panel.set_title(title, fontsize=9)
        panel.legend(frameon=False, fontsize=8)
    for panel in panels:
        panel.set(xticks=[], yticks=[])
    return figure


def neighbour_agreement(features: NDArray[Any], levels: NDArray[Any]) -> tuple[float, float]:
    """Return the share of nearest neighbours with a person's level, and its value by chance.

    Args:
        features: Shape `(n, d)`.
        levels: Shape `(n,)`.

    Example:
        >>> neighbour_agreement(np.arange(24.0)[:, None], np.repeat(["A", "B"], 12))[0] > 0.7
        True
    """
    from sklearn.neighbors import NearestNeighbors

    n = len(features)
    # Without a query no point is its own neighbour.
    search = NearestNeighbors(n_neighbors=min(NEIGHBOURS, n - 1)).fit(features)
    neighbours = search.kneighbors(return_distance=False)
    _, counts = np.unique(levels, return_counts=True)
    chance = (counts * (counts - 1)).sum() / (n * (n - 1))
    return float((levels[neighbours] == levels[:, None]).mean()), float(chance)
