"""Inputs: scaled by the training rows, saved with the network, and varied at random."""

import numpy as np
import pytest
import torch

from deconfound.errors import OptionError, ShapeError, TableError
from deconfound.training import Augment, Inputs


def images(n=300, seed=0):
    """Bytes `(n, 3, 5, 7)` whose channels differ in mean and sd; the last one is constant."""
    rng = np.random.default_rng(seed)
    x = rng.normal([[[[60]], [[190]], [[7]]]], [[[[20]], [[4]], [[0]]]], (n, 3, 5, 7))
    return np.clip(x, 0, 255).astype(np.uint8)


def test_columns_of_a_table_get_mean_0_and_sd_1_on_the_training_rows():
    rng = np.random.default_rng(0)
    x = rng.normal([1e6, 70, 0.001], [3, 8, 2e-4], (400, 3)).astype(np.float32)
    x[rng.random((400, 3)) < 0.1] = np.nan
    rows = rng.permutation(400)[:250]
    inputs = Inputs.from_rows(x, rows)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(inputs.mean, np.nanmean(wide[rows], axis=0), rtol=1e-6)
    np.testing.assert_allclose(inputs.scale, np.nanstd(wide[rows], axis=0), rtol=1e-6)
    scaled = inputs(torch.from_numpy(x)).numpy()
    assert scaled.dtype == np.float32
    assert (scaled[np.isnan(x)] == 0).all()
    assert abs(scaled[~np.isnan(x)]).max() > 2
    # Other rows do not matter (control: these rows do).
    x[np.setdiff1d(np.arange(400), rows)] = 99
    torch.testing.assert_close(Inputs.from_rows(x, rows).mean, inputs.mean, rtol=0, atol=0)
    x[rows[0]] = 99
    assert not torch.equal(Inputs.from_rows(x, rows).mean, inputs.mean)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("spatial", [(5, 7), (35,), (5, 7, 1)])
def test_images_scans_and_sequences_have_one_mean_and_sd_per_channel(dtype, spatial):
    x = images().reshape(300, 3, *spatial).astype(dtype)
    if dtype == np.float32:
        x[0, 0] = np.nan
    rows = np.arange(0, 300, 2)
    inputs = Inputs.from_rows(x, rows)
    assert inputs.mean.shape == (3, *[1] * len(spatial))
    axes = (0, *range(2, x.ndim))
    np.testing.assert_allclose(
        inputs.mean.flatten(), np.nanmean(x[rows], axis=axes, dtype=np.float64), rtol=1e-6
    )
    expected = np.nanstd(x[rows], axis=axes, dtype=np.float64)
    np.testing.assert_allclose(inputs.scale.flatten()[:2], expected[:2], rtol=1e-6)
    assert inputs.scale.flatten()[2] == 1
    scaled = inputs(torch.from_numpy(x[rows])).double()
    assert scaled.isfinite().all()
    known = scaled[1:].transpose(0, 1).flatten(1)
    np.testing.assert_allclose(known[:2].std(dim=1), 1, atol=1e-2)
    assert known[2].abs().max() < 1e-6


def test_many_blocks_give_the_moments_of_one(tmp_path):
    """A file in memory of 24 MB, in a mapping that cannot be written, is read block by block."""
    path = tmp_path / "x.npy"
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (6000, 1, 64, 64), dtype=np.uint8)
    x[3000:] //= 4  # The blocks differ.
    np.save(path, x)
    mapped = np.load(path, mmap_mode="r")
    rows = rng.permutation(6000)[:5000]
    for values in (mapped, x[:, :, :40, :40].astype(np.float32)):
        inputs = Inputs.from_rows(values, rows)
        assert inputs.mean.item() == pytest.approx(values[rows].mean(dtype=np.float64), rel=1e-6)
        assert inputs.scale.item() == pytest.approx(values[rows].std(dtype=np.float64), rel=1e-6)


def test_a_constant_with_rounding_is_a_constant():
    """Kills division by an sd of 1e-12, which turns rounding into noise of size 1."""
    rng = np.random.default_rng(0)
    x = np.stack([7.3 + rng.normal(0, 1e-12, 50), 7.3 + rng.normal(0, 1e-4, 50)], axis=1)
    inputs = Inputs.from_rows(x, np.arange(50))
    assert inputs.scale[0] == 1
    assert inputs.scale[1] == pytest.approx(1e-4, rel=0.5)  # control


def test_columns_without_values_are_0():
    x = np.array([[np.nan, 1.0], [np.nan, 3.0]], dtype=np.float32)
    inputs = Inputs.from_rows(x, np.arange(2))
    assert inputs(torch.from_numpy(x)).tolist() == [[0, -1], [0, 1]]


