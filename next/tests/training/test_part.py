"""Parts of a fold: which rows a batch holds, in which order, and what they count for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deconfound.training import Part


def make_part(n: int = 10, **options) -> Part:
    """Return a part whose inputs, metadata and targets all tell the row."""
    rows = torch.arange(100, 100 + n)
    x = torch.arange(300.0)[:, None]
    column = rows.float()[:, None]
    return Part(x, rows, column, column.clone(), **options)


def test_each_row_comes_once_in_an_epoch_with_its_own_metadata_and_target():
    part = make_part(10)
    batches = [part.batch(positions) for positions in part.order(0, 0, 4)]
    assert [len(batch.target) for batch in batches] == [4, 3, 3]
    assert sorted(torch.cat([batch.x for batch in batches]).flatten().tolist()) == list(
        range(100, 110)
    )
    for batch in batches:
        assert torch.equal(batch.x, batch.target)
        assert torch.equal(batch.x, batch.metadata)


def test_the_order_follows_from_seed_and_epoch_alone():
    orders = {
        key: torch.cat(make_part().order(*key, 4)).tolist() for key in [(0, 0), (0, 1), (1, 0)]
    }
    assert torch.cat(make_part().order(0, 0, 4)).tolist() == orders[0, 0]
    assert len({tuple(order) for order in orders.values()}) == 3


def test_processes_share_a_batch_equally():
    shares = [make_part(11).order(0, 0, 4, rank, 2) for rank in (0, 1)]
    assert [len(a) for a in shares[0]] == [len(b) for b in shares[1]]
    assert not set(torch.cat(shares[0]).tolist()) & set(torch.cat(shares[1]).tolist())


def test_rows_are_drawn_by_their_weights():
    """The expected count of a row is its weight; the bound is five standard errors."""
    weight = torch.tensor([0.0, 0.5, 1.0, 2.5])
    part = make_part(4, draw=weight)
    drawn = torch.cat([torch.cat(part.order(0, epoch, 2)) for epoch in range(2000)])
    counts = torch.bincount(drawn, minlength=4) / 2000
    assert counts[0] == 0
    assert torch.allclose(counts, weight, atol=5 * (2.5 / 2000) ** 0.5)


def test_rows_that_are_drawn_count_by_their_weights_in_fits():
    part = make_part(
        3, draw=torch.tensor([0.0, 1.0, 2.0]), layer_weight=torch.tensor([1.0, 0.0, 1.0])
    )
    (batch,) = part.batches()
    assert batch.layer_weight.tolist() == [0.0, 0.0, 2.0]
    # A row that was drawn into a training batch stands there as often as it was drawn.
    assert part.batch(torch.tensor([2, 2])).layer_weight.tolist() == [1.0, 1.0]


def test_stored_bytes_are_prepared_batch_by_batch_and_varied_in_training_only():
    images = torch.arange(20 * 4, dtype=torch.uint8).reshape(20, 1, 2, 2)
    rows = torch.arange(20)
    part = Part(
        images,
        rows,
        torch.zeros(20, 1),
        torch.zeros(20, 1),
        prepare=lambda x: x.float() / 2,
        augment=lambda x, generator: x + torch.rand(len(x), 1, 1, 1, generator=generator),
    )
    assert torch.equal(part.batch(torch.tensor([3])).x, images[3:4] / 2)
    first, again, other = (part.batch(torch.tensor([3]), seed).x for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_evaluation_batches_are_bounded_and_keep_the_order():
    x = torch.zeros(3000, 1, 64, 64, dtype=torch.uint8)
    x[:, 0, 0, 0] = torch.arange(3000) % 251
    part = Part(x, torch.arange(3000), torch.zeros(3000, 1), torch.arange(3000))
    batches = list(part.batches())
    assert max(batch.x.numel() for batch in batches) <= 4_200_000
    assert torch.equal(torch.cat([batch.target for batch in batches]), torch.arange(3000))


@pytest.mark.parametrize("n", [1, 7, 64, 65, 129])
def test_batches_have_equal_sizes_give_or_take_one_row(n):
    sizes = [len(positions) for positions in make_part(n).order(0, 0, 64)]
    assert sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1
    assert np.ptp(sizes) <= 1 <= max(sizes) <= 64
