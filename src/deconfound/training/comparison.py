"""`compare`: methods side by side on the same folds and seeds, paired differences, and one audit of all."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deconfound.auditing import Audit, comparison_page, comparison_sentences
from deconfound.data.files import read_json, write_json, write_text
from deconfound.errors import DeconfoundWarning, OptionError, RunError
from deconfound.methods import METHODS
from deconfound.training.checks import listed_faults, method_faults
from deconfound.training.config import Config, Variant
from deconfound.training.config_file import faults_of
from deconfound.training.fitting import asked_audit, chosen_config, first_of_several
from deconfound.training.intervals import Interval, difference, interval, within
from deconfound.training.jobs import OnProgress, open_runs, raise_if_failed, train_runs, working_on
from deconfound.training.origin import provenance
from deconfound.training.outputs import confound_columns, left, read_fold_outputs
from deconfound.training.problem import Problem
from deconfound.training.run_folder import ABOUT, RESULTS, FoldFolder, RunFolder, gather, open_run
from deconfound.training.workers import Cluster, JobResult

FORMAT, VERSION = "deconfound-comparison", 1
REPORT = "report.html"
Keyed = dict[tuple[int, int], float]
"""Values by (test set, seed)."""


@dataclass(frozen=True)
class Entry:
    """One line of a comparison: a method, with a batch size where several are compared, and its runs by seed."""

    name: str
    method: str
    runs: Mapping[int, Config]


@dataclass(frozen=True)
class Comparison:
    """Methods compared on the same folds and seeds.

    Attributes:
        folder: Where the runs and the report lie.
        lines: For each method its name, runs, seconds and measures, as in `results.json`.
        audit: One audit of the first seed's out-of-fold outputs of all methods; None in all but the first of
            several processes that train together.
        sentences: The comparison in a few plain sentences.
        results: The content of `results.json`.
        files: The files that were written for reading: `results.json` and `report.html`.
        failures: Folds that failed; their methods are not among the lines.
    """

    folder: Path
    lines: Sequence[Mapping[str, Any]]
    audit: Audit | None
    sentences: tuple[str, ...]
    results: Mapping[str, Any]
    files: tuple[Path, ...]
    failures: tuple[JobResult, ...] = ()

    def raise_if_failed(self) -> None:
        """Raise an error that counts the failed folds, if any."""
        raise_if_failed(self.failures, self.folder)


def compare(
    config: str | Path | Mapping[str, Any] | Config,
    *overrides: str,
    source: Any = None,
    jobs: int = 1,
    cluster: Cluster | None = None,
    skip_bad: bool = False,
    progress: OnProgress | None = None,
) -> Comparison:
    """Train several methods on the same folds and seeds, and compare cost and what is left.

    Called again, also with more methods or seeds, it does not repeat finished folds. A method whose folds fail is left
    out of the comparison, with a warning, and does not stop the others.

    Args:
        config: A YAML file, a mapping, or a `Config`; its section `compare` says what is trained.
        overrides: Changes of it, such as `"compare.methods=[none, pmdn]"`.
        source: The data instead of what `data.source` names; see `fit`.
        jobs: Folds that run at a time on this machine; -1 is one per core.
        cluster: Send the folds there instead, as an array of submitit.
        skip_bad: Leave out scans that cannot be read or have no row of the table, and warn.
        progress: Called with a `Progress` as folds and epochs end.

    Example:
        >>> from deconfound.training import compare
        >>> compare({"data": {}, "design": {"confounds": ["age"]}, "compare": {"seeds": [-1]}})
        Traceback (most recent call last):
            ...
        deconfound.errors.OptionError: the config has 3 faults:
        - data.source must be given; got nothing.
        - data.label must be given; got nothing.
        - compare.seeds must be at least 0; got -1.
    """
    chosen = chosen_config(config, overrides, source, skip_bad)
    _check_folder(Path(chosen.run.folder))
    lines = entries(chosen)
    problems = open_runs([run for line in lines for run in line.runs.values()], progress, source)
    with working_on([chosen.run.folder, *(problem.config.run.folder for problem in problems)]):
        failed = train_runs(problems, jobs, cluster, progress)
        folders = {result.job.config.run.folder for result in failed}
        broken = {line.name for line in lines if folders & {run.run.folder for run in line.runs.values()}}
        whole = [line for line in lines if line.name not in broken]
        if not whole:
            raise_if_failed(failed, chosen.run.folder)
        if failed and progress is None:
            names = ", ".join(sorted(broken))
            warnings.warn(f"left out of the comparison, for folds failed: {names}", DeconfoundWarning, stacklevel=2)
        folder, audited = Path(chosen.run.folder), None
        with first_of_several() as is_first:
            if is_first:
                content, audited = _compared(chosen, whole, problems, progress)
                write_json(folder / RESULTS, content)
                write_text(folder / REPORT, comparison_page(content))
        content = read_json(folder / RESULTS)
    files = (folder / RESULTS, folder / REPORT)
    sentences = (*_other_base(lines[0].name, whole[0].name), *comparison_sentences(content))
    return Comparison(folder, content["lines"], audited, sentences, content, files, tuple(failed))


def _check_folder(folder: Path) -> None:
    """Refuse the folder of a run of `fit`: its `results.json` would be replaced."""
    if (folder / ABOUT).exists():
        raise RunError(
            f"{folder} must be new or hold a comparison; got a run of `fit`, whose {RESULTS} would be replaced. Set "
            f"run.folder to another one, such as run.folder={folder}-compare after the config."
        )


def entries(config: Config) -> list[Entry]:
    """Every method and batch size of `config.compare`, with a run for each seed."""
    compared = config.compare
    variants = compared.variants
    faults = method_faults([variants[name].method if name in variants else name for name in compared.methods])
    taken = [name for name in variants if name in METHODS]
    faults += [f"compare.variants must have names that no method has; got {name!r}." for name in taken]
    faults += [
        f"compare.variants must have names that can be folders; got {name!r}. Leave slashes out."
        for name in variants
        if "/" in name or "\\" in name
    ]
    faults += [
        f"compare.variants must leave batch_size to compare.batch_sizes where both are given; got it in {name!r}."
        for name, variant in variants.items()
        if compared.batch_sizes and "batch_size" in variant.training
    ]
    if not compared.seeds:
        faults.append("compare.seeds must name at least one seed; got none.")
    if faults:
        raise OptionError(listed_faults("the config", faults))
    made = []
    for line in dict.fromkeys(compared.methods):
        variant = variants.get(line)
        method = line if variant is None else variant.method
        varied = config if variant is None else _varied(config, variant)
        sizes = dict.fromkeys(compared.batch_sizes or (varied.training.batch_size,))
        for size in sizes:
            name = line if len(sizes) == 1 else f"{line}, batch {size}"
            part = line if len(sizes) == 1 else f"{line}-batch-{size}"
            chosen = varied.updated(method={"name": method}, training={"batch_size": size})
            folders = {seed: str(Path(config.run.folder) / f"{part}-seed-{seed}") for seed in compared.seeds}
            runs = {seed: chosen.updated(run={"seed": seed, "folder": folder}) for seed, folder in folders.items()}
            made.append(Entry(name, method, runs))
    return made


def _varied(config: Config, variant: Variant) -> Config:
    """The config under a variant's options and keys of training."""
    from pydantic import ValidationError

    options = {**config.method.options, variant.method: variant.options}
    try:
        training = type(config.training).model_validate(config.training.model_dump() | variant.training)
    except ValidationError as error:
        faults = " ".join(faults_of(error, "training"))
        raise OptionError(
            f"compare.variants must have keys of training that can be; got {variant.training}: {faults}"
        ) from error
    return config.updated(method={"options": options}).model_copy(update={"training": training})


