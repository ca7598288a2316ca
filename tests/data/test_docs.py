"""The pages on scans and on the cohort: their figures are the code's."""

from pathlib import Path

import pytest

import deconfound_lab
from deconfound_lab import Strengths, bayes_accuracy

DOCS = Path(__file__).parents[2] / "docs"


def test_the_sizes_on_the_page_are_the_defaults():
    text = (DOCS / "results" / "cohort.md").read_text()
    s = Strengths()
    assert f"{s.mci_hippocampus} mm; {s.mci_cortex:.0%}; {s.mci_ventricles} mm".replace("%", " %") in text
    assert f"{s.hiv_striatum} mm; {s.hiv_white:.0%}; {s.hiv_ventricles} mm".replace("%", " %") in text
    age = f"{s.age_ventricles} mm; {s.age_cortex:.0%}; {s.age_white:.0%}; {s.age_hippocampus} mm"
    assert age.replace("%", " %") in text
    assert f"deformation {s.person_warp} mm, ventricles {s.person_ventricles} mm" in text
    assert f"{bayes_accuracy():.1%}".replace("%", " %") in text
    assert f"{bayes_accuracy(confounds=True):.1%}".replace("%", " %") in text


def test_every_public_name_of_the_room_is_there_and_documented():
    for name in deconfound_lab.__all__:
        assert getattr(deconfound_lab, name).__doc__
    with pytest.raises(AttributeError, match=r"module 'deconfound_lab' has no attribute 'Nonsense'"):
        _ = deconfound_lab.Nonsense
