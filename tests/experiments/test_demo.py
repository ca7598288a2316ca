"""What the demo says of its two networks."""

import torch

from deconfound.experiments.demo import DemoResult, sentence


def result(accuracy, independent):
    return DemoResult(torch.zeros(2), accuracy, independent, 0.0)


def test_the_sentence_credits_the_confound_only_where_the_numbers_do():
    told = sentence(result(0.93, 0.73), result(0.82, 0.83))
    assert "What the plain network has above 83.3% is the confound's doing" in told
    assert "82.0% and 83.0%" in told
    for plain, ours in (((0.5, 0.5), (0.5, 0.5)), ((0.93, 0.73), (0.93, 0.73))):
        assert "try more --steps" in sentence(result(*plain), result(*ours))
