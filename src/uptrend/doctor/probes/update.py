"""Probes of one update: which tokens train, with which advantage, which way, how far, and how
gradients add up.

b = sequence, s = sampled token of it, n = rollout, t = token of one sequence.

What a probe yields is sorted by type (probe.py): texts are parts of its one printed sentence,
joined as they are; findings are reported; tuples of pieces are printed rollouts.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.config.schema import Kl
from uptrend.doctor.catalogue import usual_learning_rates
from uptrend.doctor.check import CRITICAL, NOTE, SUSPICION, WARNING
from uptrend.doctor.checks.optimizer import UNUSUAL_RATE_FACTOR
from uptrend.doctor.groups import RewardGroups, recompute_advantages
from uptrend.doctor.probes.bench import (
    Bench,
    GradientCatcher,
    by_group,
    distance,
    kl_between,
    with_sequences,
)
from uptrend.doctor.probes.probe import NEEDS_KL_PENALTY, Answer, Piece, probe, require
from uptrend.policy.optimizer import Optimizer, learning_rate
from uptrend.policy.weights import movable_share
from uptrend.present.formatting import plural
from uptrend.records import Reward, Role, Rollout, Sequence
from uptrend.records.rollout import LIMIT_ENDINGS
from uptrend.training.learner import Experience
from uptrend.training.loop import learn
from uptrend.training.recorder import RecordedRollouts

Floats = NDArray[np.float64]

# Share of the model's tokens outside the loss above which training must not start.
CRITICAL_UNTRAINED_SHARE = 0.5


@probe("masks", finds=["mask.tool-trained", "mask.model-untrained", "mask.stop-untrained"])
def masks(bench: Bench) -> Answer:
    """Count trained tokens by author in the update that was tried."""
    trial = bench.trial_update
    rollouts = list(RecordedRollouts(trial.rollouts, trial.exp, trial.update, ()))
    rows = with_sequences(rollouts)
    roles = np.concatenate([sequence.roles for _, sequence in rows])
    is_trained = np.concatenate([_is_trained(sequence) for _, sequence in rows])
    counts = []
    for role in Role:
        is_trained_of_role = is_trained[roles == int(role)]
        total = len(is_trained_of_role)
        if total:
            counts.append(f"{is_trained_of_role.sum()} of {total} {role.name.lower()} tokens")
    yield f"trained: {', '.join(counts)}"
    yield from _foreign_tokens(bench, rows)

    # The best rollout, a middling one and the worst, for the printout.
    ranked = sorted(rollouts, key=lambda r: r.reward.total if r.reward else -np.inf, reverse=True)
    for rank in sorted({0, len(ranked) // 2, len(ranked) - 1}):
        yield tuple(_pieces(bench, ranked[rank].sequences[0]))
    yield from _untrained_tokens(bench, rows)


def _foreign_tokens(bench: Bench, rows: list[tuple[Rollout, Sequence]]) -> Answer:
    """Report trained tokens that the model did not sample."""
    counts = []
    for _, sequence in rows:
        is_foreign_t = _is_trained(sequence) & (sequence.versions < 0)
        counts.append(int(is_foreign_t.sum()))
    total = sum(counts)
    if total:
        worst = int(np.argmax(counts))
        summary = (
            f"{total} tokens are trained that the model did not write: prompts or tool results are"
            " in the loss."
        )
        text = f"{counts[worst]} in one rollout"
        yield bench.finding("mask.tool-trained", CRITICAL, summary, text, total, rows[worst][0])


def _untrained_tokens(bench: Bench, rows: list[tuple[Rollout, Sequence]]) -> Answer:
    """Report tokens that the model sampled and the loss leaves out, though no option says so."""
    stop_ids = np.array(bench.policy.stop_ids)
    leaves_out_truncated = bench.config.learning.mask_truncated
    n_sampled = 0
    n_stops = 0
    n_untrained = 0
    n_untrained_stops = 0
    example = None
    for rollout, sequence in rows:
        is_left_out = leaves_out_truncated and rollout.ended in LIMIT_ENDINGS
        if rollout.reward is None or not rollout.kept or is_left_out:
            continue
        is_sampled_t = sequence.versions >= 0
        is_stop_t = is_sampled_t & np.isin(sequence.ids, stop_ids)
        is_untrained_t = is_sampled_t & ~_is_trained(sequence)
        n_sampled += int(is_sampled_t.sum())
        n_stops += int(is_stop_t.sum())
        n_untrained += int(is_untrained_t.sum())
        n_untrained_stops += int((is_stop_t & is_untrained_t).sum())
        if example is None and is_untrained_t.any():
            example = rollout

    if n_untrained > n_untrained_stops:
        share = n_untrained / n_sampled
        severity = CRITICAL if share > CRITICAL_UNTRAINED_SHARE else WARNING
        summary = (
            f"{n_untrained} of {n_sampled} tokens that the model sampled are not in the loss, and"
            " no option says so."
        )
        text = f"{share:.1%} of its tokens"
        yield bench.finding("mask.model-untrained", severity, summary, text, share, example)
    elif n_untrained:
        summary = (
            f"{n_untrained} of {n_stops} stop tokens that the model sampled are not in the loss: "
            "it can't learn when to stop."
        )
        text = f"{n_untrained / n_stops:.0%} of sampled stop tokens"
        yield bench.finding("mask.stop-untrained", CRITICAL, summary, text, n_untrained, example)


def _is_trained(sequence: Sequence) -> NDArray[np.bool_]:
    """Return True for tokens with a weight in the loss."""
    assert sequence.weights is not None
    return np.asarray(sequence.weights != 0)


def _pieces(bench: Bench, sequence: Sequence) -> Iterator[Piece]:
    """Split tokens into runs that are alike in role, training and attention."""
    assert sequence.attended is not None
    columns = [sequence.roles, _is_trained(sequence), sequence.attended]
    kinds = np.stack(columns, 1).astype(int)
    begins_t = np.ones(len(kinds), bool)
    begins_t[1:] = (kinds[1:] != kinds[:-1]).any(1)
    for start, end in pairwise([*np.flatnonzero(begins_t), len(kinds)]):
        ids = sequence.ids[start:end].tolist()
        text = bench.policy.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        role, trained, attended = kinds[start].tolist()
        yield Piece(text, Role(role), bool(trained), bool(attended))


def true_advantages(rollouts: list[Rollout], scale: str, baseline: str) -> Floats:
    """Compute advantages in fp64 by the groups that rollouts carry; 0 where rewards are equal or
    missing.
    """
    reward_n = np.full(len(rollouts), np.nan)
    for n, rollout in enumerate(rollouts):
        if rollout.reward is not None:
            reward_n[n] = rollout.reward.total
    scored = np.flatnonzero(np.isfinite(reward_n))
    names = [rollouts[n].group for n in scored]
    _, group_n = np.unique(names, return_inverse=True)
    groups = RewardGroups(group_n.astype(np.int64), reward_n[scored])
    advantage_n = np.zeros(len(rollouts))
    advantage_n[scored] = recompute_advantages(groups, scale, baseline)
    return advantage_n


# Distance of an advantage from the true one / the largest true one (at least 1), that fp32 leaves.
ADVANTAGE_TOLERANCE = 1e-3
# Sum of a group's advantages that is not rounding of 0.
MIN_GROUP_SUM = 1e-2
# Advantage / the most that a group of this size can give, that is not rounding.
MAX_ADVANTAGE_RATIO = 1.01
# Deviation of a group's rewards below which they differ by next to nothing.
TINY_DEVIATION = 1e-3


@probe("advantages", finds=["advantage.wrong-groups", "advantage.blow-up", "advantage.sign"])
def advantages(bench: Bench) -> Answer:
    """Compare the learner's advantages with those of true groups, by rollout and by group."""
    trial = bench.trial_update
    learning = bench.config.learning
    advantage_n = np.zeros(len(trial.rollouts))
    advantage_n[trial.exp.rollouts_b.numpy()] = trial.update.advantages_bs[:, 0].numpy()
    true_n = true_advantages(trial.rollouts, learning.scale, learning.baseline)
    groups = by_group(trial.rollouts)
    group_n = np.array([rollout.group for rollout in trial.rollouts])
    largest_sum = max(abs(float(advantage_n[group_n == name].sum())) for name in groups)
    # The KL penalty may be in the reward, and with credit by turn this is the first turn's alone:
    # then there is nothing to compare with.
    is_k1_penalty = learning.kl.beta > 0 and learning.kl.estimator == "k1"
    is_comparable = not is_k1_penalty and learning.credit != "turn"
    gap = float(np.abs(advantage_n - true_n).max()) if is_comparable else 0.0
    yield f"advantages differ by {gap:.1e} from those of true groups; "
    yield f"the largest sum of a group is {largest_sum:.1e}"

    n_mixed = 0
    for group in groups.values():
        tasks = {rollout.task for rollout in group}
        n_mixed += len(tasks) > 1
    max_gap = ADVANTAGE_TOLERANCE * max(1.0, float(np.abs(true_n).max()))
    text = f"up to {gap:.2g} from the true one; a group's sum is {largest_sum:.2g}, and must be 0"
    if n_mixed:
        summary = (
            f"{n_mixed} groups hold rollouts of different tasks: rewards of different questions are"
            " compared."
        )
        text = f"{n_mixed} groups"
        yield bench.finding("advantage.wrong-groups", CRITICAL, summary, text, n_mixed)
    elif gap > max_gap and np.abs(advantage_n + true_n).max() <= max_gap:
        summary = "Advantages have the wrong sign: better rollouts are made less likely."
        text = "each is minus the true one"
        yield bench.finding("advantage.sign", CRITICAL, summary, text, gap)
    elif gap > max_gap and largest_sum > MIN_GROUP_SUM:
        summary = (
            "Advantages are not those of the rollouts' groups: rollouts are compared with another"
            " task's."
        )
        yield bench.finding("advantage.wrong-groups", CRITICAL, summary, text, largest_sum)
    elif gap > max_gap:
        summary = "Advantages do not follow from rewards and groups."
        yield bench.finding("advantage.blow-up", WARNING, summary, text, largest_sum)
    if learning.scale == "group" and learning.baseline == "mean":
        yield from _blown_up(bench, float(np.abs(advantage_n).max()))


