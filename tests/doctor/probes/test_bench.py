"""What a bench promises: real parts, and everything as it was afterwards."""

import random

import numpy as np
import pytest
import torch

from doctor.probes.benches import ALL, ask, bench_of
from uptrend.doctor.probes import PROBES
from uptrend.doctor.probes.bench import Bench
from uptrend.policy.weights import digest


@pytest.fixture
def bench(tiny_folder: str) -> Bench:
    return bench_of("tiny.toml", f"model.name={tiny_folder}", "learning.kl.beta=0.05", "learning.skip_dead=false")


def states() -> tuple[object, ...]:
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


def test_probes_leave_everything_as_it_was(bench: Bench) -> None:
    flat = bench.policy.flat
    before, chance, bits = digest(flat), states(), flat.values.data.clone()
    reference = [p.clone() for p in bench.policy.reference.parameters()]
    said = [(r.figure, [f.id for f in r.findings]) for r in ask(bench, [n for n in ALL if n != "control"])]
    assert digest(flat) == before
    assert torch.equal(flat.values.data.view(torch.int32), bits.view(torch.int32))
    assert not flat.gradient.any()
    assert states() == chance
    assert bench.policy.model.training is False
    assert all(torch.equal(a, b) for a, b in zip(reference, bench.policy.reference.parameters(), strict=True))
    again = bench_of("tiny.toml", f"model.name={bench.config.model.name}", "learning.kl.beta=0.05",
                     "learning.skip_dead=false")  # fmt: skip
    assert [(r.figure, [f.id for f in r.findings]) for r in ask(again, [n for n in ALL if n != "control"])] == said


def test_weights_come_back_when_a_probe_fails_half_way(bench: Bench) -> None:
    before = digest(bench.policy.flat)

    def fail() -> None:
        with bench.scratch():
            bench.policy.flat.values.data.mul_(2)
            bench.policy.flat.gradient.fill_(1)
            torch.rand(3)
            raise RuntimeError("half way")

    chance = states()
    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert digest(bench.policy.flat) == before
    assert not bench.policy.flat.gradient.any()
    assert states() == chance


def test_an_update_is_real_and_undone(bench: Bench) -> None:
    before = digest(bench.policy.flat)
    done = bench.updated
    assert done.moved.changed > 0.99
    assert float((done.after_bs - done.before_bs)[done.exp.real_bs].abs().mean()) > 0.05
    nudged = float((done.nudged_bs - done.before_bs)[done.exp.real_bs].abs().mean())
    assert 0.005 < nudged < 0.1
    assert digest(bench.policy.flat) == before
    torch.testing.assert_close(bench.logprobs(done.exp), done.before_bs, rtol=0, atol=0, equal_nan=True)


def test_every_probe_says_what_it_asks() -> None:
    assert all(probe.asks.endswith("?") for probe in PROBES.values())
    assert sum(probe.cheap for probe in PROBES.values()) > 15
    assert [name for name, probe in PROBES.items() if probe.full] == ["rl-control"]
