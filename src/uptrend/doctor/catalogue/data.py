"""Causes: data."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix

CAUSES = [
    Cause("data.duplicates", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("data.batch-exceeds", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("data.leak", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("data.wrong-gold", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("data.memorised", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("data.order", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("context.prompt-truncated", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("context.completion-truncated", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
]
