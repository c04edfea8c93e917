"""Questions to the learner, through TRL's own log-probability function, between the backward pass and the update.

Swap: with another prompt before it, a completion must be likelier or less likely. Alone: a row's log-probabilities
in TRL's padded batch must be those of the row by itself, as the sampler sees it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
"""Rows that a swap looks at: what must hold exactly needs no more."""
ALONE = 2
"""Rows that are looked at alone."""


@dataclass(frozen=True)
class Swap:
    """What a swap moved."""

    largest: float
    """The largest change of one token's log-probability, in nats."""
    mean: float
    """The mean size of the change."""
    rows: int
    """Rows looked at."""


def ask_learner(trainer: Any, batch: TrlBatch, seen: Pass, findings_log: FindingsLog, step: int) -> dict[str, Any]:
    """Run the probes on some rows of a pass; the figures of learner against sampler come back."""
    picked = _pick(batch, seen)
    keep = seen.logprobs.shape[1]
    ids, attention = seen.ids[picked], seen.attention[picked]
    swapped_ids, swapped_attention = _swap_prompts(seen, picked, keep)
    tools = _tool_swaps(batch, seen, picked, keep)
    with quiet(trainer):
        all_ids, all_attention = [ids, swapped_ids], [attention, swapped_attention]
        if tools is not None:
            all_ids, all_attention = [*all_ids, tools[0]], [*all_attention, attention]
        logprobs = _logprobs(trainer, torch.cat(all_ids), torch.cat(all_attention), keep)
        base, swapped, *rest = (as_numpy(part).astype(np.float64) for part in torch.split(logprobs, len(picked)))
        alone = [_alone(trainer, batch, int(seen.rows[row])) for row in picked[:ALONE].tolist()]
    mask = as_numpy(attention[:, -keep:]) != 0
    _judge_swap(findings_log, swap_of(base, swapped, mask), "another prompt", step)
    if tools is not None:
        _judge_swap(findings_log, swap_of(base, rest[0], tools[1]), "another tool result", step)
    batched = as_numpy(seen.logprobs)[as_numpy(picked)].astype(np.float64)
    _judge_dropout(trainer, findings_log, batched[mask], base[mask], step)
    return _judge_alone(trainer, findings_log, base, batched, alone, step)


def _pick(batch: TrlBatch, seen: Pass) -> Tensor:
    """Rows of a pass, those of different prompts first."""
    order: dict[str, list[int]] = {}
    for place, row in enumerate(as_numpy(seen.rows)):
        order.setdefault(str(batch.prompts[int(row)]), []).append(place)
    turns = sorted((rank, place) for places in order.values() for rank, place in enumerate(places))
    return torch.tensor([place for _, place in turns[:ROWS]], device=seen.ids.device)


