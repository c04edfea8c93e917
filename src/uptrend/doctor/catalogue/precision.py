"""Causes: precision."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix

CAUSES = [
    Cause("precision.update-underflow", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("precision.mismatch", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("policy.dropout-on", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("sync.stale-weights", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("sync.partial", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("sync.off-policy", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("sync.prefix-cache", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
]
