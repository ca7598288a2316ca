"""The paper, claim by claim: each statement with our figures beside it, and a verdict that follows from the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from deconfound_lab.harness import Table
from deconfound_lab.harness.page import listed
from deconfound_lab.paper import mri, synthetic
from deconfound_lab.paper.evidence import HOLDS, NOT, OPEN, Evidence, Finding, NotRun
from deconfound_lab.paper.table_two import side_by_side
from deconfound_lab.synthetic.experiment import SyntheticExperiment
from deconfound_lab.synthetic.images import CEILING
from deconfound_lab.synthetic.tables import network_table

CLAIMS: Sequence[tuple[str, str, Callable[[Evidence], Finding]]] = (
    ("3.1", "Without the metadata effect accuracy is 83.33 % at most",
     lambda e: (f"{CEILING:.2%}, from the ranges of the main effect", HOLDS, "with the authors' amplitudes")),
    ("3.1, Fig. 2 right", "Baseline and BatchNorm have an accuracy much greater than 83.3 %", synthetic.above_ceiling),
    ("3.1, Fig. 2 left", "Their dcor² is much higher than that of MDN and PMDN", synthetic.more_left),
    ("3.1, Fig. 2", "MDN's results are inconsistent across batch sizes", synthetic.mdn_varies),
    ("3.1", "With large batches MDN successfully normalises the metadata effect", synthetic.mdn_large),
    ("3.1", "At a batch size of 200 MDN's performance is significantly reduced", synthetic.mdn_at_200),
    ("3.1", "PMDN shows consistent results across all batch sizes", synthetic.consistent),
    ("3.1", "LayerNorm before PMDN gives better generalisation accuracy", synthetic.layer_norm),
    ("1", "MDN takes more training time because of its closed-form solutions", synthetic.time),
    ("1", "MDN's results of training and inference are inconsistent, PMDN's are not", synthetic.train_and_eval),
    ("1", "MDN cannot be trained online, sample by sample; PMDN can", synthetic.online),
    ("1", "MDN cannot be applied to recurrent models and some transformers", synthetic.mdn_elsewhere),
    ("1, abstract", "PMDN can be plugged into any architecture, also recurrent models and transformers",
     synthetic.other_networks),
    ("1", "PMDN can be applied to any number of confounding variables", synthetic.several),
    ("3.2, Table 1", "1,262 people of three sites and four groups", mri.table_one),
    ("3.2", "The blocks have 3, 6, 9 and 6 filters, and their output of 64³ volumes flattens to 2048",
     lambda e: (f"6 filters on 4³ voxels are {6 * 4**3}", NOT,
                "both cannot hold; ours keeps the 2048; the [literal filters](mri-robustness.md) are run beside it")),
    ("3.2, Table 2", "For each batch size PMDN achieves the highest accuracy", mri.highest),
    ("3.2, Table 2", "PMDN's features depend little on the metadata", mri.less_left),
    ("abstract, 4", "PMDN improves accuracy and independence from confounders over MDN", mri.over_mdn),
    ("3.2, Table 2", "A small batch significantly compromises MDN", mri.mdn_small),
    ("3.2, Table 2", "The adversarial method removes sex and site, and age remains", mri.adversarial_age),
    ("3.2, Table 2", "Adversarial components sacrifice accuracy (26 to 28 %)", mri.adversarial_accuracy),
    ("3.2, Fig. 3 left", "In the embedding PMDN shows less clustering by site than MDN", mri.tsne_site),
    ("3.2, Fig. 3 right", "The embedding shows no clear pattern by sex", mri.tsne_sex),
    ("3.2, Fig. 3", "Sites differ in their labels, which explains moderate clustering", mri.labels_of_sites),
)  # fmt: skip

OPENING = """# The paper, claim by claim

Made by `python -m deconfound_lab` from the committed results; do not edit. Each verdict follows from the figures beside
it by a rule in `deconfound_lab/paper`, so it changes with them. "As published" is the paper's formulation (two
passes, two optimisers, LayerNorm) in our own code; the MRIs are [simulated](cohort.md), since the paper's are not
public. All figures: [synthetic](synthetic.md), [MRI](mri.md), [performance](performance.md).

"""
NETWORKS = """## Recurrent networks and transformers

The images of [the synthetic experiment](synthetic.md), read row by row by a GRU, and in 16 patches by a transformer of
two blocks. Layers stand after the GRU or after each block, and after the first fully connected layer. Adam at 1e-3, 600
steps of 20 images or 1,000 of two, three seeds, with and without overlap weights. Accuracy in % with the half width of
its 95 % interval (the ceiling without the confound is 83.3) / accuracy where the confound is independent of the group /
dcor² of the first fully connected layer.

"""
TABLE = """## Table 2, with ours in brackets

Correlations of the logits with the confounds, and accuracy, averaged over folds.

"""


def claims_table(evidence: Evidence) -> Table:
    """Every statement with our figures, the verdict and the reason."""
    found = [[where, statement, *_found(evidence, find)] for where, statement, find in CLAIMS]
    return Table(["paper", "statement", "here", "verdict", "why"], found)


def _found(evidence: Evidence, find: Callable[[Evidence], Finding]) -> Finding:
    try:
        return find(evidence)
    except NotRun:
        return "–", OPEN, "not run with the present code yet"


def paper_page(folder: Path) -> str:
    """`docs/results/paper-claims.md` from the results in `docs/results`."""
    evidence = Evidence.read(folder)
    parts = [OPENING + claims_table(evidence).markdown(), TABLE + side_by_side(evidence.mri).markdown()]
    if evidence.networks.cells:
        made = SyntheticExperiment.page(evidence.networks.content, folder).made
        parts.append("\n\n".join([NETWORKS + network_table(evidence.networks).markdown(), *listed(made)]))
    return "\n\n".join(parts) + "\n"
