"""What a comparison says, in plain sentences with its figures: verdict first, then what limits it."""

from uptrend.lab.foresee import tasks_to_decide
from uptrend.lab.pairs import Pairs
from uptrend.lab.rules import has_own_criteria, towards
from uptrend.lab.units import amount, effect_text, interval_text
from uptrend.records.hypothesis import Comparison, Direction, Hypothesis, Status
from uptrend.stats.comparison import fewest_seeds, mcnemar, outliers
from uptrend.stats.formatting import number, p_value, percent
from uptrend.stats.intervals import likely_deviation, mean_squares, spread_of

CLAIMED = {Direction.UP: "a rise", Direction.DOWN: "a fall", Direction.EITHER: "a difference"}


def tell(h: Hypothesis, pairs: Pairs, comparison: Comparison, by_sequence: bool, *, is_void: bool) -> str:
    """Write the status (unless it is void), the effect with its interval, and what follows."""
    status = "" if is_void else f"{str(comparison.status).capitalize()}: "
    if len(pairs.seeds) == 1:
        return status + _of_two_models(h, pairs)
    head = f"{status}{comparison.arm} against {h.control.name}"
    verdict = f"{head}: {_figures(h, pairs, comparison, by_sequence)}{_meaning(h, comparison)}."
    return " ".join([verdict, *_limits(pairs, comparison), *_needs(h, pairs, comparison)])


def _figures(h: Hypothesis, pairs: Pairs, comparison: Comparison, by_sequence: bool) -> str:
    interval = comparison.interval
    ends = f"{percent(comparison.level, trim=True)} interval {interval_text(h.metric, interval, pairs.sign)}"
    kind = ", confidence sequence" if by_sequence else ""
    count = f"{len(comparison.seeds)} paired seeds"
    return f"{effect_text(h.metric, pairs.sign * interval.effect)} ({ends}{kind}, {count}, p {p_value(comparison.p)})"


def _meaning(h: Hypothesis, comparison: Comparison) -> str:
    """What the interval excludes, after a colon."""
    seen, least = towards(h, comparison.interval), amount(h.metric, h.smallest)
    if has_own_criteria(h):
        return _by_own_criteria(h, comparison.status)
    if comparison.status is Status.INVALIDATED:
        is_small = f"; there is an effect, but smaller than the {least} that matter" if seen["low"] > 0 else ""
        return f": {CLAIMED[h.direction]} of {least} or more is excluded{is_small}"
    if comparison.status is Status.VALIDATED:
        return ""
    return f": neither no effect nor {CLAIMED[h.direction]} of {least} is excluded"


def _by_own_criteria(h: Hypothesis, status: Status) -> str:
    if status is Status.INCONCLUSIVE:
        return f": neither `{h.validated_if}` nor `{h.invalidated_if}` is met"
    return f": `{h.validated_if if status is Status.VALIDATED else h.invalidated_if}` is met"


def _limits(pairs: Pairs, comparison: Comparison) -> list[str]:
    """What the reader must know of the seeds."""
    said, seeds = [], len(comparison.seeds)
    if spread_of(pairs.differences).deviation == 0:
        said.append(
            f"The difference is the same in all {seeds} seeds, so that the sign-flip test stands in for the t test."
        )
    if fewest_seeds(1 - comparison.level) > seeds:
        least = 2 * comparison.sign_flip_least
        said.append(
            f"{seeds} seeds can't bring the exact sign-flip test below {number(least)} two-sided "
            f"({number(comparison.sign_flip_least)} one-sided); {fewest_seeds(1 - comparison.level)} can reach "
            f"{number(1 - comparison.level)}."
        )
    for index in outliers(pairs.differences):
        said.append(
            f"Seed {pairs.seeds[index]} stands apart from the others; look at its runs before you believe this."
        )
    if pairs.broken:
        said.append(f"Left out for want of a figure in one arm: {_seeds(pairs.broken)}.")
    if pairs.waiting:
        said.append(f"Not run: {_seeds(pairs.waiting)}; hence the confidence sequence, which holds whenever one looks.")
    return said


def _needs(h: Hypothesis, pairs: Pairs, comparison: Comparison) -> list[str]:
    """What would decide, where nothing did."""
    if comparison.status is not Status.INCONCLUSIVE:
        return []
    spread, table = spread_of(pairs.differences), pairs.table
    more = None
    if min(table.shape) > 1:
        rest = float(mean_squares(table)[2])
        more = tasks_to_decide(h, spread.mean, likely_deviation(spread), spread.seeds, table.shape[1], rest)
    tasks = f", or {more} held-out tasks with these seeds" if more else ""
    least = f"{CLAIMED[h.direction]} of {amount(h.metric, h.smallest)}"
    power = f"Seeds that deviate like these validate {least} with a chance of {percent(comparison.power, 0)}"
    if comparison.seeds_needed is None:
        return [f"{power}; more than 1,000 would be needed{tasks}."]
    needed, more_seeds = comparison.seeds_needed, comparison.seeds_needed - spread.seeds
    return [f"{power}; if it is as it seems, {needed} seeds ({more_seeds} more) would decide with 80%{tasks}."]


def _of_two_models(h: Hypothesis, pairs: Pairs) -> str:
    """One seed an arm: of these two models something can be said, of the setting nothing."""
    table = pairs.sign * pairs.table[0]
    up, down = int((table > 0).sum()), int((table < 0).sum())
    tasks = f" on {len(table)} tasks" if len(table) else ""
    difference = pairs.treated[0].value - pairs.control[0].value
    effect = effect_text(h.metric, difference)
    compared = f"; higher on {up} and lower on {down} (McNemar p {p_value(mcnemar(up, down))})" if len(table) else ""
    return (
        f"{pairs.arm} against {h.control.name}: {effect}{tasks}, seed {pairs.seeds[0]} alone{compared}. "
        "That is about these two models; of the setting one seed says nothing. Run 5 seeds at least."
    )


def _seeds(seeds: tuple[int, ...]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
