"""Each planted fault is named first, by the probe that looks for it."""

import pytest

from doctor.planted_faults import PLANTED_FAULTS
from doctor.probes.benches import CHEAP, ask, bench_of
from uptrend.doctor.probes.run import differential


@pytest.mark.parametrize("name", [name for name, plant in PLANTED_FAULTS.items() if not plant.tools])
def test_a_planted_fault_is_named_first(name: str, tiny_folder: str) -> None:
    plant = PLANTED_FAULTS[name]
    with plant.plant():
        bench = bench_of("tiny.toml", f"model.name={tiny_folder}", *plant.needs)
        results = ask(bench, [*CHEAP, plant.probe] if plant.probe else CHEAP)
    findings = differential(results)
    assert findings, [r.figure for r in results]
    assert (findings[0].id, findings[0].severity != "note") == (plant.id, True), [
        (f.id, f.severity, f.summary) for f in findings
    ]
