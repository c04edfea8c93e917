"""Probes of the learner, through TRL's own log-probability function, between the backward pass and
the update.

Swap: with another prompt before it, a completion must become likelier or less likely. Alone: a
row's log-probabilities in TRL's padded batch must be those of the row by itself, as the sampler
sees it.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.bridge.trl.batch import LossPass, TrlBatch, as_float64, as_numpy, roles_of
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.bridge.trl.processes import sharding_of
from uptrend.records import Evidence, Role, Severity
from uptrend.training.metrics import gap_metrics

# Rows that are probed: what must hold exactly needs no more.
PROBED_ROWS = 2
# Nats that a swap must move at least one token by.
MIN_SWAP_EFFECT = 1e-3
# Nats that the plain model must react to a swap by, for a learner's silence to say anything.
MIN_PLAIN_EFFECT = 0.05
# Nats that two computations of one log-probability may differ by, in half and full precision.
HALF_NOISE = 0.05
FULL_NOISE = 1e-3
# Nats per token, on average, above which padding is not masked; rounding in half precision stays
# below. The gap must also exceed the noise and the mean log-probability by these factors, because
# rounding grows with the logits in a model that has exploded.
MIN_PADDING_GAP = 0.2
MIN_GAP_PER_NOISE = 10
MIN_GAP_PER_LOGPROB = 0.05

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Swap:
    """The probed rows with something changed that the model's tokens must react to."""

    change: str
    ids: Tensor
    attention: Tensor
    must_react: Flags  # tokens of the completions behind the change


@dataclass(frozen=True)
class PlainLogprobs:
    """Log-probabilities of the probed rows by the plain model, without padding and without TRL's
    fused head.
    """

    rows: list[Floats]
    effect: float  # nats that the most affected token moves by behind its prompt read backwards


def probe_learner(
    trainer: Any, batch: TrlBatch, loss_pass: LossPass, log: FindingsLog, step: int
) -> dict[str, Any]:
    """Run the probes on some rows of a pass; return the metrics of learner against sampler."""
    width = loss_pass.logprobs.shape[1]
    picked = torch.tensor(_pick_rows(batch, loss_pass), device=loss_pass.ids.device)
    ids = loss_pass.ids[picked]
    attention = loss_pass.attention[picked]
    is_attended = as_numpy(attention[:, -width:]) != 0
    rows = as_numpy(loss_pass.rows)[as_numpy(picked)].tolist()
    answers = [batch.written[row] for row in rows]

    swaps = [_swap_prompts(loss_pass, picked, is_attended)]
    tool_swap = _swap_tool_results(batch, loss_pass, picked, width)
    if tool_swap.must_react.any():
        swaps.append(tool_swap)
    with quiet(trainer):
        variant_ids = torch.cat([ids, *(swap.ids for swap in swaps)])
        variant_attention = torch.cat([attention, *(swap.attention for swap in swaps)])
        logprobs = trainer._get_per_token_logps_and_entropies(
            asked_model(trainer), variant_ids, variant_attention, width
        )[0]
        unswapped, *swapped = map(as_float64, torch.split(logprobs, len(picked)))
        plain = _plain_logprobs(trainer, batch, rows, ids.device)

    effects = [np.abs(unswapped - after_swap) for after_swap in swapped]
    _judge_swaps(log, swaps, effects, plain, step)
    learner = as_float64(loss_pass.logprobs)[as_numpy(picked)]
    if trainer.is_deepspeed_enabled:
        # It has updated the weights since that pass, with the backward pass itself.
        with torch.no_grad():
            again = trainer._get_per_token_logps_and_entropies(
                asked_model(trainer), ids, attention, width
            )
        learner = as_float64(again[0])
    is_half = trainer.args.bf16 or trainer.args.fp16 or trainer.model.dtype != torch.float32
    noise = HALF_NOISE if is_half else FULL_NOISE
    _judge_dropout(trainer, log, learner[is_attended] - unswapped[is_attended], noise, step)

    sizes = [len(row) for row in plain.rows]
    plain_logprobs = np.concatenate(plain.rows)
    unswapped_logprobs = _without_padding(unswapped, sizes)
    learner_logprobs = _without_padding(learner, sizes)

    # A learner that is blind to the prompt can't agree with the row alone, and that is why; nor can
    # one that gets other tokens, or not all of them.
    n_other = 0
    is_masked = False
    for trained, attended, answer in zip(ids[:, -width:], is_attended, answers, strict=True):
        n_other += as_numpy(trained)[: len(answer)].tolist() != list(answer)
        is_masked |= not attended[: len(answer)].all()
    if n_other:
        summary = "Tokens that are trained are not those that were sampled."
        text = f"{n_other} of {len(rows)} completions that were compared."
        evidence = Evidence(text, float(n_other), step=step)
        log.report("tokens.retokenized", Severity.CRITICAL, summary, [evidence])
    is_blind = "mask.attention-blind" in log.reported_ranks
    if not n_other and not is_masked and not is_blind:
        _judge_padding(log, unswapped_logprobs, plain_logprobs, noise, len(rows), step)
    return gap_metrics(learner_logprobs, plain_logprobs)