def _blown_up(bench: Bench, largest: float) -> Answer:
    """Report advantages that division by the group's deviation makes too large."""
    size = bench.config.sampling.size
    # No value is further than this from the mean of its group, in deviations (Samuelson's
    # inequality).
    limit = (size - 1) ** 0.5
    tiny = list[float]()
    for group in by_group(bench.trial_update.rollouts).values():
        totals = [rollout.reward.total for rollout in group if rollout.reward]
        # Equal rewards have a deviation too, of 1e-17 or so, because their mean is rounded. Their
        # advantages are 0.
        if len(totals) > 1 and np.ptp(totals) > 0:
            deviation = float(np.std(totals, ddof=1))
            if deviation < TINY_DEVIATION:
                tiny.append(deviation)
    if largest > limit * MAX_ADVANTAGE_RATIO:
        summary = (
            f"An advantage of {largest:.3g} exceeds the most that a group of {size} can give,"
            f" {limit:.3g}."
        )
        text = f"|A| = {largest:.3g}"
        yield bench.finding("advantage.blow-up", CRITICAL, summary, text, largest)
    elif tiny:
        summary = (
            f"Rewards of {plural(len(tiny), 'group')} differ by next to nothing, and dividing by"
            " their deviation makes much of it."
        )
        text = f"the least deviation is {min(tiny):.1e}"
        yield bench.finding("advantage.blow-up", NOTE, summary, text, min(tiny))


