"""One shape, one scale: against interpolation and percentiles written in another way."""

import nibabel as nib
import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from deconfound.data import check_packing, pack, robust_scale, to_shape, unpack
from deconfound.data.volumes import check_shape, read_scan
from deconfound.errors import OptionError


def random_volume(shape, seed=0):
    return np.random.default_rng(seed).uniform(0, 10, shape).astype(np.float32)


def test_resampling_upwards_is_linear_interpolation_at_the_new_centres():
    volume = random_volume((5, 6, 7))
    shape = (9, 12, 10)
    centres = [(np.arange(new) + 0.5) * old / new - 0.5 for old, new in zip(volume.shape, shape, strict=True)]
    expected = map_coordinates(volume, np.meshgrid(*centres, indexing="ij"), order=1, mode="nearest")
    np.testing.assert_allclose(to_shape(volume, shape), expected, rtol=1e-5)


def test_resampling_downwards_leaves_no_voxel_out():
    for place in range(12):
        volume = np.zeros((12, 1, 1), np.float32)
        volume[place] = 1
        assert to_shape(volume, (5, 1, 1)).sum() > 0.1


def test_resampling_keeps_a_constant_and_a_slope():
    ramp = np.broadcast_to(np.arange(32, dtype=np.float32)[:, None, None], (32, 4, 4))
    np.testing.assert_allclose(to_shape(np.ones((9, 5, 7), np.float32), (4, 8, 7)), 1, rtol=1e-6)
    np.testing.assert_allclose(to_shape(ramp, (8, 4, 4))[1:-1, 0, 0], np.arange(1, 7) * 4 + 1.5, rtol=1e-5)


def test_cropping_and_filling_move_whole_voxels():
    volume = random_volume((5, 4, 6))
    cut = to_shape(volume, (3, 4, 9), "crop")
    np.testing.assert_array_equal(cut[:, :, 1:7], volume[1:4])
    assert not cut[:, :, [0, 7, 8]].any()
    np.testing.assert_array_equal(to_shape(cut, (3, 4, 6), "crop"), volume[1:4])


def test_cropping_with_a_spacing_brings_voxels_to_that_size_first():
    ramp = np.broadcast_to(np.arange(20, dtype=np.float32)[:, None, None], (20, 4, 4))
    moved = to_shape(ramp, (6, 4, 4), "crop", zooms=(1.0, 2.0, 2.0), spacing=2.0)
    np.testing.assert_allclose(np.diff(moved[:, 0, 0]), 2.0, rtol=1e-5)
    np.testing.assert_allclose(moved[:, 0, 0].mean(), 9.5, rtol=1e-5)


def test_scaling_leaves_zero_alone_and_does_not_mind_a_hot_voxel():
    volume = random_volume((10, 10, 10))
    volume[:3] = 0
    hot = volume.copy()
    hot[5, 5, 5] = 1e6
    scaled, with_hot = robust_scale(volume), robust_scale(hot)
    assert scaled.min() == 0
    assert scaled.max() == 1
    assert (scaled[:3] == 0).all()
    assert np.abs(scaled - with_hot)[volume != volume[5, 5, 5]].max() < 0.01
    top = np.percentile(volume[3:], 99.5)
    np.testing.assert_allclose(scaled[4], np.clip(volume[4] / top, 0, 1), rtol=1e-5)


def test_scaling_does_not_depend_on_the_unit_and_takes_negative_voxels():
    volume = random_volume((8, 8, 8))
    np.testing.assert_allclose(robust_scale(volume * 1000), robust_scale(volume), atol=1e-6)
    shifted = robust_scale(volume - 5)
    assert shifted.min() == 0
    assert shifted.max() == 1
    assert np.corrcoef(shifted.ravel(), volume.ravel())[0, 1] > 0.999
    one = np.zeros((4, 4, 4), np.float32)
    one[1, 1, 1] = 7
    assert robust_scale(one).max() == 1


@pytest.mark.parametrize("lowest", [0.0, -3.0])
def test_scaling_does_not_depend_on_how_a_scan_is_stored(tmp_path, lowest):
    volume = random_volume((12, 12, 12)) * 40 + lowest
    volume[:8] = 0  # most of a head scan is background
    slope, offset = 0.0125, 7.3033  # by which the background is next to zero
    whole = nib.Nifti1Image(np.rint((volume - offset) / slope).astype(np.int16), np.eye(4))
    whole.header.set_slope_inter(slope, offset)
    whole.to_filename(tmp_path / "whole.nii")
    stored, _ = read_scan(tmp_path / "whole.nii")
    assert 0 < np.abs(stored[:8]).max() < 1e-4 * volume.max()
    np.testing.assert_allclose(robust_scale(stored), robust_scale(volume), atol=1e-4)


@pytest.mark.parametrize(("dtype", "step"), [("uint8", 0.5 / 255), ("float16", 2**-12)])
def test_what_is_kept_is_within_half_a_step(dtype, step):
    scaled = random_volume((6, 6, 6)) / 10
    stored = pack(scaled, dtype)
    assert stored.dtype == dtype
    assert unpack(stored).dtype == np.float32
    assert np.abs(unpack(stored) - scaled).max() <= step * 1.01


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda v: to_shape(v, (3, 3)), r"shape must be three positive whole numbers; got \(3, 3\)"),
        (lambda v: check_shape((4, 0, 4)), "shape must be three positive whole numbers"),
        (lambda v: check_packing("int8"), "dtype must be 'uint8' or 'float16'; got 'int8'"),
        (lambda v: to_shape(v, (3, 3, 3), "squash"), "fit must be 'resample' or 'crop'; got 'squash'"),
        (lambda v: to_shape(v, (3, 3, 3), spacing=2.0), "spacing must be positive and go with fit='crop'"),
    ],
)
def test_options_out_of_range_are_refused(call, text):
    with pytest.raises(OptionError, match=text):
        call(random_volume((4, 4, 4)))
