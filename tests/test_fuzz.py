"""A short part of the fuzzing, the same inputs every time; `python -m tests.fuzz` goes on without end."""

import pytest

from tests.fuzz import TARGETS, fuzz


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_input_is_refused_in_our_words_or_read_right(name):
    taken = fuzz(name, 40)
    assert taken["read"], "a target that refuses everything shows nothing"
    assert not taken["refused without a word"]
