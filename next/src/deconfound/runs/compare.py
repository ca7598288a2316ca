"""`compare`: variants of a config on the same folds, told apart by their honest scores alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
import pandas as pd

from deconfound import metrics
from deconfound.auditing import Audit, headline, scores_by_measure
from deconfound.data import OnProgress, Samples
from deconfound.design import balance
from deconfound.errors import DeconfoundError, OptionError, StateError
from deconfound.metrics import Estimate, HonestScore
from deconfound.runs import folder as files
from deconfound.runs.config import Config
from deconfound.runs.fit import audit_models, describe_run, read_confounds
from deconfound.runs.folder import RunFolder, flatten, write_json, write_whole
from deconfound.runs.jobs import check_jobs, make_tasks, run_folds
from deconfound.runs.page import render_comparison
from deconfound.runs.problem import Problem, prepare, vary
from deconfound.runs.run import Run, list_scores

Answer = Literal["base", "better", "worse", "no difference", "unknown"]

TABLE = "comparison.csv"
# Planted leaks and probes of more models would take longer than their training.
MOST_MODELS_IN_FULL = 3
NO_INTERVALS = metrics.Resampling(bootstraps=0)
# Variants share samples and folds. These keys of `data` change neither.
FREE_KEYS = ("data.controls", "data.missing")
# Reference rows of tables and arrays, for labels with levels and for numbers.
REFERENCES = {
    "logistic regression": "sklearn.linear_model:LogisticRegression",
    "random forest": "sklearn.ensemble:RandomForestClassifier",
    "gradient boosting": "sklearn.ensemble:HistGradientBoostingClassifier",
}
NUMERIC_REFERENCES = {
    "ridge regression": "sklearn.linear_model:Ridge",
    "random forest": "sklearn.ensemble:RandomForestRegressor",
    "gradient boosting": "sklearn.ensemble:HistGradientBoostingRegressor",
}


@dataclass(frozen=True)
class Line:
    """One variant and label of a comparison.

    Attributes:
        variant: The name of the variant.
        label: The label.
        measure: The score that decides, the same for all variants: "balanced" if each class has 50
            effective people, else the base's lowest score "within strata of …".
        honest: This score over all test rows, of the first seed.
        difference: Its mean difference to the base over test folds, with a corrected interval.
        answer: "better" or "worse" if the interval excludes 0, else "no difference"; "unknown"
            without an interval.
        left: What is left of the confounds, such as "site (clear)".
        scores: All scores of the first seed.
    """

    variant: str
    label: str
    measure: str
    honest: Estimate
    difference: Estimate
    answer: Answer
    left: str
    scores: HonestScore


@dataclass(frozen=True, eq=False)
class Comparison:
    """Variants of a config on the same folds.

    Attributes:
        folder: Where the runs and the report lie.
        base: The variant that the others are compared with.
        runs: From variants to their run with the first seed.
        lines: One for each variant and label; empty while folds are open.
        audit: One audit of the first seed of all variants; None while folds are open. Without an
            audit it has scores, but no verdicts.
        failures: From folds that failed to the reason. Their variants have no lines.
        notes: Sentences about the data.
    """

    folder: Path
    base: str
    runs: Mapping[str, Run]
    lines: tuple[Line, ...]
    audit: Audit | None
    failures: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def summary(self) -> tuple[str, ...]:
        """The answer: what is left, what the variants are worth, and what cannot be known."""
        if self.audit is None:
            return ()
        left, worth, unknown = self.audit.summary
        different = [line for line in self.lines if line.answer in ("better", "worse")]
        clauses = [f"{line.variant} (for {line.label}) is {line.answer}" for line in different]
        differences = "; ".join(clauses) or "no variant is measurably better or worse"
        return left, f"{worth} Compared with {self.base}, {differences}.", unknown

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each variant and label."""
        rows = []
        for line in self.lines:
            row = {"variant": line.variant, "label": line.label, "honest": line.honest.value}
            row |= {"measure": line.measure, "left": line.left}
            row |= {"difference": line.difference.value, "low": line.difference.low}
            row |= {"high": line.difference.high, "p": line.difference.p, "answer": line.answer}
            rows.append(row | list_scores(line.scores))
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-safe data; what is not known is None."""
        frame = self.to_frame().astype(object)
        return {
            "summary": list(self.summary),
            "base": self.base,
            "failures": dict(self.failures),
            "notes": list(self.notes),
            "lines": frame.where(frame.notna(), None).to_dict("records"),
            "audit": None if self.audit is None else self.audit.to_dict(),
        }


def compare(
    config: str | os.PathLike[str] | Mapping[str, Any] | Config,
    *overrides: str,
    data: Samples | None = None,
    jobs: int = 1,
    scheduler: str | None = None,
    part: tuple[int, int] | None = None,
    force: bool = False,
    audit: bool = True,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Train variants of a config on the same folds and seeds, and compare their honest scores.

    Variants are those of `compare.variants`, without any those of `default_variants`; the first is
    the base. All folds of all variants and seeds form one pool. Called again, also with further
    variants or seeds, it repeats no fold that is finished.

    Args:
        config: A YAML file, a mapping of sections, or a `Config`.
        *overrides: Changes such as "compare.seeds=[0, 1]".
        data: The samples, if they do not come from `data.source`.
        jobs: The number of processes.
        scheduler: The address of a Dask scheduler.
        part: `(3, 20)` trains the third of twenty parts of the folds.
        force: Whether an earlier comparison in the folder is deleted first.
        audit: Whether to measure what is left of the confounds.
        on_progress: Called with the number of finished steps, that of all, and a text.

    Raises:
        OptionError: Lists all faults of the config and of its variants.
        StateError: The folder holds something else, or each variant has a fold that failed.

    Example:
        >>> import tempfile, deconfound as dc
        >>> from deconfound.data import open_samples
        >>> from deconfound.runs import compare
        >>> x, ill, people = dc.example("heart")
        >>> config = {
        ...     "data": {"labels": ["ill"]},
        ...     "design": {"confounds": ["age", "sex", "hospital"]},
        ...     "training": {"epochs": 2},
        ...     "splits": {"folds": 2},
        ...     "run": {"folder": tempfile.mkdtemp()},
        ...     "compare": {"variants": {"plain": {"method": "none"}, "pmdn": {}}},
        ... }
        >>> result = compare(config, data=open_samples(x, people), audit=False)
        >>> [(line.variant, line.measure, line.answer) for line in result.lines][0]
        ('plain', 'balanced', 'base')
    """
    settings = Config.load(config, *overrides, data=data)
    check_jobs(jobs, part)
    problem = prepare(settings, data, on_progress)
    problems = _make_problems(problem)
    folder = RunFolder(_folder_of(problem), (files.RUN, TABLE, files.RESULTS, files.REPORT))
    with folder.lock(part):
        if force:
            _clear(folder)
        folder.claim({**describe_run(problem), "command": "compare"}, force)
        tasks = []
        for (variant, seed), one in problems.items():
            RunFolder(_folder_of(one)).claim(describe_run(one))
            words = f", seed {seed}" if len(settings.compare.seeds) > 1 else ""
            tasks += make_tasks(one, _folder_of(one), f"{variant}{words}, ")
        run_folds(tasks, problem, jobs, scheduler, part, on_progress)
        comparison = _read_comparison(folder.path, problem, problems, audit, on_progress)
        if comparison.lines:
            write_json(folder.path / files.RESULTS, comparison.to_dict())
            write_whole(folder.path / TABLE, comparison.to_frame().to_csv(index=False))
            write_whole(folder.path / files.REPORT, render_comparison(comparison))
        return comparison


