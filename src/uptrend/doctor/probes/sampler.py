"""Probes of learner, sampler and reference: they agree on the same tokens, and after new weights.

b = sequence, s = sampled token of it, t = token of one sequence, m = sampled token of one sequence,
v = token of the vocabulary.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from uptrend.config.schema import Sampling
from uptrend.doctor.check import CRITICAL, NOTE, SIGNAL, WARNING
from uptrend.doctor.checks.sampler import MAX_RATIO, MIN_ESS_SHARE, MIN_RATIO
from uptrend.doctor.probes.bench import Bench, distance, kl_between, with_sequences
from uptrend.doctor.probes.probe import NEEDS_KL_PENALTY, NEEDS_SAMPLES, Answer, probe, require
from uptrend.policy.logprobs import penalize
from uptrend.policy.model_files import shaping_settings
from uptrend.records import Finding
from uptrend.rollout.sampler import Limits
from uptrend.training.learner import Experience
from uptrend.training.metrics import Line, gap_metrics

# Gap metrics where there is no token to compare.
NO_GAP = {
    "sampler/gap/mean": 0.0,
    "sampler/gap/max": 0.0,
    "sampler/kl/mean": 0.0,
    "sampler/ratio/mean": 1.0,
    "sampler/ess/share": 1.0,
}
# Mean |d| and KL up to which learner and sampler agree. A healthy H200 has 0.029, and 0.040 with
# bf16 weights.
MAX_GAP_FP32 = 1e-3
MAX_GAP_BF16 = 0.1
MAX_AGREEING_KL = 0.01
# KL from which training must not start: no numerics explain it.
CRITICAL_KL = 0.1
# A KL below this, with an effective sample above it, costs a truncated distribution next to
# nothing: worth a note.
MAX_NOTED_KL = 0.01
MIN_NOTED_ESS = 0.9


def _gap_line(learner_bs: Tensor, exp: Experience, part_b: Tensor | None = None) -> Line:
    """Compare learner and sampler on sampled tokens, or on those of some sequences."""
    mask_bs = exp.real_bs & ~learner_bs.isnan() & exp.sampler_bs.isfinite()
    if part_b is not None:
        mask_bs = mask_bs & part_b[:, None]
    learner = learner_bs[mask_bs].cpu().numpy()
    sampler = exp.sampler_bs[mask_bs].cpu().numpy()
    return NO_GAP | gap_metrics(learner, sampler)


def _mean_gap(learner_bs: Tensor, exp: Experience, part_b: Tensor | None = None) -> float:
    """Return the mean distance of learner and sampler, in nats."""
    return float(_gap_line(learner_bs, exp, part_b)["sampler/gap/mean"])


@probe(
    "agreement",
    finds=["precision.mismatch", "sampling.truncated-distribution", "sampling.hidden-settings"],
    need=NEEDS_SAMPLES,
)
def agreement(bench: Bench) -> Answer:
    """Compare learner and sampler before training; name their distributions if they disagree."""
    line = _gap_line(bench.logprobs_bs, bench.exp)
    mean_gap = line["sampler/gap/mean"]
    kl = line["sampler/kl/mean"]
    ratio = line["sampler/ratio/mean"]
    ess = line["sampler/ess/share"]
    precision = "fp32" if bench.is_exact else "bf16"
    max_gap = bench.tolerance(MAX_GAP_FP32, MAX_GAP_BF16)
    gap_text = f"gap {mean_gap:.1e} nats on average, {line['sampler/gap/max']:.1e} at most"
    yield f"{gap_text} ({precision}: below {max_gap:g}), KL {kl:.1e}, ESS {ess:.2f}"
    if mean_gap <= max_gap and kl <= MAX_AGREEING_KL:
        return

    severity = WARNING
    if not MIN_RATIO <= ratio <= MAX_RATIO or ess < MIN_ESS_SHARE or kl > CRITICAL_KL:
        severity = CRITICAL
    text = f"{gap_text}; mean ratio {ratio:.2f}, ESS {ess:.2f}, KL {kl:.2g}"
    learner_name, sampler_name = _name_distributions(bench)
    if learner_name and sampler_name and learner_name != sampler_name:
        is_hidden = sampler_name.endswith(OF_FILES) and not learner_name.endswith(OF_FILES)
        # Settings that nobody chose are an alarm, however small their effect is so far.
        is_small = kl < MAX_NOTED_KL and ess > MIN_NOTED_ESS
        if severity is WARNING and is_small and not is_hidden:
            severity = NOTE
        summary = (
            "Tokens are drawn from another distribution than is learned: "
            f"the sampler's is {sampler_name}, the learner's is {learner_name}."
        )
        id = "sampling.hidden-settings" if is_hidden else "sampling.truncated-distribution"
        yield bench.finding(id, severity, summary, text, kl)
    else:
        summary = (
            "Learner and sampler give the same tokens different probabilities before anything was"
            " learned."
        )
        yield bench.finding("precision.mismatch", severity, summary, text, kl, basis=SIGNAL)


# Sequences whose log-probabilities are computed again under each distribution that may be meant.
NAMED_SEQUENCES = 8
# Settings of the model's own generation config that such a distribution may have, and the end of
# its name.
LIMITS_OF_FILES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
OF_FILES = " by the model's own generation_config.json"
# Mean |d| up to which a side has the distribution that it is compared with.
MAX_NAMED_GAP_FP32 = 1e-3
MAX_NAMED_GAP_BF16 = 3e-2


def _name_distributions(bench: Bench) -> tuple[str, str]:
    """Name the distributions of learner and sampler; a side is empty if it has none of those meant.

    Neither side is believed: each sequence runs through the model whole and alone, with all logits.
    """
    candidates = _candidate_distributions(bench)
    policy = bench.policy
    learner_gaps: dict[str, list[Tensor]] = {name: [] for name in candidates}
    sampler_gaps: dict[str, list[Tensor]] = {name: [] for name in candidates}
    spoken = [b for b, line in enumerate(bench.exp.sequences) if len(line.sampled)]
    for b in spoken[:NAMED_SEQUENCES]:
        line = bench.exp.sequences[b]
        ids_t = torch.from_numpy(line.ids).to(policy.device)
        positions_m = torch.from_numpy(line.sampled).to(policy.device)
        with torch.no_grad(), policy.arithmetic():
            # The logits of a token come from the position before it.
            hidden = policy.hidden(ids_t)[positions_m - 1]
            weight = policy.core.get_output_embeddings().weight
            logits_mv = torch.nn.functional.linear(hidden, weight).float()
        for name, limits in candidates.items():
            plain_m = _sampled_logprobs(logits_mv, ids_t, positions_m, limits).cpu()
            learner_gaps[name].append(bench.logprobs_bs[b, : len(plain_m)] - plain_m)
            sampler_gaps[name].append(bench.exp.sampler_bs[b, : len(plain_m)] - plain_m)
    max_gap = bench.tolerance(MAX_NAMED_GAP_FP32, MAX_NAMED_GAP_BF16)
    return _nearest(learner_gaps, max_gap), _nearest(sampler_gaps, max_gap)


def _candidate_distributions(bench: Bench) -> dict[str, Limits]:
    """Return the distributions that may be meant, by name: at the recipe's temperature and at 1,
    with and without what else shapes them; and what the model's own files ask for.
    """
    sampling: Sampling = bench.config.sampling
    shaping = {
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
    }
    defaults = vars(Limits(1, 1))
    shaping_text = ""
    for name, value in shaping.items():
        if value != defaults[name]:
            shaping_text += f", {name} {value:g}"

    candidates: dict[str, Limits] = {}
    for temperature in dict.fromkeys((sampling.temperature, 1.0)):
        plain_name = f"temperature {temperature:g}"
        candidates[plain_name] = Limits(1, 1, temperature)
        candidates[plain_name + shaping_text] = Limits(1, 1, temperature, **shaping)  # type: ignore[arg-type]
    return candidates | _distributions_of_files(bench)


def _distributions_of_files(bench: Bench) -> dict[str, Limits]:
    """Return the distributions of a sampler that takes what it can from the model's own generation
    config: all of it, or all but the temperature. Empty if that config changes nothing.
    """
    sampling = bench.config.sampling
    in_files = shaping_settings(bench.policy.core.generation_config)
    own = {name: float(in_files[name]) for name in LIMITS_OF_FILES if name in in_files}
    if not own:
        return {}
    temperature = own.pop("temperature", sampling.temperature)
    candidates: dict[str, Limits] = {}
    for each in dict.fromkeys((temperature, sampling.temperature)):
        text = "".join(f", {name} {value:g}" for name, value in own.items())
        limits = replace(Limits(1, 1, each), **own)  # type: ignore[arg-type]
        if "top_k" in own:
            limits = replace(limits, top_k=int(own["top_k"]))
        candidates[f"temperature {each:g}{text}{OF_FILES}"] = limits
    return candidates


def _nearest(gaps: dict[str, list[Tensor]], max_gap: float) -> str:
    """Return the name of the nearest distribution; empty if even that is further than `max_gap`."""
    mean_gaps = [(float(torch.cat(parts).abs().mean()), name) for name, parts in gaps.items()]
    mean_gap, name = min(mean_gaps)
    return name if mean_gap <= max_gap else ""


def _sampled_logprobs(
    logits_mv: Tensor, ids_t: Tensor, positions_m: Tensor, limits: Limits
) -> Tensor:
    """Return the log-probabilities of sampled tokens in the distribution that the limits leave."""
    if limits.repetition_penalty != 1:
        seen_mv = torch.zeros_like(logits_mv, dtype=torch.bool)
        for seen_v, position in zip(seen_mv, positions_m.tolist(), strict=True):
            seen_v[ids_t[:position]] = True
        logits_mv = penalize(logits_mv, seen_mv, limits.repetition_penalty)
    logprobs_mv = torch.log_softmax(logits_mv / limits.temperature, -1)

    # Tokens are left out in the order of their probability, and the rest is normalized again.
    sorted_mv, order_mv = logprobs_mv.sort(-1, descending=True)
    left_out_mv = torch.zeros_like(sorted_mv, dtype=torch.bool)
    if limits.top_p < 1:
        mass_before_mv = sorted_mv.exp().cumsum(-1) - sorted_mv.exp()
        left_out_mv |= mass_before_mv >= limits.top_p
    if limits.width:
        left_out_mv[:, limits.width :] = True
        left_out_mv |= sorted_mv < sorted_mv[:, :1] + math.log(limits.min_p or 1e-30)
    left_out_by_id_mv = torch.zeros_like(left_out_mv).scatter(-1, order_mv, left_out_mv)
    kept_mv = torch.log_softmax(logprobs_mv.masked_fill(left_out_by_id_mv, -torch.inf), -1)
    targets_m = ids_t[positions_m]
    return kept_mv.gather(-1, targets_m[:, None]).squeeze(-1)


# KL from itself that a model has by rounding.
MAX_OWN_KL_FP32 = 1e-6
MAX_OWN_KL_BF16 = 1e-3
# KL from which the reference is another model, and no other rounding of the same.
CRITICAL_OWN_KL = 0.01


@probe("reference", finds=["kl.reference"], need=NEEDS_KL_PENALTY)
def reference(bench: Bench) -> Answer:
    """Compare learner and reference: before the first step the policy is its own reference."""
    exp = bench.experience(bench.batch)
    learner_bs = bench.logprobs(exp)
    reference_bs = bench.logprobs(exp, reference=True)
    kl = kl_between(learner_bs, reference_bs, exp.real_bs)
    max_kl = bench.tolerance(MAX_OWN_KL_FP32, MAX_OWN_KL_BF16)
    yield f"KL to the reference at step 0 is {kl:.1e} (below {max_kl:g})"
    if not abs(kl) <= max_kl:  # NaN too
        severity = CRITICAL if kl > CRITICAL_OWN_KL else WARNING
        gap = distance(reference_bs, learner_bs, exp.real_bs)
        summary = (
            f"The reference is not the model that the run begins with: KL is {kl:.2g} before the"
            " first step."
        )
        text = f"log-probabilities differ by {gap:.2g} nats on average"
        yield bench.finding("kl.reference", severity, summary, text, kl)


# Noise on a tensor / typical size of its weights.
NOISE_STRENGTH = 0.03
# Typical size of a tensor that is all 0, as an adapter's B is at first.
ZERO_TENSOR_SIZE = 0.3
# Random numbers, used over and over; a prime, so that no two rows of a matrix get the same.
NOISE_NUMBERS = 999_983
# Tasks whose prompts the sampler has read before, as many others, and rollouts of each.
KNOWN_TASKS = 2
SYNC_ROLLOUTS = 2
# Nats that noise must move the learner, so that a sampler left behind shows; and the strength at
# which noise is not raised any more.
MIN_NOISE_MOVE = 0.3
MAX_RAISED_STRENGTH = 1
# Distance of sampler and learner up to which they agree once synchronized; healthy models: up to
# 4e-6 on a CPU, 0.046 on an H200.
MAX_SYNC_GAP_FP32 = 2e-4
MAX_SYNC_GAP_BF16 = 0.1


@dataclass(frozen=True)
class _SyncGap:
    """Distance of sampler and learner after a synchronization, in nats."""

    known: float  # on prompts that the sampler had read before
    fresh: float  # on prompts that it had not
    overall: float  # on all tokens
    moved: float  # by which the learner itself moved

    @property
    def worst(self) -> float:
        """The larger of the gaps on known and on fresh prompts."""
        return max(self.known, self.fresh)


@probe(
    "synchronize",
    finds=["sync.stale-weights", "sync.partial", "sync.prefix-cache"],
    need=NEEDS_SAMPLES,
)
def synchronize(bench: Bench) -> Answer:
    """Perturb the learner and synchronize: the sampler must follow, wholly, and come back."""
    # After noise on every weight and a synchronization, tokens are drawn anew and scored by the
    # learner. Agreement to rounding means that every tensor came over. Where they disagree, kinds
    # of tensors are perturbed one at a time.
    max_gap = bench.tolerance(MAX_SYNC_GAP_FP32, MAX_SYNC_GAP_BF16)
    test = _SyncTest(bench)
    start_gap = _mean_gap(bench.logprobs_bs, bench.exp)
    if start_gap > max_gap:
        # Where the two always disagree, all that can show is that nothing reaches the sampler.
        require(not test.sampler_reacts(), "learner and sampler disagree before anything is sent")
        yield "noise on every weight changes nothing that the sampler says"
        yield _stale_weights(bench, 0.0, "after strong noise")
        return

    allowed_gap = max_gap + 2 * start_gap
    gap = test.measure()
    finding = test.explain(gap, allowed_gap)
    exp = bench.experience(bench.play(test.known_tasks, SYNC_ROLLOUTS, "probe"))
    back_gap = _mean_gap(bench.logprobs(exp), exp)
    yield f"noise moves the learner by {gap.moved:.2g} nats; once synchronized, the sampler is "
    yield f"{gap.worst:.1e} from it (below {max_gap:g}), and {back_gap:.1e} once put back"
    if finding is not None:
        yield finding
    elif back_gap > allowed_gap:
        yield _stale_weights(bench, back_gap, "after the weights were put back")


# Gap / movement up to which a gap is rounding: it leaves 1e-6, MLPs that are left behind 2e-3 to
# 0.2.
MAX_ROUNDING_RATIO = 5e-4
# Gap / movement of a kind of tensors perturbed alone, above which it is left behind.
MIN_LEFT_BEHIND_RATIO = 0.02
# Gap / movement above which a sampler of adapters follows not at all; one that lost an adapter's
# scale moves too, only not as far.
MIN_STALE_ADAPTER_RATIO = 0.97
# Share of the weights left behind above which the sampler's are old, and not some of them.
MIN_STALE_SHARE = 0.5


class _SyncTest:
    """Perturbs weights and plays tasks whose prompts the sampler has read, and others each time."""

    def __init__(self, bench: Bench) -> None:
        self.known_tasks = bench.drawn[:KNOWN_TASKS]
        played = {rollout.task for rollout in bench.rollouts}
        others = [play for id, play in bench.tasks.items() if id not in played]
        self._bench = bench
        self._fresh_tasks = itertools.cycle(others or self.known_tasks)

    def measure(self, kinds: Collection[str] = (), strength: float = NOISE_STRENGTH) -> _SyncGap:
        """Perturb some kinds of tensors (by default all), synchronize, sample and compare.

        Noise is raised until it moves the learner enough.
        """
        bench = self._bench
        fresh_tasks = list(itertools.islice(self._fresh_tasks, KNOWN_TASKS))
        with bench.scratch():
            _perturb(bench, strength, kinds)
            bench.synchronize(1)
            tasks = [*self.known_tasks, *fresh_tasks]
            exp = bench.experience(bench.play(tasks, SYNC_ROLLOUTS, "probe"))
            perturbed_bs = bench.logprobs(exp)
        moved = distance(bench.logprobs(exp), perturbed_bs, exp.real_bs)
        if moved < MIN_NOISE_MOVE and strength < MAX_RAISED_STRENGTH:
            return self.measure(kinds, 4 * strength)
        is_known_b = exp.rollouts_b < len(self.known_tasks) * SYNC_ROLLOUTS
        return _SyncGap(
            known=_mean_gap(perturbed_bs, exp, is_known_b),
            fresh=_mean_gap(perturbed_bs, exp, ~is_known_b),
            overall=_mean_gap(perturbed_bs, exp),
            moved=moved,
        )

    def sampler_reacts(self) -> bool:
        """Return True if strong noise changes any token or log-probability of the sampler."""
        bench = self._bench
        with bench.scratch():
            before = self._play_known()
            _perturb(bench, 10 * NOISE_STRENGTH)
            bench.synchronize(1)
            after = self._play_known()
        return before != after

    def _play_known(self) -> list[tuple[list[int], list[float]]]:
        """Play the known tasks; return each sequence's tokens and sampler log-probabilities."""
        rollouts = self._bench.play(self.known_tasks, SYNC_ROLLOUTS, "probe")
        outputs = []
        for _, sequence in with_sequences(rollouts):
            logprobs = sequence.sampler[sequence.sampled]
            outputs.append((sequence.ids.tolist(), logprobs.tolist()))
        return outputs

    def explain(self, gap: _SyncGap, allowed_gap: float) -> Finding | None:
        """Return the cause why the sampler did not follow; None if it did."""
        if gap.worst <= max(allowed_gap, MAX_ROUNDING_RATIO * gap.moved):
            return None
        if gap.fresh <= allowed_gap and self._only_known_are_stale(allowed_gap):
            summary = (
                "The sampler keeps what it read under old weights: only prompts that it had seen"
                " are stale."
            )
            text = f"{gap.known:.2g} nats on prompts read before, {gap.fresh:.2g} on fresh ones"
            return self._bench.finding("sync.prefix-cache", CRITICAL, summary, text, gap.known)

        left_behind, share = self._find_left_behind(allowed_gap)
        if self._bench.policy.has_adapters:
            is_all_stale = gap.overall > MIN_STALE_ADAPTER_RATIO * gap.moved
        else:
            is_all_stale = share > MIN_STALE_SHARE
        if is_all_stale:
            when = f"after noise that moves the learner by {gap.moved:.2g} nats"
            return _stale_weights(self._bench, gap.overall, when)
        names = ", ".join(left_behind) or "no tensor alone"
        summary = f"Some weights do not reach the sampler when it is synchronized: {names}."
        text = (
            f"{gap.overall:.2g} nats from the learner; left behind: {names} ({share:.0%} of the"
            " weights)"
        )
        return self._bench.finding("sync.partial", CRITICAL, summary, text, gap.overall)

    def _only_known_are_stale(self, allowed_gap: float) -> bool:
        """Return True if stronger noise and other tasks still show nothing on fresh prompts."""
        stronger = [self.measure(strength=factor * NOISE_STRENGTH) for factor in (4, 8)]
        return all(gap.fresh <= allowed_gap < gap.known for gap in stronger)

    def _find_left_behind(self, allowed_gap: float) -> tuple[list[str], float]:
        """Perturb kinds of tensors one at a time; return those left behind, and their share of all
        weights.
        """
        flat = self._bench.policy.flat
        sizes = Counter[str]()
        for slot in flat.slots:
            sizes[_kind_of(slot.name)] += slot.shape.numel()
        left_behind = []
        for kind in sizes:
            gap = self.measure({kind})
            if gap.worst > max(allowed_gap, MIN_LEFT_BEHIND_RATIO * gap.moved):
                left_behind.append(kind)
        share = sum(sizes[kind] for kind in left_behind) / flat.values.numel()
        return left_behind, share