# Share of weights that change / of those with a gradient, below which an update is rounding, which
# goes anywhere.
MIN_CHANGED_RATIO = 0.1
# Agreement of what an update moves with the advantages, from -1 to 1, below which it goes the wrong
# way.
MIN_AGREEMENT = -0.2


@probe("sign", finds=["advantage.sign"])
def sign(bench: Bench) -> Answer:
    """Correlate what an update moves with what was better."""
    trial = bench.trial_update
    learning = bench.config.learning
    scale = learning.scale
    baseline = learning.baseline
    # An entropy bonus pulls on every rollout alike, and is no part of the question.
    config = replace(bench.config, learning=replace(learning, entropy=0.0))
    condition = ""
    advantage_n = true_advantages(trial.rollouts, scale, baseline)
    if not advantage_n.any():
        # Alternating rewards: what an update does with them does not depend on what they mean.
        condition = " with rewards by chance, as all groups are dead"
        rollouts = [_with_alternating_reward(rollout) for rollout in trial.rollouts]
        trial = bench.try_update(rollouts, config)
        advantage_n = true_advantages(trial.rollouts, scale, baseline)
    elif learning.entropy != 0:
        trial = bench.try_update(trial.rollouts, config)
    is_real = trial.moved.changed > MIN_CHANGED_RATIO * trial.gradient_share
    require(is_real, "the update moves hardly any weight")

    # How the sequence's mean log-probability moves a little way along the update: a whole first
    # step of Adam is as long for every weight, whatever its gradient, and overshoots.
    real_bs = trial.exp.real_bs
    move_bs = (trial.nudged_bs - trial.before_bs).masked_fill(~real_bs, 0.0)
    move_b = move_bs.sum(1) / real_bs.sum(1)
    advantage_b = torch.from_numpy(advantage_n)[trial.exp.rollouts_b]
    is_judged_b = (advantage_b != 0) & ~move_b.isnan()
    products_b = (advantage_b * move_b)[is_judged_b]
    # Weighted by both sizes: 1 if every rollout moves as its advantage says, -1 if none does.
    agreement = float(products_b.sum() / (advantage_b.abs() * move_b.abs())[is_judged_b].sum())
    follows_b = ((advantage_b > 0) == (move_b > 0))[is_judged_b]
    following_share = float(follows_b.float().mean())
    yield (
        f"{following_share:.0%} of {len(follows_b)} rollouts follow the sign of their"
        f" advantage{condition} ({agreement:+.2f})"
    )
    if not agreement > MIN_AGREEMENT:  # NaN too
        summary = (
            "Better rollouts become less likely: an update moves log-probabilities against the"
            " advantage's sign."
        )
        text = (
            f"agreement {agreement:+.2f} on a scale from −1 to 1; {following_share:.0%} of rollouts"
            " agree"
        )
        yield bench.finding("advantage.sign", CRITICAL, summary, text, agreement)


