"""On one thread wide features go through by blocks of rows: the same numbers, and only where nobody watches."""

import pytest
import torch

import deconfound as dc
from deconfound.layers import functional


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[1, 64, 2**40], ids=["rows of eight", "some rows", "no blocks"])
def sizes(request, monkeypatch):
    """Blocks of other sizes, so that small features have several."""
    monkeypatch.setattr(functional, "BLOCK_BYTES", request.param)
    return request.param


def numbers(n=43, d=37, q=4, dtype=torch.float64):
    rng = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, generator=rng, dtype=dtype) for shape in ((n, d), (n, q), (q, d)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_blocks_give_the_products_and_the_residual(sizes, dtype):
    features, regressors, coefficients = numbers(dtype=dtype)
    products = functional.cross_products(features, regressors)
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {}
    torch.testing.assert_close(products, torch.einsum("nq,nd->qd", regressors, features), **close)
    expected = features - torch.einsum("nq,qd->nd", regressors, coefficients)
    torch.testing.assert_close(functional.residualize(features, regressors, coefficients), expected, **close)


def test_several_threads_take_all_rows_at_once(monkeypatch):
    monkeypatch.setattr(functional, "BLOCK_BYTES", 1)
    features, regressors, _ = numbers()
    assert functional._block(features, regressors) == functional.BLOCK_ROWS
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert functional._block(features, regressors) == 0


def test_many_regressors_are_multiplied_as_a_whole(monkeypatch):
    monkeypatch.setattr(functional, "BLOCK_BYTES", 1)
    features, few, _ = numbers(q=functional.BLOCK_REGRESSORS)
    _, many, _ = numbers(q=functional.BLOCK_REGRESSORS + 1)
    torch.testing.assert_close(functional.cross_products(features, many), torch.einsum("nq,nd->qd", many, features))
    assert functional._block(features, few) == functional.BLOCK_ROWS
    assert functional._block(features, many) == 0


def test_what_autograd_watches_is_differentiated(sizes):
    features, regressors, coefficients = (tensor[:20, :12].clone().requires_grad_() for tensor in numbers())
    assert torch.autograd.gradcheck(functional.residualize, (features, regressors, coefficients))
    assert torch.autograd.gradcheck(functional.cross_products, (features, regressors))


def test_an_eval_layer_may_be_mapped_over_networks(sizes, cohort):
    layer = dc.PMDN(cohort.design, 30).eval()
    layer.set_beta(torch.randn_like(layer.beta))
    stacked, metadata = torch.randn(3, 40, 30), cohort.metadata[:40].float()
    mapped = torch.vmap(lambda x: layer(x, metadata))(stacked)
    torch.testing.assert_close(mapped, torch.stack([layer(x, metadata) for x in stacked]))


def test_a_layer_trains_the_same_with_blocks_as_without(cohort, monkeypatch):
    def train():
        rng = torch.Generator().manual_seed(0)
        layer, found = dc.PMDN(cohort.design, 2100).double(), []
        for rows in torch.arange(120).split(50):
            x = torch.randn(len(rows), 2100, generator=rng, dtype=torch.float64) + cohort.metadata[rows, :1]
            x.requires_grad_()
            out = layer(x, cohort.metadata[rows])
            (out * cohort.metadata[rows, 1:2]).sum().backward()
            found += [out.detach(), x.grad]
        return [*found, *layer.state_dict().values()]

    plain = train()
    monkeypatch.setattr(functional, "BLOCK_BYTES", 2**17)
    blocked = train()
    assert plain[0].shape == (50, 2100)
    for one, two in zip(plain, blocked, strict=True):
        torch.testing.assert_close(one, two)