def _other_base(asked: str, base: str) -> list[str]:
    """That the others are compared with another method than the one that was named first, whose folds failed."""
    return [] if base == asked else [f"Differences are to {base}, for folds of {asked} failed."]


def _compared(
    config: Config, lines: Sequence[Entry], opened: Sequence[Problem], progress: OnProgress | None
) -> tuple[dict[str, Any], Audit]:
    """The content of `results.json`, and the audit of the first seed's outputs.

    The differences are to the first line. What is left is measured within label groups of each test set.
    """
    by_folder = {problem.config.run.folder: problem for problem in opened}
    problems = {seed: by_folder[run.run.folder] for seed, run in lines[0].runs.items()}
    problem = problems[next(iter(problems))]
    shares = [len(fold.test) / len(fold.train) for each in problems.values() for fold in each.folds]
    share = float(np.mean(shares))
    runs = {line.name: {seed: open_run(run.run.folder) for seed, run in line.runs.items()} for line in lines}
    measured = {name: _measured(by_seed, problems) for name, by_seed in runs.items()}
    base = measured[lines[0].name]
    audited = asked_audit(config, {name: next(iter(by_seed.values())) for name, by_seed in runs.items()}, progress)
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
        "lines": [_line(line, runs[line.name], measured[line.name], base, share) for line in lines],
        "audit": audited.to_dict(),
        "provenance": provenance(config.run.seed, problem.source.fingerprint),
    }
    return content, audited


