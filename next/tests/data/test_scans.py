"""Scans: equal anatomy gives equal samples, however it is stored; damage is named."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import nibabel
import numpy as np
import pytest

from deconfound.data import open_samples, read_scan
from deconfound.errors import OptionError, TableError
from tests.data.files import write_scan

RNG = np.random.default_rng(0)
# A head: zeros around values from 20 to 3000.
HEAD = np.zeros((10, 12, 14), np.float32)
HEAD[2:8, 2:10, 2:12] = RNG.uniform(20, 3000, (6, 8, 10))


def scale_by_definition(voxels: np.ndarray) -> np.ndarray:
    """Return the rule of the docstring, for voxels without negative ones."""
    high = np.percentile(voxels[voxels > 0], 99.5)
    return np.rint(255 * np.clip(voxels / high, 0, 1))


def assert_same_scan(first: np.ndarray, second: np.ndarray) -> None:
    """Half a step of rounding may put a voxel on the next of 255 steps."""
    assert first.shape == second.shape
    assert abs(first.astype(int) - second.astype(int)).max() <= 1


def test_the_scale_is_the_one_that_is_stated(tmp_path: Path) -> None:
    scan = read_scan(write_scan(tmp_path / "a.nii", HEAD))
    assert scan.dtype == np.uint8
    assert scan.shape == (1, *HEAD.shape)
    np.testing.assert_allclose(scan[0], scale_by_definition(HEAD), atol=1)
    for unit in (1e-6, 1e6):
        assert_same_scan(read_scan(write_scan(tmp_path / "b.nii", HEAD * np.float32(unit))), scan)


def test_one_hot_voxel_does_not_darken_the_others(tmp_path: Path) -> None:
    """Kills the mutant that divides by the maximum."""
    hot = HEAD.copy()
    hot[0, 0, 0] = 1e7
    assert_same_scan(
        read_scan(write_scan(tmp_path / "hot.nii", hot))[0, 1:],
        read_scan(write_scan(tmp_path / "head.nii", HEAD))[0, 1:],
    )


def test_negative_voxels(tmp_path: Path) -> None:
    scan = read_scan(write_scan(tmp_path / "ct.nii", HEAD - 1024))
    filled = HEAD - 1024
    low, high = np.percentile(filled, (0.5, 99.5))
    expected = np.rint(255 * np.clip((filled - low) / (high - low), 0, 1))
    np.testing.assert_allclose(scan[0], expected, atol=1)
    below = read_scan(write_scan(tmp_path / "below.nii", -1 - HEAD))
    assert (below.min(), below.max()) == (0, 255)


@pytest.mark.parametrize("lowest", [0.0, -500.0])
def test_slope_and_intercept(tmp_path: Path, lowest: float) -> None:
    """Kills the mutants that ignore the slope, or take a stored offset for signal.

    With an intercept the file has no exact zero. Its background would make the percentiles those of
    all voxels, and the scan brighter.
    """
    slope = 3500 / 65535
    image = nibabel.Nifti1Image(np.zeros(HEAD.shape, np.int16), np.eye(4))
    image.header.set_slope_inter(slope, lowest + 32768 * slope)
    stored = np.rint((HEAD - lowest) / slope - 32768).astype(np.int16)
    path = tmp_path / "scaled.nii"
    image.to_filename(path)
    header = path.read_bytes()[:352]
    slope_at = struct.pack("<ff", slope, lowest + 32768 * slope)
    path.write_bytes(header[:112] + slope_at + header[120:] + stored.tobytes(order="F"))
    voxels = np.asarray(nibabel.load(path).dataobj)
    np.testing.assert_allclose(voxels, HEAD, atol=slope)
    assert lowest == 0 or (voxels != 0).mean() > 0.9
    assert_same_scan(read_scan(path), read_scan(write_scan(tmp_path / "plain.nii", HEAD)))


def test_axes_point_to_the_right_the_front_and_up(tmp_path: Path) -> None:
    """The same head, stored in other orders and directions of axes, with affines that say so."""
    expected = read_scan(write_scan(tmp_path / "ras.nii", HEAD))
    image = nibabel.Nifti1Image(HEAD, np.eye(4))
    for codes in ("LAS", "LPI", "PSR", "SAL", "IRP"):
        start = nibabel.orientations.axcodes2ornt("RAS")
        order = nibabel.orientations.axcodes2ornt(codes)
        turned = image.as_reoriented(nibabel.orientations.ornt_transform(start, order))
        for ending in ("nii", "nii.gz", "mgz"):
            path = tmp_path / f"{codes}.{ending}"
            write_scan(path, np.asarray(turned.dataobj), turned.affine)
            assert nibabel.aff2axcodes(nibabel.load(path).affine) == tuple(codes)
            np.testing.assert_array_equal(read_scan(path), expected)
        assert open_samples(tmp_path, features=[f"{codes}.nii"]).shape == expected.shape


def test_an_oblique_scan_is_not_interpolated(tmp_path: Path) -> None:
    angle = np.deg2rad(20)
    affine = np.eye(4)
    affine[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    straight = read_scan(write_scan(tmp_path / "straight.nii", HEAD))
    oblique = read_scan(write_scan(tmp_path / "oblique.nii", HEAD, affine))
    np.testing.assert_array_equal(oblique, straight)


def test_resizing_averages_and_interpolates(tmp_path: Path) -> None:
    ramp = np.broadcast_to(np.linspace(100, 900, 16, dtype=np.float32), (16, 16, 16))
    path = write_scan(tmp_path / "ramp.nii", np.array(ramp))
    half = read_scan(path, size=8)[0, 4, 4, 1:-1]
    means = ramp[0, 0].reshape(8, 2).mean(axis=1)[1:-1]
    np.testing.assert_allclose(half / half[-1], means / means[-1], atol=0.01)
    double = read_scan(path, size=32)[0, 4, 4, 1:-1]
    between = np.interp(np.arange(0.25, 15, 0.5), np.arange(16), ramp[0, 0])
    np.testing.assert_allclose(double / double[-5], between / between[-5], atol=0.01)
    stripes = np.zeros((16, 16, 16), np.float32)
    stripes[::2] = 1000
    averaged = read_scan(write_scan(tmp_path / "stripes.nii", stripes), size=4)[0]
    # Each new voxel covers as many dark lines as bright ones.
    assert np.ptp(averaged[1:-1].astype(int)) < 20
    assert read_scan(path, size=(4, 20, 8)).shape == (1, 4, 20, 8)
    assert read_scan(path, size=(1, 4, 20, 8)).shape == (1, 4, 20, 8)


def forge(path: Path, shape: tuple[int, ...], dtype: int = 16, bits: int = 32) -> Path:
    """Write a NIfTI header that claims a shape, without voxels."""
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, len(shape), *shape, *[1] * (7 - len(shape)))
    struct.pack_into("<hh", header, 70, dtype, bits)
    struct.pack_into("<8f", header, 76, *[1.0] * 8)
    struct.pack_into("<f", header, 108, 352.0)
    header[344:348] = b"n+1\0"
    packed = path.name.endswith(".gz")
    path.write_bytes(gzip.compress(bytes(header)) if packed else bytes(header))
    return path


def test_a_header_is_checked_before_memory_is_taken(tmp_path: Path) -> None:
    """Each claim is more than the file holds, or than a machine has."""
    for shape in [(1000, 1000, 500), (64, 64, 64), (32000, 32000, 32000)]:
        for name in ("a.nii", "a.nii.gz"):
            with pytest.raises(TableError, match=r"a\.nii.*(is cut short|claims)"):
                read_scan(forge(tmp_path / name, shape))
    packed = forge(tmp_path / "long.nii.gz", (4, 4, 4))
    # 33 kB that unpack to far more than the header claims.
    packed.write_bytes(packed.read_bytes() + gzip.compress(bytes(2**25)))
    with pytest.raises(TableError, match=r"long\.nii.*claims"):
        read_scan(packed)
    for shape in [(0, 4, 4), (-3, 4, 4)]:
        with pytest.raises(TableError, match=r"a\.nii"):
            read_scan(forge(tmp_path / "a.nii", shape))


@pytest.mark.parametrize("ending", ["nii.gz", "mgz"])
def test_a_cut_or_damaged_archive_is_an_error(tmp_path: Path, ending: str) -> None:
    """Kills the mutant that reads as far as the voxels, and not the checksum behind them."""
    whole = write_scan(tmp_path / f"whole.{ending}", HEAD).read_bytes()
    assert read_scan(tmp_path / f"whole.{ending}").any()
    damaged = {f"{length} bytes": whole[:length] for length in (0, 20, len(whole) // 2)}
    damaged["without end"] = whole[:-4]
    damaged["wrong checksum"] = whole[:-8] + b"abcd" + whole[-4:]
    for name, content in damaged.items():
        path = tmp_path / f"{name}.{ending}"
        path.write_bytes(content)
        with pytest.raises(TableError, match=name):
            read_scan(path)


def test_scans_that_are_none(tmp_path: Path) -> None:
    nothing = HEAD * 0
    broken = HEAD.copy()
    broken[0, 0, :3] = np.nan
    colour = np.zeros((3, 4, 5), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    for name, voxels, text in [
        ("empty", nothing, "is empty"),
        ("nan", broken, "3 values that are NaN"),
        ("series", np.stack([HEAD, HEAD], -1), r"shape \(10, 12, 14, 2\)"),
        ("slice", HEAD[0], "three axes"),
        ("colour", colour, "instead of numbers"),
    ]:
        path = write_scan(tmp_path / f"{name}.nii", voxels)
        with pytest.raises(TableError, match=f"{name}.*{text}"):
            read_scan(path)
    assert read_scan(write_scan(tmp_path / "one.nii", HEAD[..., None])).shape == (1, *HEAD.shape)
    with pytest.raises(TableError, match="absent"):
        read_scan(tmp_path / "absent.nii")


def test_scans_of_several_sizes(tmp_path: Path) -> None:
    write_scan(tmp_path / "a.nii", HEAD)
    write_scan(tmp_path / "b.nii.gz", HEAD[:8])
    with pytest.raises(OptionError, match=r"10 × 12 × 14 \(1\), 8 × 12 × 14 \(1\).*size="):
        open_samples(tmp_path)
    assert open_samples(tmp_path, size=6).shape == (1, 6, 6, 6)
