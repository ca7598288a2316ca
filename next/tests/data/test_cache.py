"""The cache: each set of files is decoded once, and nothing half-written is ever read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from deconfound.data import Samples, cache_folder, open_samples
from deconfound.errors import OptionError, StateError, TableError
from tests.data.files import read_number, write_picture, write_scan

ROOT = Path(__file__).parents[2]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return a function that lists the files that were decoded since the last call."""
    path = tmp_path / "log.txt"
    monkeypatch.setenv("DECODE_LOG", str(path))

    def read_log() -> list[str]:
        names = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return sorted(names)

    return read_log


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of ten files for `read_number`."""
    (tmp_path / "numbers").mkdir()
    for number in range(10):
        (tmp_path / "numbers" / f"{number}.txt").write_text(str(number))
    return tmp_path / "numbers"


def open_numbers(folder: Path, **options: object) -> Samples:
    return open_samples(folder, reader=read_number, **options)


def assert_numbers(samples: Samples, count: int = 10) -> None:
    assert samples.x.shape == (count, 1, 2, 2)
    assert samples.x[:, 0, 0, 0].tolist() == list(range(count))


def test_a_second_call_decodes_nothing(folder: Path, log: Callable[[], list[str]]) -> None:
    first = open_numbers(folder)
    assert log() == [f"{number}.txt" for number in range(10)]
    second = open_numbers(folder)
    assert log() == []
    for samples in (first, second):
        assert_numbers(samples)
        assert isinstance(samples.x, np.memmap)
        assert not samples.x.flags.writeable
    assert first.fingerprint == second.fingerprint


def test_pictures_and_scans_are_not_even_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nibabel

    for number in range(3):
        write_picture(tmp_path / "pictures" / f"{number}.png", number)
        write_scan(tmp_path / "scans" / f"{number}.nii.gz")
    before = [open_samples(tmp_path / name) for name in ("pictures", "scans")]

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Image, "open", refuse)
    monkeypatch.setattr(nibabel, "load", refuse)
    after = [open_samples(tmp_path / name) for name in ("pictures", "scans")]
    for first, second in zip(before, after, strict=True):
        np.testing.assert_array_equal(first.x, second.x)
    with pytest.raises(TableError, match="AssertionError"):
        open_samples(tmp_path / "pictures", size=4)


def test_other_files_and_options_are_another_set(
    folder: Path, log: Callable[[], list[str]], tmp_path: Path
) -> None:
    """Kills the mutants that leave sizes, times, names or options out of the key."""
    before = open_numbers(folder)
    log()
    stamp = (folder / "3.txt").stat()
    (folder / "3.txt").write_text("5")
    os.utime(folder / "3.txt", ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert open_numbers(folder).x[3, 0, 0, 0] == 5
    assert len(log()) == 10
    (folder / "3.txt").write_text("33")
    os.utime(folder / "3.txt", ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    changed = open_numbers(folder)
    assert changed.x[3, 0, 0, 0] == 33
    assert changed.fingerprint != before.fingerprint
    (folder / "3.txt").rename(folder / "a.txt")
    assert open_numbers(folder).x[-1, 0, 0, 0] == 33
    log()
    assert_numbers(open_numbers(folder, features=["0*", "1*", "2*"]), 3)
    assert len(log()) == 3
    picture = write_picture(tmp_path / "pictures" / "a.png").parent
    assert [open_samples(picture, size=size).shape[1] for size in (None, 4, 5)] == [6, 4, 5]


def test_the_fingerprint_does_not_depend_on_the_place(folder: Path, log: object) -> None:
    """A copy on another machine, or a file that was touched, are the same data."""
    first = open_numbers(folder).fingerprint
    os.utime(folder / "3.txt")
    assert open_numbers(folder).fingerprint == first
    other = folder.rename(folder.parent / "elsewhere")
    assert open_numbers(other).fingerprint == first


@pytest.mark.parametrize("damage", ["cut", "absent", "no facts", "half of the facts", "other"])
def test_half_written_sets_are_not_read(
    folder: Path, log: Callable[[], list[str]], damage: str
) -> None:
    open_numbers(folder)
    log()
    (samples,) = cache_folder().glob("*.samples")
    facts = samples.with_suffix(".json")
    if damage == "cut":
        samples.write_bytes(samples.read_bytes()[:-1])
    elif damage == "absent":
        samples.unlink()
    elif damage == "no facts":
        facts.unlink()
    elif damage == "half of the facts":
        facts.write_text(facts.read_text()[:20])
    else:
        facts.write_text("[1]")
    assert_numbers(open_numbers(folder))
    assert len(log()) == 10


def run(code: str, **environment: str) -> subprocess.Popen[str]:
    """Start Python with code that can import the tests."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


