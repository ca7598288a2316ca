"""What the demo says of its two networks."""

import pytest
import torch
from typer.testing import CliRunner

from deconfound.cli import app
from deconfound.errors import OptionError
from deconfound_lab.demo.demo import DemoResult, sentence


def result(accuracy, independent):
    return DemoResult(torch.zeros(2), accuracy, independent, 0.0)


def test_the_sentence_credits_the_confound_only_where_the_numbers_do():
    told = sentence(result(0.93, 0.73), result(0.82, 0.83))
    assert "What the plain network has above 83.3% is the confound's doing" in told
    assert "82.0% and 83.0%" in told
    for plain, ours in (((0.5, 0.5), (0.5, 0.5)), ((0.93, 0.73), (0.93, 0.73))):
        assert "try more --steps" in sentence(result(*plain), result(*ours))


@pytest.mark.parametrize(("option", "value"), [("--out", "report.pdf"), ("--out", "folder.html"), ("--seed", "-1")])
def test_what_the_demo_cannot_do_is_told_before_it_trains(tmp_path, monkeypatch, option, value):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    monkeypatch.setattr("deconfound_lab.demo.demo.train", lambda *args, **options: pytest.fail("trained first"))
    found = CliRunner().invoke(app, ["demo", option, value])
    assert isinstance(found.exception, OptionError)
    assert str(found.exception).startswith(f"{option} must be")
