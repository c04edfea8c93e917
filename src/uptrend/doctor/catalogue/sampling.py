"""Causes: sampling."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix

CAUSES = [
    Cause("sampling.temperature-low", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("sampling.few-generations", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("sampling.entropy-collapse", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("sampling.entropy-explosion", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("sampling.truncated-distribution", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("sampling.no-stop", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("sampling.length-collapse", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
]
