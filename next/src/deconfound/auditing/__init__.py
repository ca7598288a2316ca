"""Is this model confounded? What is left of confounds, and what the model is worth without them."""

from deconfound.auditing.audit import OnProgress, audit
from deconfound.auditing.audit_result import Audit
from deconfound.auditing.files import audit_files
from deconfound.auditing.formats import format_estimate, format_interval, format_number, format_p
from deconfound.auditing.result import (
    LEAST_POWER,
    About,
    Answer,
    Grade,
    GroupLeak,
    Performance,
    Sensitivity,
    Verdict,
)
from deconfound.auditing.sentences import headline, scores_by_measure

__all__ = [
    "LEAST_POWER",
    "About",
    "Answer",
    "Audit",
    "Grade",
    "GroupLeak",
    "OnProgress",
    "Performance",
    "Sensitivity",
    "Verdict",
    "audit",
    "audit_files",
    "format_estimate",
    "format_interval",
    "format_number",
    "format_p",
    "headline",
    "scores_by_measure",
]
