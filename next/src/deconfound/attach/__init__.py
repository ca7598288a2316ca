"""Attach layers to a network that exists already: select modules, plan, insert, remove."""

from deconfound.attach.collect import Collector, collect
from deconfound.attach.model import NormalizedModel
from deconfound.attach.normalize import normalize, plan
from deconfound.attach.plan import InsertionPoint, Plan
from deconfound.attach.report import Report
from deconfound.attach.select import select_modules

__all__ = [
    "Collector",
    "InsertionPoint",
    "NormalizedModel",
    "Plan",
    "Report",
    "collect",
    "normalize",
    "plan",
    "select_modules",
]
