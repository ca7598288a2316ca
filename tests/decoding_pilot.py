"""Threads or processes to decode images, for decision 0018: `python -m tests.decoding_pilot` prints its table.

Each way decodes the same files in turn, several times; the best time of each counts, since other work on the machine
only ever adds to it.
"""

import multiprocessing
import tempfile
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from deconfound.data.images import read_image
from deconfound.data.volumes import pack

WORKERS, ROUNDS, EDGE = 2, 5, 1024
KINDS = {"JPEG, colour": (".jpg", 3), "PNG, grey": (".png", 1), "TIFF, 16 bits": (".tif", 1)}


def write(folder: Path, ending: str, channels: int, count: int, rng: np.random.Generator) -> list[Path]:
    """Smooth pictures with grain, as photographs and films have it."""
    paths = []
    for number in range(count):
        coarse = rng.normal(size=(channels, 16, 16)).astype(np.float32)
        smooth = [np.asarray(Image.fromarray(each).resize((EDGE, EDGE), Image.Resampling.BICUBIC)) for each in coarse]
        pixels = 128 + 40 * np.stack(smooth, 2) + rng.normal(0, 6, (EDGE, EDGE, channels))
        pixels = pixels.clip(0, 255).squeeze()
        stored = (pixels * 200).astype(np.uint16) if ending == ".tif" else pixels.astype(np.uint8)
        paths.append(folder / f"{number:03d}{ending}")
        Image.fromarray(stored).save(paths[-1])
    return paths


def decode(path: Path) -> bytes:
    """One image as the cache stores it."""
    return pack(read_image(path, (3, 224, 224), "stretch"), "uint8").tobytes()


def main(count: int = 134) -> None:
    """Time all ways on all kinds of files."""
    fork, spawn = (multiprocessing.get_context(name) for name in ("fork", "spawn"))
    ways: dict[str, partial[Executor]] = {
        "1 thread": partial(ThreadPoolExecutor, 1),
        "threads": partial(ThreadPoolExecutor, WORKERS),
        "processes, forked": partial(ProcessPoolExecutor, WORKERS, mp_context=fork),
        "processes, spawned": partial(ProcessPoolExecutor, WORKERS, mp_context=spawn),
    }
    print(f"| {count} files each, seconds | {' | '.join(ways)} |\n|---|{'---|' * len(ways)}")
    with tempfile.TemporaryDirectory() as name:
        for kind, (ending, channels) in KINDS.items():
            files = write(Path(name), ending, channels, count, np.random.default_rng(0))
            best, contents = dict.fromkeys(ways, float("inf")), set()
            for _ in range(ROUNDS):
                for way, make in ways.items():
                    started = time.perf_counter()
                    with make() as pool:
                        contents.add(b"".join(pool.map(decode, files, chunksize=4)))
                    best[way] = min(best[way], time.perf_counter() - started)
            assert len(contents) == 1, "every way gives the same bytes"
            print(f"| {kind} | {' | '.join(f'{seconds:.2f}' for seconds in best.values())} |", flush=True)


if __name__ == "__main__":
    main()
