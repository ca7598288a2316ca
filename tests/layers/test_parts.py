"""On a CPU the thin products of wide features go by parts: the same numbers, and only where nobody watches."""

import pytest
import torch
from torch.autograd import forward_ad

import deconfound as dc
from deconfound.layers import functional


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def small_parts(monkeypatch):
    """Parts so small that small features have several."""
    for name, value in (("FEW_NUMBERS", 0), ("MANY_NUMBERS", 0), ("PART_FEATURES", 8), ("PART_BYTES", 1)):
        monkeypatch.setattr(functional, name, value)


def numbers(n=43, d=37, q=4, dtype=torch.float64):
    rng = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, generator=rng, dtype=dtype) for shape in ((n, d), (n, q), (q, d)))


def check(features, regressors, coefficients, **close):
    products = functional.cross_products(features, regressors)
    torch.testing.assert_close(products, torch.einsum("nq,nd->qd", regressors, features), **close)
    expected = features - 0.5 * torch.einsum("nq,qd->nd", regressors, coefficients)
    torch.testing.assert_close(functional.residualize(features, regressors, coefficients, 0.5), expected, **close)
    room = torch.full_like(features, torch.nan)
    assert functional.residualize(features, regressors, coefficients, 0.5, room) is room
    torch.testing.assert_close(room, expected, **close)


@pytest.mark.parametrize("shape", [(43, 37), (40, 32), (8, 8), (7, 40), (40, 7), (1, 1)], ids=str)
def test_parts_give_the_products_and_the_residual_whatever_is_left_over(small_parts, threads, shape):
    check(*numbers(*shape))


def test_parts_give_them_in_single_precision_and_at_their_own_size(threads):
    check(*numbers(300, 1100, dtype=torch.float32), rtol=1e-4, atol=1e-4)


def test_parts_of_features_in_any_order_in_memory(small_parts, threads):
    features, regressors, coefficients = numbers()
    check(features.T.contiguous().T, regressors.T.contiguous().T, coefficients)
    check(torch.cat([features, features], 1)[:, 5:42], regressors, coefficients)


def ways(monkeypatch, features, regressors, coefficients):
    """Which of the ways by parts a residual and products of sums take."""
    taken = []
    for name in ("_residual_by_rows", "_products_by_rows", "_products_by_features"):
        whole = getattr(functional, name)
        monkeypatch.setattr(functional, name, lambda *given, n=name, f=whole: taken.append(n) or f(*given))
    functional.residualize(features, regressors, coefficients)
    functional.cross_products(features, regressors)
    return taken


def test_threads_share_out_features_and_one_thread_keeps_rows_in_its_cache(small_parts, threads, monkeypatch):
    products = "_products_by_rows" if threads == 1 else "_products_by_features"
    assert ways(monkeypatch, *numbers()) == ["_residual_by_rows", products]


def test_few_numbers_are_multiplied_as_a_whole(threads, monkeypatch):
    assert ways(monkeypatch, *numbers(d=functional.MANY_NUMBERS // 43)) == []
    assert len(ways(monkeypatch, *numbers(d=functional.MANY_NUMBERS // 43 + 1))) == 2


@pytest.mark.parametrize("more", [0, 1])
def test_many_regressors_are_multiplied_as_a_whole(small_parts, threads, monkeypatch, more):
    given = numbers(q=functional.THIN + more)
    check(*given)
    assert bool(ways(monkeypatch, *given)) is not bool(more)


def test_what_autograd_watches_is_differentiated(small_parts, threads):
    features, regressors, coefficients = (tensor[:20, :12].clone().requires_grad_() for tensor in numbers())
    assert torch.autograd.gradcheck(functional.residualize, (features, regressors, coefficients))
    assert torch.autograd.gradcheck(functional.cross_products, (features, regressors))


def test_an_eval_layer_may_be_mapped_over_networks(small_parts, threads, cohort):
    layer = dc.PMDN(cohort.design, 30).eval()
    layer.set_beta(torch.randn_like(layer.beta))
    stacked, metadata = torch.randn(3, 40, 30), cohort.metadata[:40].float()
    mapped = torch.vmap(lambda x: layer(x, metadata))(stacked)
    torch.testing.assert_close(mapped, torch.stack([layer(x, metadata) for x in stacked]))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own call
def test_derivatives_of_an_eval_layer_may_be_taken_forward(small_parts, threads, cohort):
    layer = dc.PMDN(cohort.design, 30).eval()
    layer.set_beta(torch.randn_like(layer.beta))
    x, along = torch.randn(2, 40, 30)
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, along), cohort.metadata[:40].float()))
    torch.testing.assert_close(out.tangent, along)


def test_a_layer_trains_the_same_by_parts_as_without(cohort, monkeypatch, threads):
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
    for name in ("FEW_NUMBERS", "MANY_NUMBERS"):
        monkeypatch.setattr(functional, name, 0)
    by_parts = train()
    assert plain[0].shape == (50, 2100)
    for one, two in zip(plain, by_parts, strict=True):
        torch.testing.assert_close(one, two)
