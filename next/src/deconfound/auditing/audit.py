"""`audit`: is this model confounded? Intake, measures and verdicts, in this order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd

from deconfound.auditing.audit_result import Audit
from deconfound.auditing.intake import Intake, read_intake
from deconfound.auditing.measures import MOST_ROWS, Source, measure_confounds
from deconfound.auditing.outputs import ModelOutputs, read_features, read_outputs
from deconfound.auditing.performance import LabelWeights, measure_performance
from deconfound.auditing.result import About, Performance, Verdict
from deconfound.auditing.verdicts import judge
from deconfound.errors import OptionError
from deconfound.metrics import Resampling
from deconfound.table import Kind, Note, Table, check_table

# Called with the number of the step, the number of steps, and a description.
OnProgress = Callable[[int, int, str], None]
# A shorter audit, in seconds, is not announced.
SHORT = 5.0


def audit(  # noqa: PLR0913
    outputs: Any,
    table: Table,
    *,
    confounds: Sequence[str],
    labels: Sequence[str] = (),
    features: Any = None,
    person: str | None = None,
    fold: str | None = None,
    weight: str | None = None,
    types: Mapping[str, Kind] | None = None,
    classes: Sequence[str] = (),
    positive: str | None = None,
    resampling: Resampling | None = None,
    planted: float | None = 0.5,
    probes: bool = True,
    leaks: bool = True,
    on_progress: OnProgress | None = None,
) -> Audit:
    """Measure what is left of confounds in a model's outputs, and what the model is worth.

    A confound is left if the outputs depend on it among people with the same labels. The test
    permutes the confound among such people, and finds leaks that are linear or not, and those that
    are confined to one label group; it tests one confound at a time. The performance is that within
    strata of the confounds and under weights that give the classes equal means of all confounds.

    Args:
        outputs: The outputs for new people: an array `(n,)` or `(n, k)`, a tensor, a DataFrame, or
            a mapping from model names to these. Columns are known by their names (`score_<level>`,
            `prob_<level>` or `<level>`), or stand for the binary labels in their order, or for the
            levels of a single label in sorted order. None if only features are audited.
        table: The same people in the same order, with the columns named below.
        confounds: Columns that the model should not use.
        labels: Columns that it predicts. People are compared with people of the same labels, and of
            similar values of a numeric label. With two numeric labels the test is not exact: in
            simulations 8 % of innocent models had p ≤ .05.
        features: Features or embeddings, shape `(n, d)`, or a mapping from names to arrays.
        person: The column of people, if a person may have several rows.
        fold: The column of test folds, if the outputs come from several networks.
        weight: A column of row weights that depend on labels and confounds alone.
        types: Kinds of columns, "numeric" or "categorical", where the values leave a doubt.
        classes: The classes that the columns of the outputs stand for, in their order.
        positive: The class for which a high score of a binary label stands.
        resampling: Numbers of permutations and bootstrap samples, and their seed.
        planted: The size in sd of leaks that are planted into the table, to see how many the test
            would find. None leaves them out.
        probes: Whether to cross-validate models that read each confound from the outputs.
        leaks: Whether to test for leaks. False measures the performance alone, which is quick.
        on_progress: Called with the number of the step, the number of steps, and a description.

    Raises:
        TableError: Lists all faults of the table.
        OptionError: The meaning of the outputs is not clear; shows what to write.

    Example:
        >>> import deconfound as dc
        >>> features, target, people = dc.example("heart")
        >>> score = features[:, 0] + features[:, 2]
        >>> report = dc.audit(score, people, confounds=["hospital"], labels=["ill"], planted=None)
        >>> report.verdicts[0].answer, report.verdicts[0].grade
        ('found', 'weak')
    """
    if planted is not None and not planted >= 0:
        raise OptionError(f"planted must be a number of sd, 0 or more, or None; got {planted!r}.")
    intake = read_intake(
        table,
        confounds=confounds,
        labels=labels,
        person=person,
        fold=fold,
        weight=weight,
        types=types,
    )
    models: tuple[ModelOutputs, ...] = ()
    if outputs is not None:
        _check_order("outputs", outputs, table)
        models = read_outputs(
            outputs, intake.labels, classes=classes, positive=positive, rows=len(intake)
        )
    arrays = {}
    if features is not None:
        _check_order("features", features, table)
        arrays = read_features(features, len(intake))
    if not models and not arrays:
        raise OptionError("outputs is None and there are no features. Pass one of them.")
    # Outputs first: their verdicts are what most users ask for.
    sources = [Source(model.name, False, model.matrix) for model in models]
    sources += [Source(name, True, values) for name, values in arrays.items()]
    sources = sources if leaks else []
    used = resampling or Resampling()
    # Features alone have no performance.
    scored = intake.labels if models else ()
    step = _Steps(
        on_progress,
        len(sources) * (1 + len(intake.confounds)) + len(scored),
        sum(_estimate_seconds(source, intake) for source in sources),
    )
    verdicts: list[Verdict] = []
    for source in sources:
        measurements = measure_confounds(
            source, intake, resampling=used, planted=planted, probes=probes, on_step=step
        )
        verdicts += judge(source, list(measurements))
    performance: list[Performance] = []
    # Weights and the score of the confounds alone belong to the label, not to a model.
    shared = {}
    for label in scored:
        step(f"performance: {label.name}")
        shared[label.name] = LabelWeights(label, intake, used)
    for model in models:
        performance += measure_performance(model, intake, shared, used)
    notes = _table_notes(intake, labels, confounds, person)
    about = _about(intake, models, list(arrays), used, planted)
    return Audit(tuple(verdicts), tuple(performance), tuple(notes), about)


def _check_order(name: str, arrays: Any, table: Table) -> None:
    """Refuse arrays whose pandas index names the rows of the table in another order."""
    for values in arrays.values() if isinstance(arrays, Mapping) else [arrays]:
        index, wanted = getattr(values, "index", None), getattr(table, "index", None)
        if not isinstance(index, pd.Index) or not isinstance(wanted, pd.Index):
            continue
        is_permuted = index.is_unique and set(index) == set(wanted)
        if is_permuted and not index.equals(wanted):
            raise OptionError(
                f"{name} and table have the same rows in another order (pandas indexes). "
                f"Write {name}.loc[table.index]."
            )


class _Steps:
    """Counts the steps of an audit for `on_progress`; the first one tells how long all may take."""

    def __init__(self, on_progress: OnProgress | None, total: int, seconds: float) -> None:
        self._on_progress, self._total, self._done = on_progress, total, 0
        self._seconds = seconds

    def __call__(self, description: str) -> None:
        self._done += 1
        if self._done == 1 and self._seconds >= SHORT:
            description += f" (about {self._seconds:.0f} s in all)"
        if self._on_progress is not None:
            self._on_progress(self._done, self._total, description)


def _estimate_seconds(source: Source, intake: Intake) -> float:
    """Return how long the defaults take on two cores, from `benchmarks/audit_cost.py`."""
    rows = min(len(intake), MOST_ROWS)
    per_confound = 5 * (rows / MOST_ROWS) ** 1.6 * (1 + source.values.shape[1] / 3000)
    return float(per_confound * len(intake.confounds))


def _table_notes(
    intake: Intake, labels: Sequence[str], confounds: Sequence[str], person: str | None
) -> list[Note]:
    """Return the checks of the table that an audit does not answer itself."""
    notes = check_table(intake.frame, labels, confounds, person)
    # Whole numbers without a type and obstacles have been dealt with by now.
    return [note for note in notes if note.kind in ("stratum", "id", "determined")]


def _about(
    intake: Intake,
    models: Sequence[ModelOutputs],
    features: Sequence[str],
    resampling: Resampling,
    planted: float | None,
) -> About:
    names, codes = np.unique(intake.group.astype(str), return_inverse=True)
    people = {
        str(name): len(np.unique(intake.person[codes == code])) for code, name in enumerate(names)
    }
    return About(
        rows=len(intake),
        people=intake.people,
        folds=int(intake.fold.max()) + 1,
        models=tuple(model.name for model in models),
        features=tuple(features),
        labels=tuple(label.name for label in intake.labels),
        confounds=tuple(confound.name for confound in intake.confounds),
        groups=people,
        permutations=resampling.permutations,
        bootstraps=resampling.bootstraps,
        planted=planted,
        has_people=intake.has_people,
        has_weights=intake.has_weights,
        reading=tuple(sentence for model in models for sentence in model.reading),
        version=version("deconfound"),
    )
