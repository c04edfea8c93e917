"""Causes: task."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix

CAUSES = [
    Cause("tool.errors-swallowed", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("tool.never-called", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("tool.multi-call", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("task.state-leaks", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("task.evaluator-exposed", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
]