def default_variants(problem: Problem) -> dict[str, dict[str, Any]]:
    """Return what is compared if the config names no variants.

    These are the plain network, PMDN, weights, both, and, where the data allow it, ranking within
    strata and residualized inputs. Beside them, tables and arrays have estimators of scikit-learn
    for reference.
    """
    is_numeric = problem.task.kind == "numeric"
    bare: dict[str, Any] = {"method": "none", "training.balance": None, "training.loss": None}
    weights = {**bare, "training.balance": "entropy" if is_numeric else "overlap"}
    variants = {"plain": bare, "pmdn": {**bare, "method": "pmdn"}, "weights": weights}
    variants["weights and pmdn"] = {**weights, "method": "pmdn"}
    confounds = read_confounds(problem.samples.table, problem.config)
    if not is_numeric and "category" in map(str, confounds.dtypes):
        variants["ranking"] = {**bare, "training.loss": "ranking"}
    if problem.samples.kind in ("table", "array"):
        variants["residualized inputs"] = {**bare, "method": "residualized-inputs"}
        # Estimators have no last linear layer whose inputs would be features.
        bare |= {"training.w_scores": False, "run.features": False}
        for name, estimator in (NUMERIC_REFERENCES if is_numeric else REFERENCES).items():
            options = {"max_iter": 1000} if name == "logistic regression" else {}
            variants[name] = {**bare, "network.name": estimator, "network.options": options}
    return variants


