"""The comparison of a model's log-probabilities here with those of transformers' own forward.

Sequences are packed into rows, and decoding keeps keys and values in pages. Both are right for
attention that follows its mask. A recurrence that runs across a row, or a term of attention that is
not passed on, gives other log-probabilities without an error. So before a model is used, a
miniature of it is scored by the learner, packed, and sampled by the sampler of this process; both
are compared with the plain forward over one sequence at a time.

m = token that has a log-probability, t = token, v = vocabulary, b = sequence, s = sampled token of
it.
"""

import contextlib
import copy
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from uptrend.config import Config, Learning
from uptrend.policy import attention
from uptrend.policy.known import home
from uptrend.policy.miniature import miniatures
from uptrend.policy.optimizer import Optimizer
from uptrend.policy.policy import Policy
from uptrend.policy.weights import FlatWeights
from uptrend.records import ModelError, RecordError
from uptrend.records.files import write_atomically
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.sampler import Limits
from uptrend.tasks import event_loop
from uptrend.training.learner import Experience, Learner
from uptrend.training.packing import TrainSequence

# Largest difference that passes. Rounding in fp32 is 1e-5 or less; of the terms that were missing
# in models, a cap of 50 on the products of queries and keys mattered least, by 0.02.
TOLERANCE_NATS = 1e-3
# Random models of 30 layers and more may amplify rounding. A difference up to the first figure
# passes if it is at most this multiple of what changing all weights in their last bit makes.
MAX_ROUNDING_NATS = 0.01
MAX_ROUNDING_MULTIPLE = 10
# A miniature must have log-probabilities that vary by more than this, and top ones that are lower
# than this on average: others would hide differences.
MIN_SPREAD_NATS = 0.01
MAX_TOP_LOGPROB_NATS = -0.01
# Memory of the sampler's keys and values.
CACHE_BYTES = 256 * 1024**2
# Packages whose code decides the result: an edit of any of them measures again.
HASHED_PACKAGES = ("policy", "rollout", "training")


class TailLogprobs(NamedTuple):
    """Log-probabilities of the last tokens of a sequence."""

    ids: list[int]
    start: int  # place of the first token that has one
    logprobs_m: Tensor


class ScoringPath(NamedTuple):
    """Way in which log-probabilities are computed here."""

    title: str  # as errors call it
    score: Callable[[Policy], list[TailLogprobs]]


def check_model(policy: Policy, name: str, *, decodes: bool) -> None:
    """Raise ModelError if packed scoring, or decoding if the run `decodes`, differs from
    transformers' forward.

    Success is remembered, by the model's settings and the versions of all code; failure is not.
    """
    config = policy.core.config
    paths = ["scoring", "decoding"] if decodes else ["scoring"]
    cache_path = home() / "parity" / f"{_fingerprint(config, paths)}.json"
    if _is_known_equal(cache_path, paths):
        return
    gaps = measure(config, policy.tokenizer, paths)
    if not gaps:
        raise ModelError(
            f"{name} can't be used: no small model with its settings runs in transformers to"
            " compare with."
        )
    for path, gap in gaps.items():
        if isinstance(gap, str):
            problem = f"fails ({gap})"
        elif gap > TOLERANCE_NATS:
            problem = f"is {gap:.2g} nats off transformers' own forward"
        else:
            continue
        raise ModelError(
            f"{name} can't be used: for models of type {config.model_type},"
            f" {SCORING_PATHS[path].title} {problem}."
        )
    # Without the file, it is measured again each time.
    with contextlib.suppress(OSError, RecordError):
        cache_path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cache_path, json.dumps(gaps).encode())