OPEN = """
from deconfound.data import open_samples
from tests.data.files import read_number
print(open_samples({folder!r}, reader=read_number).x[:, 0, 0, 0].tolist())
"""


def test_two_processes_decode_one_set_once(folder: Path, log: Callable[[], list[str]]) -> None:
    """Both start with an empty cache. Kills the mutant without lock."""
    processes = [run(OPEN.format(folder=str(folder))) for _ in range(2)]
    for process in processes:
        output, error = process.communicate()
        assert process.returncode == 0, error
        assert output.strip() == str(list(range(10)))
    assert Counter(log()) == Counter({f"{number}.txt": 1 for number in range(10)})


def test_a_set_that_is_decoded_while_a_process_waits_is_read(
    folder: Path, log: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process is done between the first look and the lock. Kills a single look."""
    acquire = FileLock.acquire

    def acquire_late(lock: FileLock, *arguments: object) -> object:
        monkeypatch.setattr(FileLock, "acquire", acquire)
        assert_numbers(open_numbers(folder))
        return acquire(lock, *arguments)

    monkeypatch.setattr(FileLock, "acquire", acquire_late)
    assert_numbers(open_numbers(folder))
    assert len(log()) == 10


def test_a_killed_process_leaves_nothing_that_is_read(
    folder: Path, log: Callable[[], list[str]]
) -> None:
    """The process dies while it decodes the fifth file, with the lock and half a file."""
    dying = OPEN.replace("read_number\n", "read_number as read\n", 1).replace(
        "print", "import os, signal\ndef read_number(path):\n"
        "    if path.name == '4.txt': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return read(path)\nprint", 1,
    )  # fmt: skip
    script = folder.parent / "dying.py"
    script.write_text(dying.format(folder=str(folder)))
    process = run(f"import runpy; runpy.run_path({str(script)!r})")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    log()
    assert_numbers(open_numbers(folder))
    assert len(log()) == 10


@pytest.mark.skipif(sys.platform == "win32", reason="limits of file size are those of POSIX")
def test_a_full_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path, log: Callable[[], list[str]]
) -> None:
    """The kernel refuses to write beyond 10 kB, as it does when no block is free."""
    for number in range(40):
        write_picture(tmp_path / "pictures" / f"{number}.png", size=(20, 20))
    code = f"""
import resource, signal
from deconfound.data import open_samples
from deconfound.errors import StateError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    open_samples({str(tmp_path / "pictures")!r})
except StateError as error:
    print(error)
"""
    output, error = run(code).communicate()
    assert str(cache_folder()) in output, error
    assert "cache='…'" in output
    assert "DECONFOUND_CACHE" in output
    left = [path for path in cache_folder().iterdir() if path.suffix != ".lock"]
    assert left == []
    assert len(open_samples(tmp_path / "pictures")) == 40


def test_a_cache_that_cannot_be_written(folder: Path, log: object, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"file/cache.*cache='…'"):
        open_numbers(folder, cache=tmp_path / "file" / "cache")
    assert_numbers(open_numbers(folder, cache=tmp_path / "other"))
    assert len(list((tmp_path / "other").glob("*.samples"))) == 1
    assert not cache_folder().exists()


def test_the_folder_is_that_of_the_environment_or_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DECONFOUND_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("DECONFOUND_CACHE")
    assert "deconfound" in cache_folder().parts


def test_progress(folder: Path, log: object) -> None:
    calls: list[tuple[int, int, str]] = []
    open_numbers(folder, on_progress=lambda *call: calls.append(call))
    assert calls == [(count, 10, "Decoding") for count in range(1, 11)]
    calls.clear()
    open_numbers(folder, on_progress=lambda *call: calls.append(call))
    assert calls == []


def test_more_files_than_wait_in_memory_keep_their_order(tmp_path: Path, log: object) -> None:
    (tmp_path / "many").mkdir()
    for number in range(150):
        (tmp_path / "many" / f"{number:03d}.txt").write_text(str(number))
    assert_numbers(open_numbers(tmp_path / "many"), 150)


def test_files_that_cannot_be_read(folder: Path, log: Callable[[], list[str]]) -> None:
    """An error keeps nothing; `skip_bad` remembers which files are good."""
    (folder / "3.txt").write_text("three")
    (folder / "7.txt").write_text("")
    with pytest.raises(TableError) as caught:
        open_numbers(folder)
    text = str(caught.value)
    assert all(part in text for part in ("2 files", "3.txt", "7.txt", "skip_bad=True"))
    assert list(cache_folder().glob("*.samples*")) == []
    for _ in range(2):
        log()
        samples = open_numbers(folder, skip_bad=True)
        assert samples.ids.tolist() == [f"{number}.txt" for number in (0, 1, 2, 4, 5, 6, 8, 9)]
        assert samples.x[:, 0, 0, 0].tolist() == [0, 1, 2, 4, 5, 6, 8, 9]
        assert "2 files cannot be read and are left out" in samples.notes[0]
    assert log() == []
    # A set that lacks files is an error without `skip_bad`, and a whole set serves both.
    with pytest.raises(TableError, match="2 files"):
        open_numbers(folder)
    (folder / "3.txt").write_text("3")
    (folder / "7.txt").write_text("7")
    assert_numbers(open_numbers(folder))
    log()
    assert_numbers(open_numbers(folder, skip_bad=True))
    assert log() == []


def read_float(path: Path) -> np.ndarray:
    return np.array([float(path.read_text()), 0.25])


def read_any(path: Path) -> np.ndarray:
    return np.zeros(int(path.read_text()) + 1)


def test_readers_of_other_formats(folder: Path, log: object) -> None:
    samples = open_samples(folder, reader="tests.data.test_cache:read_float")
    assert (samples.x.dtype, samples.kind) == (np.float32, "array")
    assert samples.x.tolist() == [[number, 0.25] for number in range(10)]
    assert open_numbers(folder).kind == "image"
    with pytest.raises(TableError, match="one file and"):
        open_samples(folder, reader=read_any)
    (folder / "3.txt").write_text("inf")
    with pytest.raises(TableError, match=r"3\.txt.*finite"):
        open_samples(folder, reader=read_float)


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        ("tests.data.test_cache", "package.module:name"),
        ("no_such_module:read", "no_such_module"),
        ("tests.data.test_cache:no_such_name", "no_such_name"),
        (np.load.__class__, "Write a function"),
    ],
)
def test_readers_that_cannot_be_used(folder: Path, reader: object, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        open_samples(folder, reader=reader)
    with pytest.raises(OptionError, match="size="):
        open_samples(folder, reader=read_float, size=3)


def test_a_changed_reader_decodes_anew(folder: Path, tmp_path: Path, log: object) -> None:
    code = "import numpy as np\ndef read(path): return np.full((1, 1), int(path.read_text()) + {})"
    values = []
    for addend in (0, 100):
        name = f"reader_{addend}"
        (tmp_path / f"{name}.py").write_text(code.format(addend))
        call = f"open_samples({str(folder)!r}, reader='{name}:read').x[1, 0, 0]"
        script = f"from deconfound.data import open_samples; print({call})"
        output, error = run(script, PYTHONPATH=str(tmp_path)).communicate()
        values.append(output.strip() or error)
    assert values == ["1.0", "101.0"]


def test_the_facts_are_json(folder: Path, log: object) -> None:
    open_numbers(folder)
    (path,) = cache_folder().glob("*.json")
    assert json.loads(path.read_text())["shape"] == [10, 1, 2, 2]
