"""The loss within strata: recomputed pair by pair, and blind to what a stratum adds to all its rows."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.errors import OptionError
from deconfound.methods import Setting, TrainingBatch, method, task_loss
from deconfound.training import Samples, Schedule, bce, predict_in_memory, train_in_memory
from deconfound.training.batches import Order
from deconfound.training.step import in_batches
from deconfound.training.within import Within, between_strata, cases_of, paired_batches
from tests.training import tiny


def batch(n=30, labels=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, labels, generator=generator)
    cases = (torch.rand(n, labels, generator=generator) < 0.4).float()
    return scores, cases, torch.randint(0, 3, (n,), generator=generator)


def test_the_loss_is_its_formula_pair_by_pair():
    scores, cases, stratum = batch()
    found = Within(offset=0.3, prevalence=0.2)(scores, cases, stratum)
    expected = 0.0
    for label in range(2):
        pairs = [
            math.log1p(math.exp(float(scores[j, label] - scores[i, label])))
            for i in range(30)
            for j in range(30)
            if stratum[i] == stratum[j] and cases[i, label] == 1 and cases[j, label] == 0
        ]
        between = []
        for i in range(30):
            alike = cases[:, label] == cases[i, label]
            inside = alike & (stratum == stratum[i])
            between.append(float(scores[inside, label].mean() - scores[alike, label].mean()) ** 2)
        each, case = bce(scores[:, label], cases[:, label]), cases[:, label] == 1
        level = float(0.2 * each[case].mean() + 0.8 * each[~case].mean())  # whatever the batch's own share of cases
        expected += (np.mean(pairs) + 0.3 * np.mean(between) + level) / 2
    assert float(found.mean()) == pytest.approx(expected, rel=1e-5)


def test_what_a_stratum_adds_changes_neither_the_ranking_nor_its_gradient_and_is_what_between_sees():
    scores, cases, stratum = batch()
    moved = scores + 5.0 * (stratum == 1)[:, None]
    torch.testing.assert_close(Within().ranking(moved, cases, stratum), Within().ranking(scores, cases, stratum))
    assert between_strata(moved, cases, stratum).mean() > 3 * between_strata(scores, cases, stratum).mean()
    scores.requires_grad_()
    Within(offset=0.0)(scores, cases, stratum).mean().backward()
    own = scores.grad - scores.grad.mean(0)
    sums = torch.stack([own[stratum == site].sum(0) for site in range(3)])
    by_pairs = scores.detach().requires_grad_()
    Within().ranking(by_pairs, cases, stratum).mean().backward()
    expected = torch.stack([by_pairs.grad[stratum == site].sum(0) for site in range(3)])
    torch.testing.assert_close(expected, torch.zeros_like(expected), atol=1e-6, rtol=0)  # nothing is gained by a level
    assert sums.abs().max() < 1e-2


def test_classes_count_one_against_the_others_and_pairs_are_counted():
    logits, codes, stratum = torch.randn(12, 3), torch.arange(12) % 3, torch.zeros(12, dtype=torch.int64)
    criterion = Within()
    assert criterion(logits, codes, stratum).shape == (12, 3)
    assert int(criterion.pairs) == 3 * 4 * 8
    assert torch.isfinite(criterion(logits[:1], codes[:1], stratum[:1])).all()
    assert int(criterion.pairs) == 0


def holds_pairs(batch, cases, stratum):
    """For each label, whether the batch has a case and a control of one stratum."""
    return [
        any({*cases[batch[stratum[batch] == site], label]} == {True, False} for site in np.unique(stratum))
        for label in range(cases.shape[1])
    ]


def test_every_batch_holds_a_pair_of_each_label_as_long_as_there_are_enough():
    rng = np.random.default_rng(0)
    stratum, cases = rng.integers(0, 5, 400), rng.random((400, 2)) < [0.08, 0.3]
    plain = in_batches(rng.permutation(400), 21)
    assert not all(all(holds_pairs(batch, cases, stratum)) for batch in plain)  # the control: the first label is rare
    found = paired_batches(plain, cases, stratum)
    assert sorted(np.concatenate(found).tolist()) == list(range(400))
    assert [len(batch) for batch in found] == [len(batch) for batch in plain]
    assert all(all(holds_pairs(batch, cases, stratum)) for batch in found)
    few = cases[:, :1] & (np.cumsum(cases[:, :1], axis=0) <= 7)
    assert sum(all(holds_pairs(batch, few, stratum)) for batch in paired_batches(plain, few, stratum)) == 7
    alone = paired_batches([np.arange(1), np.arange(1, 2)], cases, stratum)
    assert [batch.tolist() for batch in alone] == [[0], [1]]
    drawn = rng.choice(400, 400)
    again = np.concatenate(paired_batches(in_batches(drawn, 20), cases, stratum))
    assert sorted(again.tolist()) == sorted(drawn.tolist())


def test_both_drivers_draw_batches_with_pairs():
    rng = np.random.default_rng(1)
    stratum, cases = rng.integers(0, 4, 200), rng.random((200, 1)) < 0.12
    sampler = Order(200, 16, seed=0, pairs=(cases, stratum))
    assert len(sampler) == len(list(sampler)) == 13
    plain = Order(200, 16, seed=0)
    for order, expected in ((sampler, True), (plain, False)):  # the control: by chance some have none
        assert all(all(holds_pairs(np.array(batch), cases, stratum)) for batch in order) == expected
    target = torch.from_numpy(cases).float()
    train = Samples(torch.randn(200, 2), None, target, stratum=torch.from_numpy(stratum))
    made = method("none").prepare(nn.Linear(2, 1), Setting(None, None, lambda: train.batches(100)))
    schedule = Schedule(epochs=1, batch_size=16)
    result = train_in_memory(made, train, None, Within(), schedule)
    assert result.history[0].parts["without_pair"] == 0


def test_classes_are_cases_against_the_others():
    assert cases_of(torch.tensor([0, 2, 1])).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert cases_of(torch.tensor([[0.0, 1.0]])).tolist() == [[0, 1]]


def confounded(n, seed, tie):
    """A label that shows weakly in one feature, and a site that shows strongly in another and goes with the label."""
    rng = np.random.default_rng(seed)
    case = rng.random(n) < 0.5
    site = rng.random(n) < np.where(case, 0.5 + tie / 2, 0.5 - tie / 2)
    x = np.stack([case + rng.normal(size=n), 3 * site + rng.normal(0, 0.05, n)], axis=1)
    return torch.tensor(x).float(), torch.tensor(case).float()[:, None], torch.tensor(site).long()


def test_a_network_that_ranks_within_sites_does_not_learn_the_site():
    x, case, site = confounded(600, 0, tie=0.8)
    held_x, held_case, held_site = confounded(300, 1, tie=0.8)
    design = dc.Design(confounds=["site"], keep=["dx"]).fit({"site": site.numpy(), "dx": case[:, 0].numpy()})
    weights = {}
    for name, criterion in (("bce", bce), ("within", Within())):
        torch.manual_seed(0)
        train = Samples(x, None, case, stratum=site)
        made = method("none").prepare(nn.Linear(2, 1), Setting(design, None, lambda train=train: train.batches(100)))
        held = Samples(held_x, None, held_case, stratum=held_site)
        result = train_in_memory(made, train, held, criterion, Schedule(epochs=60, batch_size=50, lr=0.02))
        weights[name] = made.model.weight.detach()[0]
        logits = predict_in_memory(made, held).logits
        assert abs(float(logits.mean())) < 1.0  # 0 parts cases from controls
        if name == "within":
            assert result.history[-1].parts["pairs"] > 50
            assert result.history[-1].parts["without_pair"] == 0
    share = {name: float(weight[1] / weight[0]) for name, weight in weights.items()}
    assert share["bce"] > 0.5  # the control: the site is used
    assert abs(share["within"]) < 0.1


def test_a_loss_within_strata_needs_strata():
    rows = TrainingBatch(torch.zeros(4, 2), torch.zeros(4, 0), torch.zeros(4, 1))
    with pytest.raises(OptionError, match="strata must be known for a loss that compares rows within them; got none"):
        task_loss(Within(), torch.zeros(4, 1), rows)


def test_a_run_ranks_within_the_levels_of_a_column(tmp_path):
    path = tiny.write(tmp_path, tiny.cohort(120))
    training = {"loss": "within", "within": "site", "epochs": 12, "lr": 0.02}
    results = tiny.fit(tiny.config(path, tmp_path / "run", training=training, method={"name": "none"}))
    assert len(results["folds"]) == 2
    history = pd.read_csv(tmp_path / "run" / "fold-0" / "history.csv")
    assert (history["train_pairs"] > 1).all()
    assert results["folds"][0]["batches_without_pair"] == history["train_without_pair"].mean() == 0
    said = pd.read_csv(tmp_path / "run" / "fold-0" / "predictions.csv")
    assert 0.2 < float((said["score_dx"] > 0.5).mean()) < 0.8
