"""Causes: optimiser."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix

CAUSES = [
    Cause("optimiser.lr-small", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("optimiser.lr-large", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("optimiser.clip-tight", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("optimiser.schedule", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("optimiser.skipped-updates", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("optimiser.frozen", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("optimiser.accumulation", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("optimiser.dead-steps", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
]
