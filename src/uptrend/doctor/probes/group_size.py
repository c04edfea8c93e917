"""Whether groups are large enough for right and wrong to meet in them."""

from uptrend.doctor.probes.bench import MEDIUM, WARNING, Bench
from uptrend.doctor.probes.pass_rates import groups_of, predict_dead
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence

ENOUGH = 16
MANY = 0.5


def probe(bench: Bench) -> Result:
    """Predict dead groups at this size and at 16."""
    size = bench.config.sampling.size
    if size >= ENOUGH:
        return not_asked(f"groups of {size} are large enough to say nothing")
    groups = groups_of([*bench.rollouts, *bench.gathered.dropped])
    if not groups.rewards:
        return not_asked("no rollout could be scored")
    now, then = predict_dead(groups, size), predict_dead(groups, ENOUGH)
    figure = f"predicted dead groups: {now:.0%} of groups of {size}, {then:.0%} of groups of {ENOUGH}"
    if now < MANY or then > now / 2:
        return told(figure)
    summary = f"Groups of {size} are too small: {now:.0%} of them will be all right or all wrong."
    text = f"{then:.0%} would be in groups of {ENOUGH}, at the same pass rate of {groups.pass_rate:.0%}"
    return told(figure, [bench.found("sampling.few-generations", WARNING, MEDIUM, summary, Evidence(text, now))])
