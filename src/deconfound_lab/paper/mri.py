"""What the paper says of the MRIs (Section 3.2), with our figures from the simulated ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from deconfound_lab.mri.results import Cloud
from deconfound_lab.paper.evidence import Evidence, Finding, NotRun, answer, span
from deconfound_lab.paper.table_two import TABLE_TWO

# What is left within groups is an estimate from a fold's people: one fold says little, and more by chance than several.
FOLDS = 3


def highest(e: Evidence) -> Finding:
    first, texts = [], []
    for batch in e.batches(*TABLE_TWO[20]):
        lines = {arm: e.line(batch, arm).accuracy.mean for arm in TABLE_TWO[batch]}
        best = max(lines, key=lambda arm: lines[arm])
        first.append(best == "pmdn-paper")
        texts.append(f"batch {batch}: {lines['pmdn-paper']:.1%}, best {e.mri.title(best)} {lines[best]:.1%}")
    reason = (
        "people of Table 1 are confounded, which helps whoever uses it; single folds of the published PMDN collapse"
    )
    return "; ".join(texts), answer(first), reason


def less_left(e: Evidence) -> Finding:
    arms = ("baseline", "pmdn-paper", "pmdn")
    left = {arm: {b: e.line(b, arm).within_mean.mean for b in e.batches(*arms)} for arm in arms}
    less = [left[arm][b] < 0.5 * left["baseline"][b] for arm in arms[1:] for b in e.batches(*arms)]
    text = ", ".join(f"{e.mri.title(arm)} {span(left[arm], '.3f')}" for arm in arms)
    return f"mean correlation within groups: {text}", answer(less), "less than half of the plain network's, mostly"


def mdn_small(e: Evidence) -> Finding:
    trained = e.batches("mdn", folds=FOLDS)
    least, most = min(trained), max(trained)
    small, large = (e.line(batch, "mdn") for batch in (least, most))
    worse, more = large.independent.mean - small.independent.mean, small.within_mean.mean / large.within_mean.mean
    text = f"batch {least}: {small.independent.mean:.1%} on independent people, {small.within_mean.mean:.3f} left; "
    text += f"batch {most}: {large.independent.mean:.1%}, {large.within_mean.mean:.3f}"
    return text, answer([worse > 0.02, more > 1.5]), ""


def adversarial_age(e: Evidence) -> Finding:
    kept = {}
    for name in ("age", "sex", "site"):
        arms = ("adversarial", "baseline")
        lines = {b: [e.line(b, arm).within[name].mean for arm in arms] for b in e.batches(*arms, folds=FOLDS)}
        kept[name] = {batch: ours / plain for batch, (ours, plain) in lines.items()}
    age, sex, site = (float(np.mean(list(values.values()))) for values in kept.values())
    text = ", ".join(f"{name} {span(values, '.0%')}" for name, values in kept.items())
    opening = "left of the plain network's correlations within groups"
    return f"{opening}: {text}", answer([age > 0.5, sex < 0.5, site < 0.5]), "half of it counts as removed, on average"


def adversarial_accuracy(e: Evidence) -> Finding:
    both = e.batches("adversarial", "baseline")
    pairs = [(e.line(b, "adversarial").accuracy.mean, e.line(b, "baseline").accuracy.mean) for b in both]
    text = ", ".join(f"{ours:.1%} against {plain:.1%}" for ours, plain in pairs)
    worse = [ours < plain - 0.1 for ours, plain in pairs]
    return f"adversarial against plain: {text}", answer(worse), "not with a weight and a warm-up found by search"


def over_mdn(e: Evidence) -> Finding:
    arms, texts, better = ("mdn", "pmdn-paper", "pmdn"), [], []
    for batch in e.batches(*arms, folds=FOLDS):
        mdn, *ours = (e.line(batch, arm) for arm in arms)
        shown = [f"{each.independent.mean:.1%} and {each.within_mean.mean:.3f}" for each in (mdn, *ours)]
        texts.append(f"batch {batch}: MDN {shown[0]}, PMDN as published {shown[1]}, ours {shown[2]}")
        better += [each.independent.mean > mdn.independent.mean for each in ours]
        better += [each.within_mean.mean < mdn.within_mean.mean for each in ours]
    return f"accuracy on independent people and what is left: {'; '.join(texts)}", answer(better), ""


def table_one(e: Evidence) -> Finding:
    own, paper = (
        [(line["site"], line["groups"], line["women"], line["men"]) for line in e.mri.table_one[which]]
        for which in ("simulated", "paper")
    )
    people = sum(sum(groups.values()) for _, groups, _, _ in own)
    return f"{people:,} simulated people with the same counts", answer([own == paper]), "brains are simulated"


def labels_of_sites(e: Evidence) -> Finding:
    site = e.mri.truth["site"]
    return f"dcor² of the true labels with the site: {site:.3f}", answer([site > 0.05]), "a perfect answer clusters too"


def tsne_site(e: Evidence) -> Finding:
    shares = _shares(e, "site")
    less = [shares[arm] < shares["mdn"] for arm in ("pmdn-paper", "pmdn")]
    return _told(e, shares), answer(less), "the published form and one pass, each against MDN"


def tsne_sex(e: Evidence) -> Finding:
    shares = _shares(e, "sex")
    cloud = next(cloud for cloud in e.mri.clouds if cloud.arm == "mdn")
    _, counts = np.unique(np.asarray(cloud.levels["sex"]), return_counts=True)
    chance = float(((counts / counts.sum()) ** 2).sum())
    near = [shares[arm] < chance + 0.05 for arm in ("mdn", "pmdn-paper", "pmdn")]
    return f"{_told(e, shares)}; by chance {chance:.0%}", answer(near), "five points above chance count as a pattern"


def _shares(e: Evidence, name: str) -> dict[str, float]:
    shares = {cloud.arm: neighbours(cloud, name) for cloud in e.mri.clouds}
    if not {"mdn", "pmdn-paper", "pmdn"} <= shares.keys():
        raise NotRun
    return shares


def _told(e: Evidence, shares: Mapping[str, float]) -> str:
    where = f"neighbours of the same level in the plane, batch {e.mri.clouds[0].batch}"
    return f"{where}: {', '.join(f'{e.mri.title(arm)} {share:.0%}' for arm, share in shares.items())}"


def neighbours(cloud: Cloud, name: str, count: int = 10) -> float:
    """The share of each person's nearest neighbours in the plane that have the person's own level, averaged."""
    points, levels = np.column_stack([cloud.x, cloud.y]), np.asarray(cloud.levels[name])
    apart = ((points[:, None] - points[None]) ** 2).sum(-1)
    np.fill_diagonal(apart, np.inf)
    near = apart.argsort(axis=1)[:, :count]
    return float((levels[near] == levels[:, None]).mean())
