"""Results → plain words, figures and one self-contained HTML page; it never trains and never measures."""

from deconfound.report.page import render
from deconfound.report.records import AuditRow, Verdict
from deconfound.report.verdicts import verdict

__all__ = ["AuditRow", "Verdict", "render", "verdict"]
