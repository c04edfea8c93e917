"""Causes: reward."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix

CAUSES = [
    Cause("reward.gold-rejected", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("reward.constant", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("reward.misaligned", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("reward.wrong-length", Kind.INVARIANT, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("reward.strict-parser", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("reward.nondeterministic", Kind.PROBE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("reward.component-dead", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("reward.component-dominates", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("reward.hackable", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("reward.length-hacking", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("reward.scale-moves", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("reward.error-scored", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
    Cause("reward.never-computed", Kind.CURVE, what="", fix=Fix(""), experiment=Experiment("")),
]
