"""What the demo says of its two networks."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import deconfound as dc
from deconfound.cli import app
from deconfound.errors import OptionError
from deconfound_lab.demo import DemoResult, page, sentence


def result(accuracy, independent):
    return DemoResult(torch.zeros(2), accuracy, independent, 0.0)


def test_the_sentence_credits_the_confound_only_where_the_numbers_do():
    told = sentence(result(0.93, 0.73), result(0.82, 0.83))
    assert "What the plain network has above 83.3% is the confound's doing" in told
    assert "82.0% and 83.0%" in told
    for plain, ours in (((0.5, 0.5), (0.5, 0.5)), ((0.93, 0.73), (0.93, 0.73))):
        assert "try more --steps" in sentence(result(*plain), result(*ours))


def test_what_the_terminal_shows_stands_on_the_page_before_the_audit():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 80)
    people = {"group": group, "confound": rng.normal(size=80)}
    report = dc.audit(
        rng.normal(size=80), people, confounds=["confound"], labels=["group"], permutations=39, bootstraps=40
    )
    results = {"plain CNN": result(0.93, 0.73), "CNN with PMDN": result(0.82, 0.83)}
    shown = page(results, report)
    before = shown[: shown.index("Before you read the numbers")]
    for cell in ("93.0%", "73.0%", "82.0%", "83.0%"):
        assert f"<td>{cell}</td>" in before
    assert "is the confound&#x27;s doing" in before
    assert shown.endswith(report.to_html()[-200:])


@pytest.mark.parametrize(("option", "value"), [("--out", "report.pdf"), ("--out", "folder.html"), ("--seed", "-1")])
def test_what_the_demo_cannot_do_is_told_before_it_trains(tmp_path, monkeypatch, option, value):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    monkeypatch.setattr("deconfound_lab.demo.train", lambda *args, **options: pytest.fail("trained first"))
    found = CliRunner().invoke(app, ["demo", option, value])
    assert isinstance(found.exception, OptionError)
    assert str(found.exception).startswith(f"{option} must be")
