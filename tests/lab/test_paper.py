"""The paper, claim by claim: the page is that of the committed results, and verdicts follow from figures."""

from pathlib import Path

import numpy as np
import pytest

from deconfound_lab import paper
from deconfound_lab.mri.results import Cloud

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def evidence():
    return paper.Evidence.read(RESULTS)


def test_the_page_is_the_one_made_from_the_committed_results():
    assert (RESULTS / "paper-claims.md").read_text() == paper.paper_page(RESULTS)


def test_every_claim_has_figures_a_verdict_and_one_place(evidence):
    rows = paper.claims_table(evidence).rows
    assert len({row[1] for row in rows}) == len(rows)
    assert all(row[2] and row[3] in (paper.HOLDS, paper.PART, paper.NOT, paper.OPEN) for row in rows)


def test_a_verdict_changes_with_its_figures(evidence, monkeypatch):
    figures = {"accuracy": 0.84, "dcor2": 0.001}
    monkeypatch.setattr(paper.Evidence, "along", lambda self, method, measure: {200: figures[measure], 1000: 0.0})
    assert paper._mdn_at_200(evidence)[1] == paper.NOT
    figures |= {"accuracy": 0.93, "dcor2": 0.2}
    assert paper._mdn_at_200(evidence)[1] == paper.HOLDS


def test_table_two_is_the_papers():
    """Read again from the paper: PMDN's accuracy is the highest of its row, MDN's site the lowest at batch 80."""
    for rows in paper.TABLE_TWO.values():
        assert max(rows, key=lambda arm: rows[arm][3]) == "pmdn-paper"
    assert min(paper.TABLE_TWO[80], key=lambda arm: paper.TABLE_TWO[80][arm][2]) == "mdn"
    assert paper.TABLE_TWO[160]["adversarial"] == (0.543, 0.094, 0.166, 0.268)


def test_neighbours_are_those_of_the_same_level():
    x = np.concatenate([np.zeros(11), np.ones(11)])
    y = np.tile(np.arange(11) / 100, 2)
    apart = Cloud("a", 1, 0, "", x, y, {"site": ["A"] * 11 + ["B"] * 11, "sex": ["F", "M"] * 11})
    assert paper.neighbours(apart, "site") == 1.0
    assert paper.neighbours(apart, "sex") < 0.5