def compare_folds(
    values: Mapping[str, float], base: Mapping[str, float], test_share: float
) -> tuple[Estimate, Answer]:
    """Return the mean difference of two models over folds, and which of them is better.

    Args:
        values: The score in each fold; NaN where it cannot be computed.
        base: The same for the base.
        test_share: The share of test rows in all rows of a fold.

    Returns:
        The difference as `deconfound.metrics.nadeau_bengio` gives it, and the answer. Fewer than
        two folds with both scores give no interval, and the answer "unknown".

    Example:
        >>> base = {"0": 0.70, "1": 0.72, "2": 0.71}
        >>> compare_folds({"0": 0.76, "1": 0.79, "2": 0.77}, base, test_share=1 / 3)[1]
        'better'
    """
    differences = (pd.Series(values) - pd.Series(base)).dropna()
    estimate = Estimate(float(differences.mean()))
    if len(differences) > 1:
        estimate = metrics.nadeau_bengio(differences, test_share)
    # Equal differences have no spread, and then no interval unless all of them are 0.
    if isnan(estimate.low):
        return estimate, "unknown"
    if estimate.low > 0:
        return estimate, "better"
    return estimate, "worse" if estimate.high < 0 else "no difference"


def _folder_of(problem: Problem) -> Path:
    assert problem.config.run.folder is not None
    return Path(problem.config.run.folder)


def _make_problems(problem: Problem) -> dict[tuple[str, int], Problem]:
    """Return the problem of each variant and seed; all have the same samples and folds."""
    base = problem.config
    # Seeds are of weights and batches. The folds stay those of the first one.
    if base.splits.seed is None:
        base = base.change({"splits.seed": base.run.seed})
    problems, faults = {}, []
    for variant, changes in (base.compare.variants or default_variants(problem)).items():
        try:
            own = _vary(problem, base, base.change(changes))
        except DeconfoundError as error:
            faults += [f"compare.variants.{variant}: {line}" for line in str(error).splitlines()]
            continue
        name = quote(variant, safe=" ").replace(".", "%2E")
        for seed in base.compare.seeds:
            place = _folder_of(problem) / "variants" / name / f"seed-{seed}"
            config = own.config.change({"run.seed": seed, "run.folder": str(place)})
            problems[variant, seed] = replace(own, config=config)
    if faults:
        raise OptionError("\n".join(faults))
    return problems


def _vary(problem: Problem, base: Config, config: Config) -> Problem:
    """Return the problem of a variant, with the samples and folds of the base."""
    old, new = flatten(base.to_dict()), flatten(config.to_dict())
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    shared = [key for key in keys if key.startswith(("data.", "splits.")) and key not in FREE_KEYS]
    if shared:
        raise OptionError(
            f"Variants share samples and folds, and this one changes {', '.join(shared)}. "
            "Leave them as they are, or use `fit` for it."
        )
    has_same_table = not any(key.startswith(("data.", "design.")) for key in keys)
    own = vary(problem, config) if has_same_table else prepare(config, problem.samples)
    return replace(own, folds=problem.folds, is_from_files=problem.is_from_files)


def _clear(folder: RunFolder) -> None:
    """Delete an earlier comparison: the runs of its variants, then its own files."""
    for description in folder.path.glob(f"variants/*/*/{files.RUN}"):
        RunFolder(description.parent).clear()
        for place in description.parents[:3]:
            if not any(place.iterdir()):
                place.rmdir()
    folder.clear()


