"""Tables 1 and 2 of the paper as Markdown, from the results."""

from __future__ import annotations

from deconfound.data.people import GROUPS
from deconfound.experiments.mri.plan import ARMS
from deconfound.experiments.mri.results import Line, Results, Value

_CONFOUNDS = {"age": "Age corr", "sex": "Sex corr", "site": "Site corr"}


def table_one_text(results: Results) -> str:
    """The simulated Table 1 beside the paper's, which stands in brackets."""
    lines = ["| site | " + " | ".join(GROUPS) + " | F/M | age |", "|---" * (len(GROUPS) + 3) + "|"]
    for own, paper in zip(results.table_one["simulated"], results.table_one["paper"], strict=True):
        counts = " | ".join(f"{own['groups'][group]} ({paper['groups'][group]})" for group in GROUPS)
        sexes = f"{own['women']}/{own['men']} ({paper['women']}/{paper['men']})"
        ages = f"{own['age']:.2f} ± {own['age_sd']:.2f} ({paper['age']:.2f} ± {paper['age_sd']:.2f})"
        lines.append(f"| {own['site']} | {counts} | {sexes} | {ages} |")
    return "\n".join(lines) + "\n"


def table_two_text(results: Results) -> str:
    """Table 2 in the paper's layout, with the correlations within groups and the accuracy on independent people.

    The best arm of each row is bold; intervals of 95 % stand in brackets.
    """
    arms = list(dict.fromkeys(line.arm for line in results.lines))
    heads = ["batch", "measure", *(ARMS[arm].title for arm in arms), "true labels", "best or chance"]
    text = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for batch in dict.fromkeys(line.batch for line in results.lines):
        found = {line.arm: line for line in results.lines if line.batch == batch}
        for name, title in _CONFOUNDS.items():
            values = [found[arm].marginal[name] for arm in arms]
            text.append(_row(str(batch), f"{title} ↓", values, f"{results.truth[name]:.3f}", ""))
        accuracies = [found[arm].accuracy for arm in arms]
        text.append(
            _row(str(batch), "Accuracy ↑", accuracies, "", f"{results.ceiling_with_confounds:.1%}", percent=True)
        )
        for name, title in _CONFOUNDS.items():
            values = [found[arm].within[name] for arm in arms]
            text.append(_row(str(batch), f"{title} within groups ↓", values, "0", f"{results.chance[name]:.3f}"))
        text.append(_means(str(batch), [found[arm] for arm in arms], results))
        free = [found[arm].independent for arm in arms]
        text.append(_row(str(batch), "Accuracy, independent ↑", free, "", f"{results.ceiling:.1%}", percent=True))
    return "\n".join(text) + "\n"


def _means(batch: str, lines: list[Line], results: Results) -> str:
    values = [Value(line.within_mean, float("nan"), float("nan")) for line in lines]
    chance = sum(results.chance.values()) / len(results.chance)
    return _row(batch, "mean of the three within groups ↓", values, "0", f"{chance:.3f}")


def _row(batch: str, title: str, values: list[Value], truth: str, limit: str, percent: bool = False) -> str:
    best = (max if percent else min)(value.mean for value in values)
    cells = []
    for value in values:
        shown = f"{value.mean:.1%}" if percent else f"{value.mean:.3f}"
        if value.mean == best:
            shown = f"**{shown}**"
        if value.low == value.low and value.low < value.high:
            interval = f"{value.low:.1%} to {value.high:.1%}" if percent else f"{value.low:.3f} to {value.high:.3f}"
            shown += f" ({interval})"
        cells.append(shown)
    return "| " + " | ".join([batch, title, *cells, truth, limit]) + " |"
