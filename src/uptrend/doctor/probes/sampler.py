"""Probes of learner, sampler and reference: they agree on the same tokens, and after new weights.

m = sampled token of a sequence, v = token of the vocabulary.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from uptrend.doctor.probes.bench import Bench, distance, kl_between
from uptrend.doctor.probes.probe import (
    CRITICAL,
    NOTE,
    PENALTY,
    SAMPLED,
    SIGNAL,
    WARNING,
    Answer,
    probe,
    require,
)
from uptrend.policy.logprobs import penalize
from uptrend.records import Finding
from uptrend.rollout.sampler import Limits
from uptrend.training.learner import Experience
from uptrend.training.metrics import gap_metrics


def _gap(learner_bs: Tensor, exp: Experience, part_b: Tensor | None = None) -> dict[str, float]:
    """Measure learner against sampler on sampled tokens, or on those of some sequences; no tokens,
    no gap.
    """
    mask_bs = exp.real_bs & ~learner_bs.isnan() & exp.sampler_bs.isfinite()
    if part_b is not None:
        mask_bs = mask_bs & part_b[:, None]
    line = gap_metrics(
        *(side_bs[mask_bs].cpu().numpy() for side_bs in (learner_bs, exp.sampler_bs))
    )
    none = {"gap/mean": 0.0, "gap/max": 0.0, "kl/mean": 0.0, "ratio/mean": 1.0, "ess/share": 1.0}
    return {name: line.get(f"sampler/{name}", default) for name, default in none.items()}


# Mean |d| and KL up to which learner and sampler agree. A healthy H200 has 0.029, and 0.040 with
# bf16 weights.
MAX_GAP_FP32 = 1e-3
MAX_GAP_BF16 = 0.1
MAX_AGREEING_KL = 0.01


@probe("agreement", finds=["precision.mismatch", "sampling.truncated-distribution"], need=SAMPLED)
def agreement(bench: Bench) -> Answer:
    """Compare learner and sampler before anything is learned; where they disagree, ask by which
    distribution.
    """
    gap = _gap(bench.logprobs_bs, bench.exp)
    kl = gap["kl/mean"]
    ratio = gap["ratio/mean"]
    ess = gap["ess/share"]
    near = bench.near(MAX_GAP_FP32, MAX_GAP_BF16)
    apart = f"gap {gap['gap/mean']:.1e} nats on average, {gap['gap/max']:.1e} at most"
    yield (
        f"{apart} ({'fp32' if bench.exact else 'bf16'}: below {near:g}), KL {kl:.1e}, ESS {ess:.2f}"
    )
    if gap["gap/mean"] <= near and kl <= MAX_AGREEING_KL:
        return
    severity = CRITICAL if not 0.5 <= ratio <= 2 or ess < 0.3 or kl > 0.1 else WARNING
    text = f"{apart}; mean ratio {ratio:.2f}, ESS {ess:.2f}, KL {kl:.2g}"
    mine, theirs = _distributions(bench)
    if mine and theirs and mine != theirs:
        severity = NOTE if severity is WARNING and kl < 0.01 and ess > 0.9 else severity
        summary = "Tokens are drawn from another distribution than is learned: "
        summary += f"the sampler's is {theirs}, the learner's is {mine}."
        yield bench.found("sampling.truncated-distribution", severity, summary, text, kl)
    else:
        summary = (
            "Learner and sampler give the same tokens different probabilities before anything was"
            " learned."
        )
        yield bench.found("precision.mismatch", severity, summary, text, kl, basis=SIGNAL)


def _distributions(bench: Bench) -> tuple[str, str]:
    """Name the distributions that learner and sampler have; empty where a side plainly has none of
    those meant.
    """
    s = bench.config.sampling
    policy = bench.policy
    shaping = {
        "top_p": s.top_p,
        "top_k": s.top_k,
        "min_p": s.min_p,
        "repetition_penalty": s.repetition_penalty,
    }
    plain = vars(Limits(1, 1))
    cut = "".join(f", {name} {value:g}" for name, value in shaping.items() if value != plain[name])
    candidates = {}
    for temperature in dict.fromkeys((s.temperature, 1.0)):
        candidates[f"temperature {temperature:g}"] = Limits(1, 1, temperature)
        candidates[f"temperature {temperature:g}{cut}"] = Limits(1, 1, temperature, **shaping)  # type: ignore[arg-type]
    sides = (bench.logprobs_bs, bench.exp.sampler_bs)
    apart = [{name: list[Tensor]() for name in candidates} for _ in sides]
    for b in [b for b, line in enumerate(bench.exp.sequences) if len(line.sampled)][:8]:
        # By neither side: each sequence whole and alone, with all logits.
        line = bench.exp.sequences[b]
        ids, places_m = (torch.from_numpy(x).to(policy.device) for x in (line.ids, line.sampled))
        with torch.no_grad(), policy.arithmetic():
            hidden = policy.hidden(ids)[places_m - 1]
            logits_mv = torch.nn.functional.linear(
                hidden, policy.core.get_output_embeddings().weight
            ).float()
        for name, limits in candidates.items():
            plain_m = _chosen(logits_mv, ids, places_m, limits).cpu()
            for side_bs, gaps in zip(sides, apart, strict=True):
                gaps[name].append(side_bs[b, : len(plain_m)] - plain_m)
    names = []
    for gaps in apart:
        gap, name = min(
            (float(torch.cat(parts).abs().mean()), name) for name, parts in gaps.items()
        )
        names.append(name if gap <= bench.near(1e-3, 3e-2) else "")
    return names[0], names[1]


def _chosen(logits_mv: Tensor, ids_t: Tensor, places_m: Tensor, limits: Limits) -> Tensor:
    """Return the log-probabilities of tokens at some places in the distribution that the limits
    leave.
    """
    targets_m = ids_t[places_m]
    if limits.repetition_penalty != 1:
        seen_mv = torch.zeros_like(logits_mv, dtype=torch.bool)
        for seen_v, place in zip(seen_mv, places_m.tolist(), strict=True):
            seen_v[ids_t[:place]] = True
        logits_mv = penalize(logits_mv, seen_mv, limits.repetition_penalty)
    z = torch.log_softmax(logits_mv / limits.temperature, -1)
    ordered, order = z.sort(-1, descending=True)
    beyond = (
        ordered.exp().cumsum(-1) - ordered.exp() >= limits.top_p
        if limits.top_p < 1
        else ordered.isnan()
    )
    if limits.width:
        beyond[:, limits.width :] = True
        beyond |= ordered < ordered[:, :1] + math.log(limits.min_p or 1e-30)
    z = z.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
    return torch.log_softmax(z, -1).gather(-1, targets_m[:, None]).squeeze(-1)


# KL from itself that a model has by rounding.
MAX_OWN_KL_FP32 = 1e-6
MAX_OWN_KL_BF16 = 1e-3


@probe("reference", finds=["kl.reference"], need=PENALTY)
def reference(bench: Bench) -> Answer:
    """Compare the learner with the reference: before the first step the policy is its own
    reference.
    """
    exp = bench.experience(bench.batch)
    mine_bs = bench.logprobs(exp)
    theirs_bs = bench.logprobs(exp, reference=True)
    kl = kl_between(mine_bs, theirs_bs, exp.real_bs)
    near = bench.near(MAX_OWN_KL_FP32, MAX_OWN_KL_BF16)
    yield f"KL to the reference at step 0 is {kl:.1e} (below {near:g})"
    if not abs(kl) <= near:
        summary = (
            f"The reference is not the model that the run begins with: KL is {kl:.2g} before the"
            " first step."
        )
        text = (
            f"log-probabilities differ by {distance(theirs_bs, mine_bs, exp.real_bs):.2g} nats on"
            " average"
        )
        yield bench.found("kl.reference", CRITICAL if kl > 0.01 else WARNING, summary, text, kl)


STRENGTH = 0.03  # noise on a tensor / typical size of its weights
SIZE = 2  # rollouts per task
# numbers of noise, used over and over; a prime, so that no two rows of a matrix get the same
BLOCK = 999_983


@dataclass(frozen=True)
class _Followed:
    """Distance of sampler and learner after a synchronization, in nats."""

    known: float  # on prompts that the sampler had read before
    fresh: float  # on prompts that it had not
    worst: float  # of these two
    apart: float  # on all tokens
    moved: float  # by which the learner itself moved


# After noise on every weight and a synchronization, tokens are drawn anew and scored by the
# learner. Agreement to rounding means that every tensor came over. Where they disagree, kinds of
# tensors are perturbed one at a time.
@probe(
    "synchronize", finds=["sync.stale-weights", "sync.partial", "sync.prefix-cache"], need=SAMPLED
)
def synchronize(bench: Bench) -> Answer:
    """Perturb the learner and synchronize: the sampler must follow, wholly, and come back."""
    near = bench.near(2e-4, 0.1)  # healthy models: up to 4e-6 on a CPU, 0.046 on an H200
    follower = _Follower(bench)
    start_gap = _gap(bench.logprobs_bs, bench.exp)["gap/mean"]
    if start_gap > near:
        require(not follower.is_moved(), "learner and sampler disagree before anything is sent")
        yield "noise on every weight changes nothing that the sampler says"
        yield _stale(bench, 0.0, "after strong noise")
        return
    followed = follower.follow()
    found = follower.explain(followed, near + 2 * start_gap)
    exp = bench.experience(bench.play(follower.known, SIZE, "probe"))
    back_gap = _gap(bench.logprobs(exp), exp)["gap/mean"]
    yield (
        f"noise moves the learner by {followed.moved:.2g} nats; once synchronized, the sampler is "
    )
    yield f"{followed.worst:.1e} from it (below {near:g}), and {back_gap:.1e} once put back"
    if found is not None:
        yield found
    elif back_gap > near + 2 * start_gap:
        yield _stale(bench, back_gap, "after the weights were put back")


class _Follower:
    """Perturbs weights and plays two tasks whose prompts the sampler has read, and two others each
    time.
    """

    def __init__(self, bench: Bench) -> None:
        played = {r.task for r in bench.rollouts}
        self.bench = bench
        self.known = bench.drawn[:2]
        others = [play for task, play in bench.tasks.items() if task not in played]
        self._others = itertools.cycle(others or self.known)

    def follow(self, kinds: Collection[str] = (), strength: float = STRENGTH) -> _Followed:
        """Perturb (some kinds of tensors, or all), synchronize, sample and compare; stronger until
        it shows.
        """
        bench = self.bench
        fresh = list(itertools.islice(self._others, 2))
        with bench.scratch():
            _perturb(bench, strength, kinds)
            bench.synchronize(1)
            exp = bench.experience(bench.play([*self.known, *fresh], SIZE, "probe"))
            now_bs = bench.logprobs(exp)
        moved = distance(bench.logprobs(exp), now_bs, exp.real_bs)
        if moved < 0.3 and strength < 1:  # nats, so that a sampler left behind shows
            return self.follow(kinds, 4 * strength)
        is_known = exp.rollouts_b < len(self.known) * SIZE
        known, new, apart = (
            _gap(now_bs, exp, part_b)["gap/mean"] for part_b in (is_known, ~is_known, None)
        )
        return _Followed(known, new, max(known, new), apart, moved)

    def is_moved(self) -> bool:
        """Tell whether strong noise changes what the sampler says: all that shows where the two
        always disagree.
        """
        said = []
        with self.bench.scratch():
            for version in (0, 1):
                if version:
                    _perturb(self.bench, 10 * STRENGTH)
                    self.bench.synchronize(version)
                sequences = [
                    s for r in self.bench.play(self.known, SIZE, "probe") for s in r.sequences
                ]
                said.append([(s.ids.tolist(), s.sampler[s.sampled].tolist()) for s in sequences])
        return said[0] != said[1]

    def explain(self, followed: _Followed, near: float) -> Finding | None:
        """Tell why the sampler did not follow; None where it did."""
        # Gap / movement: rounding leaves 1e-6, MLPs that are left behind 2e-3 to 0.2.
        if followed.worst <= max(near, 5e-4 * followed.moved):
            return None
        bench = self.bench
        apart = followed.apart
        moved = followed.moved
        if followed.fresh <= near:
            # Stronger noise and other tasks must still show nothing on fresh prompts.
            again = [self.follow(strength=strength) for strength in (4 * STRENGTH, 8 * STRENGTH)]
            if all(each.fresh <= near < each.known for each in again):
                summary = (
                    "The sampler keeps what it read under old weights: only prompts that it had"
                    " seen are stale."
                )
                text = (
                    f"{followed.known:.2g} nats on prompts read before, {followed.fresh:.2g} on"
                    " fresh ones"
                )
                return bench.found("sync.prefix-cache", CRITICAL, summary, text, followed.known)
        sizes = Counter[str]()
        for slot in bench.policy.flat.slots:
            sizes[_kind(slot.name)] += slot.shape.numel()
        alone = {kind: self.follow({kind}) for kind in sizes}
        left = [kind for kind, each in alone.items() if each.worst > max(near, 0.02 * each.moved)]
        share = sum(sizes[kind] for kind in left) / bench.policy.flat.values.numel()
        # An adapter whose scale was lost moves the sampler too, only not as far.
        if apart > 0.97 * moved if bench.policy.has_adapters else share > 0.5:
            return _stale(bench, apart, f"after noise that moves the learner by {moved:.2g} nats")
        names = ", ".join(left) or "no tensor alone"
        summary = f"Some weights do not reach the sampler when it is synchronized: {names}."
        text = (
            f"{apart:.2g} nats from the learner; left behind: {names} ({share:.0%} of the weights)"
        )
        return bench.found("sync.partial", CRITICAL, summary, text, apart)


def _perturb(bench: Bench, strength: float, kinds: Collection[str] = ()) -> None:
    """Add noise to all tensors, or to those of some kinds."""
    flat = bench.policy.flat
    generator = torch.Generator(flat.values.device).manual_seed(0)
    noise = torch.randn(BLOCK, generator=generator, device=flat.values.device)
    for slot in flat.slots:
        if not kinds or _kind(slot.name) in kinds:
            stretch = flat.values.data[slot.start : slot.start + slot.shape.numel()]
            # an adapter's B begins at 0
            size = float(stretch[:BLOCK].float().square().mean().sqrt()) or 0.3
            for part in torch.split(stretch, BLOCK):
                part.add_((strength * size * noise[: len(part)]).to(part.dtype))


def _kind(name: str) -> str:
    """Return a tensor's name without its layer's number and what all names share."""
    name = re.sub(r"^(base_model\.model\.)?model\.|\.weight$|\.default", "", name)
    return re.sub(r"layers\.\d+\.", "layers.*.", name)


def _stale(bench: Bench, apart: float, when: str) -> Finding:
    summary = (
        "The sampler keeps old weights: what it says does not follow the learner when it is"
        " synchronized."
    )
    return bench.found(
        "sync.stale-weights", CRITICAL, summary, f"{apart:.2g} nats apart {when}", apart
    )
