"""Prove that the tests notice faults: plant faults one at a time, and run the test that names each.

Run it by hand in the folder that holds `src` and `tests`; it takes a few minutes on one core:

    python -m tests.mutants

Each mutant is one small replacement in a temporary copy of `src/deconfound`; the sources themselves
are not changed. As a control, all named tests must first pass on an unchanged copy. A mutant is
killed if its test fails, and survives if its test passes. The exit code is 1 if a mutant survives.
A mutant whose text is no longer in its file stops the script: update it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "deconfound"


@dataclass(frozen=True)
class Mutant:
    """A fault, and the test that must fail because of it.

    Attributes:
        name: The fault.
        file: The file within `src/deconfound`.
        before: Text that occurs exactly once in the file.
        after: What replaces it.
        test: The test within `tests`.
    """

    name: str
    file: str
    before: str
    after: str
    test: str


MUTANTS = (
    Mutant(
        "the residual is a sum",
        "layers/arithmetic.py",
        "coefficients, alpha=-scale)",
        "coefficients, alpha=scale)",
        "layers/test_theorems.py::test_mdn_on_all_rows_is_the_least_squares_residual",
    ),
    Mutant(
        "keep columns are subtracted as well",
        "layers/base.py",
        "confounds = matrix[: len(self.design.confound_columns), :directions]",
        "confounds = matrix",
        "layers/test_theorems.py::test_mdn_on_all_rows_is_the_least_squares_residual",
    ),
    Mutant(
        "the intercept is subtracted",
        "layers/base.py",
        "return subtract_effect(x, confounds, beta, self.shape)",
        "return subtract_effect(x - self.beta[-1].detach(), confounds, beta, self.shape)",
        "layers/test_theorems.py::test_pmdn_reaches_least_squares_at_any_batch_size",
    ),
    Mutant(
        "evaluation reads the labels",
        "layers/batch.py",
        "metadata[:, : self.to_confounds.shape[0]] @ self.to_confounds",
        "metadata @ self.to_regressors[:, : self.to_confounds.shape[1]]",
        "layers/test_contract.py::test_in_evaluation_labels_change_no_bit",
    ),
    Mutant(
        "a weight is ignored in the cross product",
        "layers/batch.py",
        "sum_over_processes(self.weighted.T @ features)",
        "sum_over_processes(self.regressors.T @ features)",
        "layers/test_weights.py::test_every_layer_reaches_weighted_least_squares",
    ),
    Mutant(
        "a weight is ignored in the Gram matrix",
        "layers/batch.py",
        "sum_over_processes(weighted.T @ regressors)",
        "sum_over_processes(regressors.T @ regressors)",
        "layers/test_weights.py::test_a_weight_of_two_is_the_row_twice_and_zero_is_no_row",
    ),
    Mutant(
        "MDN divides by the size of the first batch",
        "layers/mdn.py",
        "return cross / positive(batch.rows)",
        "return cross / self.__dict__.setdefault('nominal_rows', batch.rows)",
        "layers/test_theorems.py::test_mdn_on_short_batches_is_equation_4",
    ),
    Mutant(
        "MDN's momentum belongs to the wrong batch",
        "layers/mdn.py",
        "torch.lerp(running, newest, share)",
        "torch.lerp(newest, running, share)",
        "layers/test_theorems.py::test_mdn_on_short_batches_is_equation_4",
    ),
    Mutant(
        "RMDN never forgets",
        "layers/rmdn.py",
        "decayed_rows = rows * (math.log(forgetting) * batch.rows).exp()",
        "decayed_rows = rows",
        "layers/test_theorems.py::test_rmdn_forgets_exponentially_in_rows",
    ),
    Mutant(
        "the penalty pulls on the features",
        "layers/alternating.py",
        "self.pool(x.detach())",
        "self.pool(x)",
        "layers/test_gradients.py::test_the_penalty_of_algorithm_1_reaches_the_coefficients_alone",
    ),
    Mutant(
        "the task loss reaches β",
        "layers/base.py",
        "beta = self.beta[: confounds.shape[1]].detach()",
        "beta = self.beta[: confounds.shape[1]]",
        "layers/test_gradients.py"
        "::test_the_gradient_of_layers_with_constant_coefficients_passes_unchanged",
    ),
    Mutant(
        "line 6 of Algorithm 1 has the wrong sign",
        "layers/pmdn.py",
        "torch.addmm(cross, batch.gram, beta, alpha=-1)",
        "torch.addmm(cross, batch.gram, beta, alpha=1)",
        "layers/test_theorems.py::test_one_pass_with_a_frozen_gradient_is_algorithm_1",
    ),
    Mutant(
        "PMDN moves the intercept together with the others",
        "layers/pmdn.py",
        "batch.gram[:, -1], intercept_step, alpha=-1)",
        "batch.gram[:, -1], intercept_step, alpha=0)",
        "layers/test_theorems.py"
        "::test_pmdn_reaches_least_squares_at_any_batch_size[large mean-200]",
    ),
    Mutant(
        "PMDN's step has no cap",
        "layers/pmdn.py",
        "rate = torch.minimum(1 / (samples + PRIOR_SAMPLES), batch.max_step)",
        "rate = 1 / (samples + PRIOR_SAMPLES)",
        "layers/test_theorems.py::test_a_rare_site_stays_bounded_one_sample_at_a_time",
    ),
    Mutant(
        "PMDN has no prior of 30 samples",
        "layers/pmdn.py",
        "PRIOR_SAMPLES = 30.0",
        "PRIOR_SAMPLES = 0.0",
        "layers/test_theorems.py"
        "::test_the_first_batch_is_shrunk_by_thirty_samples_but_its_mean_is_not",
    ),
    Mutant(
        "PMDN learns from batches that are not finite",
        "layers/pmdn.py",
        "self.beta.copy_(torch.where(is_finite, beta, self.beta))",
        "self.beta.copy_(beta)",
        "attach/test_model.py::test_broken_batches_are_counted_as_skipped",
    ),
    Mutant(
        "the gradient through β has the wrong sign",
        "layers/bilevel.py",
        "layer.cross_moment, layer.shape, scale)",
        "layer.cross_moment, layer.shape, -scale)",
        "layers/test_gradients.py"
        "::test_bilevel_gradient_is_autograd_through_the_closed_form_in_all_layers",
    ),
    Mutant(
        "the gradient through β takes the rows of other people",
        "layers/bilevel.py",
        "batch.weighted[:, : batch.confounds.shape[1]]",
        "batch.weighted[:, : batch.confounds.shape[1]].roll(1, 0)",
        "layers/test_gradients.py"
        "::test_bilevel_gradient_is_autograd_through_the_closed_form_in_all_layers",
    ),
    Mutant(
        "a change of the loss's scale is taken squared",
        "layers/bilevel.py",
        "torch.where(keeps_scale, 1.0, ratio).sqrt()",
        "torch.where(keeps_scale, 1.0, ratio)",
        "layers/test_gradients.py::test_a_loss_times_1000_gives_gradients_times_1000_at_once",
    ),
    Mutant(
        "a checkpointed pass takes the metadata of the newest batch",
        "attach/current_batch.py",
        "output.register_hook(set_batch)",
        "set_batch(output)",
        "attach/test_training.py::test_repeated_forward_passes_use_the_metadata_of_their_own_batch",
    ),
    Mutant(
        "a refit ignores its prior",
        "layers/arithmetic.py",
        "least_squares(Moments(moments.gram, unexplained), prior)",
        "least_squares(Moments(moments.gram, unexplained))",
        "attach/test_refit.py::test_with_a_prior_the_old_coefficients_count_for_so_many_rows",
    ),
    Mutant(
        "a failed refit leaves the first layer refitted",
        "attach/refit.py",
        "restore()\n        raise",
        "raise",
        "attach/test_refit.py::test_an_error_in_the_middle_leaves_all_layers_as_they_were",
    ),
    Mutant(
        "the report ignores the labels",
        "attach/report.py",
        "without = [*labels, len(design.columns)]",
        "without = [len(design.columns)]",
        "attach/test_report.py::test_each_line_is_partial_r2_by_least_squares",
    ),
    Mutant(
        "whitening takes the confounds before the labels",
        "design/whitening.py",
        "used = np.r_[confounds:p, :confounds]",
        "used = np.r_[:confounds, confounds:p]",
        "design/test_whitening.py::test_residual_is_that_of_least_squares",
    ),
    Mutant(
        "a spline continues as a cube",
        "design/columns.py",
        "inside = np.minimum(x, last)",
        "inside = x",
        "design/test_terms.py::test_spline_is_straight_beyond_the_outer_knots",
    ),
    Mutant(
        "overlap weights are those of the other class",
        "design/balance.py",
        "softmax(-log_shares, axis=1)",
        "softmax(log_shares, axis=1)",
        "design/test_balance.py::test_overlap_weights_balance_two_classes_exactly",
    ),
    Mutant(
        "levels without weight stay without",
        "design/balance.py",
        "design_weight[levels == level] = 1.0",
        "row_weight[levels == level] = 0.0",
        "design/test_balance.py::test_site_without_a_class_has_weight_zero_and_is_named",
    ),
    Mutant(
        "validation rows are judged without a refit",
        "training/loop.py",
        "with nullcontext() if refitting is None else method.refitted(refitting):",
        "with nullcontext():",
        "training/test_loop.py::test_the_loop_is_the_one_written_by_hand",
    ),
    Mutant(
        "the last state is kept, not the best one",
        "training/loop.py",
        "    method.load_state_dict(progress.best_state)\n",
        "",
        "training/test_loop.py::test_patience_and_epochs_end_a_training_and_the_best_state_is_kept",
    ),
    Mutant(
        "a resumed training draws other dropout",
        "training/loop.py",
        "torch.manual_seed(mix_seeds(self.seed, start, rank))",
        "torch.seed()",
        "training/test_loop.py::"
        "test_a_stopped_training_goes_on_with_the_numbers_of_an_undisturbed_one",
    ),
    Mutant(
        "a resumed training forgets the momenta of its optimiser",
        "training/loop.py",
        "        for name, one in self._stateful.items():\n"
        "            one.load_state_dict(state[name])",
        '        for name in ("method", "progress"):\n'
        "            self._stateful[name].load_state_dict(state[name])",
        "training/test_loop.py::"
        "test_a_stopped_training_goes_on_with_the_numbers_of_an_undisturbed_one",
    ),
    Mutant(
        "rows are drawn without their weights",
        "training/part.py",
        "weights = self._draw.double()",
        "weights = torch.ones(len(self))",
        "training/test_part.py::test_rows_are_drawn_by_their_weights",
    ),
    Mutant(
        "inputs are scaled by all rows",
        "training/fold.py",
        "inputs = Inputs.from_rows(samples.x, train_rows)",
        "inputs = Inputs.from_rows(samples.x, np.arange(len(samples)))",
        "training/test_fold.py::test_test_rows_and_their_labels_change_nothing_that_is_fitted",
    ),
    Mutant(
        "probabilities are those of the drawn rows",
        "training/model.py",
        "values = logits.numpy() + self.shift",
        "values = logits.numpy()",
        "training/test_fold.py::test_overlap_weights_shift_the_outputs_to_the_share_of_cases",
    ),
    Mutant(
        "pairs of different strata are ranked",
        "training/ranking.py",
        "is_pair = case.stratum[:, None] == controls.stratum[None]",
        "is_pair = torch.ones(len(case.stratum), len(controls.stratum))",
        "training/test_ranking.py",
    ),
    Mutant(
        "the adversary helps the heads",
        "methods/adversarial.py",
        "return constant - weight.to(features) * (features - constant)",
        "return constant + weight.to(features) * (features - constant)",
        "methods/test_adversarial.py",
    ),
    Mutant(
        "people who were seen at the left-out site stay",
        "training/splits.py",
        'rest = rows[~rows["person"].isin(people)]',
        "rest = rows[~is_test]",
        "training/test_splits.py",
    ),
)


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on one core, where the copy in `folder` hides the installed package.

    No compiled files are written, because they could outlive the mutant that they belong to.
    """
    own = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | own, capture_output=True, text=True)


