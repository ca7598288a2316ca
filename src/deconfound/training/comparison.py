"""Methods side by side: the same folds and seeds for each, paired differences, and one audit of all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deconfound.auditing.audit import audit
from deconfound.auditing.result import Audit
from deconfound.data.files import write_json
from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError
from deconfound.metrics.resampling import Resampling
from deconfound.training.checking import method_faults
from deconfound.training.config import Config
from deconfound.training.loading import listed
from deconfound.training.pairing import Interval, difference, interval, within
from deconfound.training.problem import Problem, open_problem
from deconfound.training.provenance import provenance
from deconfound.training.reading import audit_types, confound_columns, left, tested
from deconfound.training.run import RESULTS, gather
from deconfound.training.trainers import threads

FORMAT, VERSION = "deconfound-comparison", 1
# Up to so many rows a second thread costs more than it gives, many times more where cores are shared.
ONE_THREAD = 2000
Keyed = dict[tuple[int, int], float]
"""Values by (test set, seed)."""


@dataclass(frozen=True)
class Entry:
    """One line of a comparison: a method, with a batch size where several are compared.

    Attributes:
        name: How the report calls it.
        runs: Its runs by seed.
    """

    name: str
    method: str
    runs: Mapping[int, Config]


def entries(config: Config) -> list[Entry]:
    """Every method and batch size of `config.compare`, with a run for each seed."""
    compare = config.compare
    faults = method_faults(compare.methods)
    try:
        Resampling(compare.permutations, compare.bootstraps, config.run.seed)
    except DeconfoundError as fault:
        faults.append(f"compare: {fault}")
    if not compare.seeds:
        faults.append("compare.seeds must name at least one seed; got none.")
    if faults:
        raise OptionError(listed("the config", faults))
    sizes = compare.batch_sizes or (config.training.batch_size,)
    made = []
    for method in dict.fromkeys(compare.methods):
        for size in dict.fromkeys(sizes):
            name = method if len(sizes) == 1 else f"{method}, batch {size}"
            part = method if len(sizes) == 1 else f"{method}-batch-{size}"
            folders = {seed: str(Path(config.run.folder) / f"{part}-seed-{seed}") for seed in compare.seeds}
            runs = {seed: config.for_run(method, seed, size, folder) for seed, folder in folders.items()}
            made.append(Entry(name, method, runs))
    return made


def compare(
    config: Config, lines: Sequence[Entry], progress: Callable[[str, int, int], None] | None = None
) -> tuple[dict[str, Any], Audit]:
    """Compare finished runs, and write `results.json` into `config.run.folder`.

    The differences are to the first line. What is left is measured within label groups of each test set; the audit
    looks at the first seed's outputs on all test rows, fold by fold.

    Args:
        config: The comparison.
        lines: From `entries`, those whose runs are finished.
        progress: Passed to the audit.
    """
    problems = {
        seed: open_problem(replace(run, run=replace(run.run, seed=seed))) for seed, run in lines[0].runs.items()
    }
    problem = problems[next(iter(problems))]
    shares = [len(fold.test) / len(fold.train) for each in problems.values() for fold in each.folds]
    share = float(np.mean(shares))
    measured = {line.name: _measured(line, problems) for line in lines}
    base = measured[lines[0].name]
    with threads(1 if len(problem.codes) <= ONE_THREAD else None):
        audited = _audit(config, lines, problem, progress)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "config": config.to_dict(),
        "task": problem.task.to_dict(),
        "rows": int((~np.isnan(problem.codes).any(axis=1)).sum()),
        "confounds": problem.confounds,
        "folds": [fold.name for fold in problem.folds],
        "test_share": share,
        "base": lines[0].name,
        "lines": [
            {
                "name": line.name,
                "method": line.method,
                "runs": {str(seed): Path(run.run.folder).name for seed, run in line.runs.items()},
                "seconds": _seconds(line),
                "measures": {
                    key: {
                        **_plain(within(interval([(k[0], v) for k, v in values.items()], share), *_range(key))),
                        "difference": _plain(difference(values, base.get(key, {}), share)),
                    }
                    for key, values in measured[line.name].items()
                },
            }
            for line in lines
        ],
        "audit": audited.to_dict(),
        "provenance": provenance(config.run.seed, problem.source.fingerprint),
    }
    write_json(Path(config.run.folder) / RESULTS, content)
    return content, audited


def _measured(line: Entry, problems: Mapping[int, Problem]) -> dict[str, Keyed]:
    """Each measure by test set and seed: performance, and `left/SPACE/CONFOUND`."""
    found: dict[str, Keyed] = {}
    for seed, run in line.runs.items():
        folder, problem = Path(run.run.folder), problems[seed]
        confounds = confound_columns(problem)
        for result in gather(folder)["folds"]:
            key = (result["test_rows"], seed)
            values = dict(result["metrics"])
            for space, each in left(tested(folder, result["fold"], problem.task), confounds, problem).items():
                values |= {f"left/{space}/{name}": value for name, value in each.items()}
            for name, value in values.items():
                found.setdefault(name, {})[key] = float("nan") if value is None else value
    return found


def _audit(config: Config, lines: Sequence[Entry], problem: Problem, progress: Any) -> Audit:
    outputs: dict[str, Any] = {}
    order: Any = None
    fold_of: Any = None
    for line in lines:
        folder = Path(next(iter(line.runs.values())).run.folder)
        parts = [tested(folder, number, problem.task) for number in range(len(problem.folds))]
        rows = np.concatenate([part.rows for part in parts])
        order = np.argsort(rows)
        fold_of = np.concatenate([[number] * len(part.rows) for number, part in enumerate(parts)])[order]
        outputs[line.name] = np.concatenate([part.outputs for part in parts])[order]
        rows = rows[order]
    names = [*problem.confounds, *problem.task.labels, *([config.data.person] if config.data.person else [])]
    table: dict[str, Any] = {name: np.asarray(problem.source.table[name])[rows] for name in dict.fromkeys(names)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)  # the page holds them as notes
        return audit(
            outputs,
            {**table, "test fold": fold_of},
            confounds=problem.confounds,
            labels=list(problem.task.labels),
            person=config.data.person,
            fold="test fold",
            types=audit_types(problem),
            positive=problem.task.positive,
            permutations=config.compare.permutations,
            bootstraps=config.compare.bootstraps,
            seed=config.run.seed,
            embedding=False,
            progress=progress,
        )


def _seconds(line: Entry) -> float:
    """Training time of a fold, on average."""
    found = [s for run in line.runs.values() for s in gather(Path(run.run.folder))["seconds"].values()]
    return round(float(np.mean(found)), 3)


def _range(measure: str) -> tuple[float, float]:
    """The lowest and the highest value that a measure can have."""
    lowest = -np.inf if measure == "r2" else -1.0 if measure.startswith("left/") else 0.0
    return lowest, np.inf if measure == "mean_absolute_error" else 1.0


def _plain(item: Interval) -> dict[str, Any]:
    return {key: None if value != value else value for key, value in asdict(item).items()}
