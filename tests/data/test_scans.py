"""Reading scans: what is read, what is refused, and all faults at once."""

import gzip
import pickle
import warnings

import nibabel as nib
import numpy as np
import pandas as pd
import pytest

from deconfound.data.scans import open_scans
from deconfound.data.sources import Source
from deconfound.data.volumes import read_scan, robust_scale
from deconfound.errors import DeconfoundWarning, OptionError, ScanError, TableError
from tests.data.scan_files import write_bids, write_scan


def opened(path, tmp_path, **options):
    options = {"shape": (6, 7, 8), "progress": False, "jobs": 1} | options
    return open_scans(path, cache=tmp_path / "cache", **options)


def test_a_bids_folder_is_a_source_with_its_rows(tmp_path):
    scans = opened(write_bids(tmp_path / "bids"), tmp_path)
    assert isinstance(scans, Source)
    assert len(scans) == 3
    assert scans.shape == (1, 6, 7, 8)
    assert scans.table["participant_id"].tolist() == ["sub-01", "sub-02", "sub-03"]
    assert scans.table["age"].tolist() == [50, 51, 52]
    assert np.isnan(scans.table["score"][0])
    assert scans.table["person"].tolist() == scans.table["participant_id"].tolist()
    read = scans.read(np.array([2, 0]))
    assert read.dtype == np.float32
    assert read.shape == (2, 1, 6, 7, 8)
    expected = robust_scale(write_scan(tmp_path / "again.nii", seed=20))
    assert np.abs(read[0, 0] - expected).max() <= 0.51 / 255


def test_sessions_of_one_person_share_the_person_and_take_the_values_of_the_session(tmp_path):
    root = write_bids(tmp_path / "bids", people=2, sessions=2)
    (root / "sub-01" / "sub-01_sessions.tsv").write_text("session_id\tage\tweight\nses-1\t50\t70\nses-2\t53\tn/a\n")
    scans = opened(root, tmp_path)
    assert scans.table["person"].tolist() == ["sub-01", "sub-01", "sub-02", "sub-02"]
    assert scans.table["session_id"].tolist() == ["ses-1", "ses-2", "ses-1", "ses-2"]
    assert scans.table["age"].tolist() == [50, 53, 51, 51]
    np.testing.assert_array_equal(scans.table["weight"], [70, np.nan, np.nan, np.nan])


def test_a_table_with_one_row_per_session_is_joined_by_both(tmp_path):
    root = write_bids(tmp_path / "bids", people=2, sessions=2)
    table = pd.DataFrame(
        {"participant_id": ["01", "02", "01", "02"], "session_id": ["2", "2", "1", "1"], "age": [53, 63, 50, 60]}
    )
    scans = opened(root, tmp_path, table=table)
    assert scans.table["age"].tolist() == [50, 53, 60, 63]


def test_a_table_of_paths_is_read_from_a_mapping_or_a_file(tmp_path):
    for number in range(3):
        write_scan(tmp_path / "flat" / f"{number}.nii", seed=number)
    table = {"path": ["2.nii", "0.nii"], "dx": ["a", "b"], "participant_id": ["x", "x"]}
    scans = opened(tmp_path / "flat", tmp_path, table=table)
    assert scans.table["dx"].tolist() == ["a", "b"]
    assert scans.table["person"].tolist() == ["x", "x"]
    pd.DataFrame(table).rename(columns={"path": "file"}).to_csv(tmp_path / "flat" / "list.csv", index=False)
    same = opened(tmp_path / "flat" / "list.csv", tmp_path, path_column="file")
    np.testing.assert_array_equal(same.read([0, 1]), scans.read([0, 1]))
    by_file = opened(tmp_path / "flat", tmp_path, table=tmp_path / "flat" / "list.csv", path_column="file")
    np.testing.assert_array_equal(by_file.read([1]), scans.read([1]))


def test_ids_of_a_table_keep_their_zeros(tmp_path):
    write_scan(tmp_path / "7.nii")
    (tmp_path / "list.tsv").write_text("participant_id\tpath\n007\t7.nii\n")
    assert opened(tmp_path / "list.tsv", tmp_path).table["person"].tolist() == ["007"]
    assert opened(tmp_path, tmp_path, table=tmp_path / "list.tsv").table["person"].tolist() == ["007"]


def test_names_of_people_in_the_tables_of_a_bids_folder_keep_their_zeros(tmp_path):
    root = write_bids(tmp_path / "study", people=2, sessions=1)
    lines = (root / "participants.tsv").read_text().splitlines()
    rows = [f"{line}\t{cell}" for line, cell in zip(lines, ["family", "007", "012"], strict=True)]
    (root / "participants.tsv").write_text("\n".join(rows) + "\n")
    (root / "sub-01" / "sub-01_sessions.tsv").write_text("session_id\tfamily\nses-1\t008\n")
    assert opened(root, tmp_path, text=["family"]).table["family"].tolist() == ["008", "012"]


