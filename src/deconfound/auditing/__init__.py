"""Audits: outputs and a table → what is left of each confound → verdicts → one self-contained page."""

from deconfound.auditing.comparison_page import comparison_page
from deconfound.auditing.comparison_words import comparison_sentences
from deconfound.auditing.embedding import embed
from deconfound.auditing.html import Markup, html_page, html_table, png_figure, safe, section
from deconfound.auditing.intake import directed
from deconfound.auditing.joined import audit_files
from deconfound.auditing.main import audit
from deconfound.auditing.records import AuditRow, Embedding, Note, Verdict
from deconfound.auditing.result import Audit
from deconfound.auditing.trainings import TrainingProblem, training_problems

__all__ = [
    "Audit",
    "AuditRow",
    "Embedding",
    "Markup",
    "Note",
    "TrainingProblem",
    "Verdict",
    "audit",
    "audit_files",
    "comparison_page",
    "comparison_sentences",
    "directed",
    "embed",
    "html_page",
    "html_table",
    "png_figure",
    "safe",
    "section",
    "training_problems",
]
