"""Is this model confounded? What is left of confounds, and what the model is worth without them."""

from deconfound.auditing.audit import OnProgress, audit
from deconfound.auditing.audit_result import Audit
from deconfound.auditing.files import audit_files
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
]
