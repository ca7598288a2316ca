"""A real process that fits, and is killed at a write: started by test_resuming.py.

Arguments: the config as JSON, then for each attempt the number of the file at which it is killed.
Each attempt is a fork of this process, which has imported everything. The last one ends by itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from itertools import count as count_up
from typing import Any

import torch

from deconfound.runs import fit

torch.set_num_threads(1)


def die_at(count: int) -> None:
    """Kill this process when it is about to put file number `count` in its place."""
    replace = os.replace

    def replace_or_die(*paths: Any) -> None:
        nonlocal count
        count -= 1
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*paths)

    os.replace = replace_or_die  # type: ignore[assignment]


def attempt(config: Any, count: int | None) -> int:
    """Fit in a fork and return how it ended."""
    child = os.fork()
    if child == 0:
        # A clock that runs ten seconds at each look: each validation writes a checkpoint.
        time.monotonic = map(float, count_up(0, 10)).__next__  # type: ignore[assignment]
        if count is not None:
            die_at(count)
        fit(config, audit=False)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    print([attempt(settings, int(text)) for text in sys.argv[2:]], attempt(settings, None))
