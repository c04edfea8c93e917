"""Numbers on the findings' pages are those of the code: each phrase is looked for with the constant's value in it."""

from importlib import import_module
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "findings"
WORDS = {0.1: "a tenth", 0.2: "a fifth", 0.25: "a quarter", 0.5: "half", 5.0: "five"}

QUOTED = [
    ("advantage.dead-groups-high", "checks.advantages.MOST", "dead_high/share` of {} or more"),
    ("advantage.dead-groups-high", "checks.advantages.NEARLY_ALL", "Critical from {} on"),
    ("advantage.dead-groups-low", "checks.advantages.MOST", "dead_low/share` of {} or more"),
    ("advantage.dead-groups-low", "probes.dead_groups.MANY", "lower end of the interval is above {}"),
    ("context.completion-truncated", "probes.endings.MANY", "ended/length/share` of {} or more"),
    ("context.completion-truncated", "checks.sampling.MANY", "with {} cut is a note"),
    ("context.completion-truncated", "probes.paid.MORE", "{} end by themselves with twice the turns"),
    ("data.duplicates", "probes.repeats.LEAST", "fewer than {} different"),
    ("data.memorized", "checks.data.GAP", "behind by {} or more"),
    ("data.wrong-gold", "probes.wrong_gold.AGREED", "groups that agree ({})"),
    ("data.wrong-gold", "probes.wrong_gold.MANY", "{} of the groups or more"),
    ("kl.reference", "checks.kl.SAME", "above {} in the line of step 1"),
    ("kl.runaway", "checks.kl.FAR", "above {} nat a token"),
    ("kl.runaway", "checks.kl.SPIKE", "a spike above {}"),
    ("kl.strangles", "checks.kl.NEAR", "below {} at the end"),
    ("kl.strangles", "checks.kl.LARGE_BETA", "beta {} or more"),
    ("kl.strangles", "checks.kl.HELD", "a KL below {} where"),
    ("kl.strangles", "checks.kl.WEIGHTY", "beta × KL is {} or more"),
    ("kl.strangles", "checks.kl.RULES", "{} times that of the first step"),
    ("mask.attention-blind", "probes.prompt_swap.STILL", "Less than {} nats is blind"),
    ("optimizer.lr-large", "checks.optimizer.CLIPPED", "clip/high/share` above {}"),
    ("optimizer.lr-large", "probes.step_size.FAR", "more than {} nats"),
    ("optimizer.lr-small", "probes.step_size.LITTLE", "stay below a KL of {}"),
    ("optimizer.lr-small", "probes.step_size.SLOW", "notes less than {} a step"),
    ("optimizer.lr-small", "checks.optimizer.NEAR", "kl/reference/mean` below {} at the end"),
    ("optimizer.lr-small", "checks.optimizer.MOVED", "together below {} of the weights' length"),
    ("optimizer.schedule", "checks.optimizer.USED", "below {} of what was asked for"),
    ("optimizer.schedule", "probes.schedule.LITTLE", "speaks below {}"),
    ("precision.mismatch", "checks.sampler.APART", "sampler/kl/mean` above {}"),
    ("precision.update-underflow", "checks.optimizer.CHANGED_LEAST", "below {} is a fault"),
    ("reward.component-dead", "checks.rewards.DEAD", "below {} of the total"),
    ("reward.component-dominates", "checks.rewards.DOMINANT", "has {} or more of the variance"),
    ("reward.constant", "checks.rewards.CONSTANT_STEPS", "for {} steps or more"),
    ("reward.gold-rejected", "probes.gold.TASKS", "gold answers of {} tasks"),
    ("reward.hackable", "checks.data.GAP", "a gap of {} or more"),
    ("reward.hackable", "probes.cheater.HALF", "on {} of 8 tasks"),
    ("reward.hackable", "probes.cheater.TASKS", "half of {} tasks"),
    ("reward.length-hacking", "checks.rewards.TOGETHER", "rank correlation {})"),
    ("reward.length-hacking", "checks.rewards.ENDED", "less than {} cut"),
    ("reward.length-hacking", "checks.rewards.UNENDED", "until {} are cut"),
    ("reward.never-computed", "probes.paid.NEARLY_ALL", "Where {} do and none"),
    ("reward.never-computed", "probes.paid.SURE", "Critical from {} rollouts on"),
    ("reward.never-computed", "probes.paid.SOME", "where {} would be paid"),
    ("reward.never-computed", "probes.paid.FEW", "a warning from {} on"),
    ("reward.never-computed", "probes.paid.ENOUGH", "a warning from {} rollouts on"),
    ("reward.never-computed", "probes.paid.MORE", "where {} then end by themselves"),
    ("reward.never-computed", "checks.scoring.ENOUGH", "of {} rollouts of several turns"),
    ("reward.strict-parser", "probes.parser.FEW", "More than {} of them right"),
    ("reward.strict-parser", "checks.scoring.NOTED", "the check notes {}"),
    ("reward.strict-parser", "checks.scoring.WARNED", "warns of {}"),
    ("run.resume-jump", "checks.operation.TIMES", "by {} times as much"),
    ("run.resume-jump", "checks.operation.WINDOW", "any of the {} steps"),
    ("run.too-short", "checks.operation.ENOUGH", "is below {}"),
    ("sampling.entropy-collapse", "checks.sampling.GONE", "below {} of its start"),
    ("sampling.entropy-collapse", "checks.sampling.EMPTY", "below {} nats from the start"),
    ("sampling.entropy-collapse", "checks.sampling.NOTED", "Below {} of its start it is a note"),
    ("sampling.few-generations", "probes.group_size.ENOUGH", "at this size and at {}"),
    ("sampling.few-generations", "probes.group_size.MANY", "a share of {} or more here"),
    ("sampling.no-stop", "checks.sampling.NEARLY_ALL", "ended/length/share` of {} or more"),
    ("sampling.temperature-low", "probes.temperature.SAME", "less than {} of a group's rollouts differ"),
    ("sampling.temperature-low", "probes.temperature.DEAD", "{} of groups are dead"),
    ("sync.off-policy", "checks.sampler.FAR", "more than {} updates before"),
    ("sync.off-policy", "checks.sampler.DOUBTFUL", "learner is above {}"),
    ("sync.stale-weights", "checks.sampler.GROWN", "its start and above {}"),
    ("task.evaluator-exposed", "probes.cheater.TASKS", "do its worst on {} tasks"),
]


def spellings(value: float) -> set[str]:
    """Return the ways in which a page may write a number."""
    plain, scientific = f"{value:g}", f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    share = f"{100 * value:g}%"
    return {plain, scientific, share} | ({WORDS[value]} if value in WORDS else set())


def value_of(name: str) -> float:
    module, _, constant = name.rpartition(".")
    return float(getattr(import_module(f"uptrend.doctor.{module}"), constant))


@pytest.mark.parametrize(("id", "constant", "phrase"), QUOTED, ids=lambda x: x if "{" not in x else "")
def test_a_page_quotes_the_code(id: str, constant: str, phrase: str) -> None:
    page = (PAGES / f"{id}.md").read_text(encoding="utf-8")
    ways = {phrase.format(way) for way in spellings(value_of(constant))}
    assert any(way in page for way in ways), f"{id}.md has none of {sorted(ways)}"
