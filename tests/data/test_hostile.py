"""Tables, arrays, scans and files that are odd, broken or forged: a right number or an error in our words."""

import gzip
import os
import struct
import warnings
import zipfile
from decimal import Decimal

import ml_dtypes
import numpy as np
import pandas as pd
import pytest
import torch

import deconfound as dc
from deconfound.data import (
    ArraySource,
    check_finite,
    csv_text,
    hold,
    open_array,
    open_scans,
    read_table,
    store_volumes,
    sweep,
    write_text,
)
from deconfound.errors import DeconfoundWarning, OptionError, RunError, ScanError, TableError
from tests.data.scan_files import write_bids, write_scan

AGES = [61.0, 70.0, 55.0, 66.0, 71.0, 80.0]


def encoded(ages):
    return fitted(AGES).encode({"age": ages}, np.float64)


def fitted(ages, **options):
    return dc.Design(["age"], types={"age": "numeric"}, **options).fit({"age": ages})


@pytest.mark.parametrize(
    "form",
    [
        lambda a: np.array([np.float32(v) for v in a], dtype=object),  # numpy scalars became dummy columns
        lambda a: np.array([np.int64(v) for v in a], dtype=object),
        lambda a: np.array([Decimal(str(v)) for v in a], dtype=object),
        lambda a: np.ma.masked_array(a, mask=[False] * len(a)),
        lambda a: np.array(a, dtype=">f8"),
        lambda a: np.array(a, dtype=">i4"),
        lambda a: np.array(a[::-1])[::-1],
        lambda a: np.array(a, dtype=np.float16),
        lambda a: torch.tensor(a, dtype=torch.bfloat16),
        lambda a: np.array(a, dtype=ml_dtypes.bfloat16),
        lambda a: pd.Series(a, index=range(10, 10 + len(a))),
        lambda a: pd.array(a, dtype="Float64"),
        lambda a: list(map(np.float64, a)),
    ],
)
def test_a_column_of_numbers_is_the_same_in_every_form(form):
    np.testing.assert_allclose(encoded(form(AGES)), encoded(AGES), atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)  # whole numbers may be codes
        assert dc.Design(["age"]).fit({"age": form(AGES)}).names == ("age",)


def test_the_mask_of_a_masked_array_is_a_missing_value():
    masked = np.ma.masked_array(AGES, mask=[False, True, False, False, False, False])
    with pytest.raises(TableError, match="column 'age' must have a value in every row; got a missing value in row 1"):
        encoded(masked)
    with_gap, without = fitted(masked, missing="mean"), fitted(AGES[:1] + AGES[2:])
    assert with_gap.encode({"age": [60.0]}) == without.encode({"age": [60.0]})


@pytest.mark.parametrize(
    ("values", "got"),
    [
        (np.array(AGES) + 1j, "dtype complex128"),
        (np.array(["2020-01-01"] * 6, dtype="datetime64[D]"), "dtype datetime64"),
        (pd.to_datetime(["2020-01-01"] * 6), "dtype datetime64"),
        (pd.Series(pd.to_datetime(["2020-01-01"] * 6, utc=True)), "Timestamp"),
        ([pd.Timestamp("2020-01-01").date()] * 6, "datetime.date"),
        ([[1, 2]] * 6, "one-dimensional"),
        ([{"a": 1}] * 6, "{'a': 1}"),
        (np.array([b"x"] * 6), r"dtype \|S1"),
        ([10**400] * 6, "too large for a float"),
    ],
)
def test_values_that_are_no_numbers_or_names_are_refused(values, got):
    with pytest.raises(TableError, match=got):
        dc.Design(["age"]).fit({"age": values})


@pytest.mark.parametrize("size", [1e200, 1e-200, 1e308])
def test_numbers_of_any_size_are_standardised_right(size):
    values = np.array(AGES) / 80 * size
    design = dc.Design(["age"]).fit({"age": values})
    np.testing.assert_allclose(design.encode({"age": values}, np.float64), encoded(AGES), atol=1e-9)


def test_a_value_too_far_from_the_training_rows_is_refused_with_its_row():
    design = dc.Design([dc.Polynomial("age", 3)]).fit({"age": AGES})
    with pytest.raises(
        TableError, match=r"must be near the training rows; got a value in row 1 too far away to be standardised"
    ):
        design.encode({"age": [60.0, 1e200]})


def test_a_column_may_be_called_like_markup():
    names = dc.Design(["age[/mm]", "[bold]"]).fit({"age[/mm]": AGES, "[bold]": ["a", "b"] * 3}).names
    assert names == ("age[/mm]", "[bold][b]")


