"""A model card from an audit: the fields of TRIPOD+AI and RSNA ATLAS that numbers can fill, the rest for the author."""

import json
from collections.abc import Mapping
from typing import Any

from deconfound.auditing.records import by_stratum
from deconfound.auditing.words import STATISTICS

AUTHOR = "to be written by the author"


def card_fields(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The card as sections of fields, from `Audit.to_dict()`; what an audit cannot know says so."""
    about = data["about"]
    labels = [f"{item['name']} ({', '.join(item['levels']) or 'number'})" for item in about["labels"]]
    confounds = [f"{item['name']} ({item['kind']})" for item in about["confounds"]]
    return {
        "Model": {
            "Name": ", ".join(about["models"]),
            "Version and date": AUTHOR,
            "Architecture and training": AUTHOR,
            "Intended use and users": AUTHOR,
            "Out-of-scope use": AUTHOR,
            "Licence, contact, funding": AUTHOR,
        },
        "Data of the evaluation": {
            "Source, dates and setting": AUTHOR,
            "Eligibility and consent": AUTHOR,
            "Rows": about["rows"],
            "People": about["people"],
            "Outcome": "; ".join(labels) or "none given",
            "Confounds": "; ".join(confounds),
            "Missing values": _notes(data, "missing") or "none in confounds and labels",
            "How outputs were read": _notes(data, "reading") or "not read as answers",
            "How test sets were made": f"{about['folds']} test folds" if about["fold"] else "one test set",
        },
        "Performance": _performance(data),
        "Confounding": {
            f"{item['model']}: {item['confound']} in the {item['space']}": f"{item['grade']}. {item['text']}"
            for item in data["verdicts"]
        },
        "Performance by stratum": {
            f"{row['model']}: {row['confound']} = {row['level']} ({row['n']:,} rows)": f"{_name(row)} {_interval(row)}"
            for row in by_stratum(data["rows"])
        },
        "Limits": {
            "Before reading": " ".join(note["text"] for note in data["notes"] if note["severity"] == "warning")
            or "no warnings",
            "Ethical considerations": AUTHOR,
            "Monitoring and updates": AUTHOR,
        },
        "How it was made": {
            "Software": f"deconfound {about['version']}",
            "Permutations": about["permutations"],
            "Bootstrap samples": about["bootstraps"],
            "Seed": about["seed"],
        },
    }


def card_markdown(data: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    lines = ["# Model card", "", "Fields of TRIPOD+AI and RSNA ATLAS; filled in from an audit where it can be.", ""]
    for section, fields in card_fields(data).items():
        lines += [f"## {section}", ""]
        lines += [f"- **{_plain(name)}**: {_plain(value)}" for name, value in fields.items()]
        lines.append("")
    return "\n".join(lines)


def card_json(data: Mapping[str, Any]) -> str:
    """The card as JSON."""
    return json.dumps(card_fields(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _notes(data: Mapping[str, Any], kind: str) -> str:
    return " ".join(note["text"] for note in data["notes"] if note["kind"] == kind)


def _performance(data: Mapping[str, Any]) -> dict[str, str]:
    rows = [row for row in data["rows"] if row["space"] in ("outputs", "baseline") and not row["confound"]]
    return {f"{row['model']}: {_name(row)}": _interval(row) for row in rows}


def _name(row: Mapping[str, Any]) -> str:
    name = STATISTICS[row["statistic"]].name
    return f"{name} to {row['level']}" if row["statistic"].endswith("_difference") else name


def _interval(row: Mapping[str, Any]) -> str:
    if row["value"] is None:
        return "no value"
    reach = "" if row["low"] is None else f" (95 % confidence interval {row['low']:.3f} to {row['high']:.3f})"
    return f"{row['value']:.3f}{reach}"


def _plain(value: Any) -> str:
    """Text that Markdown shows as it is."""
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>#|" else sign for sign in text).replace("\n", " ")
