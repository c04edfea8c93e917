"""Probes of tokens between sampler and learner: rendered, the same everywhere, and seen by the
learner.

b = sequence, s = sampled token of it, t = token of one sequence.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from uptrend.doctor.check import CRITICAL, NOTE, WARNING
from uptrend.doctor.checks.settings import TEMPLATE_ID, VOCABULARY_ID, judge_files
from uptrend.doctor.probes.bench import Bench, by_group, with_sequences
from uptrend.doctor.probes.probe import NEEDS_SAMPLES, NEEDS_TOOLS, Answer, probe, require
from uptrend.policy.model_files import describe_model
from uptrend.present.formatting import assignments
from uptrend.records import Finding, Message, Role, Rollout
from uptrend.rollout.calls import example_call


@probe("tool-calls", finds=["tool.multi-call"], need=NEEDS_TOOLS, by_source=True)
def tool_calls(bench: Bench) -> Answer:
    """Render two results after a turn; render two calls in a turn, and read them back."""
    renderer = bench.renderer
    call = example_call(bench.tools[0])
    two_calls = Message("assistant", "", (call, call))
    two_results = [Message("tool", "one"), Message("tool", "two")]
    n_result_tokens = 0
    try:
        n_result_tokens = len(renderer.next_prompt([], two_results, bench.tools))
        n_calls_read = len(renderer.read(renderer.write(two_calls)).calls)
    except Exception as error:  # templates raise what they like
        if n_result_tokens:
            yield f"two results are {n_result_tokens} tokens; two calls are refused: {error}"
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
        yield bench.finding("tool.multi-call", severity, summary, str(error))
        return

    figure = f"two calls are read back as {n_calls_read}, two results are {n_result_tokens} tokens"
    yield figure
    if n_calls_read != 2:
        summary = f"Two tool calls in a turn are read back as {n_calls_read}."
        yield bench.finding("tool.multi-call", NOTE, summary, figure, n_calls_read)


@probe("model-files", finds=[VOCABULARY_ID, TEMPLATE_ID])
def model_files(bench: Bench) -> Answer:
    """Compare the model's files with each other: tokens, end tokens, thoughts in the chat
    template.
    """
    files = describe_model(bench.policy.core, bench.policy.tokenizer)
    tokens = files["tokenizer"]["tokens"]
    yield f"{tokens:,} tokens in {files['embeddings']:,} rows"
    thoughts = files["tokenizer"]["thoughts"]
    if thoughts:
        yield f", thoughts of earlier turns are {thoughts}"
    ignored = files["generation"]
    if ignored:
        yield f"; left out from generation_config.json: {assignments(ignored)}"
    for fault in judge_files(files, bench.config.sampling.max_turns, rewrites=False):
        yield bench.finding(
            fault.id, fault.severity, fault.summary, fault.evidence, basis=fault.basis
        )


# Sampled tokens of a rollout that a finding quotes.
MAX_QUOTED_TOKENS = 12


@probe("identity", finds=["tokens.retokenized", "tokens.template"], by_source=True)
def identity(bench: Bench) -> Answer:
    """Compare token ids of the sampler, of the records and of the learner's layout."""
    # What the sampler read and wrote, against what was recorded.
    rollouts = bench.played
    streams = bench.sampler.streams
    prompts = [_token_ids(rollout, sampled=False) for rollout in rollouts]
    texts = [_token_ids(rollout, sampled=True) for rollout in rollouts]
    other_prompts = _missing(prompts, [stream.read for stream in streams])
    other_texts = _missing(texts, [stream.sampled for stream in streams])

    # What was recorded, against what the learner gets.
    rows = with_sequences(bench.rollouts)
    n_tokens = 0
    other_rows = list[int]()
    for i, (line, (_, sequence)) in enumerate(zip(bench.exp.sequences, rows, strict=True)):
        n_tokens += len(sequence.ids)
        if not np.array_equal(line.ids, sequence.ids):
            other_rows.append(i)

    n_changed = len(other_texts) + len(other_rows)
    yield f"{n_changed} of {len(rows)} sequences ({n_tokens:,} tokens) changed after sampling, "
    yield f"{len(other_prompts)} prompts differ"

    if other_texts:
        summary = (
            f"{len(other_texts)} of {len(rollouts)} rollouts are learned with other tokens than"
            " were sampled."
        )
        yield _changed(bench, "tokens.retokenized", summary, rollouts[other_texts[0]])
    if other_prompts:
        summary = (
            f"{len(other_prompts)} of {len(rollouts)} rollouts are learned with another prompt than"
            " the sampler got."
        )
        yield _changed(bench, "tokens.template", summary, rollouts[other_prompts[0]])
    if other_rows and not other_texts and not other_prompts:
        rollout, sequence = rows[other_rows[0]]
        laid_out_t = bench.exp.sequences[other_rows[0]].ids
        changed_t = np.flatnonzero(laid_out_t[: len(sequence.ids)] != sequence.ids)
        if len(changed_t) and not sequence.sampled[changed_t].any():
            summary = (
                f"The learner reads another prompt than the sampler did in {len(other_rows)} of"
                f" {len(rows)} rows."
            )
            yield _changed(bench, "tokens.template", summary, rollout)
        else:
            summary = (
                f"{len(other_rows)} of {len(rows)} rollouts are learned with other tokens than were"
                " recorded."
            )
            yield _changed(bench, "tokens.retokenized", summary, rollout)


