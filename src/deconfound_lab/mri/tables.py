"""The tables, from the results: the paper's two, and ours against each other arm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from deconfound_lab.cohort.people import GROUPS
from deconfound_lab.harness.sheet import Table
from deconfound_lab.mri.results import OURS, Line, Results, Trial, Value

CONFOUND_TITLES = {"age": "Age corr", "sex": "Sex corr", "site": "Site corr"}
Measure = Callable[[Line], Value]


def table_one(results: Results) -> Table:
    """The simulated Table 1 beside the paper's, which stands in brackets."""
    rows = []
    for own, paper in zip(results.table_one["simulated"], results.table_one["paper"], strict=True):
        counts = [f"{own['groups'][group]} ({paper['groups'][group]})" for group in GROUPS]
        sexes = f"{own['women']}/{own['men']} ({paper['women']}/{paper['men']})"
        ages = f"{own['age']:.2f} ± {own['age_sd']:.2f} ({paper['age']:.2f} ± {paper['age_sd']:.2f})"
        rows.append([own["site"], *counts, sexes, ages])
    return Table(["site", *GROUPS, "F/M", "age"], rows)


def arms_table(results: Results) -> Table:
    """What each arm is."""
    rows = []
    for arm in results.present:
        made = results.arms[arm]
        options = ", ".join(f"{name} {value}" for name, value in made["options"].items())
        places, norms = (", ".join(f"`{name}`" for name in made[key]) or "–" for key in ("at", "layer_norm"))
        rows.append([results.title(arm), f"`{made['method']}`", "–" if made["method"] == "none" else places, norms,
                     options or "–"])  # fmt: skip
    return Table(["arm", "method", "places", "LayerNorm after", "options"], rows)


def table_two(results: Results, bold: str = "**") -> Table:
    """Table 2 in the paper's layout, with the correlations within groups and the accuracy on independent people.

    The best arm of each row is bold; intervals of 95 % stand in brackets; a dash stands where nothing is trained.

    Args:
        results: The results.
        bold: What stands on both sides of the best.
    """
    arms = results.present
    rows: list[list[str]] = []
    for batch in results.batches:
        lines = [results.find(batch, arm) for arm in arms]
        if any(key[0] == batch for key in results.missing()):
            folds = [f"{len(line.trials)} of {results.plan['run_folds']}" if line else "–" for line in lines]
            rows.append([str(batch), "folds trained", *folds, "", ""])
        for title, measure, truth, limit, percent in _measures(results):
            rows.append([str(batch), title, *_cells([measure(line) if line else None for line in lines], percent, bold),
                         truth, limit])  # fmt: skip
    return Table(["batch", "measure", *map(results.title, arms), "true labels", "best or chance"], rows)


def _measures(results: Results) -> list[tuple[str, Measure, str, str, bool]]:
    """Title, measure, value of the true labels, best or chance value, and whether it is an accuracy."""
    marginal = [
        (f"{title} ↓", _marginal(name), f"{results.truth[name]:.3f}", "", False)
        for name, title in CONFOUND_TITLES.items()
    ]
    within = [
        (f"{title} within groups ↓", _within(name), "0", f"{results.chance[name]:.3f}", False)
        for name, title in CONFOUND_TITLES.items()
    ]
    return [
        *marginal,
        ("Accuracy ↑", lambda line: line.accuracy, "", f"{results.ceiling_with_confounds:.1%}", True),
        *within,
        ("mean of the three within groups ↓", lambda line: line.within_mean, "0", f"{mean_chance(results):.3f}", False),
        ("Accuracy, independent ↑", lambda line: line.independent, "", f"{results.ceiling:.1%}", True),
    ]


def mean_chance(results: Results) -> float:
    """The mean of the three correlations within groups of random scores."""
    return sum(results.chance.values()) / len(results.chance)


def _marginal(name: str) -> Measure:
    return lambda line: line.marginal(name)


def _within(name: str) -> Measure:
    return lambda line: line.within[name]


def _cells(values: Sequence[Value | None], percent: bool, bold: str) -> list[str]:
    best = (max if percent else min)(value.mean for value in values if value)
    return ["–" if value is None else _cell(value, percent, bold if value.mean == best else "") for value in values]


def _cell(value: Value, percent: bool, bold: str) -> str:
    form = ".1%" if percent else ".3f"
    shown = f"{bold}{value.mean:{form}}{bold}"
    return shown if value.low == value.high else f"{shown} ({value.low:{form}} to {value.high:{form}})"


