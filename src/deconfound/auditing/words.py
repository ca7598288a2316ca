"""How each statistic is called on the page, and how it was made."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """The name of a statistic, its short name on an axis, and one sentence on how it is made."""

    name: str
    axis: str
    made: str


_LEFT = {
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
        "(Székely and Rizzo 2014); one row per person.",
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
        "five folds by person; AUC of the held-out predictions, averaged over levels and folds.",
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
        "says confounded. Statistic: mean R² of the outputs on the confound; null by conditional "
        "permutation.",
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
}
STATISTICS: dict[str, Words] = {**_LEFT, **_TABLE, **_PERFORMANCE}
RESAMPLES = (
    "p-values: the confound is permuted {permutations:,} times (a tenth of that, at least 39, for probes), "
    "people as a whole and within label groups or folds where the statistic is taken within them; p = (1 + "
    "permuted values at least as large) / (1 + permutations). The shaded level of independent data is the "
    "95 % quantile of those permuted values. Intervals: 95 % bootstrap over people ({bootstraps:,} "
    "samples), moved so that their mean falls on the value. Seed {seed}."
)