def _with_alternating_reward(rollout: Rollout) -> Rollout:
    """Return a rollout that earns 1 or -1 by its place in the group, if it was scored."""
    if rollout.reward is None:
        return rollout
    return replace(
        rollout, reward=replace(rollout.reward, total=1.0 if rollout.index % 2 else -1.0)
    )


# Share of weights for which a step of this learning rate is large enough, below which an update
# that changes none is rounded away.
MIN_MOVABLE_SHARE = 0.1
# Shares of weights with a gradient that change, below which bf16 rounds an update away, and below
# which training must not start.
MIN_CHANGED_SHARE = 0.5
CRITICAL_CHANGED_SHARE = 0.1
# Share of the model's weights that train where no adapters were asked for.
MIN_TRAINED_SHARE = 0.5


@probe("movement", finds=["precision.update-underflow", "optimizer.frozen"])
def movement(bench: Bench) -> Answer:
    """Measure the share of weights with a gradient whose bits an update changes."""
    trial = bench.trial_update
    flat = bench.policy.flat
    lr = bench.config.learning.lr
    # The gradient of a KL penalty is 0 at the reference itself.
    learns = trial.update.advantages_bs.any() or bench.config.learning.entropy != 0
    require(learns, "all groups are dead: there is no gradient")
    bits = {4: "fp32", 2: "bf16"}[flat.values.element_size()]
    n_weights = flat.values.numel()
    changed = trial.moved.changed
    share = min(1.0, changed / (trial.gradient_share or 1.0))
    yield f"{changed:.1%} of {n_weights:,} {bits} weights change at lr {lr:g}, "
    yield f"{share:.1%} of those with a gradient"

    is_still = changed == 0 or trial.gradient_share == 0
    movable = movable_share(flat, lr)
    if is_still:
        is_rounded_away = movable < MIN_MOVABLE_SHARE
    else:
        is_rounded_away = share < MIN_CHANGED_SHARE and bits == "bf16"
    if is_rounded_away:
        severity = CRITICAL if share < CRITICAL_CHANGED_SHARE else WARNING
        summary = (
            f"{bits} weights round the update away: at lr {lr:g} only {share:.1%} of them change."
        )
        text = (
            f"{share:.1%} changed; a step of {lr:g} is large enough for {movable:.1%} of the"
            " weights"
        )
        yield bench.finding("precision.update-underflow", severity, summary, text, share)
    elif is_still:
        summary = (
            "No weight changes by an update: what trains is frozen, or not what the optimizer"
            " holds."
        )
        text = f"the update's length is {trial.moved.update:.2g}"
        yield bench.finding("optimizer.frozen", CRITICAL, summary, text, trial.moved.update)
    trained_share = 1.0 if bench.policy.has_adapters else n_weights / bench.policy.parameters
    if trained_share < MIN_TRAINED_SHARE and not is_still:
        text = f"{trained_share:.1%}"
        summary = f"Only {text} of the model's weights train, though no adapters were asked for."
        yield bench.finding("optimizer.frozen", WARNING, summary, text, trained_share)


