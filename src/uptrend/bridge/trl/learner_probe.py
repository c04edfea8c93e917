"""Probes of the learner, through TRL's own log-probability function, between the backward pass and the update.

Swap: with another prompt before it, a completion must become likelier or less likely. Alone: a row's log-probabilities
in TRL's padded batch must be those of the row by itself, as the sampler sees it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.bridge.trl.batch import Pass, TrlBatch, as_numpy, roles_of
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.records import Confidence, Evidence, Role, Severity
from uptrend.training.metrics import gap_metrics

BLIND = 1e-3
"""Nats that a swap must move at least one token by."""
ROWS = 2
"""Rows that are probed: what must hold exactly needs no more."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def probe_learner(trainer: Any, batch: TrlBatch, seen: Pass, log: FindingsLog, step: int) -> dict[str, Any]:
    """Run the probes on some rows of a pass; return the metrics of learner against sampler."""
    picked = _pick(batch, seen)
    keep = seen.logprobs.shape[1]
    ids, attention = seen.ids[picked], seen.attention[picked]
    swapped_ids, swapped_attention = _swap_prompts(seen, picked, keep)
    tools = _swap_tool_results(batch, seen, picked, keep)
    all_ids, all_attention = [ids, swapped_ids], [attention, swapped_attention]
    if tools is not None:
        all_ids, all_attention = [*all_ids, tools[0]], [*all_attention, attention]
    with quiet(trainer):
        given = torch.cat(all_ids), torch.cat(all_attention), keep
        logprobs = trainer._get_per_token_logps_and_entropies(trainer.model, *given)[0]
        base, swapped, *rest = (as_numpy(part).astype(np.float64) for part in torch.split(logprobs, len(picked)))
        alone = [_alone(trainer, batch, int(seen.rows[row])) for row in picked.tolist()]
    mask = as_numpy(attention[:, -keep:]) != 0
    _judge_swap(log, base, swapped, mask, "another prompt", step)
    if tools is not None:
        _judge_swap(log, base, rest[0], tools[1], "another tool result", step)
    batched = as_numpy(seen.logprobs)[as_numpy(picked)].astype(np.float64)
    # What two computations of one log-probability may differ by, in nats.
    is_half = trainer.args.bf16 or trainer.args.fp16 or trainer.model.dtype != torch.float32
    noise = 0.05 if is_half else 1e-3
    _judge_dropout(trainer, log, batched[mask], base[mask], noise, step)
    return _judge_alone(log, base, batched, alone, noise, step)


def _pick(batch: TrlBatch, seen: Pass) -> Tensor:
    """Pick rows of a pass, those of different prompts first."""
    order: dict[str, list[int]] = {}
    for place, row in enumerate(as_numpy(seen.rows)):
        order.setdefault(str(batch.prompts[int(row)]), []).append(place)
    turns = sorted((rank, place) for places in order.values() for rank, place in enumerate(places))
    return torch.tensor([place for _, place in turns[:ROWS]], device=seen.ids.device)


