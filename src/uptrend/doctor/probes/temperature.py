"""Whether the temperature leaves groups enough to compare: rollouts that all say the same teach nothing."""

from uptrend.doctor.probes.bench import HIGH, WARNING, Bench
from uptrend.doctor.probes.pass_rates import groups_of
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence

SAME = 0.3
"""A share of different rollouts below which a group hardly varies."""
DEAD = 0.4
TASKS = 8


def probe(bench: Bench) -> Result:
    """Look at what was sampled; where it hardly varies, sample the same tasks at temperature 1."""
    temperature = bench.config.sampling.temperature
    groups = groups_of([*bench.rollouts, *bench.gathered.dropped])
    if not groups.rewards:
        return not_asked("no rollout could be scored")
    dead = sum(groups.dead) / len(groups.rewards)
    figure = f"{groups.distinct:.0%} of a group's rollouts differ at temperature {temperature:g}"
    if temperature >= 1 or groups.distinct > SAME or dead < DEAD:
        return told(figure)
    chosen = list(dict.fromkeys(r.task for r in bench.rollouts if r.task in bench.tasks))[:TASKS]
    warm = groups_of(bench.play([bench.tasks[t] for t in chosen], bench.config.sampling.size, 1.0, "warm"))
    cold = groups_of([r for r in bench.rollouts if r.task in chosen])
    before, after = (sum(g.dead) / max(1, len(g.rewards)) for g in (cold, warm))
    figure += f"; at 1 {warm.distinct:.0%} do, and dead groups go from {before:.0%} to {after:.0%}"
    if after > before - 0.25:
        return told(figure)
    summary = f"Temperature {temperature:g} makes a group's rollouts the same: at 1 fewer groups are dead."
    text = f"dead groups {before:.0%} at {temperature:g}, {after:.0%} at 1 on the same {len(chosen)} tasks"
    return told(figure, [bench.found("sampling.temperature-low", WARNING, HIGH, summary, Evidence(text, dead))])