# KL of a single update that is too much: a run has a few tenths of a nat in all.
MAX_UPDATE_KL = 0.4
# With a warm-up, Adam's later steps are about half as long as this first one, and KL goes with the
# square.
MAX_UPDATE_KL_WITH_WARM_UP = 1.6
# Nats by which half of the tokens move: nothing of the model's choice is left.
MAX_MEDIAN_MOVE = 5.0
# KL of a whole run in which nothing can have been learned, and of a step that does very little.
MIN_RUN_KL = 1e-2
MIN_STEP_KL = 1e-6


@probe("step-size", finds=["optimizer.lr-small", "optimizer.lr-large"])
def step_size(bench: Bench) -> Answer:
    """Measure the policy's KL of one step; Adam's first step is its longest."""
    trial = bench.trial_update
    learning = bench.config.learning
    learns = trial.update.advantages_bs.any() or learning.kl.beta != 0
    require(learns, "all groups are dead: there is no update")
    kl = kl_between(trial.before_bs, trial.after_bs, trial.exp.real_bs)
    lr = f"{learning.lr:g}"
    yield f"one update at lr {lr} moves the policy by KL {kl:.1e}"

    # The most that a run moves, if every step pushed the same way: KL goes with the square.
    rates = [learning_rate(learning, step) for step in range(1, learning.steps + 1)]
    full_steps = sum(rates) / learning.lr
    run_kl = kl * full_steps**2
    # Without a warm-up the run begins with this very step.
    max_kl = MAX_UPDATE_KL if learning.warmup < 2 else MAX_UPDATE_KL_WITH_WARM_UP
    move_bs = (trial.after_bs - trial.before_bs)[trial.exp.real_bs].abs()
    median_move = float(move_bs.nan_to_num(torch.inf).median())
    text = f"KL {kl:.2g} of one step, at most {run_kl:.2g} in {learning.steps} steps"
    if median_move > MAX_MEDIAN_MOVE:
        summary = (
            f"The learning rate {lr} is far too large: one update leaves nothing of the model."
        )
        text = (
            f"median change of a token's log-probability {median_move:.3g} nats; below 1 is usual"
        )
        yield bench.finding("optimizer.lr-large", CRITICAL, summary, text, median_move)
    elif not kl < max_kl:  # NaN too
        summary = (
            f"The learning rate {lr} is too large: one update moves the policy by KL {kl:.2g}."
        )
        # Only a suspicion: what the rollouts show before any update is never caused by it. And only
        # a note at a rate that suits such a model, because later steps of Adam are shorter.
        model = {
            "model.parameters": bench.policy.parameters,
            "model.lora": bench.policy.has_adapters,
        }
        _, highest_rate = usual_learning_rates(model.get)
        is_unusual = learning.lr > UNUSUAL_RATE_FACTOR * highest_rate
        text += f"; below {max_kl:g} is safe, and rates up to {highest_rate:.2g} are usual"
        severity = WARNING if is_unusual or not math.isfinite(kl) else NOTE
        yield bench.finding("optimizer.lr-large", severity, summary, text, kl, basis=SUSPICION)
    elif trial.moved.changed > 0 and 0 <= run_kl < MIN_RUN_KL:
        summary = (
            f"The learning rate {lr} is too small: {learning.steps} such steps can't move the"
            " policy."
        )
        yield bench.finding("optimizer.lr-small", WARNING, summary, text, kl)
    elif trial.moved.changed > 0 and kl < MIN_STEP_KL:
        summary = f"The learning rate {lr} moves the policy very little per step."
        yield bench.finding("optimizer.lr-small", NOTE, summary, text, kl)


