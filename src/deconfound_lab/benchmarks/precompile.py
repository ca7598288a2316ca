"""Compile in several processes what a run will need, so that the run itself finds it on disk.

Triton and torch's compiler keep what they have compiled in folders that all processes share. Each process here runs its
share of the jobs' pieces once, untimed; what it cannot do is left to the run, which reports it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from deconfound_lab.benchmarks.jobs import Job
from deconfound_lab.benchmarks.timing import Clock

# More would fill the GPU's memory with their contexts and features.
MOST = 12
# The most of a run's time that it may take, and in seconds.
SHARE, LONGEST = 0.35, 150.0

Asked = tuple[str, Sequence[str] | None, Sequence[str] | None, bool]
"""The arguments of `plan`."""


def precompile(asked: Asked, jobs: Sequence[Job], say: Callable[[str], None], minutes: float | None) -> None:
    """Run the pieces of these jobs in several processes; returns when all have ended or its time is up."""
    keys = [job.key for job in jobs]
    pieces = sum(len(job.pieces) for job in jobs)
    processes = min(MOST, max(1, (os.cpu_count() or 1) - 2), pieces)
    if processes < 2:
        return
    say(f"compiling {pieces} pieces in {processes} processes")
    limit = LONGEST if minutes is None else min(LONGEST, 60 * minutes * SHARE)
    end = time.monotonic() + limit
    command = [sys.executable, "-m", "deconfound_lab.benchmarks.precompile"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    helpers = [
        subprocess.Popen(
            [*command, json.dumps([asked, keys, part, processes])], env=environment, stderr=subprocess.DEVNULL
        )
        for part in range(processes)
    ]
    try:
        for helper in helpers:
            with suppress(subprocess.TimeoutExpired):
                helper.wait(max(0.0, end - time.monotonic()))
    finally:
        for helper in helpers:
            helper.kill()
            helper.wait()


def main() -> None:
    """Compile one process's share."""
    from deconfound_lab.benchmarks.experiment import plan

    asked, keys, part, parts = json.loads(sys.argv[1])
    wanted = set(keys)
    pieces = [piece for job in plan(*asked) if job.key in wanted for piece in job.pieces]
    clock = Clock(asked[0], once=True)
    for piece in pieces[part::parts]:
        with suppress(Exception):  # the run meets the same fault, and reports it
            piece(clock)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