def test_orientation_is_made_one(tmp_path):
    values = np.random.default_rng(0).uniform(1, 9, (6, 7, 8)).astype(np.float32)
    write_scan(tmp_path / "ras.nii", values=values)
    turned = np.ascontiguousarray(values[::-1].transpose(2, 0, 1))
    affine = np.array([[0, -1, 0, 5], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]], dtype=float)
    write_scan(tmp_path / "turned.nii", values=turned, affine=affine)
    assert nib.aff2axcodes(affine) == ("S", "L", "A")
    scans = opened(tmp_path, tmp_path, table={"path": ["ras.nii", "turned.nii"]})
    both = scans.read(np.arange(2))
    np.testing.assert_array_equal(both[0], both[1])


def test_a_fourth_dimension_of_one_is_no_fault(tmp_path):
    values = write_scan(tmp_path / "plain.nii")
    write_scan(tmp_path / "four.nii", values=values[..., None])
    both = opened(tmp_path, tmp_path, table={"path": ["plain.nii", "four.nii"]}).read([0, 1])
    np.testing.assert_array_equal(both[0], both[1])


def broken_folder(root):
    """Six people of whom only sub-01 is right, a scan that nobody has, and a person who is there twice."""
    write_bids(root, people=6)
    two, three, four, five = (root / f"sub-0{i}" / "anat" / f"sub-0{i}_T1w.nii.gz" for i in (2, 3, 4, 5))
    two.write_bytes(two.read_bytes()[: two.stat().st_size // 2])
    write_scan(three, values=np.ones((4, 4, 4, 2), np.float32))
    nan = write_scan(four)
    nan[3, 3, 3] = np.nan
    write_scan(four, values=nan)
    five.write_bytes(gzip.compress(b"no image at all"))
    (root / "sub-06" / "anat" / "sub-06_T1w.nii.gz").unlink()
    write_scan(root / "sub-99" / "anat" / "sub-99_T1w.nii.gz")
    with (root / "participants.tsv").open("a") as file:
        file.write("sub-01\t44\tF\t1\n")
    return root


FAULTS = [
    r"participants.tsv: row 6 is a second row of sub-01",
    r"sub-99_T1w.nii.gz: this scan has no row in participants.tsv",
    r"participants.tsv: sub-06 has no scan \*_T1w.nii\*",
    r"sub-02_T1w.nii.gz: cannot be read \(",
    r"sub-03_T1w.nii.gz: must have three dimensions; got shape \(4, 4, 4, 2\)",
    r"sub-04_T1w.nii.gz: has 1 voxels that are NaN or infinite",
    r"sub-05_T1w.nii.gz: cannot be read \(ImageFileError",
]


def test_all_faults_are_reported_together_with_their_paths(tmp_path):
    root = broken_folder(tmp_path / "bids")
    with pytest.raises(
        ScanError, match="every scan must be readable and have one row of the table; got 7 faults"
    ) as got:
        opened(root, tmp_path)
    for fault in FAULTS:
        assert got.match(fault)
    assert got.match("skip_bad=True .* to go on with the 1 that are right")


def test_skip_bad_goes_on_and_says_what_is_left_out(tmp_path):
    root = broken_folder(tmp_path / "bids")
    with pytest.warns(DeconfoundWarning, match="7 left out, 1 scans remain") as caught:
        scans = opened(root, tmp_path, skip_bad=True)
    assert len(caught) == 1
    assert len(scans) == 1
    assert len(scans.skipped) == 7
    assert scans.table["age"].tolist() == [50]
    expected = robust_scale(write_scan(tmp_path / "again.nii", seed=0))
    assert np.abs(scans.read([0])[0, 0] - expected).max() <= 0.51 / 255
    with pytest.warns(DeconfoundWarning, match="7 left out"):
        assert opened(root, tmp_path, skip_bad=True).made == 4  # what could not be read is tried again


def flip_a_voxel(path):
    """Change one bit of a voxel and leave the checksum, the last eight bytes, as it was."""
    content = gzip.decompress(path.read_bytes())
    flipped = bytearray(content)
    flipped[-100] ^= 1
    path.write_bytes(gzip.compress(flipped)[:-8] + gzip.compress(content)[-8:])


@pytest.mark.parametrize("ending", ["nii.gz", "mgz", "img.gz"])
def test_a_compressed_scan_whose_checksum_is_wrong_is_a_fault_of_that_scan(tmp_path, ending):
    kind = {"nii.gz": nib.Nifti1Image, "mgz": nib.MGHImage, "img.gz": nib.Nifti1Pair}[ending]
    names = ["right", "wrong", "cut"]
    for seed, name in enumerate(names):
        kind(write_scan(tmp_path / "plain.nii", seed), np.eye(4)).to_filename(tmp_path / f"{name}.{ending}")
    flip_a_voxel(tmp_path / f"wrong.{ending}")
    cut = tmp_path / f"cut.{ending}"
    cut.write_bytes(cut.read_bytes()[:-8])
    table = {"path": [f"{name}.{ending}" for name in names]}
    with pytest.raises(ScanError, match=rf"wrong.{ending}: cannot be read \(BadGzipFile: CRC check failed"):
        opened(tmp_path, tmp_path, table=table)
    with pytest.warns(DeconfoundWarning, match="2 left out, 1 scans remain"):
        scans = opened(tmp_path, tmp_path, table=table, skip_bad=True)
    assert [fault.split(":")[0].rsplit("/")[-1] for fault in scans.skipped] == table["path"][1:]


@pytest.mark.parametrize("ending", ["nii.gz", "nii.bz2", "NII.GZ"])
@pytest.mark.parametrize("turned", [np.eye(4), np.diag([-1, 2, 3, 1])])
def test_a_compressed_scan_is_read_bit_for_bit_as_a_plain_one(tmp_path, ending, turned):
    values = write_scan(tmp_path / "plain.nii", affine=turned)
    for name, content in (("three", values), ("four", values[..., None])):
        write_scan(tmp_path / f"{name}.{ending}", affine=turned, values=content)
        volume, zooms = read_scan(tmp_path / f"{name}.{ending}")
        plain, plain_zooms = read_scan(tmp_path / "plain.nii")
        assert volume.tobytes() == plain.tobytes()
        assert zooms == plain_zooms


def test_faults_of_a_table_of_paths_are_reported_together(tmp_path):
    write_scan(tmp_path / "a.nii")
    write_scan(tmp_path / "b.nii", values=np.zeros((3, 3, 3), np.float32))
    table = {"path": ["a.nii", "b.nii", "gone.nii", "n/a", "twice.nii", "twice.nii"]}
    with pytest.raises(ScanError, match="got 4 faults") as got:
        opened(tmp_path, tmp_path, table=table)
    assert got.match("b.nii: is empty: every voxel is 0")
    assert got.match("gone.nii: there is no such file")
    assert got.match("row 3 of the table has no 'path'")
    assert got.match("twice.nii: 2 rows of the table name this file")


def test_nothing_usable_is_an_error_even_if_bad_scans_are_skipped(tmp_path):
    with pytest.raises(ScanError, match="at least one scan must be readable"):
        opened(tmp_path, tmp_path, table={"path": ["gone.nii"]}, skip_bad=True)


def test_places_and_columns_that_are_absent_are_named(tmp_path):
    with pytest.raises(ScanError, match="must be a BIDS folder, or a table of paths; got nothing there"):
        opened(tmp_path / "nowhere", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScanError, match=r"must hold participants.tsv; got a folder without it"):
        opened(tmp_path / "empty", tmp_path)
    with pytest.raises(TableError, match=r"got 'participant_id', which it lacks. Did you mean 'participant'"):
        opened(tmp_path / "empty", tmp_path, table={"participant": ["sub-01"]})
    (tmp_path / "list.csv").write_text("paths,age\na.nii,3\n")
    with pytest.raises(
        TableError, match=r"path_column must be columns of the table; got 'path', .* Did you mean 'paths'"
    ):
        opened(tmp_path / "list.csv", tmp_path)
    with pytest.raises(OptionError, match="jobs must be at least 1; got 0"):
        opened(tmp_path / "list.csv", tmp_path, jobs=0)


def test_scans_travel_to_another_process_without_their_content(tmp_path):
    scans = opened(write_bids(tmp_path / "bids"), tmp_path)
    before = scans.read([1])
    sent = pickle.dumps(scans)
    assert len(sent) < 5000
    np.testing.assert_array_equal(pickle.loads(sent).read([1]), before)


def test_the_fingerprint_follows_scans_table_and_settings(tmp_path):
    root = write_bids(tmp_path / "bids")
    first = opened(root, tmp_path).fingerprint
    assert opened(root, tmp_path).fingerprint == first
    assert opened(root, tmp_path, fit="crop").fingerprint != first
    assert opened(root, tmp_path, dtype="float16").fingerprint != first
    text = (root / "participants.tsv").read_text()
    (root / "participants.tsv").write_text(text.replace("52", "72"))
    second = opened(root, tmp_path).fingerprint
    assert second != first
    write_scan(root / "sub-03" / "anat" / "sub-03_T1w.nii.gz", seed=77)
    assert opened(root, tmp_path).fingerprint not in (first, second)


def test_nothing_is_said_where_nothing_is_wrong(tmp_path, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(write_bids(tmp_path / "bids"), tmp_path)
    assert capfd.readouterr() == ("", "")
