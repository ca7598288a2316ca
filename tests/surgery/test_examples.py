"""The example scripts run from top to bottom, each in a process and a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "plain_pytorch.py": ["insert pmdn after", "accuracy", "effect of one year of age"],
    "lightning_module.py": ["accuracy"],
    "huggingface_vit.py": ["insert pmdn before", "accuracy"],
    "monai_3d.py": ["insert pmdn before", "one new scan tensor"],
    "sklearn_pipeline.py": ["accuracy", "network with PMDN", "correlation with age within a diagnosis"],
}


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_and_prints_what_it_says(name, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for words in PRINTED[name]:
        assert words in done.stdout
    accuracy = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("accuracy")]
    assert all(float(value) > 0.6 for value in accuracy)
