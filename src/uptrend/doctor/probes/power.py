"""The power of the planned run to show a gain, by a one-sided test of a straight rise at 5%."""

import numpy as np

from uptrend.doctor.probes.bench import MEDIUM, NOTE, Bench
from uptrend.doctor.probes.pass_rates import groups_of
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence
from uptrend.stats.trend import points_for, power_of_rise

GAIN = 0.1
"""The gain that a run should be able to show, as a part of the reward's range."""
WANTED, LEVEL = 0.8, 0.05


def probe(bench: Bench) -> Result:
    """The noise of a step's mean reward from what was played, and the power of the planned steps."""
    groups = groups_of([*bench.rollouts, *bench.gathered.dropped])
    means = [float(np.mean(r)) for r in groups.rewards]
    if len(means) < 4:
        return not_asked("too few groups were scored to know the noise")
    span = max(h - low for h, low in zip(groups.highs, groups.lows, strict=True))
    steps, deviation = bench.config.learning.steps, float(np.std(means, ddof=1)) / bench.config.sampling.groups**0.5
    power = power_of_rise(GAIN * span, deviation, steps, LEVEL)
    figure = f"{steps} steps show a rise of {GAIN * span:.2g} in reward with power {power:.0%} (a step's noise: "
    figure += f"{deviation:.2g})"
    if power >= WANTED:
        return told(figure)
    needed = points_for(GAIN * span, deviation, WANTED, LEVEL)
    summary = f"{steps} steps are too few to show a rise of {GAIN:.0%} of the range: power {power:.0%}."
    evidence = Evidence(f"{needed} steps of this size would have {WANTED:.0%}", power)
    return told(figure, [bench.found("run.too-short", NOTE, MEDIUM, summary, evidence)])
