"""The lab is a user of the library: it imports public names alone, and runs where optional packages are absent."""

import ast
import importlib
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LAB = Path(__file__).parents[2] / "src" / "deconfound_lab"


def private_imports(source):
    """What a file imports of the library that is not public."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "deconfound"]
            found += [name for name in names if name != "deconfound"]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "deconfound":
            room = importlib.import_module(node.module)
            depth = node.module.count(".")
            found += [
                f"{node.module}.{alias.name}"
                for alias in node.names
                if depth > 1 or alias.name not in getattr(room, "__all__", ())
            ]
    return found


def test_what_is_private_is_noticed():
    allowed = (
        "import deconfound\nimport deconfound as dc\nfrom deconfound import PMDN\nfrom deconfound.layers import MDN\n"
    )
    assert private_imports(allowed) == []
    for line in (
        "import deconfound.layers.base",
        "from deconfound.layers.mdn import MDN",
        "from deconfound.layers import base",
    ):
        assert private_imports(allowed + line), line


@pytest.mark.parametrize("path", sorted(LAB.rglob("*.py")), ids=lambda path: str(path.relative_to(LAB)))
def test_the_lab_imports_only_public_names_of_the_library(path):
    assert private_imports(path.read_text()) == []


def test_experiments_and_benchmarks_run_without_pydantic_nibabel_and_lightning(tmp_path):
    code = f"""
        import sys
        for name in ("pydantic", "nibabel", "lightning", "joblib", "submitit", "nilearn"):
            sys.modules[name] = None
        import torch
        from dataclasses import replace
        from pathlib import Path
        from deconfound_lab.benchmarks.experiment import run
        from deconfound_lab.harness import run_experiment
        from deconfound_lab.mri.experiment import MriExperiment
        from deconfound_lab.mri.plan import Part, Plan
        from deconfound_lab.synthetic import plan, training
        from deconfound_lab.synthetic.experiment import SyntheticExperiment
        from deconfound_lab.synthetic.plan import Setup
        import deconfound_lab.oasis.experiment, deconfound_lab.demo, deconfound_lab.cli
        plan.TRAINING_IMAGES = training.TRAINING_IMAGES = 40
        setups = [Setup("pmdn", 20, steps=2, seeds=(0,))]
        out = Path({str(tmp_path)!r})
        synthetic = run_experiment(SyntheticExperiment(setups=setups, test_per_group=20), out / "synthetic")
        mri = Plan(
            size=16, people=120, parts=(Part(("pmdn",), (40,), 1),), folds=3, filters=(2, 2, 2, 2), epochs=1,
            least_steps=1, bootstraps=5,
        )
        mri = run_experiment(MriExperiment(plan=mri, cache=out / "cache"), out / "mri")
        bench = run("cpu", ["growth"], quick=True, folder=out / "bench")
        print(synthetic.finished, mri.finished, len(bench["jobs"]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "1", "4"], done.stderr
    assert (tmp_path / "mri" / "maps.png").exists()
    assert not (tmp_path / "mri" / "maps").exists()
