"""The paper, claim by claim: the page is that of the committed results, and verdicts follow from figures."""

from pathlib import Path

import numpy as np
import pytest

from deconfound_lab.mri.results import Cloud
from deconfound_lab.paper import evidence as judged
from deconfound_lab.paper import mri, page, synthetic
from deconfound_lab.paper.table_two import TABLE_TWO
from tests.lab.docs import without_marks

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def evidence():
    return judged.Evidence.read(RESULTS)


def test_the_page_is_the_one_made_from_the_committed_results():
    assert without_marks((RESULTS / "paper-claims.md").read_text()) == without_marks(page.paper_page(RESULTS))


def test_every_claim_has_figures_a_verdict_and_one_place(evidence):
    rows = page.claims_table(evidence).rows
    assert len({row[1] for row in rows}) == len(rows)
    assert all(row[2] and row[3] in (judged.HOLDS, judged.PART, judged.NOT, judged.OPEN) for row in rows)


def test_a_verdict_changes_with_its_figures(evidence, monkeypatch):
    figures = {"accuracy": 0.84, "dcor2": 0.001}
    monkeypatch.setattr(judged.Evidence, "along", lambda self, method, measure: {200: figures[measure], 1000: 0.0})
    assert synthetic.mdn_at_200(evidence)[1] == judged.NOT
    figures |= {"accuracy": 0.93, "dcor2": 0.2}
    assert synthetic.mdn_at_200(evidence)[1] == judged.HOLDS


def test_trained_online_is_judged_where_the_confound_says_nothing(evidence, monkeypatch):
    """The confound alone is right as often as the ceiling where it is tied to the group."""
    figures = {"accuracy": 0.833, "dcor2": 0.99, "accuracy_independent": 0.833}
    guessing = {**figures, "accuracy_independent": 0.5}
    monkeypatch.setattr(
        judged.Evidence, "along", lambda self, method, measure: {1: (guessing if method == "mdn" else figures)[measure]}
    )
    assert synthetic.online(evidence)[1] == judged.HOLDS
    guessing["accuracy_independent"] = 0.833
    assert synthetic.online(evidence)[1] == judged.PART


def test_training_and_eval_are_compared_at_the_batch_sizes_that_all_have(evidence, monkeypatch):
    gaps = {"mdn": {1: 50.0, 20: 0.4}, "pmdn": {1: 0.01, 20: 0.04}, "pmdn-alternating": {20: 0.0}}
    monkeypatch.setattr(judged.Evidence, "along", lambda self, method, measure: judged.ByBatch(gaps[method]))
    assert synthetic.train_and_eval(evidence)[1] == judged.HOLDS
    gaps["pmdn"][20] = 0.5
    assert synthetic.train_and_eval(evidence)[1] == judged.NOT


def test_what_networks_leave_is_compared_with_the_methods_that_a_batch_size_has(evidence, monkeypatch):
    left = {"none": {1: 0.4, 20: 0.4}, "batchnorm": {20: 0.3}, "mdn": {1: 0.9, 20: 0.0}, "pmdn-alternating": {20: 0.0}}
    left["pmdn"] = {1: 0.0, 20: 0.0}
    monkeypatch.setattr(judged.Evidence, "along", lambda self, method, measure: judged.ByBatch(left[method]))
    assert synthetic.more_left(evidence)[1] == judged.PART
    left["mdn"][1] = 0.0
    assert synthetic.more_left(evidence)[1] == judged.HOLDS


def test_what_is_left_is_compared_at_batch_sizes_with_several_folds(evidence):
    assert evidence.batches("mdn") == [20, 80, 160, 240]
    assert evidence.batches("mdn", folds=mri.FOLDS) == [20, 160]
    with pytest.raises(judged.NotRun):
        evidence.batches("mdn", folds=6)


def test_table_two_is_the_papers():
    """Read again from the paper: PMDN's accuracy is the highest of its row, MDN's site the lowest at batch 80."""
    for rows in TABLE_TWO.values():
        assert max(rows, key=lambda arm: rows[arm][3]) == "pmdn-paper"
    assert min(TABLE_TWO[80], key=lambda arm: TABLE_TWO[80][arm][2]) == "mdn"
    assert TABLE_TWO[160]["adversarial"] == (0.543, 0.094, 0.166, 0.268)


def test_neighbours_are_those_of_the_same_level():
    x = np.concatenate([np.zeros(11), np.ones(11)])
    y = np.tile(np.arange(11) / 100, 2)
    apart = Cloud("a", 1, 0, "", x, y, {"site": ["A"] * 11 + ["B"] * 11, "sex": ["F", "M"] * 11})
    assert mri.neighbours(apart, "site") == 1.0
    assert mri.neighbours(apart, "sex") < 0.5


def test_a_network_counts_as_cleared_where_it_comes_to_the_ceiling_and_little_is_left(evidence, monkeypatch):
    figures = {("gru", "accuracy"): 0.84, ("gru", "dcor2"): 0.02, ("transformer", "accuracy"): 0.93}

    def cell(self, measure, when, method, *, network, batch, balanced=False):
        return figures.get((network, measure), 0.3) if method == "pmdn" else 0.94

    monkeypatch.setattr(judged.Evidence, "cell", cell)
    assert synthetic.other_networks(evidence)[1] == judged.PART
    assert synthetic.mdn_elsewhere(evidence)[1] == judged.PART
    figures |= {("transformer", "accuracy"): 0.83, ("transformer", "dcor2"): 0.01}
    assert synthetic.other_networks(evidence)[1] == judged.HOLDS
    assert synthetic.mdn_elsewhere(evidence)[1] == judged.HOLDS
    figures |= {("gru", "accuracy"): 0.94, ("transformer", "accuracy"): 0.94}
    assert synthetic.other_networks(evidence)[1] == judged.NOT


def test_what_is_not_among_the_results_is_open_and_not_a_verdict(evidence):
    assert page._found(evidence, lambda e: e.cell("accuracy", "best", "pmdn", batch=7)) == (
        "–", judged.OPEN, "not run with the present code yet",
    )  # fmt: skip
