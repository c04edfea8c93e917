"""Probes of tokens between sampler and learner: rendered, the same everywhere, and seen by the
learner.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from uptrend.doctor.probes.bench import Bench, by_group
from uptrend.doctor.probes.probe import (
    CRITICAL,
    NOTE,
    SAMPLED,
    TOOLS,
    WARNING,
    Answer,
    probe,
    require,
)
from uptrend.records import Finding, Message, Role, Rollout
from uptrend.rollout.calls import example_call

STILL = 1e-3  # nats: an unseen prompt moves nothing at all, a seen one a good part of a nat


@probe("tool-calls", finds=["tool.multi-call"], need=TOOLS)
def tool_calls(bench: Bench) -> Answer:
    """Render two results after a turn; render two calls in a turn, and read them back."""
    renderer = bench.renderer
    call = example_call(bench.tools[0])
    results = 0
    try:
        results = len(
            renderer.later([], [Message("tool", "one"), Message("tool", "two")], bench.tools)
        )
        back = len(renderer.read(renderer.write(Message("assistant", "", (call, call)))).calls)
    except Exception as error:  # templates raise what they like
        if results:
            yield f"two results are {results} tokens; two calls are refused: {error}"
            severity = NOTE
            summary = (
                "The model's format holds one tool call per turn; a script that makes two is"
                " refused."
            )
        else:
            yield f"two results in a turn fail: {error}"
            severity = CRITICAL
            summary = (
                "The chat template can't show two tool results after a turn: such a rollout would"
                " fail."
            )
        yield bench.found("tool.multi-call", severity, summary, str(error))
        return
    figure = f"two calls are read back as {back}, two results are {results} tokens"
    yield figure
    if back != 2:
        summary = f"Two tool calls in a turn are read back as {back}."
        yield bench.found("tool.multi-call", NOTE, summary, figure, back)


@probe("identity", finds=["tokens.retokenized", "tokens.template"])
def identity(bench: Bench) -> Answer:
    """Compare token ids along the way: read and said by the sampler, recorded, and laid out for the
    learner.
    """
    rollouts = bench.played
    streams = bench.sampler.streams
    unread = _missing([_ids(r, said=False) for r in rollouts], [read for read, _ in streams])
    unsaid = _missing([_ids(r, said=True) for r in rollouts], [said for _, said in streams])
    rows = [(r, s) for r in bench.rollouts for s in r.sequences]
    laid_out = enumerate(zip(bench.exp.sequences, rows, strict=True))
    other = [n for n, (line, (_, s)) in laid_out if not np.array_equal(line.ids, s.ids)]
    tokens = sum(len(s.ids) for _, s in rows)
    yield (
        f"{len(unsaid) + len(other)} of {len(rows)} sequences ({tokens:,} tokens) changed after"
        " sampling, "
    )
    yield f"{len(unread)} prompts differ"

    def changed(id: str, summary: str, rollout: Rollout) -> Finding:
        words = bench.policy.tokenizer.decode(
            _ids(rollout, said=True)[:12], clean_up_tokenization_spaces=False
        )
        return bench.found(
            id, CRITICAL, summary, f"for example the rollout that says {words!r}", None, rollout
        )

    if unsaid:
        summary = (
            f"{len(unsaid)} of {len(rollouts)} rollouts are learned with other tokens than were"
            " sampled."
        )
        yield changed("tokens.retokenized", summary, rollouts[unsaid[0]])
    if unread:
        summary = (
            f"{len(unread)} of {len(rollouts)} rollouts are learned with another prompt than the"
            " sampler got."
        )
        yield changed("tokens.template", summary, rollouts[unread[0]])
    if other and not unsaid and not unread:
        rollout, s = rows[other[0]]
        places = np.flatnonzero(bench.exp.sequences[other[0]].ids[: len(s.ids)] != s.ids)
        if len(places) and not s.sampled[places].any():
            summary = (
                f"The learner reads another prompt than the sampler did in {len(other)} of"
                f" {len(rows)} rows."
            )
            yield changed("tokens.template", summary, rollout)
        else:
            summary = (
                f"{len(other)} of {len(rows)} rollouts are learned with other tokens than were"
                " recorded."
            )
            yield changed("tokens.retokenized", summary, rollout)


def _ids(rollout: Rollout, *, said: bool) -> list[int]:
    return [int(i) for s in rollout.sequences for i in s.ids[(s.roles == int(Role.MODEL)) == said]]


def _missing(recorded: Sequence[Sequence[int]], heard: Sequence[Sequence[int]]) -> list[int]:
    """Return numbers of recorded sequences that the sampler never had; by content, as records come
    in any order.
    """
    left = Counter(map(tuple, heard))
    missing = []
    for number, ids in enumerate(map(tuple, recorded)):
        left[ids] -= 1
        if ids and left[ids] < 0:
            missing.append(number)
    return missing


@probe("prompt-swap", finds=["mask.attention-blind"])
def prompt_swap(bench: Bench) -> Answer:
    """Exchange prompts between four groups, and look at the same answers."""
    groups = [
        group[:4] for group in by_group(r for r in bench.rollouts if r.sampled_tokens).values()
    ][:4]
    require(len(groups) > 1, "fewer than two groups said anything")
    pairs = [
        (r, other[0])
        for group, other in zip(groups, [*groups[1:], groups[0]], strict=True)
        for r in group
    ]
    summary = (
        "The learner can't see the prompt: another question leaves its log-probabilities where they"
        " were."
    )
    yield from _swap(
        bench, pairs, Role.PROMPT, "another prompt moves the answers' log-probabilities", summary
    )


@probe("tool-swap", finds=["mask.attention-blind"], need=TOOLS)
def tool_swap(bench: Bench) -> Answer:
    """Exchange tool results between the expert's rollouts, which call tools whatever the model can
    do.
    """
    heard = [r for r in bench.demonstrations if (r.sequences[0].roles == int(Role.TOOL)).any()][:8]
    require(len(heard) > 1, "the expert heard nothing from a tool")
    pairs = list(zip(heard, [*heard[1:], heard[0]], strict=True))
    summary = (
        "The learner can't see tool results: other documents leave its log-probabilities where they"
        " were."
    )
    yield from _swap(
        bench, pairs, Role.TOOL, "another tool result moves what is said after it", summary
    )


def _swap(
    bench: Bench, pairs: Sequence[tuple[Rollout, Rollout]], role: Role, what: str, summary: str
) -> Answer:
    """Give each rollout the other's tokens of this role; a learner that sees them moves."""
    before = [rollout for rollout, _ in pairs]
    after = list[Rollout]()
    for rollout, other in pairs:
        mine = rollout.sequences[0]
        theirs = other.sequences[0]
        ids = mine.ids.copy()
        places = mine.roles == int(role)
        # The last token of a stretch stays: it predicts the model's next word, and every token sees
        # itself.
        places[:-1] &= places[1:]
        ids[places] = np.resize(theirs.ids[theirs.roles == int(role)], int(places.sum()))
        after.append(replace(rollout, sequences=(replace(mine, ids=ids), *rollout.sequences[1:])))
    exp = bench.experience(before)
    swapped = bench.experience(after)
    before_bs = bench.logprobs(exp)
    after_bs = bench.logprobs(swapped)
    # With top-k 1, or the like, every token has probability 1 whatever was asked.
    require(
        (before_bs[exp.real_bs].abs() > STILL).any(),
        "sampling leaves no choice: all log-probabilities are 0",
    )
    moved_bs = (before_bs - after_bs).abs()
    counted_bs = torch.zeros_like(exp.real_bs)
    for b, line in enumerate(exp.sequences):
        differ = np.flatnonzero(line.ids != swapped.sequences[b].ids)
        if len(differ) and (before[line.rollout].sequences[0].roles[differ] == int(role)).all():
            counted_bs[b, : len(line.sampled)] = torch.from_numpy(line.sampled > differ[0])
    values = moved_bs[counted_bs & ~moved_bs.isnan()]
    require(len(values), f"all {'prompts' if role is Role.PROMPT else 'tool results'} are the same")
    moved = float(values.mean())
    yield f"{what} by {moved:.3g} nats (a blind learner: 0)"
    if moved <= STILL:
        text = f"{moved:.2g} nats on average over {len(values)} tokens of {len(pairs)} rollouts"
        yield bench.found("mask.attention-blind", CRITICAL, summary, text, moved)