def _changed(bench: Bench, id: str, summary: str, rollout: Rollout) -> Finding:
    """Make a finding that quotes the first words of a rollout whose tokens changed."""
    ids = _token_ids(rollout, sampled=True)[:MAX_QUOTED_TOKENS]
    words = bench.policy.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    text = f"for example the rollout that says {words!r}"
    return bench.finding(id, CRITICAL, summary, text, None, rollout)


def _token_ids(rollout: Rollout, *, sampled: bool) -> list[int]:
    """Return the tokens that the model sampled in a rollout, or those that it read."""
    ids = list[int]()
    for sequence in rollout.sequences:
        ids += sequence.ids[sequence.sampled == sampled].tolist()
    return ids


def _missing(recorded: Sequence[list[int]], streams: Sequence[list[int]]) -> list[int]:
    """Return numbers of recorded sequences that the sampler never had.

    They are compared by content, because records come in any order.
    """
    remaining = Counter(tuple(ids) for ids in streams)
    missing = []
    for i, ids in enumerate(recorded):
        remaining[tuple(ids)] -= 1
        if ids and remaining[tuple(ids)] < 0:
            missing.append(i)
    return missing


# Groups whose prompts are exchanged, rollouts of each, and expert's rollouts whose tool results
# are: a few are enough, because an unseen token moves nothing at all.
SWAPPED_GROUPS = 4
SWAPPED_ROLLOUTS = 4
SWAPPED_DEMONSTRATIONS = 8
# Nats: an unseen prompt moves nothing at all, a seen one a good part of a nat.
MAX_BLIND_MOVE_NATS = 1e-3


@probe("prompt-swap", finds=["mask.attention-blind"], by_source=True)
def prompt_swap(bench: Bench) -> Answer:
    """Exchange prompts between four groups, and score the same answers."""
    spoken = by_group(rollout for rollout in bench.rollouts if rollout.sampled_tokens)
    groups = list(spoken.values())[:SWAPPED_GROUPS]
    require(len(groups) > 1, "fewer than two groups said anything")
    pairs = list[tuple[Rollout, Rollout]]()
    for group, next_group in zip(groups, [*groups[1:], groups[0]], strict=True):
        pairs += [(rollout, next_group[0]) for rollout in group[:SWAPPED_ROLLOUTS]]

    figure = "another prompt moves the answers' log-probabilities"
    summary = (
        "The learner can't see the prompt: another question leaves its log-probabilities where they"
        " were."
    )
    yield from _judge_swap(bench, pairs, Role.PROMPT, figure, summary)


