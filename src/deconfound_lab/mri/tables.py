"""The tables, from the results: the paper's two, and ours against each other arm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from deconfound_lab.cohort.people import GROUPS
from deconfound_lab.harness import Table
from deconfound_lab.harness.estimates import Value
from deconfound_lab.mri.plan import SEARCH, SEARCHED
from deconfound_lab.mri.results import OURS, Line, Results

CONFOUND_TITLES = {"age": "Age corr", "sex": "Sex corr", "site": "Site corr"}
_CORRELATIONS = [f"{title} ↓" for title in CONFOUND_TITLES.values()]
PLAIN, ORACLE = "baseline", "oracle"


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
        weights = "overlap" if made["balanced"] else "–"
        rows.append([results.title(arm), f"`{made['method']}`", where, norms, weights, options or "–"])
    return Table(["arm", "method", "places", "LayerNorm after", "weights", "options"], rows)


def search_table(results: Results) -> Table:
    """Every candidate with its validation loss under balance; the least of each method is taken."""
    rows = []
    for name, tried in SEARCHED.items():
        losses = {}
        for candidate in tried:
            if (line := results.find(SEARCH.batch_sizes[0], f"{name}: {candidate}")) is not None:
                losses[candidate] = line.trials[0].validation
        for candidate, loss in losses.items():
            rows.append([name, candidate, f"{loss:.4f}", "taken" if loss == min(losses.values()) else ""])
    return Table(["arm", "candidate", "validation loss under balance", ""], rows)


def table_two(results: Results) -> Table:
    """The paper's Table 2: correlations with the confounds and accuracy, every arm refitted where it can be."""

    def cells(line: Line) -> list[str]:
        left = [line.marginal(name).shown(".3f") for name in CONFOUND_TITLES]
        return [*left, line.accuracy.within_bounds().shown(".1%"), str(len(line.trials))]

    truth = [f"{results.truth[name]:.3f}" for name in CONFOUND_TITLES]
    last = ["true labels; best possible", *truth, f"{results.ceiling_with_confounds:.1%}", ""]
    return _by_line(results, [*_CORRELATIONS, "accuracy ↑", "folds"], cells, last)


def footing_table(results: Results) -> Table:
    """What is left within groups and accuracy on independent people, each arm as trained and refitted."""
    rows = []
    for batch in results.batches:
        for arm in results.present:
            lines = [results.find(batch, arm, judged) for judged in ("as trained", "refitted")]
            if any(lines):
                left = [line.within_mean.shown(".3f") if line else "–" for line in lines]
                free = [line.independent.within_bounds().shown(".1%") if line else "–" for line in lines]
                rows.append([str(batch), results.title(arm), *left, *free])
    chance, best = f"{results.mean_chance:.3f}", f"{results.ceiling:.1%}"
    rows.append(["", "random scores; best possible", chance, chance, best, best])
    titles = ("mean correlation within groups ↓", "accuracy, independent ↑")
    both = [head for title in titles for head in (f"{title}, as trained", "refitted")]
    return Table(["batch", "arm", *both], rows)


def within_table(results: Results) -> Table:
    """What is left of each confound within diagnostic groups, with intervals over people."""
    last = ["random scores", *(f"{results.chance[name]:.3f}" for name in CONFOUND_TITLES)]
    return _by_line(results, _CORRELATIONS, lambda line: [line.within[n].shown(".3f") for n in CONFOUND_TITLES], last)


def groups_table(results: Results) -> Table:
    """Accuracy on the test folds in each diagnostic group."""
    return _by_line(results, GROUPS, lambda line: [line.group(group).within_bounds().shown(".1%") for group in GROUPS])


def _by_line(
    results: Results, heads: Sequence[str], cells: Callable[[Line], list[str]], last: Sequence[str] = ()
) -> Table:
    rows = [[str(line.batch), results.title(line.arm), *cells(line)] for line in results.shown]
    return Table(["batch", "arm", *heads], [*rows, ["", *last]] if last else rows)


def oracle_table(results: Results) -> Table:
    """How much of the way from the plain network to the oracle each arm goes, on independent people."""
    rows = []
    for plain, oracle, line in _beside(results, PLAIN, ORACLE):
        gained = line.minus(plain, lambda trial: trial.independent)
        beyond = line.beyond_half(plain, oracle)
        if gained is not None and beyond is not None:
            way = 2 * (gained.mean - beyond.mean)  # of the very folds that the arm has
            share = f"{gained.mean / way:.0%}" if way > 0 else "–"
            more = [gained.shown("+.1f", 100), share, beyond.shown("+.1f", 100)]
            rows.append([str(line.batch), results.title(line.arm), *more])
    head = ["batch", "arm", "points more than the plain network", "share of the way", "points beyond half of the way"]
    return Table(head, rows)


def table_three(results: Results) -> Table:
    """Ours against each other arm, paired over folds: where it is behind, the table says so."""
    rows = []
    for ours, theirs in _beside(results, OURS):
        accuracy = ours.minus(theirs, lambda trial: trial.independent)
        left = ours.minus(theirs, lambda trial: trial.within_mean)
        if accuracy is not None and left is not None:
            more = [accuracy.shown("+.1f", 100), verdict(accuracy, 1), left.shown("+.3f"), verdict(left, -1)]
            rows.append([str(theirs.batch), results.title(theirs.arm), *more])
    name = results.title(OURS) if OURS in results.arms else OURS
    measures = ["accuracy, independent: points more", "mean correlation within groups: more"]
    return Table(["batch", "against", measures[0], f"{name} is", measures[1], f"{name} is"], rows)


def _beside(results: Results, *known: str) -> Iterator[list[Line]]:
    """The lines of the known arms and of one other, for each other arm at each batch size that has them all."""
    for batch in results.batches:
        first = [line for arm in known if (line := results.find(batch, arm)) is not None]
        for arm in results.present if len(first) == len(known) else ():
            if arm not in known and (line := results.find(batch, arm)) is not None:
                yield [*first, line]


def verdict(value: Value, sign: int) -> str:
    """Whether ours minus theirs is to our credit (`sign`: 1 where more is better), or its interval leaves that open."""
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
        found = [results.find(batch, arm) for arm in results.present if arm not in (OURS, ORACLE)]
        others = [line for line in found if line is not None]
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
    planned = results.planned()
    for batch in dict.fromkeys(batch for batch, _, _ in planned):
        here = {arm: folds for (size, arm), folds in missing.items() if size == batch}
        if here and batch not in results.batches:
            sentences.append(f"Batch {batch} is not trained yet.")
            continue
        alike: dict[tuple[int, ...], list[str]] = {}
        for arm, folds in here.items():
            alike.setdefault(tuple(folds), []).append(results.title(arm))
        for left, titles in alike.items():
            every = len(titles) == sum(size == batch for size, _, _ in planned)
            who = "all arms" if every else ", ".join(titles)
            numbers = ", ".join(map(str, left))
            which = f"fold {numbers} of {who} is" if len(left) == 1 else f"folds {numbers} of {who} are"
            sentences.append(f"Batch {batch}: {which} not trained yet.")
    return sentences + [f"Failed: {name}: {text}" for name, text in results.failures.items()]
