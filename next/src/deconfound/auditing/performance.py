"""Honest performance of a model for each label, beside that of the confounds alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from math import nan

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

from deconfound.auditing.intake import Column, Intake
from deconfound.auditing.outputs import LabelOutputs, ModelOutputs
from deconfound.auditing.result import Performance
from deconfound.design import Design, balance
from deconfound.errors import DeconfoundWarning, TableError
from deconfound.metrics import Estimate, Resampling, calibration, honest_performance, thirds
from deconfound.table import Kind

Array = NDArray[np.float64]

FOLDS = 5


def measure_performance(
    model: ModelOutputs, intake: Intake, weights: dict[str, LabelWeights], resampling: Resampling
) -> list[Performance]:
    """Return the performance of a model for each label."""
    return [
        _measure(model.name, outputs, intake, weights[outputs.label], resampling)
        for outputs in model.labels
    ]


class LabelWeights:
    """What all models of a label share: balancing weights, and the score of the confounds alone.

    Attributes:
        column: The label.
        balancing: Weights under which label and confounds are independent, shape `(n,)`, or None.
        problem: Why there are none, else "".
        confounds_alone: The cross-fitted score of a model that sees the confounds alone.
    """

    def __init__(self, column: Column, intake: Intake, resampling: Resampling) -> None:
        self.column = column
        self.balancing, self.problem = _balance(column, intake)
        self.confounds_alone = _score_confounds(column, intake, resampling)


def _measure(
    model: str, outputs: LabelOutputs, intake: Intake, shared: LabelWeights, resampling: Resampling
) -> Performance:
    # Outputs may name the classes in another order than the table.
    truth = _truth(outputs.classes, shared.column)
    honest = honest_performance(
        outputs.scores,
        truth,
        {confound.name: _strata(confound) for confound in intake.confounds},
        shared.balancing,
        person=intake.person,
        fold=intake.fold,
        threshold=outputs.threshold,
        resampling=resampling,
    )
    bins = None
    if outputs.is_probability and outputs.scores.ndim == 1:
        bins = calibration(outputs.scores, truth)
    return Performance(
        model=model,
        label=outputs.label,
        classes=outputs.classes,
        positive=outputs.classes[1] if outputs.scores.ndim == 1 and outputs.classes else "",
        honest=honest,
        confounds_alone=shared.confounds_alone,
        calibration=bins,
        balance=shared.problem,
    )


def _truth(classes: Sequence[str], label: Column) -> Array:
    """Return the column of each row's class among `classes`, or the numbers."""
    if not classes:
        return np.asarray(label.values, dtype=np.float64)
    place = {name: float(position) for position, name in enumerate(classes)}
    return np.array([place[text] for text in label.texts])


def _strata(confound: Column) -> NDArray[np.object_] | NDArray[np.str_]:
    """Return the levels of a confound, or the thirds of a numeric one."""
    return confound.texts if confound.is_categorical else thirds(confound.values)


def _balance(label: Column, intake: Intake) -> tuple[Array | None, str]:
    """Return the balancing weights of a label, or why there are none."""
    kinds = {column.name: column for column in (label, *intake.confounds)}
    types = {name: _kind(column) for name, column in kinds.items()}
    try:
        result = balance(
            intake.frame,
            [label.name],
            [confound.name for confound in intake.confounds],
            "overlap" if label.is_categorical else "entropy",
            types=types,
        )
    except TableError as error:
        return None, str(error).splitlines()[0]
    return np.asarray(result.weights[:, 0]), ""


def _score_confounds(label: Column, intake: Intake, resampling: Resampling) -> Estimate:
    """Return the score of a model that sees the confounds alone, on people it has not seen."""
    columns = _encode_confounds(intake)
    # Each fold needs a person of each class.
    codes = label.values.astype(np.intp) if label.is_categorical else np.zeros(len(intake), int)
    people = [len(np.unique(intake.person[codes == code])) for code in range(codes.max() + 1)]
    folds = min(FOLDS, *people, intake.people)
    if folds < 2 or not columns.shape[1] or len(people) < min(2, len(label.levels)):
        return Estimate(nan)
    width = len(label.levels) if len(label.levels) > 2 else 1
    scores = np.zeros((len(intake), width))
    fold = np.zeros(len(intake), dtype=np.intp)
    for number, (train, test) in enumerate(_split(label, intake, folds, resampling.seed)):
        values = np.asarray(label.values[train], dtype=np.float64)
        scores[test] = _predict(columns[train], label, values, columns[test])
        fold[test] = number
    honest = honest_performance(
        scores[:, 0] if width == 1 else scores,
        label.values,
        {},
        person=intake.person,
        fold=fold,
        resampling=resampling,
    )
    return honest.plain


def _split(
    label: Column, intake: Intake, folds: int, seed: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Return the training and test rows of folds that keep people together."""
    options = {"n_splits": folds, "shuffle": True, "random_state": seed}
    rows = np.zeros(len(intake))
    # Splits by group are slow, and needed only if people have several rows.
    if intake.people < len(intake):
        by_person = StratifiedGroupKFold if label.is_categorical else GroupKFold
        return iter(by_person(**options).split(rows, label.values, intake.person))
    splitter = StratifiedKFold if label.is_categorical else KFold
    return iter(splitter(**options).split(rows, label.values))


def _predict(columns: Array, label: Column, values: Array, test: Array) -> Array:
    if not label.is_categorical:
        return np.asarray(Ridge().fit(columns, values).predict(test)).reshape(-1, 1)
    # Without a second class in the training rows, nothing is predicted.
    if len(np.unique(values)) < 2:
        return np.zeros((len(test), max(1, len(label.levels) * (len(label.levels) > 2))))
    model = LogisticRegression(max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        probabilities = model.fit(columns, values).predict_proba(test)
    if len(label.levels) == 2:
        return np.asarray(probabilities[:, -1:])
    scores = np.zeros((len(test), len(label.levels)))
    scores[:, model.classes_.astype(np.intp)] = probabilities
    return scores


def _encode_confounds(intake: Intake) -> Array:
    """Return the confounds as standardised columns, shape `(n, p)`."""
    types = {column.name: _kind(column) for column in intake.confounds}
    design = Design([column.name for column in intake.confounds], types=types)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)
        return design.fit(intake.frame).encode(intake.frame, dtype=np.float64)


def _kind(column: Column) -> Kind:
    return "categorical" if column.is_categorical else "numeric"