# Nats by which the worst of a few short rollouts may differ. In bf16 an unlikely token alone moves
# by tenths of a nat: 0.053 on an H200.
MAX_PADDING_GAP_FP32 = 1e-4
MAX_PADDING_GAP_BF16 = 0.15


@probe("padding", finds=["tokens.padding"], need=SAMPLED)
def padding(bench: Bench) -> Answer:
    """Compare the longest rollout, the shortest and some between, each alone, with the whole
    step.
    """
    rollouts = bench.rollouts
    gaps = dict[int, float]()
    spoken = [n for n, r in enumerate(rollouts) if r.sampled_tokens]
    order = sorted(spoken, key=lambda n: len(rollouts[n].sequences[0].ids))
    for n in sorted({order[round(i * (len(order) - 1) / 4)] for i in range(5)}):
        exp = bench.experience([rollouts[n]])
        alone_bs = bench.logprobs(exp)
        width = min(alone_bs.shape[1], bench.logprobs_bs.shape[1])
        together_bs = bench.logprobs_bs[bench.exp.rollouts_b == n, :width]
        gaps[n] = float(
            torch.nan_to_num(alone_bs[:, :width] - together_bs).abs()[exp.real_bs[:, :width]].mean()
        )
    worst = max(gaps, key=lambda n: gaps[n])
    gap = gaps[worst]
    near = bench.near(MAX_PADDING_GAP_FP32, MAX_PADDING_GAP_BF16)
    yield f"alone and in a batch of {len(rollouts)} differ by {gap:.1e} nats (below {near:g})"
    if gap > near:
        severity = CRITICAL if gap > max(0.05, 2 * near) else WARNING
        summary = (
            "Log-probabilities depend on what a rollout is batched with: padding or positions are"
            " not masked."
        )
        yield bench.found(
            "tokens.padding", severity, summary, f"{gap:.2g} nats on average", gap, rollouts[worst]
        )
