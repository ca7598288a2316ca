"""One page for a comparison: what each method costs and what it leaves, before the audit of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from deconfound.auditing.comparison_words import comparison_sentences, headline, of_line, sign_of, with_interval
from deconfound.auditing.figures import Curve, Dot, Value, scatter, training_curves
from deconfound.auditing.forest import Panel, forest
from deconfound.auditing.html import Markup, asset, bullets, html_page, html_table, safe, scrolling, section
from deconfound.auditing.page import audit_sections, page_data
from deconfound.auditing.words import STATISTICS, network_name


def comparison_page(content: Mapping[str, Any]) -> str:
    """The page of a comparison's `results.json`: its own sections, then those of the audit."""
    audit = {**content["audit"], "points": None}
    names = ", ".join(audit["about"]["models"])
    return html_page(
        f"Comparison of {names}",
        [*_sections(content), *audit_sections(audit, "The audit of each method")],
        kicker="Comparison of methods",
        heading="What each method costs, and what it leaves",
        summary=f"{names} · {content['rows']:,} rows · {len(content['folds'])} folds",
        skip_to="costs",
        data=page_data(audit),
        script=asset("page.js"),
    )


def _sections(content: Mapping[str, Any]) -> list[str]:
    measured = {key for line in content["lines"] for key in line["measures"]}
    spaces = [space for space in ("outputs", "features") if any(key.startswith(f"left/{space}/") for key in measured)]
    base = network_name(content["base"])
    left = [_left_table(content, space) for space in spaces]
    return [
        section("In short", bullets(comparison_sentences(content)), id="costs"),
        _problem_section(content),
        section(
            "Cost and what is left",
            _scatters(content),
            scrolling(_forest(content), "Cost and what is left, by method"),
            lead=f"Points: every method, its {STATISTICS[headline(content)].name} against what it leaves; best is up "
            f"and to the left. Below: the paired difference to {base}, and what is left. Lines: 95 % intervals over "
            "trainings.",
            id="cost-left",
        ),
        section(
            "Performance",
            _performance_table(content),
            lead="The mean over test sets with its 95 % interval over trainings; below it the paired difference to "
            f"{base}, bold where its interval does not include 0.",
            id="comparison-table",
        ),
        section("What is left, test set by test set", *left, id="left-table"),
        _training_section(content),
        section("How it was made", _how(content), id="comparison-made"),
    ]


def _problem_section(content: Mapping[str, Any]) -> str:
    items = [
        f"{network_name(line['name'])}, {problem['text']}"
        for line in content["lines"]
        for problem in line.get("problems") or []
    ]
    return section("Trainings that failed", bullets(items, "notes"), id="problems") if items else ""


def _training_section(content: Mapping[str, Any]) -> str:
    panels = []
    for line in content["lines"]:
        curves = [
            Curve(f"fold {fold}, {name.replace('_', ' ')}", list(range(len(values))), values)
            for fold, found in (line.get("curves") or {}).items()
            for name, values in found.items()
        ]
        if curves:
            panels.append(training_curves(line["name"], curves).html)
    if not panels:
        return ""
    return section("Training curves", f'<div class="panels">{"".join(panels)}</div>', id="curves")


def _scatters(content: Mapping[str, Any]) -> str:
    """One scatter for each confound: what is left across, performance upwards, every method on it."""
    measure = headline(content)
    panels = []
    for confound in content["confounds"]:
        dots = [
            Dot(line["name"], _value(of_line(line, f"left/outputs/{confound}")), _value(of_line(line, measure)))
            for line in content["lines"]
        ]
        if any(math.isfinite(dot.x.value) for dot in dots):
            axes = (f"dcor² of {confound} in the outputs", STATISTICS[measure].name)
            panels.append(scatter(f"Cost against what is left of {confound}", dots, axes).html)
    return f'<div class="panels">{"".join(panels)}</div>'