def probe_update(trainer: Any, batch: TrlBatch, loss_pass: LossPass) -> dict[str, float]:
    """Compare an update with its purpose: rollouts with an advantage above 0 must become
    likelier.
    """
    width = loss_pass.logprobs.shape[1]
    rows = as_numpy(loss_pass.rows)
    advantages = as_numpy(batch.output["advantages"])
    mask = batch.loss_mask[rows][:, :width]
    if advantages.ndim > 1 or not mask.any():  # a subclass gives each token its own advantage
        return {}
    with quiet(trainer):
        now = trainer._get_per_token_logps_and_entropies(
            asked_model(trainer), loss_pass.ids, loss_pass.attention, width
        )[0]
    moved = np.where(mask, as_float64(now) - as_numpy(loss_pass.logprobs), 0.0)
    line = {"learner/moved/mean": float(np.abs(moved[mask]).mean())}

    advantages = advantages[rows]
    total_weight = float((np.abs(advantages) * mask.sum(1)).sum())
    if total_weight > 0:
        response = float((advantages * moved.sum(1)).sum() / total_weight)
        line["learner/response/mean"] = response
    return line


def _pick_rows(batch: TrlBatch, loss_pass: LossPass) -> list[int]:
    """Return the places of a few rows in a pass, rows of different prompts first."""
    places_by_prompt: dict[str, list[int]] = {}
    for place, row in enumerate(as_numpy(loss_pass.rows)):
        places_by_prompt.setdefault(str(batch.prompts[int(row)]), []).append(place)
    ranked: list[tuple[int, int]] = []  # number of the row among those of its prompt, and place
    for places in places_by_prompt.values():
        ranked += enumerate(places)
    return [place for _, place in sorted(ranked)[:PROBED_ROWS]]


def _swap_prompts(loss_pass: LossPass, picked: Tensor, is_attended: Flags) -> Swap:
    """Put completions behind another row's prompt; behind their own prompt backwards where all are
    the same.
    """
    ids = loss_pass.ids[picked].clone()
    attention = loss_pass.attention[picked].clone()
    width = ids.shape[1] - is_attended.shape[1]  # of the prompts
    others = torch.roll(picked, 1)
    is_same = bool((loss_pass.ids[picked, :width] == loss_pass.ids[others, :width]).all())
    if is_same:
        ids[:, :width] = ids[:, :width].flip(1)
        attention[:, :width] = attention[:, :width].flip(1)
    else:
        ids[:, :width] = loss_pass.ids[others, :width]
        attention[:, :width] = loss_pass.attention[others, :width]
    return Swap("another prompt", ids, attention, is_attended)


def _swap_tool_results(batch: TrlBatch, loss_pass: LossPass, picked: Tensor, width: int) -> Swap:
    """Reverse the tool results of each row; the model's tokens behind them must react."""
    ids = loss_pass.ids[picked].clone()
    prompt_width = ids.shape[1] - width
    must_react = np.zeros((len(picked), width), bool)
    rows = as_numpy(loss_pass.rows[picked.cpu()]).tolist() if batch.calls else []
    for place, row in enumerate(rows):
        prompt = batch.calls[0].prompts[row]
        roles, _ = roles_of(prompt, batch.written[row], batch.calls, row)
        roles = roles[len(prompt) :]
        tool_places = np.flatnonzero(roles == Role.TOOL)
        if len(tool_places) > 1:
            reversed_places = torch.as_tensor(tool_places + prompt_width, device=ids.device)
            ids[place, reversed_places] = ids[place, reversed_places].flip(0)
            is_behind = np.arange(len(roles)) > tool_places[0]
            must_react[place, : len(roles)] = (roles == Role.MODEL) & is_behind
    return Swap("another tool result", ids, loss_pass.attention[picked], must_react)


def _plain_logprobs(
    trainer: Any, batch: TrlBatch, rows: list[int], device: torch.device
) -> PlainLogprobs:
    """Compute the log-probabilities of rows, each by itself."""
    alone: list[Floats] = []
    effects: list[float] = []
    for row in rows:
        prompt = torch.tensor(batch.prompt(row), device=device)
        answer = torch.tensor(batch.written[row], device=device)
        own = answer_logprobs(trainer, prompt, answer)
        # A model with one answer for all, as after a collapse, reacts to nothing.
        backwards = answer_logprobs(trainer, prompt.flip(0), answer)
        effects.append(float(np.abs(own - backwards).max(initial=0.0)))
        alone.append(own)
    return PlainLogprobs(alone, max(effects))