def table_three(results: Results, bold: str = "**") -> Table:
    """Ours against each other arm, paired over folds: where it is behind, the table says so.

    Args:
        results: The results.
        bold: What stands on both sides of "behind".
    """
    rows = []
    for batch in results.batches:
        ours = results.find(batch, OURS)
        for arm in results.present:
            theirs = results.find(batch, arm)
            if arm == OURS or ours is None or theirs is None or not _both(ours, theirs):
                continue
            accuracy, left = (ours.minus(theirs, measure) for measure in (_independent, _left))
            rows.append([
                str(batch), results.title(arm), _difference(accuracy, 100, 1), verdict(accuracy, 1, bold),
                _difference(left, 1, 3), verdict(left, -1, bold),
            ])  # fmt: skip
    name = results.title(OURS) if OURS in results.arms else OURS
    return Table(
        ["batch", "against", "accuracy, independent: points more", f"{name} is",
         "mean correlation within groups: more", f"{name} is"],
        rows,
    )  # fmt: skip


def _independent(trial: Trial) -> float:
    return trial.independent


def _left(trial: Trial) -> float:
    return trial.within_mean


def _both(ours: Line, theirs: Line) -> bool:
    return bool({trial.fold for trial in ours.trials} & {trial.fold for trial in theirs.trials})


def _difference(value: Value, scale: float, digits: int) -> str:
    mean, low, high = (f"{scale * each:+.{digits}f}" for each in (value.mean, value.low, value.high))
    return mean if value.low == value.high else f"{mean} ({low} to {high})"


def verdict(value: Value, sign: int, bold: str = "**") -> str:
    """Whether a difference is to our credit, and whether its interval leaves that open.

    Args:
        value: Ours minus theirs.
        sign: 1 where more is better, -1 where less is.
        bold: What stands on both sides of "behind".
    """
    word = "level" if value.mean == 0 else ("ahead" if sign * value.mean > 0 else f"{bold}behind{bold}")
    if value.low == value.high:
        return f"{word} (one fold)"
    return f"{word} (interval holds 0)" if value.low <= 0 <= value.high and value.mean != 0 else word


def not_first(results: Results) -> list[str]:
    """Where another arm is better than ours at a batch size, a sentence each."""
    told = []
    for batch in results.batches:
        ours = results.find(batch, OURS)
        if ours is None:
            continue
        others = [line for line in results.lines if line.batch == batch and line.arm != OURS]
        above = {
            line.arm: f"{line.independent.mean:.1%}" for line in others if line.independent.mean > ours.independent.mean
        }
        # A network that has learned nothing has nothing to give away, so what it knows is said too.
        below = {
            line.arm: f"{line.within_mean.mean:.3f} (accuracy {line.independent.mean:.1%})"
            for line in others
            if line.within_mean.mean < ours.within_mean.mean
        }
        head = f"Batch {batch}: {results.title(OURS)} is not first in"
        if above:
            told.append(
                f"{head} accuracy on independent people: {ours.independent.mean:.1%}, {_named(results, above)}."
            )
        if below:
            told.append(
                f"{head} mean correlation within groups: {ours.within_mean.mean:.3f}, {_named(results, below)}."
            )
    return told


def _named(results: Results, values: Mapping[str, str]) -> str:
    return ", ".join(f"{results.title(arm)} {value}" for arm, value in values.items())


def gaps(results: Results) -> list[str]:
    """What of the plan is not trained or has failed, a sentence each."""
    told = []
    missing = results.missing()
    for batch in results.plan["batch_sizes"]:
        here = {arm: folds for (size, arm), folds in missing.items() if size == batch}
        if not here:
            continue
        if batch not in results.batches:
            told.append(f"Batch {batch} is not trained yet.")
            continue
        alike: dict[tuple[int, ...], list[str]] = {}
        for arm, folds in here.items():
            alike.setdefault(tuple(folds), []).append(results.title(arm))
        for left, titles in alike.items():
            who = "all arms" if len(titles) == len(results.plan["arms"]) else ", ".join(titles)
            which = f"fold {left[0]} of {who} is" if len(left) == 1 else f"folds {_numbers(left)} of {who} are"
            told.append(f"Batch {batch}: {which} not trained yet.")
    return told + [f"Failed: {name}: {text}" for name, text in results.failures.items()]


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
