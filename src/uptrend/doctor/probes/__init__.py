"""Probes: questions to the real model, tasks and learner before anything is trained.

bench     parts of the training loop, one step's rollouts, weights that come back
probe     the decorator, results, and what probes need
data      gold answers, repeats, leaks, order, schedule, prompt lengths
reward    scoring again, shared state, cheaters, rewards that are never paid
tokens    tool calls, the same tokens everywhere, a learner that sees them
sampler   learner, sampler and reference agree, also after new weights
update    one update: masks, advantages, direction and size, gradients, the KL penalty
rollouts  dead groups, parsing, endings, evaluation, power
control   positive controls: a few tasks must be learnable
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from uptrend.doctor.check import rank
from uptrend.doctor.probes import control, data, reward, rollouts, sampler, tokens, update
from uptrend.doctor.probes.bench import Bench, random_state_kept
from uptrend.doctor.probes.probe import Probe, Result
from uptrend.records import Finding

# Modules and the probes in them stand in the order in which they are asked: later probes may take
# for granted what earlier ones show, and of two findings that rank the same the earlier comes
# first.
MODULES = (data, reward, tokens, sampler, update, rollouts, control)
PROBES = {
    found.name: found
    for module in MODULES
    for found in vars(module).values()
    if isinstance(found, Probe)
}


def run_probes(
    bench: Bench, names: Iterable[str], begin: Callable[[str], None] = lambda _: None
) -> Iterator[Result]:
    """Run probes one by one. After each, weights, gradients, random states and mode are as
    before.
    """
    for name in names:
        begin(name)
        began = time.perf_counter()
        with random_state_kept(bench.policy):
            result = PROBES[name].run(bench)
        yield replace(result, seconds=time.perf_counter() - began)


def differential(results: Sequence[Result]) -> tuple[Finding, ...]:
    """Rank all findings: causes first, with their symptoms folded under them."""
    return rank(finding for result in results for finding in result.findings)
