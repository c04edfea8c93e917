"""Perturb the learner, synchronize: the sampler must follow, wholly, and come back.

After noise on every weight and a synchronization, tokens are drawn anew and scored by the learner. Agreement to
rounding means that every tensor came over. Where they disagree, kinds of tensors are perturbed one at a time.
"""

import itertools
import re
from collections.abc import Collection
from dataclasses import dataclass

import torch

from uptrend.doctor.probes.agreement import gap_of
from uptrend.doctor.probes.bench import CRITICAL, HIGH, Bench
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence, Finding, Task
from uptrend.tasks.taskset import Taskset

NEAR_FP32, NEAR_BF16 = 2e-4, 0.1  # seen on healthy models: up to 4e-6 on a CPU, 0.046 on an H200
STRENGTH = 0.03
"""The noise on a tensor as a part of its weights' typical size."""
ENOUGH = 0.3
"""Nats that outputs should move by, so that a sampler left behind shows."""
FOLLOWED = 5e-4
"""Gap / movement below which the sampler followed: rounding leaves 1e-6, MLPs that are left behind 2e-3 to 0.2."""
TASKS, SIZE = 2, 2
BLOCK = 999_983
"""Numbers of noise, used over and over; a prime, so that no two rows of a matrix get the same."""

Plays = list[tuple[Task, Taskset]]


@dataclass(frozen=True)
class _Heard:
    """How far the sampler is from the learner after a synchronization, in nats."""

    known: float
    """On prompts that it had read before."""
    fresh: float
    """On prompts that it had not."""
    apart: float
    """On all tokens."""
    moved: float
    """How far the learner itself moved on the same tokens."""


def probe(bench: Bench) -> Result:
    """Noise, synchronization, comparison; then back again."""
    if not bool(bench.exp.real_bs.any()):
        return not_asked("nothing was sampled")
    near = bench.near(NEAR_FP32, NEAR_BF16)
    listener = _Listener(bench)
    start_gap = gap_of(bench.logprobs_bs, bench.exp.sampler_bs, bench.exp.real_bs).mean
    if start_gap > near:
        return _moves_at_all(bench, listener.known)
    heard = listener.listen()
    findings = _findings(bench, heard, listener, near + 2 * start_gap)
    back = bench.play(listener.known, SIZE, bench.config.sampling.temperature, "probe")
    exp = bench.experience(back)
    back_gap = gap_of(bench.logprobs(exp), exp.sampler_bs, exp.real_bs).mean
    if not findings and back_gap > near + 2 * start_gap:
        findings = [_stale(bench, back_gap, "after the weights were put back")]
    figure = f"noise moves the learner by {heard.moved:.2g} nats; once synchronized, the sampler is "
    figure += f"{max(heard.known, heard.fresh):.1e} from it (below {near:g}), and {back_gap:.1e} once put back"
    return told(figure, findings)


def _moves_at_all(bench: Bench, known: Plays) -> Result:
    """Where the two disagree from the start, only a sampler that nothing moves can be told."""
    before = bench.play(known, SIZE, bench.config.sampling.temperature, "probe")
    with bench.scratch():
        _perturb(bench, set(), 10 * STRENGTH)
        bench.synchronize(version=1)
        after = bench.play(known, SIZE, bench.config.sampling.temperature, "probe")
    said = [
        [(s.ids.tolist(), s.sampler[s.sampled].tolist()) for r in rs for s in r.sequences] for rs in (before, after)
    ]
    if said[0] != said[1]:
        return not_asked("learner and sampler disagree before anything is sent")
    return told(
        "noise on every weight changes nothing that the sampler says", [_stale(bench, 0.0, "after strong noise")]
    )


