"""The people of the simulated cohort: exactly the paper's Table 1, and the latents that no real table has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.errors import OptionError
from deconfound_lab.cohort.strengths import PAPER, UNSEEN_SITE, Strengths, Variant

GROUPS = ("CTRL", "MCI", "HIV", "HAND")
LABELS = {"CTRL": (0, 0), "MCI": (0, 1), "HIV": (1, 0), "HAND": (1, 1)}
"""The two labels of each group: HIV, and cognitive impairment (`mci`)."""


@dataclass(frozen=True)
class Site:
    """One line of Table 1: people in each of `GROUPS`, women and men, mean and sd of the ages in years."""

    groups: tuple[int, int, int, int]
    sexes: tuple[int, int]
    age: tuple[float, float]


TABLE_ONE = {
    "UCSF": Site((156, 148, 37, 145), (97, 389), (67.00, 6.47)),
    "ADNI": Site((229, 397, 0, 0), (253, 373), (75.16, 6.61)),
    "SRI": Site((75, 0, 75, 0), (44, 106), (50.72, 11.33)),
}
"""The paper's 1,262 people."""

PEOPLE = sum(sum(site.groups) for site in TABLE_ONE.values())


@dataclass(frozen=True)
class People:
    """Drawn people, one row each.

    Attributes:
        table: `participant_id`, `person`, `site`, `group`, `sex`, `age`, `hiv`, `mci`.
        severity: Of HIV and of cognitive impairment, `(n,)` each: what the brain shows of the labels.
        truth: `age` and `site` as the brain and the scan show them, also where the table is wrong.
    """

    table: dict[str, NDArray[Any]]
    severity: dict[str, NDArray[np.float64]]
    truth: dict[str, NDArray[Any]]


def draw_people(
    seed: int,
    strengths: Strengths,
    *,
    independent: bool = False,
    people: int | None = None,
    older: float = 0.0,
    variant: Variant = PAPER,
) -> People:
    """Draw a cohort's people.

    Args:
        seed: Equal seeds give equal people.
        strengths: How far apart the severities of people with and without a label are.
        independent: Draw people in whom the labels are independent of site, sex and age, exactly: each of the four
            groups holds the same sites, sexes and ages.
        people: How many; Table 1's 1,262 by default (1,264 if `independent`, which needs a multiple of four), else
            proportionally fewer or more.
        older: By how many years impaired people are older within a site. The paper gives ages for sites alone; with 0,
            age and sex say nothing of the group within a site.
        variant: How the people differ from those of the paper.
    """
    if people is not None and people < 1:
        raise OptionError(f"people must be at least 1; got {people}.")
    generator = np.random.default_rng((seed, int(independent)))
    if independent:
        table = _balanced(generator, PEOPLE + 2 if people is None else people)
    else:
        table = _as_in_table_one(generator, PEOPLE if people is None else people, older, variant.sex_tie, seed)
    n = len(table["site"])
    width = max(4, len(str(n)))
    prefix = "ind" if independent else "sim"
    table["participant_id"] = np.array([f"sub-{prefix}{row + 1:0{width}d}" for row in range(n)], dtype=object)
    labels = np.array([LABELS[group] for group in table["group"]])
    severity = {
        "hiv": strengths.hiv_separation * labels[:, 0] + generator.standard_normal(n),
        "mci": strengths.mci_separation * labels[:, 1] + generator.standard_normal(n),
    }
    names = ("participant_id", "site", "group", "sex", "age")
    ordered = {name: table[name] for name in names} | {"hiv": labels[:, 0], "mci": labels[:, 1]}
    if variant.unseen_site and independent:
        ordered["site"] = np.full(n, UNSEEN_SITE, dtype=object)
    truth = {name: ordered[name] for name in ("age", "site")}
    ordered |= _swapped(truth, variant.swapped, seed)
    return People(ordered | {"person": ordered["participant_id"]}, severity, truth)


def _swapped(truth: dict[str, NDArray[Any]], share: float, seed: int) -> dict[str, NDArray[Any]]:
    """Ages and sites of some people exchanged among them."""
    if not 0 <= share <= 1:
        raise OptionError(f"swapped must lie between 0 and 1; got {share}.")
    generator = np.random.default_rng((seed, 2))
    n = len(truth["age"])
    rows = generator.permutation(n)[: round(share * n)]
    return {name: _put(values, rows, values[np.roll(rows, 1)]) for name, values in truth.items()}


def _put(values: NDArray[Any], rows: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    changed = values.copy()
    changed[rows] = new
    return changed


def _as_in_table_one(
    generator: np.random.Generator, people: int, older: float, sex_tie: float, seed: int
) -> dict[str, NDArray[Any]]:
    cells = shares([count for site in TABLE_ONE.values() for count in site.groups], people)
    parts: list[dict[str, NDArray[Any]]] = []
    for (name, site), counts in zip(TABLE_ONE.items(), np.reshape(cells, (-1, 4)).tolist(), strict=True):
        n = sum(counts)
        group = generator.permutation(np.repeat(np.array(GROUPS, dtype=object), counts))
        sex = generator.permutation(np.repeat(np.array(["F", "M"], dtype=object), shares(site.sexes, n)))
        if sex_tie:  # the same counts, dealt by a score that goes with the impairment; all else stays as it is
            drawn = np.random.default_rng((seed, 3, n)).standard_normal(n)
            tied = sex_tie * np.array([LABELS[g][1] for g in group]) + drawn
            sex = np.where(tied.argsort().argsort() < (sex == "F").sum(), "F", "M").astype(object)
        age = older * np.array([LABELS[g][1] for g in group]) + site.age[1] * generator.standard_normal(n)
        if n > 1:  # the sample's own mean and sd are those of the paper
            age = (age - age.mean()) / age.std(ddof=1) * site.age[1] + site.age[0]
        parts.append({"site": np.full(n, name, dtype=object), "group": group, "sex": sex, "age": age})
    order = generator.permutation(people)
    return {key: np.concatenate([part[key] for part in parts])[order] for key in parts[0]}


def _balanced(generator: np.random.Generator, people: int) -> dict[str, NDArray[Any]]:
    if people % 4:
        raise OptionError(f"people must be a positive multiple of four where independent=True; got {people}.")
    n = people // 4
    counts = shares([sum(site.groups) for site in TABLE_ONE.values()], n)
    parts: list[dict[str, NDArray[Any]]] = []
    for (name, site), count in zip(TABLE_ONE.items(), counts, strict=True):
        sex = generator.permutation(np.repeat(np.array(["F", "M"], dtype=object), shares(site.sexes, count)))
        age = site.age[0] + site.age[1] * generator.standard_normal(count)
        parts.append({"site": np.full(count, name, dtype=object), "sex": sex, "age": age})
    quarter = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    table = {key: np.tile(values, 4) for key, values in quarter.items()}
    table["group"] = np.repeat(np.array(GROUPS, dtype=object), n)
    order = generator.permutation(people)
    return {key: values[order] for key, values in table.items()}


def shares(counts: list[int] | tuple[int, ...], total: int) -> list[int]:
    """Whole numbers that add up to `total`, in proportion to `counts`: the largest remainders are rounded up."""
    exact = np.array(counts, dtype=np.float64) * total / sum(counts)
    whole = np.floor(exact).astype(int)
    for place in np.argsort(-(exact - whole), kind="stable")[: total - int(whole.sum())]:
        whole[place] += 1
    result: list[int] = whole.tolist()
    return result