def _swap_prompts(seen: Pass, picked: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Put completions behind another row's prompt; behind their own prompt backwards where all are the same."""
    ids, attention = seen.ids[picked].clone(), seen.attention[picked].clone()
    width = ids.shape[1] - keep
    others = torch.roll(picked, 1)
    if all(bool((seen.ids[a, :width] == seen.ids[b, :width]).all()) for a, b in zip(picked, others, strict=True)):
        ids[:, :width] = ids[:, :width].flip(1)
        attention[:, :width] = attention[:, :width].flip(1)
    else:
        ids[:, :width], attention[:, :width] = seen.ids[others, :width], seen.attention[others, :width]
    return ids, attention


def _swap_tool_results(batch: TrlBatch, seen: Pass, picked: Tensor, keep: int) -> tuple[Tensor, Flags] | None:
    """Reverse the tool results of each row, and flag the model's tokens behind them; None where no tool spoke."""
    ids = seen.ids[picked].clone()
    width = ids.shape[1] - keep
    after = np.zeros((len(picked), keep), bool)
    for place, row in enumerate(as_numpy(seen.rows[picked.cpu()]).tolist()):
        if not batch.calls:
            break
        prompt = batch.calls[0].prompts[row]
        roles = roles_of(prompt, batch.written[row], batch.calls, row)[0][len(prompt) :]
        told = np.flatnonzero(roles == Role.TOOL)
        if len(told) > 1:
            at = torch.as_tensor(told + width, device=ids.device)
            ids[place, at] = ids[place, at].flip(0)
            after[place, : len(roles)] = (roles == Role.MODEL) & (np.arange(len(roles)) > told[0])
    return (ids, after) if after.any() else None


def _judge_swap(log: FindingsLog, base: Floats, swapped: Floats, mask: Flags, what: str, step: int) -> None:
    largest = float(np.abs(base - swapped)[mask].max(initial=0.0))
    if len(base) and largest <= BLIND:
        log.say(
            "mask.attention-blind", Severity.CRITICAL, Confidence.HIGH,
            f"The learner does not see what stands before its answer: with {what}, its log-probabilities are the same.",
            [Evidence(f"{len(base)} completions behind {what}: no token's log-probability moved by more than "
                      f"{largest:.1e} nats.", largest, step=step)],
        )  # fmt: skip


def _judge_dropout(
    trainer: Any, log: FindingsLog, learning: Floats, still: Floats, noise: float, step: int
) -> None:  # fmt: skip
    """Report dropout where the loss gets other log-probabilities than those that the sampler drew from."""
    active = [m.p for m in trainer.model.modules() if isinstance(m, torch.nn.Dropout) and m.p > 0]
    attention = float(getattr(trainer.model.config, "attention_dropout", 0.0) or 0.0)
    gap = float(np.abs(learning - still).mean()) if len(learning) else 0.0
    if (active or attention) and gap >= noise:
        log.say(
            "policy.dropout-on", Severity.WARNING, Confidence.HIGH,
            "Dropout is active while the learner computes its log-probabilities; the sampler has none.",
            [Evidence(f"The same tokens, with and without dropout: {gap:.3f} nats apart on average "
                      f"({len(active)} dropout layers, attention_dropout {attention:g}).", gap, step=step)],
        )  # fmt: skip


def _judge_alone(
    log: FindingsLog, base: Floats, learner: Floats, alone: list[Floats], noise: float, step: int
) -> dict[str, Any]:
    batched, now = (
        np.concatenate([row[: len(one)] for row, one in zip(rows, alone, strict=True)]) for rows in (base, learner)
    )
    single = np.concatenate(alone)
    gap = float(np.abs(batched - single).mean()) if len(single) else 0.0
    is_blind = "mask.attention-blind" in log.said  # then the two can't be the same, and that is why
    if gap > max(0.2, 10 * noise) and not is_blind:
        log.say(
            "tokens.padding", Severity.CRITICAL, Confidence.HIGH,
            "The learner's log-probabilities in TRL's padded batch are not those of the same row alone.",
            [Evidence(f"{len(alone)} rows: {gap:.2f} nats per token apart on average.", gap, step=step)],
        )  # fmt: skip
    return gap_metrics(now, single)


def _alone(trainer: Any, batch: TrlBatch, row: int) -> Floats:
    """Compute a row's log-probabilities by the plain model, without padding and without TRL's fused head."""
    device = batch.output["prompt_ids"].device
    prompt, written = (torch.tensor(ids, device=device) for ids in (batch.prompt(row), batch.written[row]))
    return answer_logprobs(trainer, prompt, written)


def answer_logprobs(trainer: Any, prompt: Tensor, written: Tensor) -> Floats:
    """Compute the plain model's log-probability of each token behind a prompt, at TRL's temperature."""
    ids = torch.cat([prompt, written])[None]
    with trainer.accelerator.autocast():
        logits = trainer.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    said = logits[len(prompt) - 1 : -1].float() / trainer.temperature
    found = torch.log_softmax(said, -1).gather(1, written[:, None])[:, 0]
    return as_numpy(found).astype(np.float64)


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