# Rollouts of a rehearsal: the shortest, and as many of the longest.
REHEARSED_ROLLOUTS_PER_END = 4
# Tokens per micro-batch that hold any step in one.
UNLIMITED_TOKENS = 1 << 30


@dataclass(frozen=True)
class Rehearsal:
    """Forward passes and gradients of one step's rollouts, computed in several ways."""

    gaps: dict[str, float]  # mean distance of log-probabilities of two passes each, in nats
    micro_batch_gap: float  # the same between one pass and micro-batches
    # of the micro-batches' gradient, against the length of one pass's gradient: distance from that
    # gradient, and length
    gradient_gap: float
    gradient_ratio: float
    n_rows: int


def rehearse(bench: Bench) -> Rehearsal:
    """Compute a step's gradient without a step, in several passes, with and without learning."""
    exp = bench.experience(_rehearsed_rollouts(bench))
    # Any advantages that are not 0 will do.
    advantage_b = torch.where(torch.arange(len(exp.sequences)) % 3 == 0, 1.0, -0.5)
    advantages_bs = advantage_b[:, None].expand_as(exp.sampler_bs)
    longest = max(len(line.ids) for line in exp.sequences)
    with bench.scratch():
        first_bs, gradient = _learn_without_step(bench, exp, advantages_bs, UNLIMITED_TOKENS)
        # In the same layout: only dropout can differ.
        second_bs, _ = _learn_without_step(bench, exp, advantages_bs, UNLIMITED_TOKENS)
        # One row per micro-batch, where a fault of packing shows too: rows that share a prompt
        # might all fit into a larger one.
        micro_batched_bs, micro_batched_gradient = _learn_without_step(
            bench, exp, advantages_bs, longest
        )
        look_bs = bench.logprobs(exp)
        second_look_bs = bench.logprobs(exp)

    gaps = {
        "looking twice": distance(look_bs, second_look_bs, exp.real_bs),
        "learning twice": distance(first_bs, second_bs, exp.real_bs),
        "learning and looking": distance(first_bs, look_bs, exp.real_bs),
    }
    length = max(float(torch.linalg.vector_norm(gradient)), 1e-12)
    return Rehearsal(
        gaps=gaps,
        micro_batch_gap=distance(first_bs, micro_batched_bs, exp.real_bs),
        gradient_gap=float(torch.linalg.vector_norm(micro_batched_gradient - gradient)) / length,
        gradient_ratio=float(torch.linalg.vector_norm(micro_batched_gradient)) / length,
        n_rows=len(exp.sequences),
    )


def _learn_without_step(
    bench: Bench, exp: Experience, advantages_bs: Tensor, tokens: int
) -> tuple[Tensor, Tensor]:
    """Let the learner learn in micro-batches of at most `tokens`; return its log-probabilities and
    the gradient, which no optimizer applies.
    """
    learning = replace(
        bench.config.learning, tokens=tokens, updates=1, minibatches=1, kl=Kl(), skip_dead=False
    )
    config = replace(bench.config, learning=learning)
    catcher = GradientCatcher(bench.policy)
    learner = bench.components.learner(bench.policy, cast(Optimizer, catcher), config)
    update = learner.update(exp, advantages_bs, 1, old_bs=None, reference_bs=None)
    (gradient,) = catcher.gradients
    return update.learner_bs, gradient


