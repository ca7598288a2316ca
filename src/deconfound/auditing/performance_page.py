"""The sections of an audit's page about performance: tables beside what confounds alone reach, and figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from deconfound.auditing.figures import Curve, Dot, Figure, Value, curves, scatter, spreads
from deconfound.auditing.html import Markup, html_table, safe, section
from deconfound.auditing.words import STATISTICS, shown
from deconfound.metrics.differences import DETECTABLE

_ON_ROWS = ("auc", "balanced_accuracy", "accuracy", "brier_score", "calibration_error", "equal_error_rate",
            "mean_absolute_error", "r2")  # fmt: skip

_PREFIX = "independent_"
Row = Mapping[str, Any]


def performance_section(data: Mapping[str, Any]) -> str:
    """What each model reaches, beside what the confounds alone reach; the AUC split by stratum; then by stratum."""
    rows = [row for row in data["rows"] if row["statistic"] in _ON_ROWS and not row["confound"]]
    if not rows:
        return ""
    rows.sort(key=lambda row: (row["space"] != "baseline", _ON_ROWS.index(row["statistic"])))
    names = [STATISTICS[name].name for name in _ON_ROWS if any(row["statistic"] == name for row in rows)]
    return section(
        "Performance",
        _pivot("", "", rows, ("model",), _name, names=names),
        _independent(data),
        _differences(data),
        _split(data),
        _used(data),
        "<h3>By stratum</h3>",
        _STRATA,
        lead="First what the confounds alone reach, without any model of the data: cross-validated from the table.",
        id="performance",
    )


def _pivot(
    title: str,
    lead: str,
    rows: Sequence[Row],
    down: Sequence[str],
    across: Callable[[Row], str],
    cell: Callable[[Row | None], Markup] | None = None,
    names: Sequence[str] = (),
) -> str:
    """A table with a title: a line for each combination of the fields `down`, a column for each value of `across`."""
    if not rows:
        return ""
    cells = {(tuple(row[field] for field in down), across(row)): row for row in rows}
    columns = names or list(dict.fromkeys(name for _, name in cells))
    as_cell = cell or _value
    body = [
        [*line, *(as_cell(cells.get((line, name))) for name in columns)] for line in dict.fromkeys(k for k, _ in cells)
    ]
    above = f"<h3>{safe(title)}</h3><p class='lead'>{safe(lead)}</p>" if title else ""
    return above + html_table([*down, *columns], body, label=title or "Performance on all rows")


def _name(row: Row) -> str:
    return STATISTICS[row["statistic"]].name


def _independent(data: Mapping[str, Any]) -> str:
    """Performance under weights that make labels and confounds independent among the audited rows."""
    rows = [row for row in data["rows"] if row["statistic"].startswith(_PREFIX)]
    rows.sort(key=lambda row: row["statistic"] == f"{_PREFIX}rows")

    def name(row: Row) -> str:
        what = row["statistic"].removeprefix(_PREFIX)
        return "effective rows" if what == "rows" else STATISTICS[what].name

    def cell(row: Row | None) -> Markup:
        effective = row is not None and row["statistic"] == f"{_PREFIX}rows"
        return Markup(f"{row['value']:,.0f} of {row['n']:,}") if row is not None and effective else _value(row)

    lead = (
        "Weights of these rows make each label independent of the confounds, so that nothing is gained by knowing "
        "them. The fewer effective rows are left, the less these numbers can say."
    )
    return _pivot("Where labels and confounds are independent", lead, rows, ("model",), name, cell)


def _differences(data: Mapping[str, Any]) -> str:
    """Every model less the first: a column for each measure of performance and for what is left of each confound."""
    rows = [row for row in data["rows"] if row["statistic"].endswith("_difference") and row["low"] is not None]
    rows.sort(key=lambda row: row["confound"] != "")

    def name(row: Row) -> str:
        what = STATISTICS[row["statistic"].removesuffix("_difference")].axis
        return f"{what} of {row['confound']} ({row['space']})" if row["confound"] else what

    def cell(row: Row | None) -> Markup:
        if row is None:
            return _value(row)
        p = "p < .001" if row["p"] < 0.001 else f"p = {row['p']:.3f}"
        return Markup(f"{_value(row)}<small>{p} · ≥ {shown(DETECTABLE * (row['high'] - row['low']) / 3.92)}</small>")

    lead = (
        f"Each model less {rows[0]['level'] if rows else ''}, given these trainings, over people: DeLong for one AUC, "
        "else a paired bootstrap. After ≥ stands the difference that as many people would show four times in five."
    )
    return _pivot("Differences on the same people", lead, rows, ("model",), name, cell)


def _split(data: Mapping[str, Any]) -> str:
    statistics = ("share_within", "auc_within", "auc_between", "tpr_gap", "fpr_gap")
    rows = [row for row in data["rows"] if row["statistic"] in statistics]
    lead = (
        "AUC = share within × AUC within + (1 − share) × AUC between. Pairs within a stratum cannot be ordered by "
        "knowing the stratum. Pairs of two test sets, which have different models, are not counted."
    )
    names = [STATISTICS[name].name for name in statistics]
    return _pivot("Within and between strata", lead, rows, ("model", "confound"), _name, names=names)


def _used(data: Mapping[str, Any]) -> str:
    used = [row for row in data["rows"] if row["statistic"].startswith("used_")]
    keys = {(row["model"], row["confound"]) for row in used}
    probes = [row for row in data["rows"] if row["space"] == "features" and (row["model"], row["confound"]) in keys]
    probes = [row for row in probes if row["statistic"].startswith("nonlinear_probe")]

    def name(row: Row) -> str:
        if row["level"]:
            return f"{STATISTICS[row['statistic']].axis} with {float(row['level']):.0%} erased"
        return "encoded: probe of the features" if "probe" in row["statistic"] else _name(row)

    lead = (
        "Encoded: how well a probe reads the confound from the features. Used: how far outputs and performance move "
        "when the confound's part is erased from the features. The gap between groups stands in the table above."
    )
    return _pivot("Encoded, or used?", lead, [*probes, *used], ("model", "confound"), name)


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
            drawn = [Curve(_line_name(line), line["x"], line["y"], kind == "calibration") for line in lines]
            if drawn:
                yield curves(f"{title}: {what}" + (f" by {name}" if name else ""), drawn, axes)
    if "predicted" in found:
        points = zip(found["predicted"]["x"], found["predicted"]["y"], strict=True)
        dots = [Dot("", Value(x), Value(y)) for x, y in points]
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


_STRATA = """<p class="lead">Dashed lines: the figure over all rows; grey: what the confounds alone reach. A model
that leans on a confound does well only where the confound helps it.</p>
<div class="controls"><label>Measure <select id="performance-measure"></select></label></div>
<div id="performance-models" class="legend"></div>
<div id="performance-charts" class="panels"></div>"""