def test_a_frame_with_two_columns_of_one_name_is_refused():
    frame = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=["age", "age"])
    with pytest.raises(TableError, match="a table must name each column once; got 'age' twice"):
        dc.Design(["age"]).fit(frame)


@pytest.mark.parametrize("shape", [(4,), (1, 2, 2)])
def test_nan_and_inf_of_any_source_follow_one_rule(shape):
    values = np.ones((6, *shape), np.float32)
    source = ArraySource(values, {"dx": np.zeros(6)}, "")
    check_finite(source)
    values.reshape(6, -1)[2, 1] = np.nan
    with pytest.raises(
        TableError, match=r"samples must be filled .* empty value in row 2.* data.missing_features: mean"
    ):
        check_finite(source)
    check_finite(source, "mean")
    values[4] = np.nan
    with pytest.raises(TableError, match="got nothing but empty values in row 4") as caught:
        check_finite(source, "mean")
    assert caught.value.faults[0].rows == (4,)
    values[4], values.reshape(6, -1)[5, 0] = 0, np.inf
    with pytest.raises(TableError, match="samples must be finite; got infinite values in row 5"):
        check_finite(source, "mean")


def test_features_with_names_tell_which_columns_are_empty():
    source = ArraySource(np.array([[1, np.nan], [np.nan, np.nan]], np.float32), {}, "", ["age", "iq"])
    with pytest.raises(TableError, match=r"in rows 0, 1, in 2 columns: iq \(2\), age \(1\)"):
        check_finite(source)


def test_an_archive_that_claims_far_more_than_it_holds_is_refused_unread(tmp_path):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": (6, 5_000_000)})
        for _ in range(6):
            member.write(bytes(20_000_000))
    (tmp_path / "t.csv").write_text("dx\n" + "0\n" * 6)
    with pytest.raises(TableError, match=r"must not unpack to more than 0.1 GB .* got 0.12 GB .* raise max_gb"):
        open_array(path, table=tmp_path / "t.csv", max_gb=0.1)
    assert len(open_array(path, table=tmp_path / "t.csv")) == 6


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00\xff\xff{", b"no array"])
def test_a_broken_array_is_named(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    (tmp_path / "t.csv").write_text("dx\n0\n")
    with pytest.raises(TableError, match=r"x.npz must hold plain arrays of numbers; got"):
        open_array(tmp_path / "x.npz", table=tmp_path / "t.csv")


def forged(path, shape=(6, 7, 8), dtype=16, compressed=True):
    """A NIfTI header that claims a shape, with no voxels behind it."""
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, len(shape), *shape, *[1] * (7 - len(shape)))
    struct.pack_into("<hh", header, 70, dtype, 32)
    struct.pack_into("<8f", header, 76, *[1.0] * 8)
    struct.pack_into("<f", header, 108, 352.0)
    header[344:348] = b"n+1\0"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(bytes(header)) if compressed else bytes(header))


def test_a_header_that_claims_gigabytes_is_refused_unread_and_the_limit_can_be_raised(tmp_path):
    write_scan(tmp_path / "good.nii.gz")
    forged(tmp_path / "huge.nii.gz", (1000, 1000, 500))
    table = {"path": ["good.nii.gz", "huge.nii.gz"]}
    with pytest.raises(
        ScanError, match=r"huge.nii.gz: is cut short: \d+ bytes cannot hold the shape \(1000, 1000, 500\)"
    ):
        open_scans(tmp_path, table=table, cache=tmp_path / "c", progress=False)
    options = {"cache": tmp_path / "c", "progress": False, "shape": (4, 4, 4)}
    with pytest.raises(ScanError, match=r"good.nii.gz: claims 1.34e-06 GB, shape .* raise it with max_gb"):
        open_scans(tmp_path, table={"path": ["good.nii.gz"]}, max_gb=1e-6, **options)
    assert len(open_scans(tmp_path, table={"path": ["good.nii.gz"]}, **options)) == 1
    with pytest.raises(OptionError, match="max_gb must be positive; got 0"):
        open_scans(tmp_path, table=table, max_gb=0)


