"""The people of the simulated cohort: exactly Table 1 of the paper, and the severities behind it.

The paper gives groups per site, and sexes and ages per site. Within a site, sex and age are
therefore independent of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from deconfound.errors import OptionError

# The two labels of each group: HIV and cognitive impairment.
GROUPS = {"CTRL": (0, 0), "MCI": (0, 1), "HIV": (1, 0), "HAND": (1, 1)}
LABELS = ("hiv", "mci")
# The mean severity of people with a label lies this many sd above that of others.
SEPARATION = 2.5


@dataclass(frozen=True)
class Site:
    """One line of Table 1.

    Attributes:
        counts: The number of people in each of `GROUPS`.
        sexes: The number of women and of men.
        age: Mean and sd of the ages in years.
    """

    counts: tuple[int, int, int, int]
    sexes: tuple[int, int]
    age: tuple[float, float]


TABLE_ONE = {
    "UCSF": Site((156, 148, 37, 145), (97, 389), (67.00, 6.47)),
    "ADNI": Site((229, 397, 0, 0), (253, 373), (75.16, 6.61)),
    "SRI": Site((75, 0, 75, 0), (44, 106), (50.72, 11.33)),
}
PEOPLE = sum(sum(site.counts) for site in TABLE_ONE.values())


@dataclass(frozen=True, eq=False)
class People:
    """Simulated people.

    Attributes:
        table: `participant_id`, `site`, `group`, `sex`, `age`, `hiv` and `mci`, one row per person.
        severity: What a brain shows of `hiv` and `mci`, `N(2.5 · label, 1)`. No model may read it.
    """

    table: pd.DataFrame
    severity: pd.DataFrame


def draw_people(seed: int = 0, *, independent: bool = False, people: int | None = None) -> People:
    """Draw the people of a cohort.

    Args:
        seed: Equal seeds give equal people.
        independent: Draw people whose labels are exactly independent of site, sex and age: each
            group has the same sites, sexes and ages.
        people: The number of people, in proportion to Table 1. None draws its 1,262; of independent
            people, whose number is a multiple of four, 1,264.

    Example:
        >>> draw_people().table["site"].value_counts().to_dict()
        {'ADNI': 626, 'UCSF': 486, 'SRI': 150}
    """
    if people is None:
        people = PEOPLE + 2 if independent else PEOPLE
    if people < 1 or (independent and people % 4):
        kind = "a multiple of four" if independent else "1 or more"
        raise OptionError(f"people must be {kind}; got {people}. Write people={4 * PEOPLE // 16}.")
    random = np.random.default_rng((seed, int(independent)))
    draw = _draw_independent if independent else _draw_table_one
    table = draw(random, people).iloc[random.permutation(people)].reset_index(drop=True)
    labels = pd.DataFrame([GROUPS[group] for group in table["group"]], columns=list(LABELS))
    prefix, digits = "ind" if independent else "sim", max(4, len(str(people)))
    ids = [f"sub-{prefix}{number:0{digits}d}" for number in range(1, people + 1)]
    table.insert(0, "participant_id", ids)
    noise = {name: random.standard_normal(people) for name in LABELS}
    return People(table.join(labels), SEPARATION * labels + pd.DataFrame(noise))


def count_table_one(table: pd.DataFrame) -> pd.DataFrame:
    """Return Table 1 of some people, with one row for each of their sites.

    Example:
        >>> count_table_one(draw_people().table).loc["SRI"].to_dict()
        {'CTRL': 75, 'MCI': 0, 'HIV': 75, 'HAND': 0, 'F/M': '44/106', 'age': '50.72 ± 11.33'}
    """
    lines = {}
    for site in [site for site in TABLE_ONE if (table["site"] == site).any()]:
        own = table[table["site"] == site]
        line: dict[str, object] = {name: int((own["group"] == name).sum()) for name in GROUPS}
        line["F/M"] = f"{(own['sex'] == 'F').sum()}/{(own['sex'] == 'M').sum()}"
        line["age"] = f"{own['age'].mean():.2f} ± {own['age'].std():.2f}"
        lines[site] = line
    return pd.DataFrame.from_dict(lines, orient="index")


def _draw_table_one(random: np.random.Generator, people: int) -> pd.DataFrame:
    cells = [count for site in TABLE_ONE.values() for count in site.counts]
    counts = np.reshape(divide(cells, people), (-1, len(GROUPS)))
    parts = []
    for (name, site), of_groups in zip(TABLE_ONE.items(), counts, strict=True):
        n = int(of_groups.sum())
        group = random.permutation(np.repeat(np.array([*GROUPS], dtype=object), of_groups))
        sex = random.permutation(np.repeat(["F", "M"], divide(site.sexes, n)))
        mean, sd = site.age
        age = sd * random.standard_normal(n)
        if n > 1:
            # The mean and the sd of these very people are those of Table 1.
            age = (age - age.mean()) / age.std(ddof=1) * sd + mean
        parts.append(pd.DataFrame({"site": name, "group": group, "sex": sex, "age": age}))
    return pd.concat(parts, ignore_index=True)


def _draw_independent(random: np.random.Generator, people: int) -> pd.DataFrame:
    counts = divide([sum(site.counts) for site in TABLE_ONE.values()], people // 4)
    parts = []
    for (name, site), n in zip(TABLE_ONE.items(), counts, strict=True):
        sex = random.permutation(np.repeat(["F", "M"], divide(site.sexes, n)))
        age = site.age[0] + site.age[1] * random.standard_normal(n)
        parts.append(pd.DataFrame({"site": name, "sex": sex, "age": age}))
    quarter = pd.concat(parts, ignore_index=True)
    table = pd.concat([quarter] * 4, ignore_index=True)
    table.insert(1, "group", np.repeat([*GROUPS], people // 4))
    return table


def divide(counts: Sequence[int], total: int) -> list[int]:
    """Return whole numbers in proportion to `counts` that add up to `total`.

    The largest remainders are rounded up.

    Example:
        >>> divide([1, 1, 2], 7)
        [2, 2, 3]
    """
    exact = np.array(counts) * total / sum(counts)
    whole = np.floor(exact).astype(int)
    missing = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return [int(count) for count in whole]