def _rehearsed_rollouts(bench: Bench) -> list[Rollout]:
    """Return rollouts of different lengths, from several groups: equal parts would hide a wrong
    mean.
    """
    spoken = [rollout for rollout in bench.batch if rollout.sampled_tokens]
    require(spoken, "nothing was sampled")
    spoken.sort(key=lambda rollout: rollout.sampled_tokens)
    if len(spoken) > 2 * REHEARSED_ROLLOUTS_PER_END:
        shortest = spoken[:REHEARSED_ROLLOUTS_PER_END]
        spoken = shortest + spoken[-REHEARSED_ROLLOUTS_PER_END:]
    return sorted(spoken, key=lambda rollout: (rollout.group, rollout.index))


# Nats by which two passes over the same tokens may differ: kernels may sum in another order.
MAX_PASS_GAP_FP32 = 1e-4
MAX_PASS_GAP_BF16 = 3e-2


@probe("dropout", finds=["policy.dropout-on"], cheap=False)
def dropout(bench: Bench) -> Answer:
    """Run the same forward twice with and without learning, and compare the two modes."""
    max_gap = bench.tolerance(MAX_PASS_GAP_FP32, MAX_PASS_GAP_BF16)
    gaps = bench.compute_once(rehearse).gaps
    worst = max(gaps, key=lambda name: gaps[name])
    yield f"the same forward twice differs by {gaps[worst]:.1e} nats (below {max_gap:g})"
    if gaps[worst] > max_gap:
        severity = WARNING
        summary = (
            f"The learner's forward is not the same twice ({worst}): dropout is on, and ratios are"
            " noise."
        )
        # Dropout that the recipe asks for acts where the learner learns, and nowhere else.
        lora = bench.config.model.lora
        if lora is not None and lora.dropout > 0 and gaps["looking twice"] <= max_gap:
            severity = NOTE
            summary = (
                f"model.lora.dropout = {lora.dropout:g} makes ratios noisy: learning and looking"
                " differ."
            )
        text = f"{gaps[worst]:.2g} nats on average between {worst}"
        yield bench.finding("policy.dropout-on", severity, summary, text, gaps[worst])


# Distance of two gradients / their length that summing in another order leaves.
MAX_GRADIENT_GAP_FP32 = 1e-3
MAX_GRADIENT_GAP_BF16 = 5e-2
# The same, above which training must not start: what is learned is half another gradient.
CRITICAL_GRADIENT_GAP = 0.5


@probe("accumulation", finds=["optimizer.accumulation"], cheap=False)
def accumulation(bench: Bench) -> Answer:
    """Compare the gradient of one pass with that of micro-batches of one rollout each."""
    rehearsal = bench.compute_once(rehearse)
    gap = rehearsal.gradient_gap
    max_gap = bench.tolerance(MAX_GRADIENT_GAP_FP32, MAX_GRADIENT_GAP_BF16)
    is_comparable = rehearsal.micro_batch_gap <= max_gap
    require(is_comparable, "forward passes differ, so gradients can't be compared")
    yield f"gradients of one pass and of {rehearsal.n_rows} rows in micro-batches differ by "
    yield f"{gap:.1e} of their length (below {max_gap:g})"
    if not gap <= max_gap:  # NaN too
        severity = CRITICAL if gap > CRITICAL_GRADIENT_GAP else WARNING
        summary = (
            "Gradients of micro-batches do not add up to those of one pass: their number changes"
            " what is learned."
        )
        text = f"{gap:.2g} of the length apart, {rehearsal.gradient_ratio:.2f} times as long"
        yield bench.finding("optimizer.accumulation", severity, summary, text, gap)


# Rollouts of the update that the penalty makes alone.
PENALIZED_ROLLOUTS = 16
# Noise on a part of the weights / their typical size, and the size taken for a part that is all 0.
PUSH_STRENGTH = 0.05
ZERO_PART_SIZE = 0.3
# Weights per part.
PART_WEIGHTS = 1 << 20
# Part of the way back to the reference that the update is scaled to, so that its first-order effect
# shows: a whole first step of Adam overshoots.
WAY_BACK = 0.1
# KL from the reference below which rounding decides.
MIN_PUSHED_KL = 1e-6


