"""Every registered method keeps every promise, and the contract notices those that do not."""

import ast
import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import deconfound.methods
from deconfound.errors import OptionError
from deconfound.methods import METHODS, Method, method
from deconfound.methods.layered import LayerMethod
from tests.methods.contract import CHECKS, answers, problem, trained
from tests.methods.problem import fit, make_network, prepare
from tests.pages import blocks

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", METHODS)
def test_the_contract(name, check):
    CHECKS[check](method(name))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_declared_once_and_described(name):
    kind = method(name)
    assert kind.name == name
    assert kind.summary[0].isalpha()
    assert inspect.getdoc(kind)
    page = "\n".join((ROOT / "docs" / "concepts" / file).read_text() for file in ("methods.md", "other-methods.md"))
    assert f"\n## `{name}`\n" in page
    section = " ".join(page.split(f"\n## `{name}`\n")[1].split("\n## ")[0].split())
    for option, default in kind.options().items():
        assert f"`{option}`" in section, option
        told = re.search(rf"`{option}` \(([\w.]+)\)", section)
        assert not told or told[1] == str(default)
    assert ("Reads the confounds at inference." in section) == kind.reads_confounds


def test_the_table_of_all_methods_says_what_each_needs_and_can():
    page = (ROOT / "docs" / "concepts" / "methods.md").read_text()
    lines = [line for line in page.split("## At a glance")[1].split("\n## ")[0].split("\n") if line.startswith("| `")]
    told = {cells[1]: cells[2:] for cells in ([cell.strip(" `") for cell in line.split("|")] for line in lines)}
    assert set(told) == set(METHODS)
    for name, (needs, new_site, _, weights, cost, _) in told.items():
        kind = method(name)
        assert needs == ("yes" if kind.reads_confounds else "no")
        assert ("`adapt`" in new_site) == (issubclass(kind, LayerMethod) and kind.reads_confounds), name
        assert (new_site == "is refused") == (not kind.takes_new_sites)
        assert (weights == "yes") == kind.takes_weights
        assert ("weight is chosen" in cost) == bool(kind.rungs({}, 100))


def test_every_method_of_the_room_is_registered():
    room = Path(deconfound.methods.__file__).parent
    classes = set()
    for file in room.glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and any(ast.unparse(d) == "final" for d in node.decorator_list):
                classes.add(f"{file.stem}:{node.name}")
    assert classes == set(METHODS.values())


def test_names_and_options_that_are_not_there_get_the_nearest():
    with pytest.raises(OptionError, match=r"method must be one of none, .*; got 'pmnd'\. Did you mean 'pmdn'\?"):
        method("pmnd")
    with pytest.raises(OptionError) as caught:
        prepare("pmdn", problem(), gradints="frozen", colour=1)
    assert "got 'gradints'. Did you mean 'gradient'?" in str(caught.value)
    assert "got 'colour'." in str(caught.value)
    with pytest.raises(OptionError, match="options of method 'none' must be among: none; got 'x'"):
        prepare("none", problem(), x=1)


def test_the_python_blocks_of_the_page_run_from_top_to_bottom():
    namespace = {"__name__": "methods.md"}
    found = blocks(ROOT / "docs" / "concepts" / "methods.md")
    for block in found:
        exec(compile(block.code, "methods.md", "exec"), namespace)
    assert namespace["logits"].shape == (60, 1)
    assert namespace["NoMethod"].prepare(make_network(), problem().setting())(problem().x).shape == (120, 1)


@pytest.mark.parametrize("name", METHODS)
def test_a_training_set_without_rows_is_refused_where_it_is_read(name):
    setting = replace(problem().setting(), training=lambda: iter(()))
    if name in ("none", "last-layer"):
        assert method(name).prepare(make_network(), setting)
        return
    with pytest.raises(OptionError, match="training rows must make at least one batch; got none"):
        method(name).prepare(make_network(), setting)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_whether_it_must_know_the_site(name):
    setting = problem().setting(site=None)
    if not method(name).needs_site:
        assert method(name).prepare(make_network(), setting)
        return
    with pytest.raises(OptionError, match="site must be a categorical confound"):
        method(name).prepare(make_network(), setting)


@pytest.mark.parametrize("name", [name for name in METHODS if "controls_only" in method(name).options()])
def test_controls_only_needs_to_know_the_controls(name):
    blind = replace(problem().setting(), training=lambda: (replace(b, controls=None) for b in problem().batches()))

    def start():
        model = method(name).prepare(make_network(), blind, controls_only=True)
        model.loss(next(iter(blind.training())), nn.functional.binary_cross_entropy_with_logits)

    with pytest.raises(OptionError, match="controls must be known with controls_only=True; got none"):
        start()


