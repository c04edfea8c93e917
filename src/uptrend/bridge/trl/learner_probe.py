"""Probes of the learner, through TRL's own log-probability function, between the backward pass and
the update.

Swap: with another prompt before it, a completion must become likelier or less likely. Alone: a
row's log-probabilities in TRL's padded batch must be those of the row by itself, as the sampler
sees it.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.bridge.trl.batch import MODEL, TOOL, Pass, TrlBatch, as_numpy, roles_of
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.records import Evidence, Severity
from uptrend.training.metrics import gap_metrics

BLIND = 1e-3  # nats that a swap must move at least one token by
ROWS = 2  # rows that are probed: what must hold exactly needs no more
# nats that the plain model must react to a swap by, for a learner's silence to say anything
MOVES = 0.05
# nats per token, on average, above which padding is not masked; rounding in half precision stays
# below
PADDED = 0.2

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def probe_learner(
    trainer: Any, batch: TrlBatch, seen: Pass, log: FindingsLog, step: int
) -> dict[str, Any]:
    """Run the probes on some rows of a pass; return the metrics of learner against sampler."""
    order: dict[str, list[int]] = {}
    for place, row in enumerate(as_numpy(seen.rows)):
        order.setdefault(str(batch.prompts[int(row)]), []).append(place)
    # Rows of different prompts first.
    turns = sorted((rank, place) for places in order.values() for rank, place in enumerate(places))
    device = seen.ids.device
    keep = seen.logprobs.shape[1]
    picked = torch.tensor([place for _, place in turns[:ROWS]], device=device)
    ids = seen.ids[picked]
    attention = seen.attention[picked]
    mask = as_numpy(attention[:, -keep:]) != 0
    # Each variant of the rows: ids, attention, the tokens that must move, and what was changed.
    swaps = [(*_swap_prompts(seen, picked, keep), mask, "another prompt")]
    other, after = _swap_tool_results(batch, seen, picked, keep)
    if after.any():
        swaps.append((other, attention, after, "another tool result"))
    with quiet(trainer):
        given = [
            torch.cat(sides)
            for sides in zip((ids, attention), *(swap[:2] for swap in swaps), strict=True)
        ]
        logprobs = trainer._get_per_token_logps_and_entropies(trainer.model, *given, keep)[0]
        base, *swapped = (
            as_numpy(part).astype(np.float64) for part in torch.split(logprobs, len(picked))
        )
        # Each row by the plain model, without padding and without TRL's fused head.
        rows = [
            (batch.prompt(row), batch.written[row])
            for row in as_numpy(seen.rows)[as_numpy(picked)].tolist()
        ]
        # Also behind prompts read backwards: a model with one answer for all, as after a collapse,
        # reacts to nothing.
        alone, elsewhere = (
            [
                answer_logprobs(trainer, *(torch.tensor(side, device=device) for side in both))
                for both in pairs
            ]
            for pairs in (rows, [(prompt[::-1], said) for prompt, said in rows])
        )
    reacts = max(
        float(np.abs(a - b).max(initial=0.0)) for a, b in zip(alone, elsewhere, strict=True)
    )
    if reacts < MOVES:
        log.event(
            "not-probed",
            id="mask.attention-blind",
            reason=f"step {step}: the model has one answer for all",
        )
    for (_, _, must_move, what), now in zip(swaps, swapped, strict=True):
        largest = float(np.abs(base - now)[must_move].max(initial=0.0))
        if largest <= BLIND and reacts >= MOVES:
            summary = (
                "The learner does not see what stands before its answer: "
                f"with {what}, its log-probabilities are the same."
            )
            text = (
                f"{len(base)} completions behind {what}: no token's log-probability moved by more"
                f" than {largest:.1e} nats."
            )
            shown = Evidence(text, largest, step=step)
            log.say("mask.attention-blind", Severity.CRITICAL, summary, [shown])
    batched = as_numpy(seen.logprobs)[as_numpy(picked)].astype(np.float64)
    # What two computations of one log-probability may differ by, in nats.
    is_half = trainer.args.bf16 or trainer.args.fp16 or trainer.model.dtype != torch.float32
    noise = 0.05 if is_half else 1e-3
    _judge_dropout(trainer, log, batched[mask] - base[mask], noise, step)
    still, learner = (
        np.concatenate([row[: len(one)] for row, one in zip(rows, alone, strict=True)])
        for rows in (base, batched)
    )
    single = np.concatenate(alone)
    gap = float(np.abs(still - single).mean()) if len(single) else 0.0
    # Rounding grows with the logits, in a model that has exploded. A learner that is blind to the
    # prompt can't agree with the row alone, and that is why; nor can one that is given other
    # tokens, or not all of them.
    trained = as_numpy(ids[:, -keep:])
    other = sum(trained[n, : len(said)].tolist() != list(said) for n, (_, said) in enumerate(rows))
    if other:
        summary = "Tokens that are trained are not those that were sampled."
        shown = Evidence(
            f"{other} of {len(rows)} completions that were compared.", float(other), step=step
        )
        log.say("tokens.retokenized", Severity.CRITICAL, summary, [shown])
    if other or not all(mask[n, : len(said)].all() for n, (_, said) in enumerate(rows)):
        return gap_metrics(learner, single)
    if (
        gap > max(PADDED, 10 * noise, 0.05 * float(np.abs(single).mean()))
        and "mask.attention-blind" not in log.said
    ):
        summary = (
            "The learner's log-probabilities in TRL's padded batch are not those of the same row"
            " alone."
        )
        shown = Evidence(
            f"{len(alone)} rows: {gap:.2f} nats per token apart on average.", gap, step=step
        )
        log.say("tokens.padding", Severity.CRITICAL, summary, [shown])
    return gap_metrics(learner, single)


def probe_update(trainer: Any, batch: TrlBatch, seen: Pass) -> dict[str, float]:
    """Compare an update with what it is made for: rollouts with an advantage above 0 must become
    likelier.
    """
    width = seen.logprobs.shape[1]
    rows = as_numpy(seen.rows)
    gain = as_numpy(batch.output["advantages"])
    mask = batch.loss_mask[rows][:, :width]
    if gain.ndim > 1 or not mask.any():  # a subclass gives each token its own advantage
        return {}
    with quiet(trainer):
        now = trainer._get_per_token_logps_and_entropies(
            trainer.model, seen.ids, seen.attention, width
        )[0]
    moved = np.where(mask, as_numpy(now).astype(np.float64) - as_numpy(seen.logprobs), 0.0)
    size = float((np.abs(gain[rows]) * mask.sum(1)).sum())
    response = (
        {"learner/response/mean": float((gain[rows] * moved.sum(1)).sum() / size)}
        if size > 0
        else {}
    )
    return {"learner/moved/mean": float(np.abs(moved[mask]).mean()), **response}


def _swap_prompts(seen: Pass, picked: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Put completions behind another row's prompt; behind their own prompt backwards where all are
    the same.
    """
    ids = seen.ids[picked].clone()
    attention = seen.attention[picked].clone()
    width = ids.shape[1] - keep
    others = torch.roll(picked, 1)
    is_same = bool((seen.ids[picked, :width] == seen.ids[others, :width]).all())
    for mine, given in ((ids, seen.ids), (attention, seen.attention)):
        mine[:, :width] = mine[:, :width].flip(1) if is_same else given[others, :width]
    return ids, attention


