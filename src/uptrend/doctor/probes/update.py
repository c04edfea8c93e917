"""Probes of one update: which tokens train, with which advantage, which way, how far, and how
gradients add up.

b = sequence, s = sampled token of it.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.config.schema import Kl
from uptrend.doctor.check import CRITICAL, NOTE, SUSPICION, WARNING
from uptrend.doctor.groups import RewardGroups, recompute_advantages
from uptrend.doctor.probes.bench import Bench, GradientCatcher, by_group, distance, kl_between
from uptrend.doctor.probes.probe import NEEDS_KL_PENALTY, Answer, Piece, probe, require
from uptrend.policy.optimizer import Optimizer, learning_rate
from uptrend.policy.weights import movable_share
from uptrend.present.formatting import plural
from uptrend.records import Reward, Role, Rollout, Sequence
from uptrend.records.rollout import LIMIT_ENDINGS
from uptrend.training.loop import learn
from uptrend.training.recorder import RecordedRollouts

Floats = NDArray[np.float64]
LARGE = 0.4  # KL of a single update: a run has a few tenths of a nat in all
# With a warm-up, Adam's later steps are about half as long as this first one, and KL goes with the
# square.
LARGE_WITH_WARM_UP = 1.6
MAX_MEDIAN_MOVE = 5.0  # nats for half of the tokens: nothing of the model's choice is left
MIN_RUN_KL = 1e-2  # KL of a whole run in which nothing can have been learned
MIN_STEP_KL = 1e-6
# Distance of two gradients / their length that summing in another order leaves.
MAX_GRADIENT_GAP_FP32 = 1e-3
MAX_GRADIENT_GAP_BF16 = 5e-2
TIGHT = 0.5  # nats by which a token can move against the KL penalty: from 10% to 15%


@probe("masks", finds=["mask.tool-trained", "mask.model-untrained", "mask.stop-untrained"])
def masks(bench: Bench) -> Answer:
    """Count trained tokens by author in the update that was tried."""
    done = bench.trial_update
    rollouts = list(RecordedRollouts(done.rollouts, done.exp, done.update, ()))
    rows = [(r, s) for r in rollouts for s in r.sequences]
    roles, trained = (
        np.concatenate(parts)
        for parts in ([s.roles for _, s in rows], [_trained(s) for _, s in rows])
    )
    counts = {
        role: (trained[roles == int(role)].sum(), (roles == int(role)).sum()) for role in Role
    }
    told = [
        f"{n} of {total} {role.name.lower()} tokens" for role, (n, total) in counts.items() if total
    ]
    yield f"trained: {', '.join(told)}"
    foreign = [(int((_trained(s) & (s.versions < 0)).sum()), r) for r, s in rows]
    if total := sum(count for count, _ in foreign):
        most, worst = max(foreign, key=lambda item: item[0])
        summary = (
            f"{total} tokens are trained that the model did not write: prompts or tool results are"
            " in the loss."
        )
        yield bench.finding(
            "mask.tool-trained", CRITICAL, summary, f"{most} in one rollout", total, worst
        )
    ranked = sorted(rollouts, key=lambda r: -(r.reward.total if r.reward else -9))
    # right and wrong ones
    shown = {id(r): r for r in (ranked[0], ranked[len(ranked) // 2], ranked[-1])}
    for rollout in shown.values():
        yield tuple(_pieces(bench, rollout.sequences[0]))
    # Tokens that the model sampled and the loss leaves out, without the recipe saying so.
    stops = np.array(bench.policy.stop_ids)
    cut = bench.config.learning.mask_truncated
    rows = [
        (r, s)
        for r, s in rows
        if r.reward is not None and r.kept and not (cut and r.ended in LIMIT_ENDINGS)
    ]
    said = sum(int((s.versions >= 0).sum()) for _, s in rows)
    out = [(r, s.ids[(s.versions >= 0) & ~_trained(s)]) for r, s in rows]
    missing = sum(len(ids) for _, ids in out)
    missing_stops = sum(int(np.isin(ids, stops).sum()) for _, ids in out)
    example = next((r for r, ids in out if len(ids)), None)
    if missing > missing_stops:
        summary = (
            f"{missing} of {said} tokens that the model sampled are not in the loss, and no option"
            " says so."
        )
        severity = CRITICAL if missing > 0.5 * said else WARNING
        share = missing / said
        yield bench.finding(
            "mask.model-untrained", severity, summary, f"{share:.1%} of its tokens", share, example
        )
    elif missing:
        stopped = sum(int(np.isin(s.ids[s.versions >= 0], stops).sum()) for _, s in rows)
        summary = f"{missing} of {stopped} stop tokens that the model sampled are not in the loss: "
        summary += "it can't learn when to stop."
        text = f"{missing / stopped:.0%} of sampled stop tokens"
        yield bench.finding("mask.stop-untrained", CRITICAL, summary, text, missing, example)


def _trained(sequence: Sequence) -> NDArray[np.bool_]:
    assert sequence.weights is not None
    return np.asarray(sequence.weights != 0)


def _pieces(bench: Bench, s: Sequence) -> Iterator[Piece]:
    """Split tokens into runs that are alike in role, training and attention."""
    assert s.attended is not None
    keys = np.stack([s.roles, _trained(s), s.attended], 1).astype(int)
    begins = np.ones(len(keys), bool)
    begins[1:] = (keys[1:] != keys[:-1]).any(1)
    for start, end in pairwise([*np.flatnonzero(begins), len(keys)]):
        text = bench.policy.tokenizer.decode(
            s.ids[start:end].tolist(), clean_up_tokenization_spaces=False
        )
        yield Piece(text, Role(int(keys[start, 0])), bool(keys[start, 1]), bool(keys[start, 2]))


def true_advantages(rollouts: list[Rollout], scale: str, baseline: str) -> Floats:
    """Compute advantages in fp64 by the ids that rollouts carry; 0 where rewards are equal or there
    is none.
    """
    reward_n = np.array(
        [np.nan if r.reward is None else r.reward.total for r in rollouts], np.float64
    )
    scored = np.flatnonzero(np.isfinite(reward_n))
    names_n = [rollouts[n].group for n in scored]
    group_n = np.unique(names_n, return_inverse=True)[1].astype(np.int64)
    out = np.zeros(len(rollouts))
    out[scored] = recompute_advantages(RewardGroups(group_n, reward_n[scored]), scale, baseline)
    return out


@probe("advantages", finds=["advantage.wrong-groups", "advantage.blow-up", "advantage.sign"])
def advantages(bench: Bench) -> Answer:
    """Compare the learner's advantages with those of true groups, by rollout and summed by
    group.
    """
    done = bench.trial_update
    learning = bench.config.learning
    size = bench.config.sampling.size
    given = np.zeros(len(done.rollouts))
    given[done.exp.rollouts_b.numpy()] = done.update.advantages_bs[:, 0].numpy()
    expected = true_advantages(done.rollouts, learning.scale, learning.baseline)
    names = np.array([r.group for r in done.rollouts])
    groups = by_group(done.rollouts)
    sums = max(abs(float(given[names == name].sum())) for name in groups)
    # Then the penalty is in it too, or it is the first turn's.
    in_reward = (
        learning.kl.beta > 0 and learning.kl.estimator == "k1"
    ) or learning.credit == "turn"
    apart = 0.0 if in_reward else float(np.abs(given - expected).max())
    yield (
        f"advantages differ by {apart:.1e} from those of true groups; the largest sum of a group is"
        f" {sums:.1e}"
    )
    mixed = sum(len({r.task for r in group}) > 1 for group in groups.values())
    near = 1e-3 * max(1.0, float(np.abs(expected).max()))
    text = f"up to {apart:.2g} from the true one; a group's sum is {sums:.2g}, and must be 0"
    if mixed:
        summary = (
            f"{mixed} groups hold rollouts of different tasks: rewards of different questions are"
            " compared."
        )
        yield bench.finding("advantage.wrong-groups", CRITICAL, summary, f"{mixed} groups", mixed)
    elif apart > near and np.abs(given + expected).max() <= near:
        summary = "Advantages have the wrong sign: better rollouts are made less likely."
        yield bench.finding(
            "advantage.sign", CRITICAL, summary, "each is minus the true one", apart
        )
    elif apart > near and sums > 1e-2:
        summary = (
            "Advantages are not those of the rollouts' groups: rollouts are compared with another"
            " task's."
        )
        yield bench.finding("advantage.wrong-groups", CRITICAL, summary, text, sums)
    elif apart > near:
        summary = "Advantages do not follow from rewards and groups."
        yield bench.finding("advantage.blow-up", WARNING, summary, text, sums)
    if learning.scale != "group" or learning.baseline != "mean":
        return
    most = float(np.abs(given).max())
    limit = (size - 1) ** 0.5
    rewards = [[r.reward.total for r in group if r.reward] for group in groups.values()]
    # Equal rewards have a deviation too, of 1e-17 or so: their mean is rounded. Their advantages
    # are 0.
    differing = [values for values in rewards if len(values) > 1 and np.ptp(values) > 0]
    deviations = [float(np.std(values, ddof=1)) for values in differing]
    tiny = [deviation for deviation in deviations if deviation < 1e-3]
    if most > limit * 1.01:
        summary = (
            f"An advantage of {most:.3g} exceeds the most that a group of {size} can give,"
            f" {limit:.3g}."
        )
        yield bench.finding("advantage.blow-up", CRITICAL, summary, f"|A| = {most:.3g}", most)
    elif tiny:
        summary = (
            f"Rewards of {plural(len(tiny), 'group')} differ by next to nothing, and dividing by"
            " their deviation makes much of it."
        )
        text = f"the least deviation is {min(tiny):.1e}"
        yield bench.finding("advantage.blow-up", NOTE, summary, text, min(tiny))


@probe("sign", finds=["advantage.sign"])
def sign(bench: Bench) -> Answer:
    """Correlate what an update moves with what was better."""
    done = bench.trial_update
    learning = bench.config.learning
    how = ""
    truth = true_advantages(done.rollouts, learning.scale, learning.baseline)
    # An entropy bonus pulls on every rollout alike, and is no part of the question.
    config = replace(bench.config, learning=replace(learning, entropy=0.0))
    if not truth.any():
        # Alternating rewards: what an update does with them does not depend on what they mean.
        how = " with rewards by chance, as all groups are dead"
        totals = [
            (r, r.reward and replace(r.reward, total=1.0 if r.index % 2 else -1.0))
            for r in done.rollouts
        ]
        done = bench.try_update([replace(r, reward=reward) for r, reward in totals], config)
        truth = true_advantages(done.rollouts, learning.scale, learning.baseline)
    elif learning.entropy != 0:
        done = bench.try_update(done.rollouts, config)
    # What rounding leaves of an update goes anywhere.
    require(done.moved.changed > 0.1 * done.gradient_share, "the update moves hardly any weight")
    # A little way along: a whole first step of Adam is as long for every weight, whatever its
    # gradient, and overshoots.
    real_bs = done.exp.real_bs
    change_b = (done.nudged_bs - done.before_bs).masked_fill(~real_bs, 0.0).sum(1) / real_bs.sum(1)
    truth_b = torch.from_numpy(truth)[done.exp.rollouts_b]
    chosen = (truth_b != 0) & ~change_b.isnan()
    follows = float(
        (truth_b * change_b)[chosen].sum() / (truth_b.abs() * change_b.abs())[chosen].sum()
    )
    right = float(((truth_b > 0) == (change_b > 0))[chosen].float().mean())
    yield (
        f"{right:.0%} of {int(chosen.sum())} rollouts follow the sign of their advantage{how}"
        f" ({follows:+.2f})"
    )
    if not follows > -0.2:
        summary = (
            "Better rollouts become less likely: an update moves log-probabilities against the"
            " advantage's sign."
        )
        text = f"agreement {follows:+.2f} on a scale from −1 to 1; {right:.0%} of rollouts agree"
        yield bench.finding("advantage.sign", CRITICAL, summary, text, follows)


@probe("movement", finds=["precision.update-underflow", "optimizer.frozen"])
def movement(bench: Bench) -> Answer:
    """Measure the share of weights with a gradient whose bits change at this learning rate and
    precision.
    """
    done = bench.trial_update
    flat = bench.policy.flat
    lr = bench.config.learning.lr
    # The gradient of a KL penalty is 0 at the reference itself.
    learns = done.update.advantages_bs.any() or bench.config.learning.entropy != 0
    require(learns, "all groups are dead: there is no gradient")
    bits = {4: "fp32", 2: "bf16"}[flat.values.element_size()]
    changed = done.moved.changed
    count = flat.values.numel()
    share = min(1.0, changed / (done.gradient_share or 1.0))
    yield (
        f"{changed:.1%} of {count:,} {bits} weights change at lr {lr:g}, {share:.1%} of those with"
        " a gradient"
    )
    is_still = changed == 0 or done.gradient_share == 0
    movable = movable_share(flat, lr)
    if (movable < 0.1) if is_still else (share < 0.5 and bits == "bf16"):
        summary = (
            f"{bits} weights round the update away: at lr {lr:g} only {share:.1%} of them change."
        )
        text = (
            f"{share:.1%} changed; a step of {lr:g} is large enough for {movable:.1%} of the"
            " weights"
        )
        yield bench.finding(
            "precision.update-underflow", CRITICAL if share < 0.1 else WARNING, summary, text, share
        )
    elif is_still:
        summary = (
            "No weight changes by an update: what trains is frozen, or not what the optimizer"
            " holds."
        )
        text = f"the update's length is {done.moved.update:.2g}"
        yield bench.finding("optimizer.frozen", CRITICAL, summary, text, done.moved.update)
    trains = 1.0 if bench.policy.has_adapters else count / bench.policy.parameters
    if trains < 0.5 and not is_still:
        summary = (
            f"Only {trains:.1%} of the model's weights train, though no adapters were asked for."
        )
        yield bench.finding("optimizer.frozen", WARNING, summary, f"{trains:.1%}", trains)


@probe("step-size", finds=["optimizer.lr-small", "optimizer.lr-large"])
def step_size(bench: Bench) -> Answer:
    """Measure the policy's KL of one step; Adam's first step is its longest, so no step does
    more.
    """
    done = bench.trial_update
    learning = bench.config.learning
    real_bs = bench.trial_update.exp.real_bs
    learns = done.update.advantages_bs.any() or learning.kl.beta != 0
    require(learns, "all groups are dead: there is no update")
    kl = kl_between(done.before_bs, done.after_bs, real_bs)
    worth = (
        sum(learning_rate(learning, step) for step in range(1, learning.steps + 1)) / learning.lr
    )
    most = kl * worth**2  # if every step pushed the same way
    yield f"one update at lr {learning.lr:g} moves the policy by KL {kl:.1e}"
    # Without a warm-up the run begins with this very step.
    limit = LARGE if learning.warmup < 2 else LARGE_WITH_WARM_UP
    moved = float((done.after_bs - done.before_bs)[real_bs].abs().nan_to_num(torch.inf).median())
    text = f"KL {kl:.2g} of one step, at most {most:.2g} in {learning.steps} steps"
    if moved > MAX_MEDIAN_MOVE:
        summary = (
            f"The learning rate {learning.lr:g} is far too large: one update leaves nothing of the"
            " model."
        )
        text = f"median change of a token's log-probability {moved:.3g} nats; below 1 is usual"
        yield bench.finding("optimizer.lr-large", CRITICAL, summary, text, moved)
    elif not kl < limit:
        summary = (
            f"The learning rate {learning.lr:g} is too large: one update moves the policy by KL"
            f" {kl:.2g}."
        )
        # Not more than a suspicion: of what the rollouts show before any update, it is never the
        # cause.
        text += f"; below {limit:g} is safe"
        yield bench.finding("optimizer.lr-large", WARNING, summary, text, kl, basis=SUSPICION)
    elif done.moved.changed > 0 and 0 <= most < MIN_RUN_KL:
        summary = (
            f"The learning rate {learning.lr:g} is too small: {learning.steps} such steps can't"
            " move the policy."
        )
        yield bench.finding("optimizer.lr-small", WARNING, summary, text, kl)
    elif done.moved.changed > 0 and kl < MIN_STEP_KL:
        summary = f"The learning rate {learning.lr:g} moves the policy very little per step."
        yield bench.finding("optimizer.lr-small", NOTE, summary, text, kl)


def _rehearse(bench: Bench) -> tuple[dict[str, float], float, float, int]:
    """Compute a step's gradient without a step, in several passes, with and without learning.

    Returns distances of log-probabilities between two passes each (mean, in nats); how far the
    gradient of micro-batches is from that of one pass, and how long it is, both relative to the
    latter; and the number of rows.
    """
    # Rollouts of different lengths, from several groups: equal parts would hide a wrong mean.
    said = sorted((r for r in bench.batch if r.sampled_tokens), key=lambda r: r.sampled_tokens)
    require(said, "nothing was sampled")
    chosen = sorted(
        [*said[:4], *said[-4:]] if len(said) > 8 else said, key=lambda r: (r.group, r.index)
    )
    exp = bench.experience(chosen)
    catcher = GradientCatcher(bench.policy)
    learned = list[Tensor]()
    # Any that are not 0 will do.
    advantages_bs = torch.where(torch.arange(len(exp.sequences)) % 3 == 0, 1.0, -0.5)[
        :, None
    ].expand_as(exp.sampler_bs)
    with bench.scratch():
        # Twice the same layout, where only dropout can differ; then one row per micro-batch, where
        # a fault of packing shows too: rows that share a prompt might all fit into a larger one.
        for tokens in (1 << 30, 1 << 30, max(len(line.ids) for line in exp.sequences)):
            learning = replace(
                bench.config.learning,
                tokens=tokens,
                updates=1,
                minibatches=1,
                kl=Kl(),
                skip_dead=False,
            )
            config = replace(bench.config, learning=learning)
            learner = bench.components.learner(bench.policy, cast(Optimizer, catcher), config)
            learned.append(
                learner.update(exp, advantages_bs, 1, old_bs=None, reference_bs=None).learner_bs
            )
        look_bs = bench.logprobs(exp)
        again_bs = bench.logprobs(exp)
    one_bs, two_bs, micro_bs = learned
    pairs = {
        "looking twice": (look_bs, again_bs),
        "learning twice": (one_bs, two_bs),
        "learning and looking": (one_bs, look_bs),
        "micro-batches": (one_bs, micro_bs),
    }
    forward = {name: distance(a_bs, b_bs, exp.real_bs) for name, (a_bs, b_bs) in pairs.items()}
    whole, _, parts = catcher.gradients
    length = max(float(torch.linalg.vector_norm(whole)), 1e-12)
    gradients, ratio = (float(torch.linalg.vector_norm(x)) / length for x in (parts - whole, parts))
    return forward, gradients, ratio, len(exp.sequences)


@probe("dropout", finds=["policy.dropout-on"], cheap=False)
def dropout(bench: Bench) -> Answer:
    """Run the same forward twice with and without learning, and compare the two modes."""
    near = bench.tolerance(1e-4, 3e-2)
    lora = bench.config.model.lora
    gaps = {
        name: gap
        for name, gap in bench.compute_once(_rehearse)[0].items()
        if name != "micro-batches"
    }
    worst = max(gaps, key=lambda name: gaps[name])
    yield f"the same forward twice differs by {gaps[worst]:.1e} nats (below {near:g})"
    if gaps[worst] > near:
        summary = (
            f"The learner's forward is not the same twice ({worst}): dropout is on, and ratios are"
            " noise."
        )
        text = f"{gaps[worst]:.2g} nats on average between {worst}"
        severity = WARNING
        if lora is not None and lora.dropout > 0 and gaps["looking twice"] <= near:
            severity = NOTE
            summary = (
                f"model.lora.dropout = {lora.dropout:g} makes ratios noisy: learning and looking"
                " differ."
            )
        yield bench.finding("policy.dropout-on", severity, summary, text, gaps[worst])


@probe("accumulation", finds=["optimizer.accumulation"], cheap=False)
def accumulation(bench: Bench) -> Answer:
    """Compare the gradient of one pass with that of micro-batches of one rollout each."""
    forward, apart, ratio, rows = bench.compute_once(_rehearse)
    near = bench.tolerance(MAX_GRADIENT_GAP_FP32, MAX_GRADIENT_GAP_BF16)
    require(
        forward["micro-batches"] <= near, "forward passes differ, so gradients can't be compared"
    )
    yield f"gradients of one pass and of {rows} rows in micro-batches differ by {apart:.1e} "
    yield f"of their length (below {near:g})"
    if not apart <= near:
        summary = (
            "Gradients of micro-batches do not add up to those of one pass: their number changes"
            " what is learned."
        )
        text = f"{apart:.2g} of the length apart, {ratio:.2f} times as long"
        yield bench.finding(
            "optimizer.accumulation", CRITICAL if apart > 0.5 else WARNING, summary, text, apart
        )


@probe("kl-sign", finds=["kl.sign"], need=NEEDS_KL_PENALTY, cheap=False)
def kl_sign(bench: Bench) -> Answer:
    """Push the weights off, give all rollouts the same reward, and make one update: KL must
    fall.
    """
    learning = bench.config.learning
    weights = bench.policy.flat.values.data
    require(learning.kl.estimator != "k1", "k1 acts in the reward, not in the loss")
    config = replace(
        bench.config, learning=replace(learning, entropy=0.0, updates=1, minibatches=1)
    )
    same = Reward.of("same", 0.0, -1.0, 1.0, False)
    rollouts = [replace(r, reward=same) for r in bench.batch[:16]]
    exp = bench.experience(rollouts)
    with bench.scratch():
        generator = torch.Generator(weights.device).manual_seed(0)
        for part in torch.split(weights, 1 << 20):
            size = 0.05 * (float(part.float().square().mean().sqrt()) or 0.3)
            noise = torch.randn(
                part.shape, generator=generator, device=part.device, dtype=torch.float32
            )
            part.add_((size * noise).to(part.dtype))
        off = weights.clone()
        learner, _ = bench.make_learner(config)
        reference_bs = bench.logprobs(exp, learner, reference=True)
        before_bs = bench.logprobs(exp, learner)
        learn(bench.components, learner, exp, rollouts, max(1, learning.warmup), config)
        moved = distance(bench.logprobs(exp, learner), before_bs, exp.real_bs)
        # To first order, a tenth of the way back: a whole first step of Adam overshoots.
        apart = distance(reference_bs, before_bs, exp.real_bs)
        bench.move_along(off, min(1.0, 0.1 * apart / max(moved, 1e-6)))
        after_bs = bench.logprobs(exp, learner)
    before, after = (
        kl_between(side_bs, reference_bs, exp.real_bs) for side_bs in (before_bs, after_bs)
    )
    require(before >= 1e-6 and bench.is_exact, "too little moves to tell in this precision")
    yield (
        f"a little way along an update of the penalty alone, KL goes from {before:.4g} to"
        f" {after:.4g}"
    )
    if not after <= before:
        summary = (
            "The KL penalty pushes away from the reference: with nothing else to learn, KL rises."
        )
        text = f"KL {before:.4g} before and {after:.4g} after"
        yield bench.finding("kl.sign", CRITICAL, summary, text, after - before)


@probe("penalty", finds=["kl.strangles"], need=NEEDS_KL_PENALTY)
def penalty(bench: Bench) -> Answer:
    """Compute how far a token can move before the KL penalty outweighs the largest difference of
    advantages.
    """
    learning = bench.config.learning
    given = true_advantages(bench.rollouts, learning.scale, learning.baseline)
    require(given.any(), "all groups are dead: there is no advantage to compare with")
    # The best policy under the penalty is the reference times exp(advantage / beta).
    most = float(np.ptp(given)) / learning.kl.beta
    yield (
        f"advantages differ by {np.ptp(given):.2g}: against beta {learning.kl.beta:g} a token moves"
        f" {most:.2g} nats"
    )
    if most < TIGHT:
        summary = (
            f"learning.kl.beta = {learning.kl.beta:g} is far too large: a token can move by"
            f" {most:.2g} nats at most."
        )
        yield bench.finding(
            "kl.strangles", WARNING, summary, f"below {TIGHT:g} nats little can be learned", most
        )
