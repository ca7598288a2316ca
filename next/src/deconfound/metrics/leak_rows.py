"""What is known about each row, apart from its outputs and its confounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from deconfound.errors import OptionError
from deconfound.metrics.arrays import Array, Codes, as_codes, as_matrix, as_vector, check_lengths


@dataclass(frozen=True)
class LeakRows:
    """Label group, fold, person, weight and numeric labels of n rows, checked once.

    Use `LeakRows.from_columns`, which checks its arguments and has a default for each.

    Attributes:
        group: Codes of the label group, shape `(n,)`. They index `group_names`.
        fold: Codes of the test fold, shape `(n,)`.
        person: Codes of the person, shape `(n,)`.
        weight: Weights, shape `(n,)`.
        numeric_labels: Numeric labels, shape `(n, k)`; k may be 0.
        group_names: The levels of the label group.
    """

    group: Codes
    fold: Codes
    person: Codes
    weight: Array
    numeric_labels: Array
    group_names: tuple[Any, ...]

    @classmethod
    def from_columns(
        cls,
        n: int,
        *,
        group: Sequence[Any] | ArrayLike | None = None,
        fold: Sequence[Any] | ArrayLike | None = None,
        person: Sequence[Any] | ArrayLike | None = None,
        weight: ArrayLike | None = None,
        numeric_labels: ArrayLike | None = None,
    ) -> LeakRows:
        """Check the columns of n rows and fill in those that are absent.

        Args:
            n: Number of rows.
            group: Level of the label, or of the combination of labels. Outputs are compared within
                groups only. Without it all rows are one group.
            fold: Test fold in which the outputs of the row were made. Without it all rows are one
                fold.
            person: Person of the row. All rows of a person count as one person. Without it every
                row is a person.
            weight: Weight of the row, at least 0. A weight may depend on the confounds and labels
                of the row, but not on its outputs: then the test would not be exact.
            numeric_labels: Numbers of shape `(n,)` or `(n, k)` whose smooth effect on outputs and
                confounds is removed before these are compared.

        Example:
            >>> rows = LeakRows.from_columns(4, group=["patient", "control", "control", "patient"])
            >>> rows.group_names
            ('control', 'patient')
        """
        group_codes, names = as_codes(np.zeros(n, int) if group is None else group, "group")
        fold_codes, _ = as_codes(np.zeros(n, int) if fold is None else fold, "fold")
        person_codes, _ = as_codes(np.arange(n) if person is None else person, "person")
        weights = np.ones(n) if weight is None else as_vector(weight, "weight")
        if numeric_labels is None:
            labels = np.empty((n, 0))
        else:
            labels = as_matrix(numeric_labels, "numeric_labels")
        check_lengths(
            outputs=np.empty(n),
            group=group_codes,
            fold=fold_codes,
            person=person_codes,
            weight=weights,
            numeric_labels=labels,
        )
        if weights.min() < 0 or not weights.max() > 0:
            raise OptionError(
                f"`weight` lies between {weights.min():g} and {weights.max():g}. "
                "Pass weights of at least 0, some of them larger."
            )
        return cls(group_codes, fold_codes, person_codes, weights, labels, tuple(names.tolist()))

    def __len__(self) -> int:
        return len(self.group)

    @property
    def votes(self) -> Array:
        """u, shape `(n,)`: 1 / the number of rows of the person, so that each person counts 1."""
        return np.asarray(1 / np.bincount(self.person)[self.person])

    def take(self, rows: Codes) -> LeakRows:
        """Return the rows with these numbers; people and folds get new codes."""
        fold = np.unique(self.fold[rows], return_inverse=True)[1]
        person = np.unique(self.person[rows], return_inverse=True)[1]
        weight, labels = self.weight[rows], self.numeric_labels[rows]
        return LeakRows(self.group[rows], fold, person, weight, labels, self.group_names)

    def sample(self, most: int, seed: int) -> Codes:
        """Return the numbers of at most `most` rows, sorted.

        Rows are drawn within people first, so that a person with thousands of rows displaces
        nobody. If one row of each person is still too much, people are drawn.

        Args:
            most: The largest number of rows.
            seed: Seed of the random numbers.
        """
        n = len(self)
        if n <= most:
            return np.arange(n)
        random = np.random.default_rng(seed)
        shuffled = random.permutation(n)
        by_person = shuffled[np.argsort(self.person[shuffled], kind="stable")]
        rows_of_people = np.bincount(self.person)
        first = np.cumsum(rows_of_people) - rows_of_people
        # 0 for the first drawn row of a person, 1 for the second, …
        turn = np.arange(n) - first[self.person[by_person]]
        rows_up_to_turn = np.cumsum(np.bincount(turn))
        turns = max(1, int(np.searchsorted(rows_up_to_turn, most, side="right")))
        rows = random.permutation(by_person[turn < turns])[:most]
        return np.sort(rows)