@probe("tool-swap", finds=["mask.attention-blind"], need=NEEDS_TOOLS, by_source=True)
def tool_swap(bench: Bench) -> Answer:
    """Exchange tool results between the expert's rollouts, and score the same answers."""
    # The expert calls tools whatever the model can do.
    with_results = list[Rollout]()
    for rollout in bench.demonstrations:
        if (rollout.sequences[0].roles == int(Role.TOOL)).any():
            with_results.append(rollout)
    with_results = with_results[:SWAPPED_DEMONSTRATIONS]
    require(len(with_results) > 1, "the expert heard nothing from a tool")
    pairs = list(zip(with_results, [*with_results[1:], with_results[0]], strict=True))
    figure = "another tool result moves what is said after it"
    summary = (
        "The learner can't see tool results: other documents leave its log-probabilities where they"
        " were."
    )
    yield from _judge_swap(bench, pairs, Role.TOOL, figure, summary)


def _judge_swap(
    bench: Bench, pairs: Sequence[tuple[Rollout, Rollout]], role: Role, figure: str, summary: str
) -> Answer:
    """Give each rollout the other's tokens of this role; a learner that sees them moves."""
    rollouts = [rollout for rollout, _ in pairs]
    own = bench.experience(rollouts)
    swapped = bench.experience([_with_tokens_of(other, rollout, role) for rollout, other in pairs])
    own_bs = bench.logprobs(own)
    swapped_bs = bench.logprobs(swapped)
    # With top-k 1, or the like, every token has probability 1 whatever the prompt is.
    has_choice = (own_bs[own.real_bs].abs() > MAX_BLIND_MOVE_NATS).any()
    require(has_choice, "sampling leaves no choice: all log-probabilities are 0")

    # Tokens count that come after the first exchanged one, in rows where nothing else differs.
    counted_bs = torch.zeros_like(own.real_bs)
    for b, line in enumerate(own.sequences):
        differs = np.flatnonzero(line.ids != swapped.sequences[b].ids)
        roles = rollouts[line.rollout].sequences[0].roles[differs]
        if len(differs) and (roles == int(role)).all():
            counted_bs[b, : len(line.sampled)] = torch.from_numpy(line.sampled > differs[0])
    move_bs = (own_bs - swapped_bs).abs()
    moves = move_bs[counted_bs & ~move_bs.isnan()]
    swapped_parts = "prompts" if role is Role.PROMPT else "tool results"
    require(len(moves), f"all {swapped_parts} are the same")

    mean_move = float(moves.mean())
    yield f"{figure} by {mean_move:.3g} nats (a blind learner: 0)"
    if mean_move <= MAX_BLIND_MOVE_NATS:
        text = f"{mean_move:.2g} nats on average over {len(moves)} tokens of {len(pairs)} rollouts"
        yield bench.finding("mask.attention-blind", CRITICAL, summary, text, mean_move)


def _with_tokens_of(other: Rollout, rollout: Rollout, role: Role) -> Rollout:
    """Return a rollout whose first sequence has the other's tokens of this role, cut or repeated
    to its own length.
    """
    first, *rest = rollout.sequences
    is_swapped_t = first.roles == int(role)
    # The last token of a stretch stays: it predicts the model's next word, and every token sees
    # itself.
    is_swapped_t[:-1] &= is_swapped_t[1:]
    other_first = other.sequences[0]
    other_ids = other_first.ids[other_first.roles == int(role)]
    ids = first.ids.copy()
    ids[is_swapped_t] = np.resize(other_ids, int(is_swapped_t.sum()))
    return replace(rollout, sequences=(replace(first, ids=ids), *rest))


# Rollouts that stand side by side, and nats by which one may move when the words of another change:
# lengths, and so all shapes, stay the same.
NEIGHBOR_ROLLOUTS = 16
MAX_NEIGHBOR_MOVE_FP32 = 1e-4
MAX_NEIGHBOR_MOVE_BF16 = 0.02