def test_one_bad_scan_of_any_kind_does_not_defeat_skip_bad(tmp_path):
    write_scan(tmp_path / "good.nii")
    forged(tmp_path / "negative.nii", (-5, 7, 8), compressed=False)
    forged(tmp_path / "flat.nii", (6, 0, 8), compressed=False)
    (tmp_path / "itself.nii").symlink_to(tmp_path / "itself.nii")
    os.mkfifo(tmp_path / "pipe.nii")
    (tmp_path / "folder.nii").mkdir()
    (tmp_path / "empty.nii").write_bytes(b"")
    names = ["good", "negative", "flat", "itself", "pipe", "folder", "empty"]
    table = {"path": [f"{name}.nii" for name in names]}
    with pytest.warns(DeconfoundWarning, match="6 left out, 1 scans remain"):
        scans = open_scans(tmp_path, table=table, cache=tmp_path / "c", skip_bad=True, progress=False)
    assert len(scans) == 1
    assert {fault.split(":")[0].split("/")[-1].split(".")[0] for fault in scans.skipped} == set(names[1:])


def test_a_shape_may_be_of_numpy_numbers(tmp_path):
    root = write_bids(tmp_path / "bids", people=1)
    scans = open_scans(root, shape=np.array([4, 5, 6]), cache=tmp_path / "c", progress=False)
    assert scans.shape == (1, 4, 5, 6)
    assert all(type(edge) is int for edge in scans.shape)


def build(root):
    return store_volumes(
        root, {}, list("ab"), (2, 2, 2), "uint8", lambda row: np.full((2, 2, 2), row + 1, np.uint8),
        what="", jobs=1, progress=False,
    )  # fmt: skip


def test_a_volume_file_of_no_bytes_is_built_again(tmp_path):
    path = build(tmp_path).volumes.path
    path.write_bytes(b"")
    again = build(tmp_path)
    assert again.made == 2
    assert again.volumes.stored[1].max() == 2


def test_the_cache_is_flushed_to_disk_before_it_appears(tmp_path, monkeypatch):
    order = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("flush"), fsync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("rename"), replace(*paths))[1])
    build(tmp_path)
    assert order == ["flush", "rename", "flush", "flush", "rename", "flush"]


def test_half_written_files_of_dead_processes_are_swept_and_young_ones_spared(tmp_path):
    folder = build(tmp_path).volumes.path.parent
    old, young = folder / ".x.npy.1-a.part", folder / ".y.npy.2-b.part"
    old.write_bytes(b"x")
    young.write_bytes(b"y")
    os.utime(old, (0, 0))
    build(tmp_path).volumes.path.unlink()
    build(tmp_path)
    assert not old.exists()
    assert young.exists()
    sweep(folder)
    assert not young.exists()


def test_a_lock_follows_no_link_and_changes_no_file(tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("years of work")
    (tmp_path / ".lock").symlink_to(precious)
    with (
        pytest.raises(RunError, match=r"\.lock must be a plain file .* got a link\. Delete it"),
        hold(tmp_path / ".lock"),
    ):
        pass
    assert precious.read_text() == "years of work"
    (tmp_path / "plain.lock").write_text("left")
    with hold(tmp_path / "plain.lock"):
        assert (tmp_path / "plain.lock").read_text() == "left"
        again = hold(tmp_path / "plain.lock")
        with pytest.raises(RunError, match="must be worked on by one process; got another that holds it"), again:
            pass
    os.mkfifo(tmp_path / "pipe.lock")
    with pytest.raises(RunError, match=r"pipe\.lock must be a plain file"), hold(tmp_path / "pipe.lock"):
        pass


def test_a_written_file_replaces_a_link_and_not_what_it_points_to(tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("years of work")
    (tmp_path / "out.txt").symlink_to(precious)
    write_text(tmp_path / "out.txt", "new")
    assert precious.read_text() == "years of work"
    assert (tmp_path / "out.txt").read_text() == "new"


def test_cells_that_a_spreadsheet_takes_for_formulas_can_be_guarded():
    columns = {"site": ["=cmd()", "+1", "-x", "@a", "A", None], "=x": [-1.5, 2.0, 3.0, np.float64(-4), 5, -6]}
    plainly = csv_text(columns)
    assert plainly.splitlines()[1] == "=cmd(),-1.5"
    guarded = csv_text(columns, guard_formulas=True)
    assert guarded.splitlines() == ["site,'=x", "'=cmd(),-1.5", "'+1,2.0", "'-x,3.0", "'@a,-4.0", "A,5", ",-6"]


def test_csv_text_reads_back_bit_for_bit(tmp_path):
    values = np.random.default_rng(0).normal(size=50) * 10.0 ** np.arange(-25, 25)
    (tmp_path / "t.csv").write_text(csv_text({"x": values.tolist(), "a, b": ['q"uote'] * 50}))
    columns = read_table(tmp_path / "t.csv")
    assert np.array_equal(columns["x"], values)
    assert columns["a, b"][0] == 'q"uote'