def _swap_tool_results(
    batch: TrlBatch, seen: Pass, picked: Tensor, keep: int
) -> tuple[Tensor, Flags]:
    """Reverse the tool results of each row, and flag the model's tokens behind them."""
    ids = seen.ids[picked].clone()
    width = ids.shape[1] - keep
    after = np.zeros((len(picked), keep), bool)
    for place, row in enumerate(as_numpy(seen.rows[picked.cpu()]).tolist() if batch.calls else ()):
        prompt = batch.calls[0].prompts[row]
        roles = roles_of(prompt, batch.written[row], batch.calls, row)[0][len(prompt) :]
        told = np.flatnonzero(roles == TOOL)
        if len(told) > 1:
            at = torch.as_tensor(told + width, device=ids.device)
            ids[place, at] = ids[place, at].flip(0)
            after[place, : len(roles)] = (roles == MODEL) & (np.arange(len(roles)) > told[0])
    return ids, after


def _judge_dropout(trainer: Any, log: FindingsLog, apart: Floats, noise: float, step: int) -> None:
    """Report dropout where the loss gets other log-probabilities than those that the sampler drew
    from.
    """
    active = [m.p for m in trainer.model.modules() if isinstance(m, torch.nn.Dropout) and m.p > 0]
    attention = float(getattr(trainer.model.config, "attention_dropout", 0.0) or 0.0)
    gap = float(np.abs(apart).mean()) if len(apart) else 0.0
    if (active or attention) and gap >= noise:
        summary = (
            "Dropout is active while the learner computes its log-probabilities; the sampler has"
            " none."
        )
        text = (
            f"The same tokens, with and without dropout: {gap:.3f} nats apart on average "
            f"({len(active)} dropout layers, attention_dropout {attention:g})."
        )
        log.say("policy.dropout-on", Severity.WARNING, summary, [Evidence(text, gap, step=step)])


def answer_logprobs(trainer: Any, prompt: Tensor, written: Tensor) -> Floats:
    """Compute the plain model's log-probability of each token behind a prompt, at TRL's
    temperature.
    """
    ids = torch.cat([prompt, written])[None]
    with trainer.accelerator.autocast():
        logits = trainer.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    said = torch.log_softmax(logits[len(prompt) - 1 : -1].float() / trainer.temperature, -1)
    return as_numpy(said.gather(1, written[:, None])[:, 0]).astype(np.float64)


@contextmanager
def quiet(trainer: Any) -> Iterator[None]:
    """Put the model into evaluation mode, without gradients, and then back as it was."""
    training = trainer.model.training
    trainer.model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        trainer.model.train(training)


@contextmanager
def same_randomness() -> Iterator[None]:
    """Put every random generator back as it was: a watched run draws what an unwatched one
    draws.
    """
    python = random.getstate()
    numpy = np.random.get_state()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
