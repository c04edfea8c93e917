"""Each planted fault is named first, by the probe that looks for it."""

import pytest
from benchmarks.faults.fault import Strength, policy
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.planted.sampling import TemperatureIgnored

from doctor.probes.benches import CHEAP, ask, bench_of
from uptrend.doctor.probes.run import differential

PROBED = [(fault.id, s) for fault in FAULTS.values() for s in fault.strengths if s.probe]
HERE = [
    ("optimizer.lr-large", Strength("lr 50", settings={"learning.lr": 50}, probe="step-size")),
    # At the recipe's own temperature; the benchmark plants it nearer to 1.
    ("sampling.truncated-distribution", Strength("temperature-ignored", policy(TemperatureIgnored), probe="agreement")),
]


@pytest.mark.parametrize(("id", "fault"), [pytest.param(*given, id=given[1].name) for given in [*PROBED, *HERE]])
def test_a_planted_fault_is_named_first(id: str, fault: Strength, tiny_folder: str) -> None:
    bench = bench_of("tiny.toml", f"model.name={tiny_folder}", settings=fault.settings, alter=fault.alter)
    results = ask(bench, list(dict.fromkeys([*CHEAP, fault.probe])))
    findings = differential(results)
    assert findings, [r.figure for r in results]
    assert (findings[0].id, findings[0].severity != "note") == (id, True), [
        (f.id, f.severity, f.summary) for f in findings
    ]
    assert next(r.name for r in results if id in [f.id for f in r.findings]) == fault.probe