def run_tests(folder: Path, tests: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run tests, also slow ones, against the copy in `folder`; stop at the first failure."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]
    return run_python(folder, "-m", "pytest", *options, *[f"tests/{test}" for test in tests])


def check_control(folder: Path) -> None:
    """Stop unless the copy is what tests import, and all named tests pass on it."""
    imported = run_python(folder, "-c", "import deconfound; print(deconfound.__file__)")
    expected = folder / "deconfound" / "__init__.py"
    if Path(imported.stdout.strip()) != expected:
        sys.exit(f"Tests must import {expected}; got {imported.stdout}{imported.stderr}.")
    result = run_tests(folder, dict.fromkeys(mutant.test for mutant in MUTANTS))
    if result.returncode:
        sys.exit(f"The tests must pass on the unchanged copy.\n{result.stdout}{result.stderr}")


def make_replacement(mutant: Mutant, folder: Path) -> str:
    """Return the text of the mutant's file with the replacement made."""
    path = folder / "deconfound" / mutant.file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    count = text.count(mutant.before)
    if count != 1:
        sys.exit(
            f"The mutant {mutant.name!r} is out of date: {mutant.before!r} must occur once in "
            f"{mutant.file}; it occurs {count} times. Update the mutant."
        )
    return text.replace(mutant.before, mutant.after)


def is_killed(mutant: Mutant, folder: Path) -> bool:
    """Plant a mutant in the copy, run its test, and undo the replacement."""
    path = folder / "deconfound" / mutant.file
    original = path.read_text(encoding="utf-8")
    path.write_text(make_replacement(mutant, folder), encoding="utf-8")
    result = run_tests(folder, [mutant.test])
    path.write_text(original, encoding="utf-8")
    has_failed = "\nFAILED tests/" in result.stdout
    # Neither passed nor failed: an unknown test, a broken fixture, or a package that is not Python.
    if result.returncode and not has_failed:
        sys.exit(f"No test ran for {mutant.name!r}.\n{result.stdout}{result.stderr}")
    return has_failed


def main() -> int:
    """Plant all mutants and print a line for each; return the exit code."""
    survivors = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCES, folder / "deconfound", ignore=ignored)
        for mutant in MUTANTS:
            make_replacement(
                mutant, folder
            )  # Stops before the tests run if a mutant is out of date.
        check_control(folder)
        print("control: all named tests pass on the unchanged copy", flush=True)
        for mutant in MUTANTS:
            verdict = "killed" if is_killed(mutant, folder) else "SURVIVED"
            survivors += verdict == "SURVIVED"
            print(f"{verdict:8}  {mutant.name}: {mutant.test}", flush=True)
    print(f"{len(MUTANTS) - survivors} of {len(MUTANTS)} mutants killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
