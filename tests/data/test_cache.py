"""The cache: right after every change, damage and race, and never rebuilt without need."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from deconfound.data import cache as caching
from deconfound.data.cache import VolumeFault, cache_root, store_volumes
from deconfound.data.scans import open_scans
from deconfound.errors import OptionError, ScanError
from tests.data.scan_files import write_bids, write_scan


def opened(root, tmp_path, **options):
    return open_scans(root, cache=tmp_path / "cache", shape=(5, 5, 5), progress=False, **options)


def files(tmp_path, ending):
    return sorted(path for path in (tmp_path / "cache").rglob(f"*{ending}") if path.parent.name != "seen")


def test_a_second_opening_reads_no_scan(tmp_path, monkeypatch):
    root = write_bids(tmp_path / "bids", people=4)
    first = opened(root, tmp_path)
    monkeypatch.setattr("deconfound.data.scans.read_scan", lambda *_: pytest.fail("read again"))
    second = opened(root, tmp_path)
    assert (first.made, second.made) == (4, 0)
    np.testing.assert_array_equal(first.read(np.arange(4)), second.read(np.arange(4)))


def test_files_that_have_settled_are_not_hashed_again(tmp_path, monkeypatch):
    root = write_bids(tmp_path / "bids", people=4)
    monkeypatch.setattr("deconfound.data.files._UNCHANGED_FOR_NS", -(10**12))
    opened(root, tmp_path)
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("hashed again"))
    assert opened(root, tmp_path).made == 0


def test_a_file_that_was_just_written_is_hashed_again_whatever_its_times_say(tmp_path):
    root = write_bids(tmp_path / "bids", people=2)
    path = root / "sub-01" / "anat" / "sub-01_T1w.nii"
    (root / "sub-01" / "anat" / "sub-01_T1w.nii.gz").unlink()
    write_scan(path, seed=1)
    times = path.stat()
    before = opened(root, tmp_path).read([0])
    write_scan(path, seed=2)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == times.st_size
    changed = opened(root, tmp_path)
    assert changed.made == 1
    assert np.abs(changed.read([0]) - before).max() > 0.1


def test_only_the_scan_that_changed_is_read_again(tmp_path):
    root = write_bids(tmp_path / "bids", people=4)
    before = opened(root, tmp_path).read(np.arange(4))
    write_scan(root / "sub-03" / "anat" / "sub-03_T1w.nii.gz", seed=99)
    scans = opened(root, tmp_path)
    assert scans.made == 1
    same = (scans.read(np.arange(4)) == before).all(axis=(1, 2, 3, 4))
    assert same.tolist() == [True, True, False, True]


def test_a_subset_of_the_scans_is_taken_from_the_whole(tmp_path):
    root = write_bids(tmp_path / "bids", people=4)
    whole = opened(root, tmp_path)
    part = opened(root, tmp_path, table={"path": [str(whole.table["path"][2])]})
    assert part.made == 0
    np.testing.assert_array_equal(part.read([0]), whole.read([2]))


@pytest.mark.parametrize("damage", ["cut", "flipped", "index", "gone", "foreign"])
def test_a_damaged_cache_is_rebuilt(tmp_path, damage):
    root = write_bids(tmp_path / "bids", people=3)
    before = opened(root, tmp_path).read(np.arange(3))
    (data,), (index,) = files(tmp_path, ".npy"), files(tmp_path, ".json")
    content = bytearray(data.read_bytes())
    if damage == "cut":
        data.write_bytes(content[:-40])
    elif damage == "flipped":
        content[-3] ^= 255
        data.write_bytes(content)
    elif damage == "index":
        index.write_text(index.read_text()[:-9])
    elif damage == "gone":
        data.unlink()
    else:
        np.save(data, np.zeros((3, 2, 2, 2), np.uint8))
    again = opened(root, tmp_path)
    assert again.made == (1 if damage == "flipped" else 3)
    np.testing.assert_array_equal(again.read(np.arange(3)), before)
    assert opened(root, tmp_path).made == 0


def test_two_processes_that_build_the_same_cache_agree(tmp_path):
    root = write_bids(tmp_path / "bids", people=12)
    script = textwrap.dedent("""
        import sys, hashlib
        import numpy as np
        from deconfound.data.scans import open_scans
        sys.stdin.readline()
        scans = open_scans(sys.argv[1], cache=sys.argv[2], shape=(20, 20, 20), progress=False, jobs=2)
        print(scans.made, scans.fingerprint, hashlib.sha256(scans.read(np.arange(len(scans))).tobytes()).hexdigest())
    """)
    command = [sys.executable, "-c", script, str(root), str(tmp_path / "cache")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in running:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate()[0].split() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert sorted(answer[0] for answer in answers) == ["0", "12"]
    assert answers[0][1:] == answers[1][1:]
    assert len(files(tmp_path, ".npy")) == len(files(tmp_path, ".json")) == 1


def test_builders_without_a_lock_still_agree(tmp_path, monkeypatch):
    """Where the file system has no locks both build; the second one's file replaces an equal one that is in use."""
    root = write_bids(tmp_path / "bids", people=3)
    first = opened(root, tmp_path)
    before = first.read(np.arange(3))
    monkeypatch.setattr(caching, "_find", lambda *_: None)
    monkeypatch.setattr(caching, "_known", lambda *_: {})
    (file,) = files(tmp_path, ".npy")
    content = file.read_bytes()
    second = opened(root, tmp_path)
    assert second.made == 3
    assert file.read_bytes() == content
    np.testing.assert_array_equal(first.read(np.arange(3)), before)


