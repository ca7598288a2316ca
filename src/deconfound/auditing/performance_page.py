"""The sections of an audit's page about performance: tables beside what confounds alone reach, and figures."""

from collections.abc import Iterator, Mapping
from typing import Any

from deconfound.auditing.figures import Curve, Dot, Figure, curves, scatter, spreads
from deconfound.auditing.html import Markup, html_table, safe, section
from deconfound.auditing.words import STATISTICS
from deconfound.metrics.differences import DETECTABLE

_ON_ROWS = ("auc", "balanced_accuracy", "accuracy", "brier_score", "calibration_error", "equal_error_rate",
            "mean_absolute_error", "r2")  # fmt: skip

_PREFIX = "independent_"


def performance_section(data: Mapping[str, Any]) -> str:
    """What each model reaches, beside what the confounds alone reach; the AUC split by stratum; then by stratum."""
    rows = [row for row in data["rows"] if row["statistic"] in _ON_ROWS and not row["confound"]]
    if not rows:
        return ""
    names = [name for name in _ON_ROWS if any(row["statistic"] == name for row in rows)]
    models = list(dict.fromkeys(row["model"] for row in sorted(rows, key=lambda row: row["space"] != "baseline")))
    cells = {(row["model"], row["statistic"]): row for row in rows}
    table = html_table(
        ["model", *(STATISTICS[name].name for name in names)],
        [[model, *(_value(cells.get((model, name))) for name in names)] for model in models],
        label="Performance on all rows",
    )
    return section(
        "Performance",
        table,
        _independent(data),
        _differences(data),
        _split(data),
        _used(data),
        "<h3>By stratum</h3>",
        _STRATA,
        lead="First what the confounds alone reach, without any model of the data: cross-validated from the table.",
        id="performance",
    )


def _independent(data: Mapping[str, Any]) -> str:
    """Performance under weights that make labels and confounds independent among the audited rows."""
    rows = {(row["model"], row["statistic"]): row for row in data["rows"] if row["statistic"].startswith(_PREFIX)}
    if not rows:
        return ""
    title = "Where labels and confounds are independent"
    names = list(dict.fromkeys(name for _, name in rows if name != f"{_PREFIX}rows"))
    models = list(dict.fromkeys(model for model, _ in rows))
    head = ["model", *(STATISTICS[name.removeprefix(_PREFIX)].name for name in names), "effective rows"]
    body = [
        [
            model,
            *(_value(rows.get((model, name))) for name in names),
            f"{rows[model, f'{_PREFIX}rows']['value']:,.0f} of {rows[model, f'{_PREFIX}rows']['n']:,}",
        ]
        for model in models
    ]
    lead = (
        "Weights of these rows make each label independent of the confounds, so that nothing is gained by knowing "
        "them. The fewer effective rows are left, the less these numbers can say."
    )
    return f"<h3>{title}</h3><p class='lead'>{lead}</p>{html_table(head, body, label=title)}"


def _differences(data: Mapping[str, Any]) -> str:
    """Every model less the first: a column for each measure of performance and for what is left of each confound."""
    title, ending = "Differences on the same people", "_difference"
    rows = [row for row in data["rows"] if row["statistic"].endswith(ending) and row["low"] is not None]
    if not rows:
        return ""
    cells = {(row["model"], _difference_of(row)): row for row in rows}
    names = [_difference_of(row) for row in sorted(rows, key=lambda row: row["confound"] != "")]
    names = list(dict.fromkeys(names))
    body = [
        [model, *(_change(cells.get((model, name))) for name in names)]
        for model in dict.fromkeys(row["model"] for row in rows)
    ]
    lead = (
        f"Each model less {rows[0]['level']}, given these trainings, over people: DeLong for one AUC, else a paired "
        "bootstrap. After ≥ stands the difference that as many people would show four times in five."
    )
    return f"<h3>{title}</h3><p class='lead'>{safe(lead)}</p>{html_table(['model', *names], body, label=title)}"


def _difference_of(row: Mapping[str, Any]) -> str:
    """The column of a difference: the measure, or the confound and where it is left."""
    what = STATISTICS[row["statistic"].removesuffix("_difference")].axis
    return f"{what} of {row['confound']} ({row['space']})" if row["confound"] else what


def _change(row: Mapping[str, Any] | None) -> Markup:
    if row is None:
        return Markup("–")
    p = "p < .001" if row["p"] < 0.001 else f"p = {row['p']:.3f}"
    smallest = shown(DETECTABLE * (row["high"] - row["low"]) / 3.92)
    return Markup(f"{_value(row)}<small>{p} · ≥ {smallest}</small>")