def _swap_prompts(seen: Pass, picked: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Each row's completion behind another row's prompt; behind its own prompt backwards where all are the same."""
    ids, attention = seen.ids[picked].clone(), seen.attention[picked].clone()
    width = ids.shape[1] - keep
    others = torch.roll(picked, 1)
    if all(bool((seen.ids[a, :width] == seen.ids[b, :width]).all()) for a, b in zip(picked, others, strict=True)):
        ids[:, :width] = ids[:, :width].flip(1)
        attention[:, :width] = attention[:, :width].flip(1)
    else:
        ids[:, :width], attention[:, :width] = seen.ids[others, :width], seen.attention[others, :width]
    return ids, attention


def _tool_swaps(batch: TrlBatch, seen: Pass, picked: Tensor, keep: int) -> tuple[Tensor, NDArray[np.bool_]] | None:
    """Each row with its tool results backwards, and the model's tokens behind them; None where no tool spoke."""
    ids = seen.ids[picked].clone()
    width = ids.shape[1] - keep
    after = np.zeros((len(picked), keep), bool)
    for place, row in enumerate(as_numpy(seen.rows[picked.cpu()])):
        written = batch.written[int(row)]
        prompt = batch.calls[0].prompts[int(row)] if batch.calls else []
        roles = roles_of(prompt, written, batch.calls, int(row))[0][len(prompt) :] if batch.calls else np.zeros(0)
        told = np.flatnonzero(roles == Role.TOOL)
        if len(told) > 1:
            at = torch.as_tensor(told + width, device=ids.device)
            ids[place, at] = ids[place, at].flip(0)
            after[place, : len(roles)] = (roles == Role.MODEL) & (np.arange(len(roles)) > told[0])
    return (ids, after) if after.any() else None


def swap_of(base: NDArray[np.float64], swapped: NDArray[np.float64], mask: NDArray[np.bool_]) -> Swap:
    """How far a swap moved the log-probabilities of the masked tokens."""
    moved = np.abs(base - swapped)[mask]
    return Swap(float(moved.max(initial=0.0)), float(moved.mean()) if len(moved) else 0.0, len(base))


def _judge_swap(findings_log: FindingsLog, swap: Swap, what: str, step: int) -> None:
    if swap.largest > BLIND or swap.rows == 0:
        return
    findings_log.say(
        "mask.attention-blind",
        Severity.CRITICAL,
        Confidence.HIGH,
        f"The learner does not see what stands before its answer: with {what}, its log-probabilities are the same.",
        [
            Evidence(
                f"{swap.rows} completions behind {what}: no token's log-probability moved by more than "
                f"{swap.largest:.1e} nats.", swap.largest, step=step,
            )
        ],
    )  # fmt: skip


def _judge_dropout(
    trainer: Any, findings_log: FindingsLog, learning: NDArray[np.float64], still: NDArray[np.float64], step: int
) -> None:
    """Dropout matters where the loss looks at other log-probabilities than the sampler drew from."""
    active = [m.p for m in trainer.model.modules() if isinstance(m, torch.nn.Dropout) and m.p > 0]
    attention = float(getattr(trainer.model.config, "attention_dropout", 0.0) or 0.0)
    gap = float(np.abs(learning - still).mean()) if len(learning) else 0.0
    if not (active or attention) or gap < _noise(trainer):
        return
    findings_log.say(
        "policy.dropout-on",
        Severity.WARNING,
        Confidence.HIGH,
        "Dropout is active while the learner computes its log-probabilities; the sampler has none.",
        [
            Evidence(
                f"The same tokens, with and without dropout: {gap:.3f} nats apart on average "
                f"({len(active)} dropout layers, attention_dropout {attention:g}).", gap, step=step,
            )
        ],
    )  # fmt: skip


def _judge_alone(
    trainer: Any,
    findings_log: FindingsLog,
    base: NDArray[np.float64],
    learner: NDArray[np.float64],
    alone: list[Any],
    step: int,
) -> dict[str, Any]:
    batched = np.concatenate([row[: len(one)] for row, one in zip(base, alone, strict=False)])
    single = np.concatenate(alone)
    gap = float(np.abs(batched - single).mean()) if len(single) else 0.0
    blind = "mask.attention-blind" in findings_log.said  # then it can't be the same, and that is why
    if gap > max(0.2, 10 * _noise(trainer)) and not blind:
        findings_log.say(
            "tokens.padding",
            Severity.CRITICAL,
            Confidence.HIGH,
            "The learner's log-probabilities in TRL's padded batch are not those of the same row alone.",
            [Evidence(f"{len(alone)} rows: {gap:.2f} nats a token apart on average.", gap, step=step)],
        )
    now = np.concatenate([row[: len(one)] for row, one in zip(learner, alone, strict=False)])
    return gap_metrics(now, single)


def _noise(trainer: Any) -> float:
    """What two computations of one log-probability may differ by, in nats."""
    half = trainer.args.bf16 or trainer.args.fp16 or trainer.model.dtype != torch.float32
    return 0.05 if half else 1e-3


@contextmanager
def quiet(trainer: Any) -> Iterator[None]:
    """The model in evaluation mode, without gradients, and then as it was."""
    training = trainer.model.training
    trainer.model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        trainer.model.train(training)


def _logprobs(trainer: Any, ids: Tensor, attention: Tensor, keep: int) -> Tensor:
    logprobs: Tensor = trainer._get_per_token_logps_and_entropies(trainer.model, ids, attention, keep)[0]
    return logprobs


def _alone(trainer: Any, batch: TrlBatch, row: int) -> NDArray[np.float64]:
    """A row's log-probabilities by the plain model, without padding and without TRL's fused head."""
    out = batch.output
    device = out["prompt_ids"].device
    if batch.calls and len(batch.calls[0].prompts) == batch.size:
        prompt = torch.tensor(batch.calls[0].prompts[row], device=device)
    else:
        prompt = out["prompt_ids"][row][out["prompt_mask"][row] != 0]
    written = torch.tensor(batch.written[row], device=device)
    return answer_logprobs(trainer, prompt, written)


def answer_logprobs(trainer: Any, prompt: Tensor, written: Tensor) -> NDArray[np.float64]:
    """The plain model's log-probability of each token behind a prompt, at TRL's temperature."""
    ids = torch.cat([prompt, written])[None]
    with trainer.accelerator.autocast():
        logits = trainer.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    said = logits[len(prompt) - 1 : -1].float() / trainer.temperature
    found = torch.log_softmax(said, -1).gather(1, written[:, None])[:, 0]
    return as_numpy(found).astype(np.float64)
