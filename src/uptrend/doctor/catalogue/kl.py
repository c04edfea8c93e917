"""Causes: kl."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix

CAUSES = [
    Cause("kl.sign", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("kl.reference", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("kl.strangles", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("kl.runaway", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("kl.dead-group-pull", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
]
