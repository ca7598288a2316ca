"""A first config: what a look at the data shows, and a YAML file that runs without an edit."""

from __future__ import annotations

import ast
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from deconfound.data import OnProgress, Samples, open_samples
from deconfound.design import Design, balance
from deconfound.errors import DeconfoundWarning, OptionError, TableError
from deconfound.runs.config import Config
from deconfound.runs.problem import Problem, prepare
from deconfound.runs.yaml_text import parse_yaml, read_yaml
from deconfound.table import Kind, Note, check_table, format_names, read_table, to_levels

# A larger association costs PMDN more than weights do.
STRONG_ASSOCIATION = 0.5
# The column of people in the BIDS layout.
BIDS_PERSON = "participant_id"
# Levels of which the second one is positive without a word.
KNOWN_ORDERS = (["0", "1"], ["False", "True"])


@dataclass(frozen=True)
class Proposal:
    """A config to start from.

    Attributes:
        text: The config as YAML, with a comment beside each key.
        notes: Sentences about the data, and why the config is what it is.
    """

    text: str
    notes: tuple[str, ...]

    def save(self, path: str | os.PathLike[str], force: bool = False) -> Path:
        """Write the config.

        Args:
            path: A file that ends with .yaml or .yml.
            force: Whether another config may be replaced. No other file ever is.

        Raises:
            OptionError: The path has another ending, or the file exists.
        """
        target = Path(path)
        _check_target(target, force)
        target.write_text(self.text, encoding="utf-8")
        return target


def propose(  # noqa: PLR0913
    source: str | os.PathLike[str],
    table: str | os.PathLike[str] | None = None,
    *,
    labels: Sequence[str],
    confounds: Sequence[str],
    id: str | None = None,
    person: str | None = None,
    positive: str | None = None,
    types: Mapping[str, Kind] | None = None,
    leave_out: str | None = None,
    out: str | os.PathLike[str] = "config.yaml",
    on_progress: OnProgress | None = None,
) -> Proposal:
    """Look at the data, and propose a config that runs without an edit.

    The method is PMDN; where label and confounds are associated above .5, it is the plain network,
    trained on rows that are drawn by weights which break the association. The association is √R²
    of the label on all confounds, adjusted for their number. For a label of two classes and one
    column of levels it is Cramér's V, but for the adjustment.

    Args:
        source: What the network reads: a table, a file of arrays, or a folder of images or scans.
        table: The table with labels and confounds, if the source does not hold them.
        labels: Columns to be predicted.
        confounds: Columns that the network should not use.
        id: The column that joins source and table.
        person: The column of people with several rows; None takes `participant_id` of a folder in
            the BIDS layout.
        positive: The level for which a high score stands; None takes the rarer one.
        types: Kinds of columns, "numeric" or "categorical". Other labels and confounds with 3 to 10
            whole numbers are taken as levels, with a note.
        leave_out: A column, such as the site, each level of which is left out once; None divides
            the people into five folds.
        out: Where the config will lie. Paths below its folder are relative to it.
        on_progress: Called while files are decoded.

    Raises:
        TableError: Lists all faults of the table.
        OptionError: Lists all faults of the arguments.
    """
    given = {"labels": labels, "confounds": confounds}
    faults = [f"{name} must name a column; got none." for name in given if not given[name]]
    if faults:
        raise OptionError("\n".join(faults))
    notes: list[str] = []
    opening: dict[str, Any] = {
        "id": id,
        "roles": [*labels, *confounds, *filter(None, (person, leave_out))],
        "types": types,
        "on_progress": on_progress,
    }
    samples = _open(source, table, labels, opening, notes)
    if person is None and samples.kind == "scan" and BIDS_PERSON in samples.table:
        person = BIDS_PERSON  # One row is a scan, and a person may have several.
    draft = {
        "name": Path(out).name,
        "source": _format_path(source, out),
        "table": table and _format_path(table, out),
        "labels": [*labels],
        "positive": positive or _choose_positive(samples.table, labels, notes),
        "types": _choose_types(samples.table, [*labels, *confounds], types or {}, notes),
        "confounds": [*confounds],
        "network": "mlp" if samples.x.ndim == 2 else "convnet",
        **{key: opening.get(key) for key in ("id", "features", "size")},
        "person": person,
        "leave_out": leave_out,
    }
    # The checks before a training, of a first draft, so that none of them stops the final one.
    first = _render({**draft, "method": "pmdn", "balance": None, "unseen": "mean"})
    problem = prepare(Config.load(parse_yaml(first, "The proposal")), samples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)
        draft |= _choose_method(problem, notes)
        draft["unseen"] = _choose_unseen(problem, notes)
    return Proposal(_render(draft), tuple(dict.fromkeys([*problem.notes, *notes])))


def _open(
    source: Any, table: Any, labels: Sequence[str], options: dict[str, Any], notes: list[str]
) -> Samples:
    """Return the samples. Their size and the columns to leave out are added to the options."""
    roles, samples = {*options["roles"], options["id"], ""}, None
    try:
        samples = open_samples(source, table, **options)
        features = [] if samples.features is None else list(samples.features.columns)
        faults = [*check_table(samples.table, labels, [], features=features)]
    except OptionError as error:
        # The message on files of several sizes ends with the most frequent one.
        size = re.search(r"Write size=([\d(), ]+) to", str(error))
        if size is None:
            raise
        notes.append(str(error).replace("Write size=", "The config has the size "))
        options["size"] = ast.literal_eval(size[1])
        return _open(source, table, labels, options, notes)
    except TableError as error:
        faults = [fault for fault in error.faults if isinstance(fault, Note)]
        if not faults or any(note.column in roles for note in faults):
            raise
    columns = sorted({note.column for note in faults if note.is_error} - roles)
    if samples is not None and not columns:
        return samples
    if {f"-{name}" for name in columns} <= {*options.get("features", [])}:
        raise TableError(*faults)  # Leaving these columns out is no remedy.
    notes.append(
        "Ids, labels in another form, and columns with neither numbers nor levels are no features: "
        f"{format_names(columns)}."
    )
    options["features"] = [*options.get("features", []), *(f"-{name}" for name in columns)]
    return _open(source, table, labels, options, notes)


