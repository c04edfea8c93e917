"""How many groups will teach nothing: all wrong, or all right."""

from uptrend.doctor.probes.bench import MEDIUM, WARNING, Bench
from uptrend.doctor.probes.pass_rates import groups_of, predict_dead
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence
from uptrend.stats.intervals import wilson

MANY = 0.5


def probe(bench: Bench) -> Result:
    """Count dead groups by true id and predict them at other sizes."""
    groups = groups_of([*bench.rollouts, *bench.gathered.dropped])
    n = len(groups.rewards)
    if n == 0:
        return not_asked("no rollout could be scored")
    size, low, high = bench.config.sampling.size, sum(groups.dead_low), sum(groups.dead_high)
    predicted = {g: predict_dead(groups, g) for g in dict.fromkeys((size, 16, 32))}
    told_sizes = ", ".join(f"{share:.0%} at {g}" for g, share in predicted.items())
    figure = f"pass rate {groups.pass_rate:.0%}; {sum(groups.dead)} of {n} groups dead ({low} low, {high} high); "
    figure += f"predicted by size: {told_sizes}"
    for count, word, id in ((low, "wrong", "advantage.dead-groups-low"), (high, "right", "advantage.dead-groups-high")):
        if wilson(count, n)[0] > MANY:
            change = "easier tasks, or more rollouts a group" if word == "wrong" else "harder tasks"
            summary = f"{count} of {n} groups are all {word} and teach nothing: this model needs {change}."
            evidence = Evidence(f"pass rate {groups.pass_rate:.1%}; dead groups predicted: {told_sizes}", count / n)
            return told(figure, [bench.found(id, WARNING, MEDIUM, summary, evidence)])
    return told(figure)
