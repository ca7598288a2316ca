"""The result of an audit: its numbers, its verdicts, and the files they are written to."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deconfound.auditing.notes import Note
from deconfound.auditing.page import render
from deconfound.auditing.records import AuditRow, Embedding, Verdict, plain
from deconfound.errors import OptionError


@dataclass(frozen=True, repr=False)
class Audit:
    """What is left of each confound: every number, a verdict in words, and what to know before reading them."""

    rows: tuple[AuditRow, ...]
    verdicts: tuple[Verdict, ...]
    notes: tuple[Note, ...]
    about: Mapping[str, Any]
    embeddings: tuple[Embedding, ...] = ()
    points: Mapping[str, Any] | None = None

    def where(self, **fields: str) -> tuple[AuditRow, ...]:
        """The rows whose fields have these values: `audit.where(confound="site", statistic="dcor_sqr")`."""
        return tuple(row for row in self.rows if all(getattr(row, key) == value for key, value in fields.items()))

    def to_dict(self) -> dict[str, Any]:
        """All but the points of the figure, as JSON-safe data."""
        return {
            "about": dict(self.about),
            "verdicts": [plain(item) for item in self.verdicts],
            "notes": [plain(item) for item in self.notes],
            "rows": [plain(row) for row in self.rows],
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The numbers as JSON; written to `path` where one is given."""
        return _written(json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n", path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """One line per number, empty where a number does not exist; written to `path` where one is given."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(AuditRow.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: "" if value is None else value for key, value in plain(row).items()} for row in self.rows
        )
        return _written(text.getvalue(), path)

    def to_html(self) -> str:
        """The self-contained page."""
        points = None if self.points is None else {**self.points, "maps": [plain(item) for item in self.embeddings]}
        return render({**self.to_dict(), "points": points})

    def save(self, path: str | Path) -> None:
        """Write the page, or the numbers where the name ends in `.json` or `.csv`."""
        writers: dict[str, Callable[[], str]] = {".html": self.to_html, ".json": self.to_json, ".csv": self.to_csv}
        if Path(path).suffix not in writers:
            raise OptionError(f"path must end in .html, .json or .csv; got {str(path)!r}.")
        _written(writers[Path(path).suffix](), path)

    def __repr__(self) -> str:
        """A verdict per model and confound, then the warnings."""
        lines = [f"Audit of {', '.join(self.about['models'])} · {self.about['rows']:,} rows"]
        for item in self.verdicts:
            rows = [
                row for row in self.where(model=item.model, space=item.space, confound=item.confound) if row.p == row.p
            ]
            main = rows[0] if rows else None
            number = f"dcor² {main.value:.3f} [{main.low:.3f}, {main.high:.3f}] p {main.p:.3f}" if main else ""
            lines.append(f"  {item.model} · {item.space:8} {item.headline:40} {number}".rstrip())
        lines += [f"  {note.severity}: {note.text}" for note in self.notes]
        return "\n".join(lines)


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise OptionError(f"path must be one that can be written; got {str(path)!r} ({error.strerror}).") from error
    return text
