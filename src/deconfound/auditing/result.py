"""The result of an audit: its numbers, its verdicts, and the files they are written to."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deconfound.auditing.card import card_json, card_markdown
from deconfound.auditing.export import save_figures
from deconfound.auditing.page import audit_page
from deconfound.auditing.records import AuditRow, Embedding, Note, Verdict, plain
from deconfound.data.files import write_text
from deconfound.errors import DeconfoundError, OptionError


@dataclass(frozen=True, repr=False)
class Audit:
    """What is left of each confound: every number, a verdict in words, and what to know before reading them."""

    rows: tuple[AuditRow, ...]
    verdicts: tuple[Verdict, ...]
    notes: tuple[Note, ...]
    about: Mapping[str, Any]
    embeddings: tuple[Embedding, ...] = ()
    points: Mapping[str, Any] | None = None
    shapes: Mapping[str, Any] | None = None

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
        return audit_page({**self.to_dict(), "points": points, "shapes": self.shapes or {}})

    def to_card(self) -> str:
        """A model card in Markdown: what an audit can fill in, the rest marked for the author."""
        return card_markdown(self.to_dict())

    def save(self, path: str | Path) -> None:
        """Write the page, or the numbers where the name ends in `.json` or `.csv`, or the card where it ends in `.md`.

        A name that ends in `.card.json` gets the card as JSON.
        """
        writers: dict[str, Callable[[], str]] = {
            ".card.json": lambda: card_json(self.to_dict()),
            ".html": self.to_html,
            ".json": self.to_json,
            ".csv": self.to_csv,
            ".md": self.to_card,
        }
        ending = next((ending for ending in writers if str(path).endswith(ending)), None)
        if ending is None:
            raise OptionError(f"path must end in .html, .json, .csv or .md; got {str(path)!r}.")
        _written(writers[ending](), path)

    def save_figures(self, folder: str | Path, kinds: Sequence[str] = ("svg", "png")) -> list[Path]:
        """Write each figure as a file of its own, named by its title; PNG needs matplotlib.

        Args:
            folder: made where it does not exist.
            kinds: "svg", "png" or both.

        Returns:
            The files.

        Example:
            >>> import deconfound as dc, numpy as np, tempfile
            >>> age = np.random.default_rng(0).normal(60, 9, 60)
            >>> found = dc.audit(age, {"age": age}, confounds=["age"], permutations=19, bootstraps=40)
            >>> [path.name for path in found.save_figures(tempfile.mkdtemp(), ["svg"])]
            ['What-is-left-in-the-outputs.svg']
        """
        return save_figures(self.to_dict(), self.shapes or {}, Path(folder), kinds)

    def __repr__(self) -> str:
        """How the outputs were read, a verdict per model and confound, then the notes."""
        lines = [f"Audit of {', '.join(self.about['models'])} · {self.about['rows']:,} rows"]
        lines += [f"  read as: {note.text}" for note in self.notes if note.kind == "reading"]
        for item in self.verdicts:
            number = ""
            if item.statistic:
                key = {"model": item.model, "space": item.space, "confound": item.confound}
                main = self.where(**key, statistic=item.statistic)[0]
                reach = f"[{main.low:.3f}, {main.high:.3f}]" if main.low == main.low else "[no interval]"
                number = f"dcor² {main.value:.3f} {reach} p {main.p:.3f} (Holm {item.p_holm:.3f})"
            lines.append(f"  {item.model} · {item.space:8} {item.headline:40} {number}".rstrip())
        lines += [f"  {note.severity}: {note.text}" for note in self.notes if note.kind != "reading"]
        return "\n".join(lines)


def _written(text: str, path: str | Path | None) -> str:
    """Write a file as a whole or not at all."""
    if path is not None:
        try:
            write_text(Path(path), text)
        except (DeconfoundError, OSError) as error:
            raise OptionError(f"path must be one that can be written; got {str(path)!r} ({error}).") from error
    return text
