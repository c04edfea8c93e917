"""Causes: operation."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix

CAUSES = [
    Cause("eval.noise", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("eval.unlike-training", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("run.collapsed", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("run.restarts-concatenated", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("config.group-of-one", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("run.resume-jump", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("run.ranks-diverge", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("run.nonfinite", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("run.too-short", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
]
