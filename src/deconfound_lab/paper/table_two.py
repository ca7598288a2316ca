"""The paper's Table 2, and ours beside it."""

from __future__ import annotations

from collections.abc import Mapping

from deconfound_lab.harness import Table
from deconfound_lab.mri.results import Results

# The paper's Table 2, by batch size and arm: correlation with age, sex and site, and accuracy.
TABLE_TWO: Mapping[int, Mapping[str, tuple[float, float, float, float]]] = {
    20: {"baseline": (.431, .209, .388, .488), "bn": (.382, .237, .312, .440), "adversarial": (.408, .154, .086, .265),
         "mdn": (.235, .172, .132, .412), "pmdn-paper": (.213, .141, .155, .513)},
    80: {"baseline": (.461, .259, .402, .497), "bn": (.374, .220, .285, .421), "adversarial": (.385, .214, .127, .258),
         "mdn": (.225, .189, .126, .412), "pmdn-paper": (.208, .187, .172, .507)},
    160: {"baseline": (.488, .199, .431, .450), "bn": (.384, .268, .293, .451), "adversarial": (.543, .094, .166, .268),
          "mdn": (.241, .174, .160, .456), "pmdn-paper": (.199, .188, .149, .507)},
    240: {"baseline": (.488, .226, .456, .435), "bn": (.369, .225, .275, .422), "adversarial": (.382, .172, .110, .278),
          "mdn": (.185, .173, .137, .462), "pmdn-paper": (.180, .166, .158, .519)},
}  # fmt: skip


def side_by_side(results: Results) -> Table:
    """The paper's Table 2 with ours in brackets."""
    arms = list(TABLE_TWO[20])
    lines = []
    for batch, theirs in TABLE_TWO.items():
        for index, (title, name) in enumerate((("Age", "age"), ("Sex", "sex"), ("Site", "site"), ("Accuracy", ""))):
            cells = []
            for arm in arms:
                form = ".3f" if name else ".1%"
                if (own := results.find(batch, arm, "as trained")) is None:
                    cells.append(f"{theirs[arm][index]:{form}} (–)")
                    continue
                value = own.marginal(name).mean if name else own.accuracy.mean
                cells.append(f"{theirs[arm][index]:{form}} ({value:{form}})")
            lines.append([str(batch), title, *cells])
    return Table(["batch", "measure", *(results.title(arm) for arm in arms)], lines)