class _Listener:
    """Tasks whose prompts the sampler has read, and ever others that it has not."""

    def __init__(self, bench: Bench) -> None:
        played = dict.fromkeys(r.task for r in bench.rollouts if r.task in bench.tasks)
        self.bench, self.known = bench, [bench.tasks[task] for task in played][:TASKS]
        others = [found for task, found in bench.tasks.items() if task not in played]
        self._others = itertools.cycle(others or self.known)

    def listen(self, kinds: Collection[str] = (), strength: float = STRENGTH) -> _Heard:
        """Perturb (some kinds of tensors, or all), synchronize, sample, and compare; stronger until it shows."""
        heard = self._listen(kinds, strength)
        while heard.moved < ENOUGH and strength < 1:
            strength *= 4
            heard = self._listen(kinds, strength)
        return heard

    def _listen(self, kinds: Collection[str], strength: float) -> _Heard:
        bench, fresh = self.bench, list(itertools.islice(self._others, TASKS))
        with bench.scratch():
            _perturb(bench, kinds, strength)
            bench.synchronize(version=1)
            rollouts = bench.play([*self.known, *fresh], SIZE, bench.config.sampling.temperature, "probe")
            exp = bench.experience(rollouts)
            now_bs = bench.logprobs(exp)
        is_known = (exp.rollouts_b < len(self.known) * SIZE)[:, None]
        parts = (is_known, ~is_known, torch.ones_like(is_known))
        known, new, apart = (gap_of(now_bs, exp.sampler_bs, exp.real_bs & part).mean for part in parts)
        return _Heard(known, new, apart, float((bench.logprobs(exp) - now_bs)[exp.real_bs].abs().nanmean()))


def _perturb(bench: Bench, kinds: Collection[str], strength: float) -> None:
    flat = bench.policy.flat
    chance = torch.Generator(flat.values.device).manual_seed(0)
    noise = torch.randn(BLOCK, generator=chance, device=flat.values.device)
    for slot in flat.slots:
        if kinds and _kind(slot.name) not in kinds:
            continue
        stretch = flat.values.data[slot.start : slot.start + slot.shape.numel()]
        size = float(stretch[:BLOCK].float().square().mean().sqrt()) or 0.3  # an adapter's B begins at 0
        for part in torch.split(stretch, BLOCK):
            part.add_((strength * size * noise[: len(part)]).to(part.dtype))


def _findings(bench: Bench, heard: _Heard, listener: _Listener, near: float) -> list[Finding]:
    if max(heard.known, heard.fresh) <= max(near, FOLLOWED * heard.moved):
        return []
    if heard.fresh <= near and _only_known(listener, near):
        summary = "The sampler keeps what it read under old weights: only prompts that it had seen before are stale."
        text = f"{heard.known:.2g} nats on prompts read before, {heard.fresh:.2g} on fresh ones"
        return [bench.found("sync.prefix-cache", CRITICAL, HIGH, summary, Evidence(text, heard.known))]
    left = _left_behind(bench, listener, near)
    weights = {kind: sum(s.shape.numel() for s in bench.policy.flat.slots if _kind(s.name) == kind) for kind in left}
    share = sum(weights.values()) / bench.policy.flat.values.numel()
    # An adapter whose scale was lost moves the sampler too, only not as far.
    if heard.apart > 0.97 * heard.moved if bench.policy.has_adapters else share > 0.5:
        return [_stale(bench, heard.apart, f"after noise that moves the learner by {heard.moved:.2g} nats")]
    names = ", ".join(left) or "no tensor alone"
    summary = f"Some weights do not reach the sampler when it is synchronized: {names}."
    text = f"{heard.apart:.2g} nats from the learner; left behind: {names} ({share:.0%} of the weights)"
    return [bench.found("sync.partial", CRITICAL, HIGH, summary, Evidence(text, heard.apart))]


def _only_known(listener: _Listener, near: float) -> bool:
    """Whether stronger noise, and other tasks, still show nothing on prompts that are fresh."""
    again = [listener.listen(strength=strength) for strength in (4 * STRENGTH, 8 * STRENGTH)]
    return all(heard.fresh <= near < heard.known for heard in again)


def _left_behind(bench: Bench, listener: _Listener, near: float) -> list[str]:
    """The kinds of tensors that the sampler does not follow, each perturbed alone."""
    left = []
    for kind in dict.fromkeys(_kind(slot.name) for slot in bench.policy.flat.slots):
        heard = listener.listen({kind})
        if max(heard.known, heard.fresh) > max(near, 0.02 * heard.moved):
            left.append(kind)
    return left


def _kind(name: str) -> str:
    """A tensor's name without its layer's number and what all names share."""
    name = re.sub(r"^(base_model\.model\.)?model\.|\.weight$|\.default", "", name)
    return re.sub(r"layers\.\d+\.", "layers.*.", name)


def _stale(bench: Bench, apart: float, when: str) -> Finding:
    summary = "The sampler keeps old weights: what it says does not follow the learner when it is synchronized."
    return bench.found("sync.stale-weights", CRITICAL, HIGH, summary, Evidence(f"{apart:.2g} nats apart {when}", apart))