def _read_comparison(
    folder: Path,
    problem: Problem,
    problems: Mapping[tuple[str, int], Problem],
    audit: bool,
    on_progress: OnProgress | None,
) -> Comparison:
    """Return the comparison of the runs on disk; without lines while folds are open."""
    runs: dict[str, list[Run]] = {}
    failures: dict[str, str] = {}
    for (variant, seed), one in problems.items():
        run = Run.load(_folder_of(one))
        runs.setdefault(variant, []).append(run)
        for name, reason in run.failures.items():
            failures[f"{variant}, seed {seed}, fold {name}"] = reason
        # Results and a page for each run would take longer than the comparison.
        write_whole(run.folder / files.PREDICTIONS, run.predictions.to_csv(index=False))
    finished = sum(len(run.finished) for own in runs.values() for run in own)
    is_open = finished + len(failures) < len(problems) * len(problem.folds)
    whole = {name: own for name, own in runs.items() if all(run.is_finished for run in own)}
    if not whole and not is_open:
        reasons = "\n".join(dict.fromkeys(failures.values()))
        raise StateError(f"Each variant has a fold that failed: {reasons}")
    first = {variant: own[0] for variant, own in whole.items()}
    base = next(iter(first), "")
    comparison = Comparison(folder, base, first, (), None, failures, problem.notes)
    if is_open:
        return comparison
    models = {variant: run.predictions for variant, run in first.items()}
    options: dict[str, Any] = {"on_progress": on_progress}
    if len(models) > MOST_MODELS_IN_FULL:
        options |= {"planted": None, "probes": False}
    report, notes = audit_models(first[base], models, leaks=audit, **options)
    lines = tuple(_make_lines(report, whole, problem))
    return replace(comparison, lines=lines, audit=report, notes=(*problem.notes, *notes))


def _make_lines(
    audit: Audit, runs: Mapping[str, Sequence[Run]], problem: Problem
) -> Iterator[Line]:
    """Yield a line for each label and variant."""
    sizes = [(len(fold.test), len(fold.validation), len(fold.train)) for fold in problem.folds]
    test_share = float(np.mean([size[0] / sum(size) for size in sizes]))
    base, *_ = runs
    for label in problem.task.labels:
        scores = {row.model: row.honest for row in audit.performance if row.label == label}
        measure = headline(scores[base])
        by_fold = _score_folds(runs, label, measure)
        for variant, honest in scores.items():
            difference, answer = compare_folds(by_fold[variant], by_fold[base], test_share)
            yield Line(
                variant=variant,
                label=label,
                measure=measure,
                honest=scores_by_measure(honest)[measure],
                difference=difference,
                answer="base" if variant == base else answer,
                left=_describe_left(audit, variant),
                scores=honest,
            )


def _score_folds(
    runs: Mapping[str, Sequence[Run]], label: str, measure: str
) -> dict[str, dict[str, float]]:
    """Return for each variant the score of a label in each fold, averaged over its seeds."""
    base = next(iter(runs.values()))[0]
    confounds = read_confounds(base.predictions, base.config).dropna()
    weights = pd.Series(1.0, confounds.index)
    if measure == "balanced":
        is_numeric = base.task.kind == "numeric"
        weights[:] = balance(
            confounds.assign(**{label: base.predictions[label]}),
            [label],
            list(map(str, confounds)),
            "entropy" if is_numeric else "overlap",
            types={label: "numeric" if is_numeric else "categorical"},
        ).weights[:, 0]
    strata = confounds.apply(lambda one: metrics.thirds(one) if one.dtype == float else one)
    averages = {}
    for variant, own in runs.items():
        scores = pd.DataFrame([_score_run(run, label, measure, strata, weights) for run in own])
        averages[variant] = {str(fold): score for fold, score in scores.mean().items()}
    return averages


def _score_run(
    run: Run, label: str, measure: str, strata: pd.DataFrame, weights: pd.Series
) -> dict[str, float]:
    """Return the score of a label in each fold, on the rows of `strata`."""
    values = {}
    for fold, rows in run.predictions.loc[strata.index].groupby("fold"):
        outputs, truth = rows[run.task.column_names()].to_numpy(), run.task.encode(rows)
        if run.task.kind != "classes":
            place = run.task.labels.index(label)
            outputs, truth = outputs[:, place], truth[:, place]
        levels: Any = strata.loc[rows.index].to_dict("list")
        try:
            honest = metrics.honest_performance(
                outputs, truth, levels, weights[rows.index], resampling=NO_INTERVALS
            )
            values[str(fold)] = scores_by_measure(honest)[measure].value
        except DeconfoundError:  # A fold without one of the classes, or without weights.
            values[str(fold)] = nan
    return values


def _describe_left(audit: Audit, variant: str) -> str:
    """Return what is left, such as "site (clear); no answer for age"; empty without an audit."""
    own = [verdict for verdict in audit.verdicts if verdict.model == variant]
    texts = [f"{one.confound} ({one.grade})" for one in own if one.answer == "found"]
    texts += [f"no answer for {one.confound}" for one in own if one.answer == "no answer"]
    return "; ".join(texts) or ("nothing found" if own else "")
