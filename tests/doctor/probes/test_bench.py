"""A bench has real parts, and everything is as it was afterwards."""

import random

import numpy as np
import pytest
import torch

from doctor.probes.benches import ALL, TINY, ask, bench_of
from uptrend.doctor.probes import PROBES
from uptrend.doctor.probes.bench import Bench
from uptrend.policy.weights import digest

PENALTY = ("learning.kl.beta=0.05", "learning.skip_dead=false")


@pytest.fixture
def bench(tiny_folder: str) -> Bench:
    return bench_of(TINY, f"model.name={tiny_folder}", *PENALTY)


def state_of(bench: Bench) -> tuple[object, ...]:
    """Everything that a probe may disturb: weights, gradients, the reference, random states, the model's mode."""
    flat, reference = bench.policy.flat, [p.clone().tolist() for p in bench.policy.reference.parameters()]
    chance = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    return digest(flat), bool(flat.gradient.any()), reference, chance, bench.policy.model.training


def test_probes_leave_everything_as_it_was(bench: Bench) -> None:
    before, names = state_of(bench), [name for name in ALL if name != "control"]
    told = [(r.figure, [f.id for f in r.findings]) for r in ask(bench, names)]
    assert state_of(bench) == before
    again = bench_of(TINY, f"model.name={bench.config.model.name}", *PENALTY)
    assert [(r.figure, [f.id for f in r.findings]) for r in ask(again, names)] == told


def test_weights_come_back_when_a_probe_fails_half_way(bench: Bench) -> None:
    before = state_of(bench)

    def fail() -> None:
        with bench.scratch():
            bench.policy.flat.values.data.mul_(2)
            bench.policy.flat.gradient.fill_(1)
            torch.rand(3)
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert state_of(bench) == before


def test_an_update_is_real_and_undone(bench: Bench) -> None:
    before, done = digest(bench.policy.flat), bench.updated
    assert done.moved.changed > 0.99
    real_bs = done.exp.real_bs
    assert float((done.after_bs - done.before_bs)[real_bs].abs().mean()) > 0.05
    assert 0.005 < float((done.nudged_bs - done.before_bs)[real_bs].abs().mean()) < 0.1
    assert digest(bench.policy.flat) == before
    torch.testing.assert_close(bench.logprobs(done.exp), done.before_bs, rtol=0, atol=0, equal_nan=True)


def test_every_probe_declares_what_it_does_and_finds() -> None:
    assert all(name == probe.name and probe.about.endswith(".") and probe.finds for name, probe in PROBES.items())
    assert list(PROBES)[:3] == ["gold", "repeats", "leak"]
    assert sum(probe.cheap for probe in PROBES.values()) == 23
    assert [name for name, probe in PROBES.items() if probe.full] == ["rl-control"]