def _perturb(bench: Bench, strength: float, kinds: Collection[str] = ()) -> None:
    """Add noise to all tensors, or to those of some kinds."""
    flat = bench.policy.flat
    device = flat.values.device
    generator = torch.Generator(device).manual_seed(0)
    noise = torch.randn(NOISE_NUMBERS, generator=generator, device=device)
    for slot in flat.slots:
        if not kinds or _kind_of(slot.name) in kinds:
            values = flat.values.data[slot.start : slot.start + slot.shape.numel()]
            mean_square = values[:NOISE_NUMBERS].float().square().mean()
            size = float(mean_square.sqrt()) or ZERO_TENSOR_SIZE
            for part in torch.split(values, NOISE_NUMBERS):
                part.add_((strength * size * noise[: len(part)]).to(part.dtype))


def _kind_of(name: str) -> str:
    """Return a tensor's name without its layer's number and what all names share."""
    name = re.sub(r"^(base_model\.model\.)?model\.|\.weight$|\.default", "", name)
    return re.sub(r"layers\.\d+\.", "layers.*.", name)


def _stale_weights(bench: Bench, gap: float, when: str) -> Finding:
    """Make the finding that the sampler did not take new weights."""
    summary = (
        "The sampler keeps old weights: what it says does not follow the learner when it is"
        " synchronized."
    )
    text = f"{gap:.2g} nats apart {when}"
    return bench.finding("sync.stale-weights", CRITICAL, summary, text, gap)