def test_a_build_that_breaks_leaves_nothing_behind(tmp_path):
    def make(row):
        if row == 2:
            raise KeyboardInterrupt
        return np.zeros((2, 2, 2), np.uint8)

    with pytest.raises(KeyboardInterrupt):
        store_volumes(tmp_path, {}, list("abcd"), (2, 2, 2), "uint8", make, what="", jobs=1, progress=False)
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".npy", ".json")]


def test_a_fault_is_remembered_with_its_text(tmp_path):
    def make(row):
        if row == 1:
            raise VolumeFault("is broken")
        return np.full((2, 2, 2), row, np.uint8)

    for made in (3, 0):
        kept = store_volumes(tmp_path, {}, list("abc"), (2, 2, 2), "uint8", make, what="", jobs=2, progress=False)
        assert kept.faults == {1: "is broken"}
        assert kept.made == made
        assert kept.volumes.stored[2].max() == 2


def test_a_file_that_could_not_be_read_is_tried_again(tmp_path, monkeypatch):
    root = write_bids(tmp_path / "bids", people=2)

    def hiccup(path, max_gb):
        raise VolumeFault("cannot be read (OSError: the network is away)", lasting=False)

    with monkeypatch.context() as away:
        away.setattr("deconfound.data.scans.read_scan", hiccup)
        with pytest.raises(ScanError, match="the network is away"):
            opened(root, tmp_path)
    assert opened(root, tmp_path).made == 2
    assert opened(root, tmp_path).made == 0


def test_a_cache_that_cannot_be_written_is_an_error_with_its_name(tmp_path):
    (tmp_path / "file").write_text("")
    root = write_bids(tmp_path / "bids", people=1)
    with pytest.raises(OptionError, match=r"the cache must be a folder with room that can be written; got .*file"):
        open_scans(root, cache=tmp_path / "file", progress=False)


def test_the_cache_stands_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("DECONFOUND_CACHE", str(tmp_path / "here"))
    assert cache_root() == tmp_path / "here"
    assert cache_root("there").name == "there"
    monkeypatch.delenv("DECONFOUND_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "deconfound"


def test_a_bar_is_shown_on_a_terminal_while_scans_are_read(tmp_path, capfd, monkeypatch):
    root = write_bids(tmp_path / "bids", people=2)
    open_scans(root, cache=tmp_path / "first", shape=(5, 5, 5), progress=True)
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    open_scans(root, cache=tmp_path / "second", shape=(5, 5, 5), progress=True)
    assert "reading scans" in capfd.readouterr().err
