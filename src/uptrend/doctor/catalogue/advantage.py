"""Causes: advantage."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix

CAUSES = [
    Cause("advantage.dead-groups-low", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("advantage.dead-groups-high", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("advantage.metric-blind", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("advantage.wrong-groups", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("advantage.blow-up", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("advantage.sign", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("advantage.length-bias", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
]
