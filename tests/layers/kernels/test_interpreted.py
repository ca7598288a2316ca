"""Runs `interpreted.py` in a process of its own: Triton decides when it is imported whether it interprets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels are written in Triton")


def test_the_kernels_arithmetic_through_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", str(Path(__file__).parent / "interpreted.py")]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
