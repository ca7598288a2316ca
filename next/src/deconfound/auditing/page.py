"""Pages: one HTML file each, without scripts, made from the data of an audit by a template."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

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


def render_template(
    name: str, data: Mapping[str, Any], package: str | None = None, **values: Any
) -> str:
    """Return a template as HTML. All texts from the table are escaped.

    Args:
        name: The file of the template.
        data: The result of `Audit.to_dict()`.
        package: A package whose folder `templates` has the template. Those of this room can be
            extended and included there.
        **values: Further values that the template reads.
    """
    about = data["about"]
    names = [UNNAMED.get(name, name) for name in [*about["models"], *about["features"]]]
    template = _environment(package).get_template(name)
    # Summaries in notebooks have no figure, which is slow to draw.
    figure = partial(draw_effects, data["verdicts"])
    return template.render(data, names=names, figure=figure, **values)


def _environment(package: str | None) -> Environment:
    packages = ["deconfound.auditing", *([package] if package else [])]
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, "templates") for name in packages]),
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
