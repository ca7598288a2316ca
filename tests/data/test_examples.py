"""The table that comes with the package."""

import hashlib

import numpy as np
import pytest

import deconfound as dc
from deconfound.data import read_table
from deconfound.errors import OptionError


def test_the_heart_table_is_the_one_of_the_repository():
    path = dc.example("heart")
    assert hashlib.sha256(path.read_bytes()).hexdigest().startswith("c97485da19f8345f")
    table = read_table(path)
    hospitals, people = np.unique(np.asarray(table["dataset"]), return_counts=True)
    assert dict(zip(hospitals, people, strict=True)) == {
        "Cleveland": 304,
        "Hungary": 293,
        "Switzerland": 123,
        "VA Long Beach": 200,
    }
    notice = (path.parent / "NOTICE.md").read_text()
    assert "CC BY 4.0" in notice
    assert "Detrano" in notice


@pytest.mark.parametrize("name", ["hart", "../errors", ""])
def test_other_names_are_refused(name):
    with pytest.raises(OptionError, match=r"example must be one of heart; got"):
        dc.example(name)