@pytest.mark.parametrize("name", [name for name in METHODS if "controls_only" in method(name).options()])
def test_controls_only_does_not_look_at_the_metadata_of_others(name):
    others = problem().target == 1
    garbled = replace(problem(), metadata=torch.where(others, problem().metadata.roll(7, 0), problem().metadata))
    rows = slice(0, 50)

    def learned(of, controls_only):
        model = prepare(name, of, controls_only=controls_only)
        batch = next(iter(of.batches()))
        model.before_step(batch)
        model.loss(batch, nn.functional.binary_cross_entropy_with_logits)
        return answers(model, problem().x[rows], problem().metadata[rows]), model

    (same, ours), (too, theirs) = learned(problem(), True), learned(garbled, True)
    if name == "adversarial":  # its eval reads nothing: what it has learned is in the heads' losses
        batches = [next(iter(of.batches())) for of in (problem(), garbled)]
        same, too = (
            torch.stack(list(m.loss(b, nn.functional.binary_cross_entropy_with_logits).parts.values()))
            for m, b in zip((ours, theirs), batches, strict=True)
        )
    torch.testing.assert_close(same, too)
    if name != "adversarial":
        assert not torch.allclose(learned(problem(), False)[0], learned(garbled, False)[0])


class Broken(Method):
    """Each of the tests below takes away one promise."""

    name = "broken"
    summary = "a method that breaks a promise"
    reads_confounds = False

    def __init__(self, network, setting):
        super().__init__()
        self.model = network
        self.calls = 0

    def forward(self, x, metadata=None):
        return self.model(x)


class ReadsConfoundsInSecret(Broken):
    def forward(self, x, metadata=None):
        return self.model(x) + metadata[:, :1]


class ReadsLabels(Broken):
    reads_confounds = True

    def forward(self, x, metadata=None):
        return self.model(x) + metadata[:, :1] + metadata[:, -1:]


class KeepsStateOutsideTheCheckpoint(Broken):
    def forward(self, x, metadata=None):
        self.calls += self.training
        return self.model(x) + 0.01 * self.calls


class LearnsInEval(Broken):
    def __init__(self, network, setting):
        super().__init__(network, setting)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x, metadata=None):
        self.mean.copy_(x.mean())
        return self.model(x)


class LooksAtTheWholeBatch(Broken):
    def forward(self, x, metadata=None):
        return self.model(x - x.mean(0))


class FailsOnOneRow(Broken):
    def forward(self, x, metadata=None):
        return self.model(x) / (x.std() + x.std(0).mean())


class ForgetsAnOptimizer(Broken):
    def __init__(self, network, setting):
        super().__init__(network, setting)
        self.extra = nn.Parameter(torch.zeros(()))

    def network_parameters(self):
        return list(self.model.parameters())


class KeepsTrainingRows(Broken):
    def __init__(self, network, setting):
        super().__init__(network, setting)
        self.register_buffer("rows", torch.cat([batch.x for batch in setting.training()]))


class NeverTrains(Broken):
    def forward(self, x, metadata=None):
        return self.model(x).detach() + 0 * self.model(x)


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (ReadsConfoundsInSecret, "its_eval_output_reads_the_confounds_exactly_if_it_says_so"),
        (ReadsLabels, "its_eval_output_never_reads_the_labels"),
        (KeepsStateOutsideTheCheckpoint, "a_checkpoint_loads_into_a_method_prepared_on_other_rows"),
        (KeepsStateOutsideTheCheckpoint, "a_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped"),
        (LearnsInEval, "eval_changes_nothing"),
        (LooksAtTheWholeBatch, "its_eval_output_of_a_row_does_not_depend_on_other_rows"),
        (FailsOnOneRow, "batches_of_any_size_train_from_the_smallest_on"),
        (ForgetsAnOptimizer, "every_parameter_has_one_optimizer"),
        (KeepsTrainingRows, "a_checkpoint_loads_into_a_method_prepared_on_other_rows"),
        (KeepsTrainingRows, "a_checkpoint_is_restored_without_training_rows"),
        (NeverTrains, "it_trains_and_the_loss_falls"),
    ],
)
def test_the_contract_notices_a_method_that_breaks_it(kind, check):
    with pytest.raises((AssertionError, RuntimeError)):
        CHECKS[check](kind)


@pytest.mark.parametrize("check", CHECKS)
def test_the_plainest_method_written_from_the_docs_keeps_the_contract(check):
    CHECKS[check](Broken)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_and_answers_on_a_gpu(name):
    on_gpu = replace(
        problem(), x=problem().x.cuda(), metadata=problem().metadata.cuda(), target=problem().target.cuda()
    )
    model = method(name).prepare(make_network(), problem().setting()).cuda()
    fit(model, on_gpu)
    with torch.no_grad():
        assert torch.isfinite(model.eval()(on_gpu.x, on_gpu.metadata)).all()


def test_the_checks_of_one_method_do_not_share_state():
    assert trained(method("none")) is not trained(method("none"))
