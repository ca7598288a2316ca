"""The tables, from the results: the paper's two, and ours against each other arm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from deconfound_lab.cohort.people import GROUPS
from deconfound_lab.harness import Table
from deconfound_lab.harness.estimates import Value
from deconfound_lab.mri.results import OURS, Line, Results

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
        where = "–" if made["method"] == "none" else places
        rows.append([results.title(arm), f"`{made['method']}`", where, norms, options or "–"])
    return Table(["arm", "method", "places", "LayerNorm after", "options"], rows)


def table_two(results: Results) -> Table:
    """Table 2 in the paper's layout, with the correlations within groups and the accuracy on independent people.

    The best arm of each row is bold; intervals of 95 % stand in brackets; a dash stands where nothing is trained.
    """
    arms = results.present
    rows: list[list[str]] = []
    for batch in results.batches:
        lines = [results.find(batch, arm) for arm in arms]
        if any(key[0] == batch for key in results.missing()):
            folds = [f"{len(line.trials)} of {results.plan['run_folds']}" if line else "–" for line in lines]
            rows.append([str(batch), "folds trained", *folds, "", ""])
        for title, measure, truth, limit, percent in _measures(results):
            values = [measure(line) if line else None for line in lines]
            rows.append([str(batch), title, *_cells(values, percent), truth, limit])
    return Table(["batch", "measure", *map(results.title, arms), "true labels", "best or chance"], rows)


def _measures(results: Results) -> list[tuple[str, Measure, str, str, bool]]:
    """Title, measure, value of the true labels, best or chance value, and whether it is an accuracy."""
    marginal = [
        (f"{title} ↓", lambda line, name=name: line.marginal(name), f"{results.truth[name]:.3f}", "", False)
        for name, title in CONFOUND_TITLES.items()
    ]
    within = [
        (
            f"{title} within groups ↓",
            lambda line, name=name: line.within[name],
            "0",
            f"{results.chance[name]:.3f}",
            False,
        )
        for name, title in CONFOUND_TITLES.items()
    ]
    chance = f"{results.mean_chance:.3f}"
    return [
        *marginal,
        ("Accuracy ↑", lambda line: line.accuracy, "", f"{results.ceiling_with_confounds:.1%}", True),
        *within,
        ("mean of the three within groups ↓", lambda line: line.within_mean, "0", chance, False),
        ("Accuracy, independent ↑", lambda line: line.independent, "", f"{results.ceiling:.1%}", True),
    ]


def _cells(values: Sequence[Value | None], percent: bool) -> list[str]:
    best = (max if percent else min)(value.mean for value in values if value)
    form = ".1%" if percent else ".3f"
    shown = []
    for value in values:
        mean, _, rest = "–".partition(" ") if value is None else value.shown(form).partition(" ")
        strong = f"**{mean}**" if value is not None and value.mean == best else mean
        shown.append(f"{strong} {rest}" if rest else strong)
    return shown


def table_three(results: Results) -> Table:
    """Ours against each other arm, paired over folds: where it is behind, the table says so."""
    rows = []
    for batch in results.batches:
        ours = results.find(batch, OURS)
        for arm in results.present:
            theirs = results.find(batch, arm)
            if arm == OURS or ours is None or theirs is None:
                continue
            accuracy = ours.minus(theirs, lambda trial: trial.independent)
            left = ours.minus(theirs, lambda trial: trial.within_mean)
            if accuracy is not None and left is not None:
                more = [accuracy.shown("+.1f", 100), verdict(accuracy, 1), left.shown("+.3f"), verdict(left, -1)]
                rows.append([str(batch), results.title(arm), *more])
    name = results.title(OURS) if OURS in results.arms else OURS
    measures = ["accuracy, independent: points more", "mean correlation within groups: more"]
    return Table(["batch", "against", measures[0], f"{name} is", measures[1], f"{name} is"], rows)


def verdict(value: Value, sign: int) -> str:
    """Whether a difference is to our credit, and whether its interval leaves that open.

    Args:
        value: Ours minus theirs.
        sign: 1 where more is better, -1 where less is.
    """
    word = "level" if value.mean == 0 else ("ahead" if sign * value.mean > 0 else "**behind**")
    if value.single:
        return f"{word} (one fold)"
    return f"{word} (interval includes 0)" if value.low <= 0 <= value.high and value.mean != 0 else word


def not_first(results: Results) -> list[str]:
    """Where another arm is better than ours at a batch size, a sentence each."""
    sentences = []
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
        for what, own, better in (
            ("accuracy on independent people", f"{ours.independent.mean:.1%}", above),
            ("mean correlation within groups", f"{ours.within_mean.mean:.3f}", below),
        ):
            if better:
                sentences.append(f"{head} {what}: {own}, {_named(results, better)}.")
    return sentences


def _named(results: Results, values: Mapping[str, str]) -> str:
    return ", ".join(f"{results.title(arm)} {value}" for arm, value in values.items())


def gaps(results: Results) -> list[str]:
    """What of the plan is not trained or has failed, a sentence each."""
    sentences = []
    missing = results.missing()
    for batch in results.plan["batch_sizes"]:
        here = {arm: folds for (size, arm), folds in missing.items() if size == batch}
        if here and batch not in results.batches:
            sentences.append(f"Batch {batch} is not trained yet.")
            continue
        alike: dict[tuple[int, ...], list[str]] = {}
        for arm, folds in here.items():
            alike.setdefault(tuple(folds), []).append(results.title(arm))
        for left, titles in alike.items():
            who = "all arms" if len(titles) == len(results.plan["arms"]) else ", ".join(titles)
            numbers = ", ".join(map(str, left))
            which = f"fold {numbers} of {who} is" if len(left) == 1 else f"folds {numbers} of {who} are"
            sentences.append(f"Batch {batch}: {which} not trained yet.")
    return sentences + [f"Failed: {name}: {text}" for name, text in results.failures.items()]