def _line(
    line: Entry,
    runs: Mapping[int, RunFolder],
    measured: Mapping[str, Keyed],
    base: Mapping[str, Keyed],
    share: float,
) -> dict[str, Any]:
    results = [gather(run) for run in runs.values()]
    seconds = [value for each in results for value in each["seconds"].values()]
    return {
        "name": line.name,
        "method": line.method,
        "runs": {str(seed): run.path.name for seed, run in runs.items()},
        "seconds": round(float(np.mean(seconds)), 3),
        "problems": [problem for each in results for fold in each["folds"] for problem in fold["problems"]],
        "curves": {str(fold.number): _curves(fold) for fold in next(iter(runs.values())).folds},
        "measures": {
            key: {
                **_plain(within(interval([(k[0], v) for k, v in values.items()], share), *_range(key))),
                "difference": _plain(difference(values, base.get(key, {}), share)),
            }
            for key, values in measured.items()
        },
    }


def _curves(fold: FoldFolder) -> dict[str, list[float]]:
    """Training and validation loss of each epoch."""
    lines = fold.lines("history.csv")
    return {name: [float(line[name]) for line in lines] for name in ("train_loss", "val_loss")}


def _measured(runs: Mapping[int, RunFolder], problems: Mapping[int, Problem]) -> dict[str, Keyed]:
    """Each measure by test set and seed: performance, and `left/SPACE/CONFOUND`."""
    found: dict[str, Keyed] = {}
    for seed, run in runs.items():
        problem = problems[seed]
        confounds = confound_columns(problem)
        for fold in run.folds:
            result = fold.checked()
            values = dict(result["metrics"])
            said, tested = read_fold_outputs(fold, problem.task), problem.folds[fold.number].test
            for space, each in left(said, tested, confounds, problem).items():
                values |= {f"left/{space}/{name}": value for name, value in each.items()}
            for name, value in values.items():
                found.setdefault(name, {})[result["test_rows"], seed] = float("nan") if value is None else value
    return found


def _range(measure: str) -> tuple[float, float]:
    """The lowest and the highest value that a measure can have."""
    lowest = -np.inf if measure.endswith("r2") else -1.0 if measure.startswith("left/") else 0.0
    return lowest, np.inf if measure in ("mean_absolute_error", "independent_rows") else 1.0


def _plain(item: Interval) -> dict[str, Any]:
    return {key: None if value != value else value for key, value in asdict(item).items()}
