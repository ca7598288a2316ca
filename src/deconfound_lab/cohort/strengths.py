"""How strong each effect of the simulated cohort is: fixed before any method is run on it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from deconfound.errors import OptionError


@dataclass(frozen=True)
class Acquisition:
    """How one site's scanner turns tissue into intensities.

    Attributes:
        gamma: Exponent of the intensity curve.
        sigmoid: Share of an S-shaped curve in it, which stretches gray against white.
        bias: Log-gain along x, y and z (at the edge of the box), and of its square: the field of the coil.
        noise: Sd of each of the two channels of Rician noise, in units of white matter.
        blur: Sd of the point spread in mm.
    """

    gamma: float
    sigmoid: float
    bias: tuple[float, float, float, float]
    noise: float
    blur: float


@dataclass(frozen=True)
class Strengths:
    """The effects' sizes. Motion is that of a structure's border in mm; tissue is a share of it.

    A severity is drawn per person and label, `N(separation · label, 1)`: the groups overlap, so no classifier is
    perfect, and how good one can be is known (`deconfound_lab.cohort.truth`).

    Attributes:
        mci_separation: Distance between the severities of people with and without cognitive impairment, in sd.
        hiv_separation: The same for HIV.
        mci_hippocampus: Inward motion of the hippocampus' border per unit of severity.
        mci_cortex: Share of the temporal and parietal cortex lost.
        mci_ventricles: Outward motion of the ventricles' border.
        hiv_striatum: Inward motion of the border of caudate and putamen.
        hiv_white: Share of the deep white matter's signal lost.
        hiv_ventricles: Outward motion of the ventricles' border.
        age_ventricles: The same per decade.
        age_cortex: Share of the whole cortex lost per decade.
        age_white: Share of the deep white matter's signal lost per decade.
        age_hippocampus: Inward motion of the hippocampus' border per decade.
        sex_scale: By how much male brains are longer along each axis, as a share.
        person_scale: Sd of the same share between people, one for all axes.
        person_axes: Sd of the same share for each axis.
        person_warp: Sd of the smooth random deformation's control points in mm.
        person_ventricles: Sd of the ventricles' border.
        person_cortex: Sd of the share of cortex.
        person_curve: Sd of the log of the curve's exponent between scans of one site.
        person_bias: Sd of the log-gain field between scans of one site.
        site: Multiplies how far each site lies from the mean of the sites; 0 makes them alike.
        sites: The acquisition at each site.
    """

    mci_separation: float = 2.5
    hiv_separation: float = 2.5
    mci_hippocampus: float = 1.0
    mci_cortex: float = 0.1
    mci_ventricles: float = 0.3
    hiv_striatum: float = 1.0
    hiv_white: float = 0.04
    hiv_ventricles: float = 0.3
    age_ventricles: float = 0.8
    age_cortex: float = 0.05
    age_white: float = 0.02
    age_hippocampus: float = 0.25
    sex_scale: float = 0.03
    person_scale: float = 0.02
    person_axes: float = 0.01
    person_warp: float = 1.5
    person_ventricles: float = 0.6
    person_cortex: float = 0.04
    person_curve: float = 0.05
    person_bias: float = 0.03
    site: float = 1.0
    sites: dict[str, Acquisition] = field(
        default_factory=lambda: {
            "UCSF": Acquisition(0.85, 0.0, (0.0, -0.08, 0.04, 0.04), 0.03, 1.4),
            "ADNI": Acquisition(1.05, 0.1, (0.03, 0.06, 0.0, -0.06), 0.05, 2.2),
            "SRI": Acquisition(1.2, 0.35, (-0.03, 0.0, -0.08, 0.0), 0.025, 0.9),
        }
    )

    def acquisition(self, site: str) -> Acquisition:
        """The acquisition at a site, `site` times as far from the mean of the sites as `sites` says."""
        if site == UNSEEN_SITE and site not in self.sites:
            return UNSEEN
        rows = {name: _flat(values) for name, values in self.sites.items()}
        mean = [sum(column) / len(rows) for column in zip(*rows.values(), strict=True)]
        moved = [m + self.site * (own - m) for own, m in zip(rows[site], mean, strict=True)]
        return Acquisition(moved[0], moved[1], (moved[2], moved[3], moved[4], moved[5]), moved[6], moved[7])

    def to_dict(self) -> dict[str, object]:
        """Plain values, for a record of where volumes come from."""
        return asdict(self)


UNSEEN_SITE = "NEW"
"""The name of a fourth site, which Table 1 does not have."""

UNSEEN = Acquisition(0.95, 0.25, (0.02, 0.03, -0.05, 0.05), 0.04, 1.7)
"""How its scanner works."""


@dataclass(frozen=True)
class Variant:
    """Ways in which a cohort is less kind to a linear design than the paper's; the defaults change nothing.

    Attributes:
        age_curve: Ageing speeds up: its effect is that of `d + age_curve · d²`, with d the decades from 65.
        age_disease: The effect of a severity is multiplied by `1 + age_disease · d`.
        sex_tie: By how many sd impaired people are more likely to be men within a site; Table 1's counts stay.
        swapped: The share of people whose age and site in the table are those of another of them.
        unseen_site: Whether the people of an independent cohort were all scanned at a fourth site.
    """

    age_curve: float = 0.0
    age_disease: float = 0.0
    sex_tie: float = 0.0
    swapped: float = 0.0
    unseen_site: bool = False

    def reaching(self, independent: bool) -> Variant:
        """What of it such people show: sex is tied in Table 1's people alone, only the others are at a new site."""
        return replace(self, sex_tie=0.0) if independent else replace(self, unseen_site=False)

    def changes(self) -> dict[str, object]:
        """What differs from the paper's cohort, for a record of where volumes come from."""
        return {name: value for name, value in asdict(self).items() if value != getattr(PAPER, name)}


PAPER = Variant()
"""The paper's cohort."""

VARIANTS = {
    "curved-age": Variant(age_curve=0.25),
    "age-disease": Variant(age_disease=0.2),
    "sex-tied": Variant(sex_tie=1.0),
    "unseen-site": Variant(unseen_site=True),
    "swapped": Variant(swapped=0.05),
}
"""Robustness runs of the MRI experiment, one change at a time."""


def variant_of(name: str | Variant | None) -> Variant:
    """A variant by its name; None is the paper's cohort."""
    if name is None or isinstance(name, Variant):
        return name or PAPER
    if name not in VARIANTS:
        raise OptionError(f"variant must be one of {', '.join(VARIANTS)}; got {name!r}.")
    return VARIANTS[name]


def _flat(values: Acquisition) -> list[float]:
    return [values.gamma, values.sigmoid, *values.bias, values.noise, values.blur]
