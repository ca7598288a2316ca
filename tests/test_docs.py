"""The documentation as a whole: links lead somewhere, code runs, pages stay short, and the site holds every page."""

import importlib
import json
import re
import shlex

import pytest
from typer.testing import CliRunner

import deconfound as dc
import deconfound.cli as cli
from tests.notebooks import cells
from tests.pages import DOCS, ROOT, Block, anchors, blocks, links, pages, prose

WORDS = 1500
COLUMNS = 88
PAGES = pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
RUN = [page for page in pages() if any(block.kind in ("python", "sh") for block in blocks(page))]
# Added to each `fit` and `compare` of a page, so that the pages show what a user would write and the tests stay fast.
SHORT = {"splits.folds": 2, "training.epochs": 4, "compare.permutations": 39, "compare.bootstraps": 40}


def run_block(block: Block, page: str, namespace: dict) -> None:
    if block.kind == "python":
        exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), namespace)
        return
    for line in block.code.replace("\\\n", " ").strip().splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "deconfound", f"{page}: a block of sh holds commands of deconfound; others are text: {line}"
        more = [f"{key}={value}" for key, value in SHORT.items()] if words[1] in ("fit", "compare") else []
        done = CliRunner().invoke(cli.app, [*words[1:], *more])
        assert done.exit_code == 0, (line, done.output, done.exception)


# Lightning 2.6 asks torch 2.13 in a way that torch deprecates.
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("page", RUN, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("DECONFOUND_CACHE", str(tmp_path / "cache"))
    namespace = {"__name__": page.stem}
    for block in blocks(page):
        if block.kind in ("python", "sh"):
            run_block(block, str(page), namespace)


def test_code_that_fails_is_noticed():
    with pytest.raises(ZeroDivisionError):
        run_block(Block("python", "1 / 0\n", 3), "page", {})
    with pytest.raises(AssertionError, match="nonsense"):
        run_block(Block("sh", "deconfound nonsense\n", 1), "page", {})


@PAGES
def test_links_figures_and_anchors_of_a_page_lead_somewhere(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), f"{page.name} → {target}"
        assert not anchor or anchor in anchors(there), f"{page.name} → {target}"


@PAGES
def test_a_page_is_no_longer_than_a_reader(page):
    words = len(prose(page).split())
    assert words <= WORDS, f"{page.name} has {words} words of prose: split it"


@PAGES
def test_no_line_of_code_scrolls(page):
    code = [block for block in blocks(page) if not block.kind.startswith("{")]
    wide = [(block.line, line) for block in code for line in block.code.splitlines() if len(line) > COLUMNS]
    assert not wide


def test_a_notebook_holds_the_page_s_text_and_code_in_order():
    page = (
        "# Title\n\n```python\nx = 1\n```\n\nThen\n\n```text\nshown\n```\n\n```sh\ndeconfound fit \\\n    a\n```\nend\n"
    )
    assert cells(page) == [
        ("markdown", "# Title"),
        ("code", "x = 1"),
        ("markdown", "Then\n\n```text\nshown\n```"),
        ("code", "%%sh\nset -e\ndeconfound fit \\\n    a"),
        ("markdown", "end"),
    ]


def toctree(page) -> list[str]:
    entries = [line for block in blocks(page) if block.kind == "{toctree}" for line in block.code.splitlines()]
    return [re.sub(r".*<(.*)>", r"\1", line) for line in entries if line and not line.startswith(":")]


def test_the_site_leads_to_every_page():
    found, left = {DOCS / "index.md"}, [DOCS / "index.md"]
    while left:
        page = left.pop()
        for entry in toctree(page):
            there = page.parent / f"{entry.removesuffix('.md')}.md"
            listed = sorted(page.parent.glob(f"{entry}.md")) if "*" in entry else [there]
            assert listed != []
            assert all(each.exists() for each in listed), f"{page.name} lists {entry}"
            left += [each for each in listed if each not in found]
            found |= set(listed)
    assert {page for page in pages() if DOCS in page.parents} == found


def test_the_generated_reference_has_a_page_for_every_room():
    shown = [
        name for page in (DOCS / "api").glob("*.md") for name in re.findall(r"automodule:: (\S+)", page.read_text())
    ]
    assert sorted(shown) == sorted(["deconfound", *(f"deconfound.{room}" for room in dc._ROOMS.split())])
    assert all(importlib.import_module(name).__all__ for name in shown)


@pytest.mark.parametrize("module", ["deconfound.data", "deconfound_lab"])
def test_names_that_the_short_reference_gives_to_a_module_are_there(module):
    page = (DOCS / "reference.md").read_text()
    section = page.split(f"| name in `{module}` |")[1].split("\n\n")[0]
    named = [name for line in section.splitlines() for name in re.findall(r"`(\w+)", line.split(" | ")[0])]
    assert len(named) > 4
    assert set(named) <= set(importlib.import_module(module).__all__)


def test_the_page_on_stability_says_what_the_matrix_did_not_try():
    cells = {cell["name"]: cell for cell in json.loads((DOCS / "results" / "matrix.json").read_text())["cells"]}
    page = " ".join((DOCS / "stability.md").read_text().split())
    for cell in cells.values():
        told = f"{cell['failed']} of {cell['passed'] + cell['failed']:,} tests fail" in page
        assert told == (cell["failed"] > 0), cell["name"]
    assert ("torch 2.6 not at all" in page) == cells["oldest torch, Python 3.11"]["note"].startswith("not tried")
    for version in ("3.12", "3.13"):
        without = not cells[f"Python {version}"]["torch"]
        assert ("On 3.12 and 3.13 only what needs no torch has been tried" in page) == without
