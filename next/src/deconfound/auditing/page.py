"""The page of an audit: one HTML file without scripts, made from `Audit.to_dict()` alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from deconfound.auditing.figures import draw_effects, name_source
from deconfound.auditing.formats import format_interval, format_number, format_p
from deconfound.auditing.sentences import join_words

# What the three lines of the answer are about.
QUESTIONS = ("What is left", "What the model is worth", "What cannot be known")
# Words for arrays that have no name.
UNNAMED = {"model": "a model", "features": "features"}
SCORE_NAMES = {
    "binary": "AUC",
    "classes": "mean AUC of each class against the rest",
    "numeric": "R²; within strata a correlation",
}


def render_page(data: Mapping[str, Any]) -> str:
    """Return the page as HTML.

    The page is one file that needs no network. All texts from the table are escaped.

    Args:
        data: The result of `Audit.to_dict()`.
    """
    about = data["about"]
    names = [UNNAMED.get(name, name) for name in [*about["models"], *about["features"]]]
    template = _environment().get_template("page.html.j2")
    return template.render(data, names=names, figure=draw_effects(data["verdicts"]))


def render_summary(data: Mapping[str, Any]) -> str:
    """Return the answer and the table of verdicts as an HTML fragment for notebooks.

    Args:
        data: The result of `Audit.to_dict()`.
    """
    return _environment().get_template("summary.html.j2").render(data)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("deconfound.auditing", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=format_number,
        p=format_p,
        interval=lambda estimate: format_interval(estimate["low"], estimate["high"]),
        words=join_words,
        classes=_list_classes,
        source=name_source,
    )
    environment.globals.update(questions=QUESTIONS, score_names=SCORE_NAMES)
    return environment


def _list_classes(row: Mapping[str, Any]) -> list[str]:
    """Return the classes in the order of their effective numbers: a binary label's cases last."""
    others = [name for name in row["classes"] if name != row["positive"]]
    classes = [*others, row["positive"]] if row["positive"] else others
    effective = row["honest"]["effective"]
    return classes if len(classes) == len(effective) else [""] * len(effective)