@probe("kl-sign", finds=["kl.sign", "kl.no-gradient"], need=NEEDS_KL_PENALTY, cheap=False)
def kl_sign(bench: Bench) -> Answer:
    """Push the weights off, and make one update by the KL penalty alone: KL must fall."""
    learning = bench.config.learning
    require(learning.kl.estimator != "k1", "k1 acts in the reward, not in the loss")
    # Equal rewards leave the penalty as the only thing to learn from.
    penalty_alone = replace(learning, entropy=0.0, updates=1, minibatches=1, skip_dead=False)
    config = replace(bench.config, learning=penalty_alone)
    reward = Reward.of("same", 0.0, -1.0, 1.0, False)
    rollouts = [replace(rollout, reward=reward) for rollout in bench.batch[:PENALIZED_ROLLOUTS]]
    exp = bench.experience(rollouts)
    with bench.scratch():
        _push_off(bench)
        pushed = bench.policy.flat.values.data.clone()
        learner, _ = bench.make_learner(config)
        reference_bs = bench.logprobs(exp, learner, reference=True)
        before_bs = bench.logprobs(exp, learner)
        # The first step whose learning rate is a full one.
        first_full_step = max(1, learning.warmup)
        update, *_ = learn(bench.components, learner, exp, rollouts, first_full_step, config)
        moved = distance(bench.logprobs(exp, learner), before_bs, exp.real_bs)
        way = distance(reference_bs, before_bs, exp.real_bs)
        bench.move_along(pushed, min(1.0, WAY_BACK * way / max(moved, 1e-6)))
        after_bs = bench.logprobs(exp, learner)

    before = kl_between(before_bs, reference_bs, exp.real_bs)
    after = kl_between(after_bs, reference_bs, exp.real_bs)
    is_visible = before >= MIN_PUSHED_KL and bench.is_exact
    require(is_visible, "too little moves to tell in this precision")
    yield f"a little way along an update of the penalty alone, KL goes from {before:.4g} to "
    yield f"{after:.4g}"
    gradient = max((applied.norm_before for applied in update.applied), default=0.0)
    if gradient == 0:
        summary = (
            "The KL penalty has no gradient: with nothing else to learn, no weight is asked to"
            " move."
        )
        text = f"KL is {before:.4g}, and the gradient of the penalty alone is 0"
        yield bench.finding("kl.no-gradient", CRITICAL, summary, text, gradient)
    elif not after <= before:  # NaN too
        summary = (
            "The KL penalty pushes away from the reference: with nothing else to learn, KL rises."
        )
        text = f"KL {before:.4g} before and {after:.4g} after"
        yield bench.finding("kl.sign", CRITICAL, summary, text, after - before)


def _push_off(bench: Bench) -> None:
    """Add noise to all weights, part by part in proportion to their size."""
    weights = bench.policy.flat.values.data
    generator = torch.Generator(weights.device).manual_seed(0)
    for part in torch.split(weights, PART_WEIGHTS):
        size = float(part.float().square().mean().sqrt()) or ZERO_PART_SIZE
        noise = torch.randn(
            part.shape, generator=generator, device=part.device, dtype=torch.float32
        )
        part.add_((PUSH_STRENGTH * size * noise).to(part.dtype))


# Nats by which a token can move against the KL penalty, below which little can be learned: 0.5 is
# from 10% to 15%.
MIN_TOKEN_MOVE_NATS = 0.5


@probe("penalty", finds=["kl.strangles"], need=NEEDS_KL_PENALTY)
def penalty(bench: Bench) -> Answer:
    """Compute how far a token can move before the KL penalty outweighs all advantages."""
    learning = bench.config.learning
    advantage_n = true_advantages(bench.rollouts, learning.scale, learning.baseline)
    require(advantage_n.any(), "all groups are dead: there is no advantage to compare with")
    # The best policy under the penalty is the reference times exp(advantage / beta).
    difference = float(np.ptp(advantage_n))
    max_move = difference / learning.kl.beta
    yield f"advantages differ by {difference:.2g}: against beta {learning.kl.beta:g} a token moves "
    yield f"{max_move:.2g} nats"
    if max_move < MIN_TOKEN_MOVE_NATS:
        summary = (
            f"learning.kl.beta = {learning.kl.beta:g} is far too large: a token can move by"
            f" {max_move:.2g} nats at most."
        )
        text = f"below {MIN_TOKEN_MOVE_NATS:g} nats little can be learned"
        yield bench.finding("kl.strangles", WARNING, summary, text, max_move)
