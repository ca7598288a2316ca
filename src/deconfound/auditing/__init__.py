"""Results → plain words, figures and one self-contained HTML page; it never trains and never measures."""

from deconfound.auditing.page import render
from deconfound.auditing.records import AuditRow, Verdict
from deconfound.auditing.verdicts import verdict

__all__ = ["AuditRow", "Verdict", "render", "verdict"]