def _split(data: Mapping[str, Any]) -> str:
    names = ("share_within", "auc_within", "auc_between", "tpr_gap", "fpr_gap")
    found = {
        (row["model"], row["confound"], row["statistic"]): row for row in data["rows"] if row["statistic"] in names
    }
    if not found:
        return ""
    keys = list(dict.fromkeys((model, confound) for model, confound, _ in found))
    head = ["model", "strata of", *(STATISTICS[name].name for name in names)]
    body = [[model, name, *(_value(found.get((model, name, each))) for each in names)] for model, name in keys]
    lead = (
        "AUC = share within × AUC within + (1 − share) × AUC between. Pairs within a stratum cannot be ordered by "
        "knowing the stratum. Pairs of two test sets, which have different models, are not counted."
    )
    return f"<h3>Within and between strata</h3><p class='lead'>{lead}</p>{html_table(head, body)}"


def _used(data: Mapping[str, Any]) -> str:
    rows = [row for row in data["rows"] if row["statistic"].startswith("used_")]
    if not rows:
        return ""
    probes = {
        (row["model"], row["confound"]): row
        for row in data["rows"]
        if row["space"] == "features" and row["statistic"].startswith("nonlinear_probe")
    }
    keys = list(dict.fromkeys((row["model"], row["confound"]) for row in rows))
    shares = list(dict.fromkeys(row["level"] for row in rows if row["level"]))
    body = []
    for model, name in keys:
        part = {row["level"]: row for row in rows if (row["model"], row["confound"]) == (model, name)}
        body.append([model, name, _value(probes.get((model, name))), *(_value(part.get(k)) for k in ("", *shares))])
    measure = STATISTICS[next(row["statistic"] for row in rows if row["level"])].axis if shares else ""
    head = ["model", "confound", "encoded: probe of the features", "used: share of the outputs that moves",
            *(f"{measure} with {float(share):.0%} erased" for share in shares)]  # fmt: skip
    lead = (
        "Encoded: how well a probe reads the confound from the features. Used: how far outputs and performance move "
        "when the confound's part is erased from the features. The gap between groups stands in the table above."
    )
    return f"<h3>Encoded, or used?</h3><p class='lead'>{lead}</p>{html_table(head, body)}"


def figures_section(shapes: Mapping[str, Any]) -> str:
    """Score distributions, ROC and calibration by stratum, predicted against true, for each model and score."""
    parts = []
    for model, found in shapes.items():
        for part in found:
            title = " · ".join(filter(None, [model, part["name"]]))
            is_open = " open" if len(shapes) == 1 and not part["name"] else ""
            panels = "".join(item.html for item in part_figures(title, part))
            parts.append(
                f'<details{is_open}><summary>{safe(title)}</summary><div class="panels">{panels}</div></details>'
            )
    if not parts:
        return ""
    lead = (
        "Boxes hold the middle half of the rows, lines 90 %. Of many levels, classes or labels the largest "
        "are shown. Every figure can be saved as SVG or PNG."
    )
    return section("Scores, ROC and calibration", *parts, lead=lead, id="figures")


def part_figures(title: str, found: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of one model, or of one of its scores; see `shapes`."""
    for name, rows in found.get("scores", {}).items():
        if rows:
            yield spreads(f"{title}: scores by {name} and label", rows, "score")
    for kind, what, axes in (
        ("roc", "ROC", ("false positive rate", "true positive rate")),
        ("calibration", "calibration", ("predicted probability", "observed share")),
    ):
        for name, lines in found.get(kind, {}).items():
            shown = [Curve(_line_name(line), line["x"], line["y"], kind == "calibration") for line in lines]
            if shown:
                yield curves(f"{title}: {what}" + (f" by {name}" if name else ""), shown, axes)
    if "predicted" in found:
        dots = [Dot("", x, y) for x, y in zip(found["predicted"]["x"], found["predicted"]["y"], strict=True)]
        yield scatter(f"{title}: predicted against true", dots, ("true", "predicted"), named=False)
    for name, rows in found.get("errors", {}).items():
        if rows:
            yield spreads(f"{title}: error by {name}", rows, "predicted − true")


def _line_name(line: Mapping[str, Any]) -> str:
    number = f"AUC {line['auc']:.3f}" if "auc" in line else f"ECE {line['error']:.3f}"
    return f"{line['name']} · {number} · n = {line['n']:,}"


def _value(row: Mapping[str, Any] | None) -> Markup:
    if row is None or row["value"] is None:
        return Markup("–")
    reach = "" if row["low"] is None else f"<small>{shown(row['low'])} to {shown(row['high'])}</small>"
    return Markup(f"{shown(row['value'])}{reach}")


def shown(value: float | None) -> str:
    """A number with three digits; a dash where there is none."""
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


_STRATA = """<p class="lead">Dashed lines: the figure over all rows; grey: what the confounds alone reach. A model
that leans on a confound does well only where the confound helps it.</p>
<div class="controls"><label>Measure <select id="performance-measure"></select></label></div>
<div id="performance-models" class="legend"></div>
<div id="performance-charts" class="panels"></div>"""