def _forest(content: Mapping[str, Any]) -> str:
    measure = headline(content)
    changes = tuple(_value(of_line(line, measure)["difference"]) for line in content["lines"])
    panels = [Panel(f"{STATISTICS[measure].name}, difference", f"to {network_name(content['base'])}", changes)]
    for name in content["confounds"]:
        left = tuple(_value(of_line(line, f"left/outputs/{name}")) for line in content["lines"])
        if any(math.isfinite(item.value) for item in left):
            panels.append(Panel(f"{name} left", "dcor² in the outputs", left))
    return forest([line["name"] for line in content["lines"]], panels, "Differences and what is left").html


def _performance_table(content: Mapping[str, Any]) -> str:
    measures = {key: STATISTICS[key].name for key in content["lines"][0]["measures"] if not key.startswith("left/")}
    seconds = {line["name"]: f"{line['seconds']:.1f}" for line in content["lines"]}
    return _table(content, "method", measures, {"seconds a fold": seconds})


def _left_table(content: Mapping[str, Any], space: str) -> str:
    names = {f"left/{space}/{name}": name for name in content["confounds"]}
    return _table(content, f"dcor² in the {space}", names, {})


def _table(content: Mapping[str, Any], corner: str, keys: Mapping[str, str], more: Mapping[str, Any]) -> str:
    """Methods against measures: the value, its interval, and the difference to the first method."""
    rows = []
    for line in content["lines"]:
        cells: list[object] = [line["name"]]
        for key in keys:
            item = of_line(line, key)
            change = item["difference"]
            text = "" if line["name"] == content["base"] else with_interval(change, sign=True)
            text = f"<strong>{text}</strong>" if sign_of(change) else text
            cells.append(Markup(f"{with_interval(item)}<small>{text}</small>"))
        rows.append([*cells, *(values[line["name"]] for values in more.values())])
    return html_table([corner, *keys.values(), *more], rows, label=corner)


def _how(content: Mapping[str, Any]) -> str:
    seeds = len(content["lines"][0]["runs"])
    sets = of_line(content["lines"][0], headline(content))["sets"]
    origin, config = content["provenance"], content["config"]
    packages = ", ".join(f"{name} {version}" for name, version in origin["packages"].items())
    facts = {
        "command": origin["command"],
        "data": f"{config['data']['source']} · SHA-256 {origin['data'][:16]}…",
        "folds": f"{len(content['folds'])} × {seeds} seeds, {_split_words(content)}, {sets} distinct test sets",
        "network": f"{config['network']['name']} {config['network']['options'] or ''}",
        "deconfound": f"{origin['deconfound']} {origin['commit'] or ''}",
        "machine": f"{origin['platform']}, {origin['device']}, Python {origin['python']}, {packages}",
    }
    listed = "".join(f"<dt>{safe(key)}</dt><dd>{safe(value)}</dd>" for key, value in facts.items())
    unseen = config.get("design", {}).get("unseen")
    more = f" Levels that were not in the training rows: design.unseen = {unseen}." if unseen else ""
    return (
        f"<p>Folds: {safe(_split_words(content))}.{safe(more)} Every method is trained on the same folds and seeds, "
        "from the same first weights; the epoch is chosen on validation rows. Values are taken on each test set and "
        "averaged. The training sets of cross-validation overlap, so intervals over trainings are corrected "
        f"resampled t intervals (Nadeau and Bengio 2003), with the variance (1/J + n_test/n_train) s² over J = "
        f"{sets} test sets; runs of several seeds on one test set are averaged first. They ask whether training "
        "again would give the same order. Intervals over people ask whether other people would, given these "
        "trainings. Comparing many methods, one interval in twenty misses by chance. What is left is the "
        "bias-corrected dcor² of a test set's outputs, or hidden features, with a confound within label groups.</p>"
        f"<details><summary>Provenance</summary><dl>{listed}</dl></details>"
    )


def _split_words(content: Mapping[str, Any]) -> str:
    """How test sets were made, in words."""
    splits = content["config"].get("splits", {})
    kind, column = splits.get("kind", "kfold"), splits.get("column")
    if kind == "leave-one-out":
        return f"one {column or 'group'} at a time is the test set, and the models have not seen it"
    if kind == "column":
        return f"test sets named by the column {column}"
    return f"{len(content['folds'])}-fold cross-validation with all rows of a person in one fold"


def _value(item: Mapping[str, Any]) -> Value:
    return Value.of(item, "mean")
