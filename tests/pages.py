"""The pages of the documentation, as tests and the site read them: prose, code blocks, headings, links."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^(`{3,}|:{3,})(.*?)\n(.*?)^\1\s*$", flags=re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its code, and the line of the page on which the code begins."""

    kind: str
    code: str
    line: int


def pages() -> list[Path]:
    """Every page that people read, without the tables that experiments write beside their results."""
    found = [path for path in sorted(DOCS.rglob("*.md")) if path.name != "tables.md"]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *found]


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(found[2].strip(), found[3], text.count("\n", 0, found.start(3)) + 1) for found in FENCE.finditer(text)
    ]


def prose(path: Path) -> str:
    """A page without code, tables, comments and the targets of links."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^\s*\|.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", text)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as repository hosts and the site make them."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#{1,4} (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), flags=re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        names.add(slug if slug not in found else f"{slug}-{found[slug]}")
        found[slug] = found.get(slug, 0) + 1
    return names


def links(path: Path) -> list[str]:
    """The targets of a page's links and figures that lie in the repository."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    text = re.sub(r"`[^`\n]*`", "", text)
    return [each for each in re.findall(r"\]\(([^)\s]+)\)", text) if not each.startswith(("http", "mailto"))]