@probe("neighbors", finds=["mask.documents-leak"], need=NEEDS_SAMPLES)
def neighbors(bench: Bench) -> Answer:
    """Change the words of every second rollout: the log-probabilities of the others must stay."""
    spoken = [rollout for rollout in bench.rollouts if rollout.sampled_tokens]
    rollouts = spoken[:NEIGHBOR_ROLLOUTS]
    require(len(rollouts) > 1, "fewer than two rollouts said anything")
    own = bench.experience(rollouts)
    own_bs = bench.logprobs(own)
    move = 0.0
    for changed in (0, 1):
        others = [
            _with_reversed_words(rollout) if n % 2 == changed else rollout
            for n, rollout in enumerate(rollouts)
        ]
        other_bs = bench.logprobs(bench.experience(others))
        is_kept_b = own.rollouts_b % 2 != changed
        kept_bs = own.real_bs & is_kept_b[:, None]
        move_bs = torch.nan_to_num(own_bs - other_bs).abs()
        move = max(move, float(move_bs[kept_bs].max()))

    tolerance = bench.tolerance(MAX_NEIGHBOR_MOVE_FP32, MAX_NEIGHBOR_MOVE_BF16)
    yield f"other words in its neighbors move a rollout by {move:.1e} nats (below {tolerance:g})"
    if move > tolerance:
        summary = (
            "Rollouts in one batch see each other: other words in one move the log-probabilities of"
            " the next."
        )
        text = f"{move:.2g} nats at most"
        yield bench.finding("mask.documents-leak", CRITICAL, summary, text, move)


def _with_reversed_words(rollout: Rollout) -> Rollout:
    """Return a rollout whose sampled tokens are others. Prompts stay: packing shares equal ones, so
    that others would be packed in another way.
    """
    sequences = []
    for sequence in rollout.sequences:
        ids = sequence.ids.copy()
        sampled = np.flatnonzero(sequence.sampled)
        # The first token of the prompt stands for a word that the model did not say.
        ids[sampled] = np.where(np.arange(len(sampled)) % 2, ids[sampled][::-1], ids[0])
        sequences.append(replace(sequence, ids=ids))
    return replace(rollout, sequences=tuple(sequences))


# Rollouts that are scored alone: by length the shortest, the longest, and some between.
SCORED_ALONE = 5
# Nats by which the worst of these may differ. In bf16 an unlikely token alone moves by tenths of a
# nat: 0.053 on an H200.
MAX_PADDING_GAP_FP32 = 1e-4
MAX_PADDING_GAP_BF16 = 0.15
# Nats from which training must not start, unless twice the tolerance is more: ratios of single
# tokens are then off by 5%, a quarter of the usual clip range.
CRITICAL_PADDING_GAP = 0.05


@probe("padding", finds=["tokens.padding"], need=NEEDS_SAMPLES)
def padding(bench: Bench) -> Answer:
    """Compare a few rollouts, the shortest to the longest, each alone, with the whole step."""
    rollouts = bench.rollouts
    spoken = [n for n, rollout in enumerate(rollouts) if rollout.sampled_tokens]
    by_length = sorted(spoken, key=lambda n: len(rollouts[n].sequences[0].ids))
    spacing = (len(by_length) - 1) / (SCORED_ALONE - 1)
    gaps = dict[int, float]()
    for n in sorted({by_length[round(i * spacing)] for i in range(SCORED_ALONE)}):
        exp = bench.experience([rollouts[n]])
        alone_bs = bench.logprobs(exp)
        together_bs = bench.logprobs_bs[bench.exp.rollouts_b == n]
        width = min(alone_bs.shape[1], together_bs.shape[1])
        gap_bs = torch.nan_to_num(alone_bs[:, :width] - together_bs[:, :width]).abs()
        gaps[n] = float(gap_bs[exp.real_bs[:, :width]].mean())

    worst = max(gaps, key=lambda n: gaps[n])
    gap = gaps[worst]
    tolerance = bench.tolerance(MAX_PADDING_GAP_FP32, MAX_PADDING_GAP_BF16)
    yield f"alone and in a batch of {len(rollouts)} differ by {gap:.1e} nats (below {tolerance:g})"
    if gap > tolerance:
        is_critical = gap > max(CRITICAL_PADDING_GAP, 2 * tolerance)
        summary = (
            "Log-probabilities depend on what a rollout is batched with: padding or positions are"
            " not masked."
        )
        yield bench.finding(
            "tokens.padding",
            CRITICAL if is_critical else WARNING,
            summary,
            f"{gap:.2g} nats on average",
            gap,
            rollouts[worst],
        )
