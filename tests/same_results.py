"""Whether a change of code changes no result: two versions train the same small networks, and every bit is compared.

`python -m tests.same_results COMMIT` compares that commit with the code here, in twenty minutes on one core, and writes
what it found for the pages of results (`deconfound_lab/harness/same_results.json`); they then say so where they would
otherwise say "made with older code". Everything is trained several times over: as on a CPU; as on a GPU, where no code
looks at a number and products are taken as a whole, with torch's own operations; and the layers also as on a GPU with
the kernels, in Triton's interpreter. Results of a CPU stand by the first, those of a GPU by the others.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "src" / "deconfound_lab" / "harness" / "same_results.json"
WAYS = ("cpu", "gpu without kernels", "gpu with kernels")
LAYERS = {
    "pmdn": ("pmdn", {}),
    "pmdn, frozen": ("pmdn", {"gradient": "frozen"}),
    "pmdn, average": ("pmdn", {"step": "average"}),
    "pmdn, fixed step": ("pmdn", {"step": 0.1}),
    "mdn": ("mdn", {}),
    "mdn, training table": ("mdn", {"gram": "training"}),
    "mdn, batch": ("mdn", {"gram": "batch"}),
    "rmdn": ("rmdn", {}),
    "erase": ("erase", {}),
}
# How the rows of a training are fed: their number in a batch, the sites (one column each), and what is special.
FEEDS = {
    "batches of 20": (20, 3, ""),
    "single rows": (1, 3, ""),
    "batches of 64": (64, 3, ""),
    "20 sites": (20, 20, ""),
    "40 sites": (64, 40, ""),
    "weights": (20, 3, "weights"),
    "controls": (20, 3, "controls"),
    "a loss that jumps": (20, 3, "jump"),
    "a feature that is not finite": (20, 3, "infinite"),
}
# Its warm-up is longer than the trainings of experiments here.
ADVERSARIAL = "adversarial"
METHODS = ("none", "batchnorm", "mdn", "rmdn", "pmdn", "erase", "adversarial", "dependence", "last-layer", "combat")


def trainings(way):
    """Names of all that is trained in one way, and functions that train it."""
    few = way == WAYS[2]  # the interpreter is slow
    for network in ("rows", "channels", "images", "images, channels last"):
        for layer in ("pmdn", "pmdn, frozen", "rmdn") if few else LAYERS:
            for feed in FEEDS if network == "rows" and not few else ("batches of 20", "weights"):
                yield f"{network}, {layer}, {feed}", partial(trained, network, layer, feed, 3 if few else 14)
    if not few:
        for balance in ("none", "overlap"):
            yield f"compare on a table, balance {balance}", partial(compared, balance)
        yield "synthetic images", synthetic
        yield "simulated MRIs", mri


def trained(kind, layer, feed, steps):
    """The digest of every number that a small network gives, and of its state at the end, refitted."""
    import torch

    import deconfound as dc

    batch, sites, special = FEEDS[feed]
    torch.manual_seed(0)
    n = max(40, steps * batch + batch // 2)  # the last batch is short
    label = torch.randint(0, 2, (n,))
    names = [f"site {number % sites}" for number in range(n)]
    table = {"age": (60 + 9 * torch.randn(n) + 4 * label).numpy(), "site": names, "dx": label.numpy()}
    design = dc.Design(confounds=["age", "site"], keep=["dx"]).fit(table)
    rows = torch.from_numpy(design.encode(table))
    model, inputs = _network(kind, n, design, LAYERS[layer])
    inputs = inputs + rows[:, :1].reshape(-1, *[1] * (inputs.ndim - 1))
    weight = torch.rand(n) * 2 if special == "weights" else None
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    digest = hashlib.sha256()
    for step, chosen in enumerate(torch.randperm(n).split(batch)):
        x = inputs[chosen]
        if special == "infinite" and step == 3:
            x[0] = float("nan")
        options = {} if weight is None else {"weight": weight[chosen]}
        if special == "controls":
            options["fit_on"] = label[chosen] == 0
        logits = model(x, metadata=rows[chosen], **options).flatten(1).mean(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, label[chosen].float())
        optimizer.zero_grad()
        (loss * (1000 if special == "jump" and step > 3 else 1)).backward()
        if special != "infinite" or step != 3:
            optimizer.step()
        _take(digest, logits, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the batch that was skipped
        model.eval()
    _take(digest, model(inputs, metadata=rows))
    if layer != "erase":
        model.refit([(inputs, rows)])
    _take(digest, model(inputs, metadata=rows), *_learned(model))
    return digest.hexdigest()


def _network(kind, n, design, layer):
    import torch
    from torch import nn

    import deconfound as dc

    name, options = layer
    if kind == "rows":
        network, inputs = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 1)), torch.randn(n, 12)
        at = ["0"] if name == "erase" else ["0", "2"]
    else:
        network = nn.Sequential(nn.Conv2d(1, 48, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48 * 16, 1))
        inputs, at = torch.randn(n, 1, 6, 6), ["0"]
    if kind == "channels":
        options = {**options, "share": "positions"}
    if kind.endswith("last"):
        network, inputs = network.to(memory_format=torch.channels_last), inputs.to(memory_format=torch.channels_last)
    model = dc.normalize(network, design, at=at, layer=name, example=inputs[:2], **options)
    return model.train(), inputs


def compared(balance):
    """The digest of all predictions of a comparison of methods on the heart table."""
    import deconfound as dc

    with tempfile.TemporaryDirectory() as folder:
        config = {
            "data": {
                "source": str(dc.example("heart")),
                "label": "HeartDisease",
                "id": "id",
                "missing_features": "mean",
            },
            "design": {"confounds": ["Age", "sex", "dataset"], "site": "dataset"},
            "network": {"name": "mlp", "options": {"hidden": [16]}},
            "training": {"epochs": 3, "patience": None, "accelerator": "cpu", "balance": balance},
            "splits": {"folds": 2},
            "run": {"folder": folder, "audit": False},
            "compare": {"methods": [name for name in METHODS if balance == "none" or name != "combat"], "seeds": [0]},
        }
        dc.compare(config)
        digest = hashlib.sha256()
        for path in sorted(Path(folder).rglob("predictions.csv")):
            digest.update(f"{path.relative_to(folder)}".encode() + path.read_bytes())
        return digest.hexdigest()


def synthetic():
    """The digest of the synthetic experiment in small."""
    from deconfound_lab.synthetic.experiment import SyntheticExperiment
    from deconfound_lab.synthetic.plan import METHODS, Setup

    arms = [(method, False) for method in METHODS if method != ADVERSARIAL] + [("none", True), ("pmdn", True)]
    setups = [Setup(method, 20, lr=1e-3, steps=15, seeds=(0,), balanced=balanced) for method, balanced in arms]
    return of_cells(SyntheticExperiment(setups=setups, test_per_group=50))


def mri():
    """The digest of the MRI experiment in small, with every arm of its plan."""
    from deconfound_lab.mri.experiment import MriExperiment
    from deconfound_lab.mri.plan import EVERY, Part, Plan

    size = {"size": 16, "people": 240, "folds": 3, "filters": (2, 2, 2, 20)}
    arms = tuple(arm for arm in EVERY if not arm.startswith(ADVERSARIAL))
    plan = Plan(parts=(Part(arms, (40,), 1),), epochs=1, least_steps=1, bootstraps=10, **size)
    with tempfile.TemporaryDirectory() as cache:
        return of_cells(MriExperiment(plan=plan, cache=cache))


def of_cells(experiment):
    """The digest of all that the cells of an experiment compute, but for how long it took."""
    from deconfound_lab.harness.experiment import Signals

    def timeless(value):
        if isinstance(value, dict):
            return {name: timeless(part) for name, part in value.items() if "seconds" not in name}
        return [timeless(part) for part in value] if isinstance(value, list | tuple) else value

    found = [timeless(experiment.compute(cell, Signals())) for cell in experiment.cells()]
    return hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()


def _take(digest, *tensors):
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).numpy().tobytes())


def _learned(model):
    return [value for name, value in sorted(model.state_dict().items()) if not name.endswith("_extra_state")]


def numbers(way):
    """What the code that this process imports gives, and the digests of what results depend on."""
    import torch

    import deconfound.cli.fit  # noqa: F401  (every room)
    from deconfound_lab.harness.provenance import code_digest
    from deconfound_lab.mri.experiment import MriExperiment
    from deconfound_lab.synthetic.experiment import SyntheticExperiment

    torch.set_num_threads(1)
    if way != WAYS[0]:
        for module in [module for name, module in sys.modules.items() if name.startswith("deconfound")]:
            if hasattr(module, "on_host"):
                module.on_host = lambda tensor: False
            if hasattr(module, "BLOCK_BYTES"):  # of versions that went by parts on a CPU without asking on_host
                module.BLOCK_BYTES = 2**60
    found = {}
    for name, train in trainings(way):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[name] = train()
    compared = (SyntheticExperiment, MriExperiment)
    code = {"+".join(kind.modules): code_digest(kind.modules) for kind in compared}
    return {"code": code, "numbers": found}


def of_tree(source, way):
    """What the code in a folder gives, in a process of its own."""
    kernels = {"TRITON_INTERPRET": "1"} if way == WAYS[2] else {"DECONFOUND_KERNELS": "0"}
    environment = {**os.environ, **kernels, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, way]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def main(commit):
    """Compare, write how many are equal in each way, and end with an error that names those that are not."""

    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout

    differing, ways = [], {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=git("archive", commit, "src"), check=True)
        for way in WAYS:
            before, after = of_tree(Path(folder) / "src", way), of_tree(ROOT / "src", way)
            names = before["numbers"].keys() | after["numbers"].keys()
            bad = [name for name in sorted(names) if before["numbers"].get(name) != after["numbers"].get(name)]
            differing += [f"{way}: {name}" for name in bad]
            ways[way] = {"trainings": len(names), "equal": len(names) - len(bad)}
            print(f"{way}: {len(names) - len(bad)} of {len(names)} trainings are equal", flush=True)
    compared = git("rev-parse", commit).decode().strip()
    record = {"commit": compared, "ways": ways, "before": before["code"], "after": after["code"]}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if differing:
        raise SystemExit("\n".join(["the two give different numbers:", *differing]))


if __name__ == "__main__":
    if sys.argv[1] in WAYS:
        print(json.dumps(numbers(sys.argv[1])))
    else:
        main(sys.argv[1])
