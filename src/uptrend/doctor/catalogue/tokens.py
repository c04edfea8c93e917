"""Causes: tokens."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix

CAUSES = [
    Cause("mask.attention-blind", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("mask.tool-trained", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("mask.model-untrained", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("mask.stop-untrained", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("tokens.retokenised", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("tokens.template", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("tokens.padding", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
]