def test_the_scaling_is_loaded_by_its_state():
    x = images()
    inputs = Inputs.from_rows(x, np.arange(100))
    again = Inputs(x.shape[1:])
    assert not torch.equal(again(torch.from_numpy(x)), inputs(torch.from_numpy(x)))  # control
    again.load_state_dict(inputs.state_dict(), strict=True)
    torch.testing.assert_close(
        again(torch.from_numpy(x)), inputs(torch.from_numpy(x)), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.float16, torch.float32, torch.float64, torch.int64]
)
def test_stored_values_of_every_type_become_float32(dtype):
    inputs = Inputs.from_rows(images(), np.arange(300))
    x = torch.from_numpy(images())
    scaled = inputs(x.to(dtype))
    assert scaled.dtype == torch.float32
    torch.testing.assert_close(scaled, inputs(x))


def test_infinite_values_are_named():
    x = np.ones((4, 3), dtype=np.float32)
    x[1, 2] = np.inf
    with pytest.raises(TableError, match=r"infinite in columns or channels \[2\]"):
        Inputs.from_rows(x, np.arange(4))
    Inputs.from_rows(x, np.array([0, 2, 3]))  # of training rows only


@pytest.mark.parametrize("shape", [(4, 1), (4,), (4, 3, 1)])
def test_inputs_of_another_shape_are_refused(shape):
    """Kills broadcasting, which would make three columns of one."""
    with pytest.raises(ShapeError, match=r"3 columns or channels and 1 axes; got inputs of shape"):
        Inputs((3,))(torch.zeros(shape))
    with pytest.raises(ShapeError, match=r"and 3 axes; got inputs of shape \(4, 1, 5, 7\)"):
        Inputs((3, 5, 7))(torch.zeros(4, 1, 5, 7))


SHAPES = [(64, 2, 9), (64, 2, 6, 9), (64, 1, 5, 6, 7)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{"flip": True}, {"shift": 2}, {"noise": 0.5}])
def test_variations_follow_from_the_generator_alone(shape, options):
    x = torch.randn(shape, generator=seeded(9))
    before, state = x.clone(), torch.random.get_rng_state()
    first, second, other = (Augment(**options)(x, seeded(seed)) for seed in (1, 1, 2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(first, other)
    assert not torch.equal(first, x)
    torch.testing.assert_close(x, before, rtol=0, atol=0)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_nothing_is_varied_by_default():
    x = torch.randn(4, 1, 5, 5)
    assert Augment()(x, seeded()) is x


@pytest.mark.parametrize(("shape", "axis"), [(SHAPES[0], 2), (SHAPES[1], 3), (SHAPES[2], 2)])
def test_half_of_the_rows_are_mirrored_left_to_right(shape, axis):
    x = torch.randn(400, *shape[1:], generator=seeded(9))
    varied = Augment(flip=True)(x, seeded())
    is_same = torch.tensor([torch.equal(one, other) for one, other in zip(varied, x, strict=True)])
    assert 160 < int(is_same.sum()) < 240
    assert torch.equal(varied[~is_same], x.flip(axis)[~is_same])


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_moved_by_whole_pixels_with_the_mean_around_them(shape):
    """Each row is the original, moved along each axis by one of the allowed numbers of pixels."""
    x = torch.rand(shape, generator=seeded(9)) + 1
    varied = Augment(shift=2)(x, seeded())
    padding = [2, 2] * (len(shape) - 2)
    padded = torch.nn.functional.pad(x, padding)
    places = np.stack(np.meshgrid(*[range(5)] * (len(shape) - 2)), axis=-1).reshape(
        -1, len(shape) - 2
    )
    counts = dict.fromkeys(map(tuple, places.tolist()), 0)
    for row, original in zip(varied, padded, strict=True):
        for place in counts:
            window = original
            for axis, start in enumerate(place, start=1):
                window = window.narrow(axis, start, row.shape[axis])
            counts[place] += torch.equal(row, window)
    assert sum(counts.values()) == shape[0]
    for axis in range(len(shape) - 2):
        assert {place[axis] for place, count in counts.items() if count} == {0, 1, 2, 3, 4}


def test_an_axis_is_never_emptied():
    x = torch.ones(200, 1, 1, 3)
    varied = Augment(shift=8)(x, seeded())
    assert (varied.flatten(1).sum(1) > 0).all()


def test_noise_has_the_sd_that_is_asked_for():
    x = torch.randn(200, 4, 10, generator=seeded(9))
    noise = Augment(noise=0.3)(x, seeded()) - x
    assert noise.std().item() == pytest.approx(0.3, rel=0.05)
    assert abs(noise.mean().item()) < 0.02
    assert Augment(noise=0.3)(torch.zeros(5, 4), seeded()).shape == (5, 4)  # tables as well


@pytest.mark.parametrize("options", [{"shift": -1}, {"shift": 1.5}, {"noise": -0.1}])
def test_impossible_variations_are_refused(options):
    with pytest.raises(OptionError, match="both 0 or more; got Augment"):
        Augment(**options)


@pytest.mark.parametrize("options", [{"flip": True}, {"shift": 1}])
def test_tables_have_no_axis_to_move(options):
    with pytest.raises(ShapeError, match="Leave them out for tables; noise serves all inputs"):
        Augment(**options)(torch.zeros(4, 3), seeded())
