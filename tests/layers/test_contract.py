"""What every layer of the family promises, whatever its estimator."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch

import deconfound as dc
from deconfound.errors import ShapeError
from deconfound.layers import MetadataLayer
from tests.conftest import make_cohort, make_table

LAYERS = {
    "mdn": dc.MDN,
    "mdn-batch": lambda *args, **options: dc.MDN(*args, gram="batch", **options),
    "pmdn": dc.PMDN,
    "pmdn-frozen": lambda *args, **options: dc.PMDN(*args, gradient="frozen", **options),
    "alternating": dc.AlternatingPMDN,
    "joint": dc.JointPMDN,
    "rmdn": dc.RMDN,
    "erase": dc.Erase,
}


@pytest.fixture(params=LAYERS)
def make(request):
    return LAYERS[request.param]


def trained(make, cohort, **options) -> MetadataLayer:
    """A layer that has seen some batches and has a β to speak of."""
    layer = make(cohort.design, 5, **options).double()
    for rows in torch.arange(cohort.n).split(64):
        layer(cohort.features[rows], cohort.metadata[rows])
    if isinstance(layer.beta, torch.nn.Parameter):
        with torch.no_grad():
            layer.beta.normal_()
    assert layer._beta().abs().max() > 0.01
    return layer


def test_every_public_layer_is_under_contract():
    public = {value for name, value in vars(dc.layers).items() if name in dc.layers.__all__ and isinstance(value, type)}
    concrete = {cls for cls in public if issubclass(cls, MetadataLayer) and cls is not MetadataLayer}
    made = {type(build(make_cohort(50).design, 2)) for build in LAYERS.values()}
    assert concrete == made


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (2, 3, 2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shape_and_dtype_are_kept(make, shape, dtype):
    cohort = make_cohort(40)
    layer = make(cohort.design, shape)
    layer = layer.double() if dtype == torch.float64 else layer
    x = torch.randn(40, *shape).to(dtype)
    for mode in (True, False):
        out = layer.train(mode)(x, cohort.metadata)
        assert out.shape == x.shape
        assert out.dtype == dtype
        assert torch.isfinite(out).all()


def test_statistics_stay_float32_when_the_model_is_cast_to_half(make, cohort):
    layer = make(cohort.design, 5).to(torch.bfloat16)
    assert layer.beta.dtype == torch.float32
    assert layer.confound_map.dtype == torch.float32
    assert layer(cohort.features.bfloat16(), cohort.metadata).dtype == torch.bfloat16


def test_a_model_whose_channels_are_put_last_in_memory_learns_the_same(make):
    cohort = make_cohort(64)
    images = torch.randn(64, 3, 4, 2) + cohort.metadata[:, :1, None, None].float()
    usual = make(cohort.design, (3, 4, 2))
    last = copy.deepcopy(usual).to(memory_format=torch.channels_last)
    gradients = []
    for layer, x in ((usual, images), (last, images.contiguous(memory_format=torch.channels_last))):
        x = x.clone().requires_grad_()
        for _ in range(3):
            residual = layer(x, cohort.metadata)
            residual.square().mean().backward()
        gradients.append((residual, x.grad))
    torch.testing.assert_close(last._beta(), usual._beta())
    for got, expected in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(got, expected)
    if not isinstance(usual.beta, torch.nn.Parameter):  # an optimiser moves that, not the forward
        assert usual._beta().abs().max() > 0.01


def test_statistics_are_float32_under_autocast(make, cohort):
    layer = make(cohort.design, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = torch.nn.functional.linear(cohort.features.float(), torch.eye(5))
        assert x.dtype == torch.bfloat16
        out = layer(x, cohort.metadata.float())
    exact = copy.deepcopy(layer)
    assert out.dtype == torch.bfloat16
    assert layer._beta().dtype == torch.float32
    # β of half-precision arithmetic would be off by about 1 %.
    again = make(cohort.design, 5).double()
    again(x.double(), cohort.metadata)
    torch.testing.assert_close(exact._beta().double(), again._beta(), atol=1e-4, rtol=1e-4)


def test_eval_does_not_depend_on_the_batch_or_its_order(make, cohort):
    layer = trained(make, cohort).eval()
    whole = layer(cohort.features, cohort.metadata)
    single = torch.cat([layer(cohort.features[i : i + 1], cohort.metadata[i : i + 1]) for i in range(cohort.n)])
    torch.testing.assert_close(single, whole, atol=1e-13, rtol=0)
    order = torch.randperm(cohort.n)
    torch.testing.assert_close(layer(cohort.features[order], cohort.metadata[order]), whole[order], atol=1e-13, rtol=0)


def test_eval_is_equal_to_the_last_bit_with_and_without_labels(make, cohort):
    layer = trained(make, cohort).eval()
    table = {name: values for name, values in cohort.table.items() if name != "dx"}
    without = cohort.design.encode(table, np.float64)
    assert np.isnan(without[:, -1]).all()
    assert torch.equal(layer(cohort.features, without), layer(cohort.features, cohort.metadata))


@pytest.mark.parametrize("fresh", [True, False])
def test_coefficients_that_are_set_are_those_of_eval_and_nothing_else_changes(make, cohort, fresh):
    layer = make(cohort.design, 5).double() if fresh else trained(make, cohort)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    beta = torch.randn(layer._beta().shape, dtype=torch.float64)
    layer.set_beta(beta)
    assert torch.equal(layer._beta(), beta)
    changed = [name for name, value in layer.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["beta"]
    with pytest.raises(ShapeError, match=r"beta must have shape \(\d+, 5\); got \(1,\)"):
        layer.set_beta(beta[:1, 0])


def test_eval_changes_no_state(make, cohort):
    layer = trained(make, cohort).eval()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    layer(cohort.features, cohort.metadata)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_two_forwards_may_come_before_one_backward(make, cohort):
    """A Siamese network, or two views of a batch, do that."""
    layer = make(cohort.design, 5).double()
    x = cohort.features[:120].clone().requires_grad_()
    first, second = layer(x[:60], cohort.metadata[:60]), layer(x[60:], cohort.metadata[60:120])
    (first.square().mean() + second.square().mean()).backward()
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().amax(1).min() > 0


def test_loading_a_state_leaves_every_tensor_where_a_captured_graph_reads_it(make, cohort):
    layer = trained(make, cohort)
    state = copy.deepcopy(layer.state_dict())
    before = {name: tensor.data_ptr() for name, tensor in (*layer.named_buffers(), *layer.named_parameters())}
    assert {"beta", "regressor_map", "confound_map"} <= set(before)
    layer.load_state_dict(state)
    assert {n: t.data_ptr() for n, t in (*layer.named_buffers(), *layer.named_parameters())} == before


def test_state_dict_round_trip_is_strict_safe_and_free_of_batch_size(make, cohort):
    layer = trained(make, cohort)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other_design = dc.Design(confounds=["age", "sex", "site"], keep=["dx"]).fit(make_table(90, seed=9))
    fresh = make(other_design, 5).double()
    fresh.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert fresh.design.to_json() == cohort.design.to_json()
    rows = slice(0, 3)
    for mode in (False, True):
        ours = layer.train(mode)(cohort.features[rows], cohort.metadata[rows])
        theirs = fresh.train(mode)(cohort.features[rows], cohort.metadata[rows])
        assert torch.equal(ours, theirs)


def test_deepcopy_and_pickle_give_the_same_layer(make, cohort):
    layer = trained(make, cohort)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        twin.eval()
        assert torch.equal(twin(cohort.features, cohort.metadata), layer.eval()(cohort.features, cohort.metadata))
        layer.train()


def test_gradcheck_in_eval(make, cohort):
    layer = trained(make, cohort).eval()
    x = cohort.features[:6].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, cohort.metadata[:6]), (x,))


@pytest.mark.parametrize(
    "build",
    [
        lambda design: dc.MDN(design, 2, center=False),
        lambda design: dc.MDN(design, 2, gram="batch"),
        lambda design: dc.PMDN(design, 2, step=1.0),
    ],
    ids=["mdn", "mdn-batch", "pmdn-bilevel"],
)
def test_gradcheck_in_training(build):
    # The whole table is the batch: there the metadata are white, as the bi-level gradient assumes.
    cohort = make_cohort(24)
    x = cohort.features[:, :2].clone().requires_grad_()

    def total(x):
        return build(cohort.design).double()(x, cohort.metadata).sigmoid().sum(0)

    # Backward averages into a buffer, which leaves rounding between two runs of it.
    assert torch.autograd.gradcheck(total, (x,), nondet_tol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_rows_than_metadata_columns_train(make, n):
    cohort = make_cohort(60)
    layer = make(cohort.design, 5).double()
    for rows in torch.arange(60).split(n):
        out = layer(cohort.features[rows], cohort.metadata[rows])
        assert torch.isfinite(out).all()
    assert torch.isfinite(layer.eval()(cohort.features, cohort.metadata)).all()


def test_one_confound_and_no_keep(make):
    age = np.linspace(40, 80, 50)
    design = dc.Design(confounds=["age"]).fit({"age": age})
    layer = make(design, 2).double()
    out = layer(torch.randn(50, 2, dtype=torch.float64), design.encode({"age": age}))
    assert torch.isfinite(out).all()
    assert set(layer.coefficients()) == ({"age"} if layer.reads_confounds else set())


def test_collinear_and_constant_metadata(make):
    rng = np.random.default_rng(0)
    age = rng.normal(70, 10, 80)
    table = {"age": age, "months": 12 * age, "scanner": ["one"] * 80, "dx": rng.integers(0, 2, 80)}
    with pytest.warns(dc.errors.DeconfoundWarning):
        design = dc.Design(confounds=["age", "months", "scanner"], keep=["dx"]).fit(table)
    layer = make(design, 3).double()
    out = layer(torch.randn(80, 3, dtype=torch.float64), design.encode(table))
    assert torch.isfinite(out).all()


def test_confounds_that_are_the_label_are_left_in_the_features(make):
    dx = np.tile([0, 1], 40)
    table = {"site": np.where(dx == 1, "A", "B"), "dx": dx}
    with pytest.warns(dc.errors.DeconfoundWarning, match="not to be told apart from keep"):
        design = dc.Design(confounds=["site"], keep=["dx"]).fit(table)
    x = torch.randn(80, 3, dtype=torch.float64)
    out = make(design, 3).double()(x, design.encode(table))
    assert torch.equal(out, x)


def test_shared_positions_take_inputs_of_any_size_and_use_one_coefficient_per_channel(make, cohort):
    layer = make(cohort.design, (4, None, None), share="positions").double()
    for size in (3, 5):
        x = torch.randn(cohort.n, 4, size, size, dtype=torch.float64)
        assert layer(x, cohort.metadata).shape == x.shape
    assert all(value.shape == (4,) for value in layer.coefficients().values())
    x = torch.randn(cohort.n, 4, 2, 2, dtype=torch.float64)
    removed = x - layer.eval()(x, cohort.metadata)
    assert torch.allclose(removed[:, :, 0, 0], removed[:, :, 1, 1])


def test_shared_positions_of_a_sequence_are_the_pooled_sequence(make, cohort):
    sequence = torch.randn(cohort.n, 6, 5, dtype=torch.float64) + cohort.features[:, None]
    shared = make(cohort.design, (None, 5), share="positions", channel_axis=-1).double()
    pooled = make(cohort.design, 5).double()
    out = shared(sequence, cohort.metadata)
    expected = pooled(sequence.mean(1), cohort.metadata)
    torch.testing.assert_close(out.mean(1), expected)


def test_population_mean_stands_in_for_absent_metadata_in_eval_only(make, cohort):
    layer = trained(make, cohort)
    without = layer.eval()(cohort.features, None)
    assert torch.equal(without, cohort.features if layer.reads_confounds else layer(cohort.features, cohort.metadata))
    with pytest.raises(dc.errors.ShapeError, match="metadata must be given in training; got None"):
        layer.train()(cohort.features, None)


def bad_calls(cohort):
    x, m = cohort.features, cohort.metadata
    blind = cohort.design.encode({k: v for k, v in cohort.table.items() if k != "dx"})
    nan = m.clone()
    nan[2, 0] = torch.nan
    return {
        "one column for each of age, sex\\[M\\], site\\[B\\], site\\[C\\], dx; got \\(400, 4\\)": (x, m[:, :4]),
        "metadata must have one row per sample; got 399 rows for 400 samples": (x, m[:-1]),
        "metadata must be the array or tensor that design.encode returns; got dict": (x, cohort.table),
        "metadata must be floating point; got torch.int64": (x, m.long()),
        "training metadata must hold every keep column; got NaN in dx": (x, blind),
        "metadata must be finite; got NaN in age": (x, nan),
        "features must have shape \\(n, 5\\); got \\(400, 4\\)": (x[:, :4], m),
        "features must be floating point; got torch.int64": (x.long(), m),
        "features must have at least one row; got none": (x[:0], m[:0]),
        "fit_on must be one boolean per sample, shape \\(400,\\); got torch.int64": (x, m, torch.ones(400).long()),
    }


def test_bad_calls_are_refused_before_anything_changes(make, cohort):
    layer = make(cohort.design, 5).double()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    for text, arguments in bad_calls(cohort).items():
        with pytest.raises(dc.errors.ShapeError, match=text):
            layer(*arguments)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize(
    ("shape", "options", "text"),
    [
        ((0,), {}, "feature_shape must be positive numbers"),
        ((4, None), {}, "Only sizes shared by share='positions' may be None"),
        ((4,), {"share": "all"}, "share must be None or 'positions'; got 'all'"),
        ((4, 4), {"share": "positions", "channel_axis": 3}, "channel_axis must be an axis of the features, 1 to 2"),
    ],
)
def test_bad_shapes_are_refused(make, cohort, shape, options, text):
    with pytest.raises(dc.errors.OptionError, match=text):
        make(cohort.design, shape, **options)
