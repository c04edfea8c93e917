"""Running probes on a bench, one after another, and putting what they found in the order of causes."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from uptrend.doctor.probes import PROBES
from uptrend.doctor.probes.bench import Bench
from uptrend.doctor.probes.keep import steady
from uptrend.doctor.probes.result import Result
from uptrend.doctor.rank import rank
from uptrend.records import Finding


def run_probes(bench: Bench, names: Iterable[str], begin: Callable[[str], None] | None = None) -> Iterator[Result]:
    """Each probe's result as it comes; weights, gradients, random states and mode are as before after each."""
    for name in names:
        if begin is not None:
            begin(name)
        began = time.perf_counter()
        with steady(bench.policy):
            result = PROBES[name].ask(bench)
        yield replace(result, name=name, seconds=time.perf_counter() - began)


def differential(results: Sequence[Result]) -> tuple[Finding, ...]:
    """All findings, causes first, symptoms folded under them; what ties goes in the order of the probes."""
    return rank(finding for result in results for finding in result.findings)