def _fingerprint(config: Any, paths: Sequence[str]) -> str:
    """Hash everything that decides the result: the model's settings, versions of libraries, and the
    code here.
    """
    settings = {key: value for key, value in config.to_dict().items() if key != "_name_or_path"}
    versions = [metadata.version(package) for package in ("torch", "transformers")]
    key = [versions, paths, type(config).__name__, settings]
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode())
    for package in HASHED_PACKAGES:
        for file in sorted((Path(__file__).parents[1] / package).glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


def _is_known_equal(cache_path: Path, paths: Sequence[str]) -> bool:
    """Return True if a file has a gap within the tolerance for each path; a damaged one has not."""
    try:
        gaps = json.loads(cache_path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(gaps, dict) or set(gaps) != set(paths):
        return False
    return all(isinstance(gap, float) and 0 <= gap <= TOLERANCE_NATS for gap in gaps.values())


def measure(config: Any, tokenizer: Any, paths: Sequence[str]) -> dict[str, float | str]:
    """Return the largest difference on each path, in nats; empty if no miniature runs.

    If a path fails, its value is the reason, and further paths are left out.
    """
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()  # warnings about miniatures mean nothing to the user
    try:
        model = _first_runnable(config)
        if model is None:
            return {}
        policy = Policy(model, tokenizer, torch.device("cpu"), FlatWeights(model))
        gaps: dict[str, float | str] = {}
        for path in paths:
            gaps[path] = _gap_or_reason(policy, SCORING_PATHS[path])
            if isinstance(gaps[path], str):
                break
        return gaps
    finally:
        logging.set_verbosity(level)


def _first_runnable(config: Any) -> Any:
    """Return the cheapest miniature whose plain forward tells tokens apart; None if none does."""
    for model in miniatures(config):
        try:
            logprobs_tv = _plain_logprobs(model, _random_ids(model, 8, 0))
        except Exception:
            # Sizes that do not fit together: the next one has more of the model's own.
            continue
        is_varied = bool(logprobs_tv.std() > MIN_SPREAD_NATS)
        if is_varied and logprobs_tv.max(-1).values.mean() < MAX_TOP_LOGPROB_NATS:
            return model
    return None


def _gap_or_reason(policy: Policy, path: ScoringPath) -> float | str:
    """Return the largest difference, or the reason why there is none."""
    gaps: list[float] = []
    try:
        policy.core.set_attn_implementation(attention.register())
        for scored in path.score(policy):
            gaps.append(_gap(policy.core, scored))
    except Exception as error:  # a model may raise anything
        lines = str(error).strip().splitlines() or ["no reason given"]
        reason = lines[0].rstrip(".")
        return reason if isinstance(error, ModelError) else f"{type(error).__name__}: {reason}"
    if not all(map(math.isfinite, gaps)):
        return "log-probabilities are not finite"
    return max(gaps)


def _gap(model: Any, scored: TailLogprobs) -> float:
    """Return the largest difference from the plain forward; 0 if it is rounding."""
    plain_m = _plain_of(model, scored)
    gap = float((plain_m - scored.logprobs_m).abs().max())
    if not TOLERANCE_NATS < gap <= MAX_ROUNDING_NATS:
        return gap
    # Change all weights by about their last bit, to see how much the model amplifies rounding.
    jittered = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in jittered.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.mul_(1 + torch.finfo(weight.dtype).eps * noise)
    rounding = float((plain_m - _plain_of(jittered, scored)).abs().max())
    return 0.0 if gap <= MAX_ROUNDING_MULTIPLE * rounding else gap


def _plain_of(model: Any, scored: TailLogprobs) -> Tensor:
    """Compute the same log-probabilities by the plain forward, [m]."""
    stop = scored.start + len(scored.logprobs_m)
    logprobs_tv = _plain_logprobs(model, scored.ids[:stop])
    targets_m = torch.tensor(scored.ids[scored.start : stop])
    return logprobs_tv[scored.start - 1 : -1].gather(1, targets_m[:, None])[:, 0]


def _plain_logprobs(model: Any, ids: Sequence[int]) -> Tensor:
    """Compute log-probabilities by transformers' forward over one sequence, with its own attention,
    [t, v].
    """
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            logits_tv = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(implementation)
    logprobs_tv: Tensor = logits_tv.log_softmax(-1)
    return logprobs_tv


def _random_ids(model: Any, count: int, seed: int) -> list[int]:
    size = model.get_input_embeddings().weight.shape[0]
    return [int(token) for token in np.random.default_rng(seed).integers(0, size, count)]


def _score(policy: Policy) -> list[TailLogprobs]:
    """Score sequences as the learner does, several in a row: each alone, then with a prompt that
    two share.
    """
    model = policy.core
    prompt = _random_ids(model, 13, 0)
    shared = [_sequence(prompt, _random_ids(model, n, n), group=0, rollout=n) for n in (9, 14)]
    others: list[TrainSequence] = []
    for n in (1, 2):
        own_prompt = _random_ids(model, 5, n)
        answer = _random_ids(model, 21 - n, 30 + n)
        others.append(_sequence(own_prompt, answer, group=n, rollout=n))
    learner = Learner(policy, Optimizer(policy.flat, Learning()), Config())
    scored: list[TailLogprobs] = []
    for sequences in (others, [*shared, *others]):
        logprobs_bs = learner.logprobs(_experience(sequences), reference=False)
        for sequence, logprobs_s in zip(sequences, logprobs_bs, strict=True):
            logprobs_m = logprobs_s[: len(sequence.sampled)]
            scored.append(TailLogprobs(sequence.ids.tolist(), sequence.prompt, logprobs_m))
    return scored


def _sequence(prompt: list[int], answer: list[int], group: int, rollout: int) -> TrainSequence:
    ids = np.array([*prompt, *answer])
    return TrainSequence(
        ids=ids,
        sampled=np.arange(len(prompt), len(ids)),
        attended=np.ones(len(ids), np.bool_),
        prompt=len(prompt),
        group=group,
        rollout=rollout,
    )


def _experience(sequences: list[TrainSequence]) -> Experience:
    """Lay sequences out as the learner gets rollouts; fields that only an update reads are 0."""
    counts_b = torch.tensor([len(sequence.sampled) for sequence in sequences])
    real_bs = torch.arange(int(counts_b.max())) < counts_b[:, None]
    return Experience(
        sequences=sequences,
        rollouts_b=torch.tensor([sequence.rollout for sequence in sequences]),
        groups_b=torch.tensor([sequence.group for sequence in sequences]),
        mask_bs=real_bs,
        real_bs=real_bs,
        sampler_bs=torch.zeros(real_bs.shape),
        turns_bs=torch.zeros(real_bs.shape, dtype=torch.long),
        supports=[None] * len(sequences),
    )


def _decode(policy: Policy) -> list[TailLogprobs]:
    """Sample turns side by side: two of one prompt, a shorter one, and a second turn of each behind
    the first.
    """
    sampler = InProcessSampler(policy, cache_bytes=CACHE_BYTES)
    limits = Limits(max_tokens=8, context=128)
    scored: list[TailLogprobs] = []

    async def play(stream: int, first_prompt: list[int]) -> None:
        ids: list[int] = []
        for prompt in (first_prompt, _random_ids(policy.core, 5, stream)):
            extension = await sampler.extend(stream, prompt, limits, seed=stream)
            start = len(ids) + len(prompt)
            ids = [*ids, *prompt, *extension.ids.tolist()]
            scored.append(TailLogprobs(ids, start, torch.from_numpy(extension.logprobs)))

    async def play_together() -> None:
        long_prompt = _random_ids(policy.core, 30, 0)
        short_prompt = _random_ids(policy.core, 11, 1)
        prompts = (long_prompt, long_prompt, short_prompt)
        await event_loop.together(play(stream, prompt) for stream, prompt in enumerate(prompts))

    event_loop.run(play_together())
    return scored


SCORING_PATHS = {
    "scoring": ScoringPath("packed scoring", _score),
    "decoding": ScoringPath("decoding in this process", _decode),
}
