"""How each statistic is called on the page, and how it was made."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """The name of a statistic, its short name on an axis, and one sentence on how it is made."""

    name: str
    axis: str
    made: str


PLAIN_NETWORK = "none"
_LEFT = {
    "residual_dcor_sqr": Words(
        "dcor² beyond the label",
        "dcor²",
        "For numeric labels. Outputs (by their normal scores) and confound lose a smooth curve in the label; the "
        "number is the bias-corrected squared distance correlation of what remains. Its p-value permutes the "
        "confound's remainder among people whose labels lie next to each other. This is the number the verdict rests "
        "on.",
    ),
    "within_group_dcor_sqr": Words(
        "dcor² within label groups",
        "dcor²",
        "Bias-corrected squared distance correlation of the outputs with the confound within each group of "
        "people who share all labels, averaged over the groups (and test folds). Zero in the mean for "
        "independent data, so it may be a little negative. This is the number the verdict rests on.",
    ),
    "dcor_sqr": Words(
        "dcor², all people together",
        "dcor²",
        "The same over all people at once. Where label and confound go together, a perfect model scores "
        "above zero too.",
    ),
    "partial_dcor": Words(
        "partial distance correlation",
        "partial dcor",
        "Distance correlation of outputs and confound after the distances of the labels are taken out "
        "(Székely and Rizzo 2014). Close to, but not the same as, conditional dependence.",
    ),
    "paper_abs_pearson": Words(
        "mean |Pearson| over the outputs",
        "|r|",
        "|Pearson correlation| of a numeric confound with each output, averaged over outputs (and test folds).",
    ),
    "paper_abs_point_biserial": Words(
        "mean |point-biserial| over the outputs",
        "|r|",
        "|Point-biserial correlation| of a two-level confound with each output, averaged over outputs (and "
        "test folds).",
    ),
    "paper_dcor_sqr": Words(
        "mean dcor² over the outputs",
        "dcor²",
        "Bias-corrected dcor² of the one-hot levels with each output, averaged over outputs (and test folds).",
    ),
    "linear_probe_r2": Words(
        "linear probe, R²",
        "R²",
        "Ridge regression of the confound on the outputs, penalty by generalised cross-validation, five "
        "folds by person; R² of the held-out predictions.",
    ),
    "linear_probe_auc": Words(
        "linear probe, AUC",
        "AUC",
        "Ridge regression of each level against the rest on the outputs, penalty by generalised cross-validation, "
        "five folds by person; AUC of the held-out predictions, averaged over levels (the 20 with most rows) and "
        "folds.",
    ),
    "nonlinear_probe_r2": Words(
        "non-linear probe, R²", "R²", "The linear probe on the outputs and 128 random Fourier features of them."
    ),
    "nonlinear_probe_auc": Words(
        "non-linear probe, AUC", "AUC", "The linear probe on the outputs and 128 random Fourier features of them."
    ),
    "partial_confounder_test": Words(
        "partial confounder test",
        "R²",
        "Null: given the label, the outputs do not depend on the confound (Spisak 2022). A small p-value "
        "says confounded. Statistic: mean R² of the outputs on the confound; permutations keep the label.",
    ),
    "full_confounder_test": Words(
        "full confounder test",
        "R²",
        "Null: given the confound, the outputs do not depend on the label (Spisak 2022). A small p-value "
        "says the model knows more than the confound.",
    ),
}
_TABLE = {
    "abs_pearson": Words("|Pearson| with the label", "|r|", "Of confound and label, without any model."),
    "abs_point_biserial": Words("|point-biserial| with the label", "|r|", "Of confound and label, without any model."),
    "correlation_ratio": Words("correlation ratio with the label", "η", "Of confound and label, without any model."),
    "cramers_v": Words("Cramér's V with the label", "V", "Of confound and label, without any model."),
}
_PERFORMANCE = {
    "accuracy": Words("accuracy", "accuracy", "Share of rows for which every label is right."),
    "balanced_accuracy": Words(
        "balanced accuracy", "balanced accuracy", "Accuracy within each label group, averaged over the groups."
    ),
    "auc": Words(
        "AUC", "AUC", "Area under the ROC curve, averaged over labels or classes, and over test folds where given."
    ),
    "r2": Words("R²", "R²", "1 - squared error over variance of the label."),
    "mean_absolute_error": Words("mean absolute error", "error", "Mean distance of prediction and label."),
    "brier_score": Words(
        "Brier score",
        "Brier",
        "Mean squared distance of the probability from the truth, 0 or 1. With several classes or labels: half the sum "
        "over them (Brier's own is the whole sum), which for two classes is the number of one probability.",
    ),
    "calibration_error": Words(
        "calibration error (ECE)",
        "ECE",
        "Expected calibration error: in ten bins of equally many rows, the mean distance of predicted probability and "
        "observed share, averaged over labels or classes. Chance alone makes it larger than zero: its interval holds "
        "the errors that show a number like this one with the chance in these rows.",
    ),
    "equal_error_rate": Words(
        "equal error rate", "error", "Error at the cut where positives are missed as often as negatives are called."
    ),
}
_ACROSS = {
    "auc_within": Words(
        "AUC within strata",
        "AUC",
        "Of pairs of a positive and a negative row of the same stratum (site, say), the share in the right order: a "
        "model cannot gain here by knowing the stratum. All pairs count the same.",
    ),
    "auc_between": Words(
        "AUC between strata", "AUC", "The same for pairs of two strata, where knowing the stratum helps."
    ),
    "share_within": Words(
        "share of pairs within strata",
        "share",
        "AUC = share within × AUC within + (1 - share within) × AUC between, exactly.",
    ),
    "tpr_gap": Words(
        "gap in sensitivity",
        "gap",
        "Largest difference between strata of the share of positives that are called positive. Strata with fewer than "
        "five positives are left out.",
    ),
    "fpr_gap": Words("gap in false alarms", "gap", "The same for negatives that are called positive."),
    "used_outputs": Words(
        "used: share of the outputs that moves",
        "share",
        "Variance of the outputs that goes when the confound's part, fitted beside the label, is erased from the "
        "features, read out by least squares.",
    ),
    "used_auc": Words("used: AUC after erasing", "AUC", "AUC after a share of the confound's part was erased."),
    "used_mean_absolute_error": Words(
        "used: error after erasing", "error", "Mean absolute error after a share of the confound's part was erased."
    ),
}
_INDEPENDENT = {
    f"independent_{name}": Words(
        f"{_PERFORMANCE[name].name}, independent",
        _PERFORMANCE[name].axis,
        "The same under weights of the audited rows that make each label independent of all confounds (overlap "
        "weights; entropy weights for a numeric label): what is gained by knowing the confounds does not count.",
    )
    for name in ("auc", "balanced_accuracy", "accuracy", "r2", "mean_absolute_error")
} | {
    "independent_rows": Words(
        "effective rows, independent", "rows", "(Σ w)² / Σ w²: how many rows of equal weight the weights leave."
    )
}
_CHANGES = {
    f"{name}_difference": Words(
        f"difference in {words.name}",
        f"Δ {words.axis}",
        "This model less the first, on the same people: DeLong's interval for one AUC with one row per person, else a "
        "paired bootstrap over people. It conditions on these trainings.",
    )
    for name, words in {**_PERFORMANCE, **_LEFT}.items()
}
STATISTICS: dict[str, Words] = {**_LEFT, **_TABLE, **_PERFORMANCE, **_INDEPENDENT, **_ACROSS, **_CHANGES}
RESAMPLES = (
    "p-values: the confound is permuted {permutations:,} times (a tenth of that, at least 99, for probes), within "
    "label groups or folds where the statistic is taken within them, and among neighbours of a numeric label; p = (1 "
    "+ permuted values at least as large) / (1 + permutations). People with several rows exchange a confound that "
    "they have once, and shuffle one that varies within them. The shaded level of independent data is the 95 % "
    "quantile of those permuted values; their mean is what the label alone gives. Intervals: 95 % bootstrap over "
    "people ({bootstraps:,} samples), moved so that their mean falls on the value. Holm's correction counts every "
    "verdict of this page. Grades by dcor², where the test rejects at 5 %: faint below .01, weak below .05, clear "
    "below .2, strong above; faint also where only a probe finds something. Seed {seed}."
)


def network_name(model: str) -> str:
    """How a sentence calls a model: the method `none` trains the plain network."""
    return "the plain network" if model == PLAIN_NETWORK else model


def shown(value: float | None, sign: bool = False) -> str:
    """A number with three digits; a dash where there is none."""
    return "–" if value is None else f"{value:{'+' if sign else ''}.3f}".replace("-", "−")
