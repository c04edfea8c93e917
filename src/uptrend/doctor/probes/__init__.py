"""Probes: controlled experiments on the real model, tasks and learner before anything is trained.

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
from uptrend.doctor.sources import join_sources
from uptrend.records import Finding

# Probes run in the order of this table, and of their modules: a later probe may rely on what an
# earlier one has shown, and of two findings that rank the same the earlier comes first.
PROBE_MODULES = (data, reward, tokens, sampler, update, rollouts, control)


def _collect_probes() -> dict[str, Probe]:
    """Return all probes by name, in the order in which they run."""
    probes: dict[str, Probe] = {}
    for module in PROBE_MODULES:
        for value in vars(module).values():
            if isinstance(value, Probe):
                probes[value.name] = value
    return probes


PROBES = _collect_probes()


def run_probes(
    bench: Bench, names: Iterable[str], started: Callable[[str], None] = lambda _: None
) -> Iterator[Result]:
    """Run probes one by one; `started` receives each name before its probe runs.

    After each probe, weights, gradients, random states and the model's mode are as before.
    """
    for name in names:
        started(name)
        probe = PROBES[name]
        for own_bench in bench.by_source if probe.by_source else [bench]:
            start = time.perf_counter()
            with random_state_kept(bench.policy):
                result = probe.run(own_bench)
            seconds = time.perf_counter() - start
            yield replace(result, seconds=seconds, source=own_bench.source)


def differential(results: Sequence[Result]) -> tuple[Finding, ...]:
    """Rank all findings: causes first, with their symptoms folded under them."""
    findings: list[Finding] = []
    of_sources: dict[str, list[Finding]] = {}
    for result in results:
        if result.source:
            of_sources.setdefault(result.source, []).extend(result.findings)
        else:
            findings += result.findings
    return rank([*findings, *join_sources(of_sources)])
