"""The committed results of the MRI experiment: tables and page are those that `results.json` makes."""

import shutil
from dataclasses import asdict
from pathlib import Path

from deconfound.data import read_json
from deconfound_lab.__main__ import filled_page, searched_page
from deconfound_lab.harness.experiment import remake
from deconfound_lab.mri.experiment import MriExperiment
from deconfound_lab.mri.plan import ARMS, CHOSEN, FULL, SEARCH, SEARCHED
from deconfound_lab.mri.results import Results
from tests.lab.docs import without_marks

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "results" / "mri"


def test_tables_and_page_in_the_docs_are_those_of_the_committed_results(tmp_path):
    for name in ("results.json", "maps.npz"):
        shutil.copy(FOLDER / name, tmp_path)
    remake(MriExperiment, tmp_path)
    assert (FOLDER / "tables.md").read_text() == (tmp_path / "tables.md").read_text()
    for name in ("comparison.png", "tsne.png", "maps.png"):
        assert (FOLDER / name).read_bytes().startswith(b"\x89PNG")
    page = (ROOT / "docs" / "results" / "mri.md").read_text()
    assert without_marks(page) == without_marks(filled_page("mri"))


def test_the_committed_results_are_of_the_full_plan_and_say_where_they_come_from():
    results = Results.from_dict(read_json(FOLDER / "results.json"))
    assert (results.plan["size"], results.plan["folds"]) == (FULL.size, FULL.folds)
    assert results.provenance
    for source in results.provenance:
        assert source["commit"]
        assert source["device"]
    assert (FOLDER / "results.json").stat().st_size < 3_000_000


def test_the_arms_are_those_that_the_committed_search_chose():
    """Of each method the least validation loss under balance; the page shows the very table."""
    found = Results.from_dict(read_json(FOLDER / "search.json"))
    for name, tried in SEARCHED.items():
        losses = {each: found.find(20, f"{name}: {each}").trials[0].validation for each in tried}
        assert min(losses, key=losses.get) == CHOSEN[name]
        assert asdict(ARMS[name]) == asdict(tried[CHOSEN[name]])
    assert found.plan["seed"] == SEARCH.seed != FULL.seed
    assert (ROOT / "docs" / "results" / "mri-setup.md").read_text() == searched_page()