def _choose_types(
    table: pd.DataFrame, names: Sequence[str], types: Mapping[str, Kind], notes: list[str]
) -> dict[str, Kind]:
    """Return the kinds of columns; whole numbers that may be codes are levels."""
    codes: list[str] = []
    try:
        read_table(table, names, types={name: types[name] for name in names if name in types})
    except TableError as error:
        # `prepare` reports other faults, all of them together.
        doubts = [fault for fault in error.faults if isinstance(fault, Note)]
        codes = [note.column for note in doubts if note.kind == "code"]
    for name in codes:
        notes.append(
            f"Column {name!r} has a few whole numbers, and the config takes them as levels. If "
            f"they are amounts, write types={{{name!r}: 'numeric'}}."
        )
    return {**types, **dict.fromkeys(codes, "categorical")}


def _choose_positive(
    table: pd.DataFrame, labels: Sequence[str], notes: list[str]
) -> dict[str, str]:
    """Return the rarer level of each label with two levels, unless these are 0 and 1.

    Of equally frequent ones it is the first.
    """
    positive = {}
    for name in labels:
        counts = pd.Series(to_levels(table[name])).value_counts().sort_index()
        if len(counts) == 2 and list(counts.index) not in KNOWN_ORDERS:
            positive[name], other = counts.sort_values(kind="stable").index
            notes.append(
                f"A high score stands for {name} = {positive[name]}, the rarer level. To change "
                f"this, write positive={other!r}."
            )
    return positive


def _choose_method(problem: Problem, notes: list[str]) -> dict[str, Any]:
    """Return PMDN, or weights where label and confounds are strongly associated.

    The association is the largest √R² of a label on all confounds, adjusted for their number.
    """
    data, confounds = problem.config.data, problem.config.terms("confounds")
    kind: Any = "entropy" if problem.task.kind == "numeric" else "overlap"
    options: dict[str, Any] = {"types": data.types, "unseen": "mean"}
    pmdn = {"method": "pmdn", "balance": None}
    try:
        table = problem.samples.table
        result = balance(table, data.labels, confounds, kind, person=data.person, **options)
        directions = Design(confounds, **options).fit(table).confound_directions
    except TableError as error:
        notes.append(f"Label and confounds cannot be separated by weights: {error}")
        return pmdn
    shares = [0.0]
    for report in result.reports:
        rows = sum(report.rows.values())
        # By chance alone, q directions explain the share q / (n − 1) of a label.
        factor = (rows - 1) / max(rows - directions - 1, 1)
        shares.append(1 - (1 - report.association_before["all confounds"]) * factor)
    association = max(shares) ** 0.5
    doubts = [report.verdict for report in result.reports if not report.is_answerable]
    text = f"The association of labels and confounds is {association:.2f} (adjusted √R²)"
    if association > STRONG_ASSOCIATION and not doubts:
        notes.append(f"{text}: above {STRONG_ASSOCIATION}, weights do better than pmdn.")
        return {"method": "none", "balance": kind}
    notes += [f"{text}, and the config has the method pmdn.", *doubts]
    return pmdn


def _choose_unseen(problem: Problem, notes: list[str]) -> str:
    """Return "mean" if a fold meets a level or an empty cell that it was not trained on."""
    config, table = problem.config, problem.samples.table
    for fold in problem.folds:
        design = Design(config.terms("confounds"), types=config.data.types, unseen="mean")
        unknown = design.fit(table.iloc[fold.train]).unknown_cells(table)
        if unknown:
            notes.append(f"design.unseen is mean, because of a fold: {unknown[0].text}")
            return "mean"
    return "error"


def _check_target(target: Path, force: bool) -> None:
    """Refuse a file that must not be written."""
    name = f"out={str(target)!r}"
    if target.suffix not in (".yaml", ".yml"):
        raise OptionError(f"{name} must end with .yaml, as configs do.")
    if not target.parent.is_dir():
        raise OptionError(f"{name} lies in no folder. Make the folder first.")
    if not target.exists():
        return
    if not force:
        raise OptionError(f"{name} exists. Write force=True or another name.")
    try:
        sections = read_yaml(target)
    except OptionError:
        sections = {}
    if not {"data", "design"} <= {*sections}:
        raise OptionError(f"{name} is no config, and is not replaced. Write another name.")


def _format_path(path: Any, out: Any) -> str:
    """Return a path for a config: relative if it lies below the config's folder."""
    full, folder = Path(path).absolute(), Path(out).absolute().parent
    return (full.relative_to(folder) if full.is_relative_to(folder) else full).as_posix()


def _render(draft: Mapping[str, Any]) -> str:
    loader = PackageLoader("deconfound.runs", "templates")
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # JSON is YAML, and quotes what YAML would take for a number or a truth value.
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.get_template("config.yaml.j2").render(draft)