def _without_padding(logprobs: Floats, sizes: list[int]) -> Floats:
    """Return the log-probabilities of padded rows of these sizes, side by side."""
    return np.concatenate([row[:size] for row, size in zip(logprobs, sizes, strict=True)])


def _judge_swaps(
    log: FindingsLog, swaps: list[Swap], effects: list[Floats], plain: PlainLogprobs, step: int
) -> None:
    """Report a learner that does not react to a swap, if the plain model reacts to another
    prompt.
    """
    if plain.effect < MIN_PLAIN_EFFECT:
        reason = f"step {step}: the model has one answer for all"
        log.event("not-probed", id="mask.attention-blind", reason=reason)
    for swap, effect in zip(swaps, effects, strict=True):
        largest = float(effect[swap.must_react].max(initial=0.0))
        if largest <= MIN_SWAP_EFFECT and plain.effect >= MIN_PLAIN_EFFECT:
            summary = (
                "The learner does not see what stands before its answer: "
                f"with {swap.change}, its log-probabilities are the same."
            )
            text = (
                f"{len(effect)} completions behind {swap.change}: no token's log-probability moved"
                f" by more than {largest:.1e} nats."
            )
            evidence = Evidence(text, largest, step=step)
            log.report("mask.attention-blind", Severity.CRITICAL, summary, [evidence])


def _judge_dropout(
    trainer: Any, log: FindingsLog, differences: Floats, noise: float, step: int
) -> None:
    """Report dropout where the loss gets other log-probabilities than those that the sampler drew
    from.
    """
    n_layers = 0
    for module in trainer.model.modules():
        n_layers += isinstance(module, torch.nn.Dropout) and module.p > 0
    attention = float(getattr(trainer.model.config, "attention_dropout", 0.0) or 0.0)
    gap = float(np.abs(differences).mean()) if len(differences) else 0.0
    if (n_layers or attention) and gap >= noise:
        summary = (
            "Dropout is active while the learner computes its log-probabilities; the sampler has"
            " none."
        )
        text = (
            f"The same tokens, with and without dropout: {gap:.3f} nats apart on average "
            f"({n_layers} dropout layers, attention_dropout {attention:g})."
        )
        evidence = Evidence(text, gap, step=step)
        log.report("policy.dropout-on", Severity.WARNING, summary, [evidence])


def _judge_padding(
    log: FindingsLog, learner: Floats, plain: Floats, noise: float, n_rows: int, step: int
) -> None:
    """Report a padded batch whose log-probabilities are not those of its rows alone."""
    gap = float(np.abs(learner - plain).mean()) if len(plain) else 0.0
    plain_size = float(np.abs(plain).mean())
    limit = max(MIN_PADDING_GAP, MIN_GAP_PER_NOISE * noise, MIN_GAP_PER_LOGPROB * plain_size)
    if gap > limit:
        summary = (
            "The learner's log-probabilities in TRL's padded batch are not those of the same row"
            " alone."
        )
        text = f"{n_rows} rows: {gap:.2f} nats per token apart on average."
        evidence = Evidence(text, gap, step=step)
        log.report("tokens.padding", Severity.CRITICAL, summary, [evidence])


def answer_logprobs(trainer: Any, prompt: Tensor, answer: Tensor) -> Floats:
    """Compute the plain model's log-probability of each token behind a prompt, at TRL's
    temperature.
    """
    ids = torch.cat([prompt, answer])[None]
    with trainer.accelerator.autocast():
        model = asked_model(trainer)
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    answer_logits = logits[len(prompt) - 1 : -1].float() / trainer.temperature
    logprobs = torch.log_softmax(answer_logits, -1)
    return as_float64(logprobs.gather(1, answer[:, None])[:, 0])


def asked_model(trainer: Any) -> Callable[..., Any]:
    """Return the model as a probe calls it: one process may do so by itself.

    Where ZeRO-3 keeps the weights in parts, a hook at the model's call makes all processes wait for
    each other, even once the weights are gathered.
    """
    model: Callable[..., Any] = trainer.model
    return trainer.model.forward if sharding_of(trainer) else model


@contextmanager
def quiet(trainer: Any) -> Iterator[None]:
    """Put the model into evaluation mode, without gradients, and then back as it was."""
    is_training = trainer.model.training
    trainer.model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        trainer.model.train(is_training)


@contextmanager
def same_randomness() -> Iterator[None]:
    """Put every random generator back as it was: a watched run draws what an unwatched one
    draws.
    """
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
