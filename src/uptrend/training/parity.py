"""The comparison of a model's log-probabilities here with those of transformers' own forward.

Sequences are packed into rows, and decoding keeps keys and values in pages. Both are right for
attention that sees what it is told to see. A recurrence that runs across a row, or a term of
attention that nobody passes on, gives other log-probabilities without a word. So before a model is
used, a miniature of it is scored by the learner, packed, and sampled by the sampler of this
process; both are compared with the plain forward over one sequence at a time.

m = token that has a log-probability, t = token, v = vocabulary, b = sequence, s = sampled token of
it.
"""

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

# Largest difference that passes. Rounding in fp32 is 1e-5 or less; the least that was missing, a
# cap of 50 on the products of queries and keys, cost 0.02.
TOLERANCE_NATS = 1e-3
# Random models of 30 layers and more may amplify rounding. A difference up to the second figure
# passes where it is at most so many times what a change of all weights in their last bit makes.
ROUNDING = 10
ROUNDING_NATS = 0.01
# A model whose log-probabilities vary less, or whose tokens are surer on average, would hide what
# is wrong.
LEAST_SPREAD_NATS = 0.01
SUREST_NATS = -0.01
# Memory of the sampler's keys and values.
CACHE_BYTES = 1 << 28
# Packages whose code decides what comes out: part of what an answer is remembered by, so that any
# edit asks anew.
PACKAGES = ("policy", "rollout", "training")


class TailLogprobs(NamedTuple):
    """Log-probabilities that the last tokens of a sequence got."""

    ids: list[int]
    start: int  # first token that has one
    logprobs_m: Tensor


def check_model(policy: Policy, name: str, *, decodes: bool) -> None:
    """Raise ModelError where packed scoring, or decoding where it `decodes`, differs from
    transformers' forward.

    What was right once is remembered, by the model's settings and the versions of all code; what
    was wrong is not.
    """
    config = policy.core.config
    paths = ["scoring", "decoding"] if decodes else ["scoring"]
    place = home() / "parity" / f"{_fingerprint(config, paths)}.json"
    if _is_right(place, paths):
        return
    gaps = measure(config, policy.tokenizer, paths)
    if not gaps:
        raise ModelError(
            f"{name} can't be used: no small model with its settings runs in transformers to"
            " compare with."
        )
    for path, gap in gaps.items():
        if isinstance(gap, str) or gap > TOLERANCE_NATS:
            problem = (
                f"fails ({gap})"
                if isinstance(gap, str)
                else f"is {gap:.2g} nats off transformers' own forward"
            )
            raise ModelError(
                f"{name} can't be used: for models of type {config.model_type}, {PATHS[path][0]}"
                f" {problem}."
            )
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, json.dumps(gaps).encode())
    except (OSError, RecordError):  # it is measured again each time
        pass


def _fingerprint(config: Any, paths: Sequence[str]) -> str:
    """Hash what the answer depends on: the model's settings, versions of libraries, and the code
    here.
    """
    settings = {key: value for key, value in config.to_dict().items() if key != "_name_or_path"}
    versions = [metadata.version(package) for package in ("torch", "transformers")]
    about = json.dumps(
        [versions, paths, type(config).__name__, settings], sort_keys=True, default=str
    )
    digest = hashlib.sha256(about.encode())
    for package in PACKAGES:
        for file in sorted((Path(__file__).parents[1] / package).glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


def _is_right(place: Path, paths: Sequence[str]) -> bool:
    """Return True where the file at this place says so; one that can't be read says nothing."""
    try:
        gaps = json.loads(place.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(gaps, dict) or set(gaps) != set(paths):
        return False
    return all(isinstance(gap, float) and 0 <= gap <= TOLERANCE_NATS for gap in gaps.values())


def measure(config: Any, tokenizer: Any, paths: Sequence[str]) -> dict[str, float | str]:
    """Return the largest difference on each path, in nats, or the reason why there is none, and
    then no further path.

    Empty where there is nothing to compare with.
    """
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()  # miniatures are no models that anybody should be warned of
    try:
        model = _first_that_runs(config)
        if model is None:
            return {}
        policy = Policy(model, tokenizer, torch.device("cpu"), FlatWeights(model))
        gaps = dict[str, float | str]()
        for path in paths:
            gaps[path] = _gap_or_reason(policy, PATHS[path][1])
            if isinstance(gaps[path], str):
                break
        return gaps
    finally:
        logging.set_verbosity(level)


def _first_that_runs(config: Any) -> Any:
    """Return the cheapest miniature whose plain forward tells tokens apart; None where none
    does.
    """
    for model in miniatures(config):
        try:
            logprobs_tv = _plain_logprobs(model, _random_ids(model, 8, 0))
        except Exception:
            # Sizes that do not fit together: the next one has more of the model's own.
            continue
        is_varied = bool(logprobs_tv.std() > LEAST_SPREAD_NATS)
        if is_varied and logprobs_tv.max(-1).values.mean() < SUREST_NATS:
            return model
    return None


def _gap_or_reason(policy: Policy, score: Callable[[Policy], list[TailLogprobs]]) -> float | str:
    """Return the largest difference; the reason where there is none, whatever a model may trip
    over.
    """
    try:
        policy.core.set_attn_implementation(attention.register())
        gaps = [_gap(policy.core, scored) for scored in score(policy)]
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
        return reason if isinstance(error, ModelError) else f"{type(error).__name__}: {reason}"
    return max(gaps) if all(map(math.isfinite, gaps)) else "log-probabilities are not finite"


def _gap(model: Any, scored: TailLogprobs) -> float:
    """Return the largest difference from the plain forward; 0 where it is rounding."""
    plain_m = _plain_of(model, scored)
    gap = float((plain_m - scored.logprobs_m).abs().max())
    if not TOLERANCE_NATS < gap <= ROUNDING_NATS:
        return gap
    jittered = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in jittered.parameters():
            weight.mul_(
                1 + torch.finfo(weight.dtype).eps * torch.randn(weight.shape, generator=generator)
            )
    rounding = float((plain_m - _plain_of(jittered, scored)).abs().max())
    return 0.0 if gap <= ROUNDING * rounding else gap


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
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            logits_tv = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(before)
    logprobs_tv: Tensor = logits_tv.log_softmax(-1)
    return logprobs_tv


def _random_ids(model: Any, count: int, seed: int) -> list[int]:
    size = model.get_input_embeddings().weight.shape[0]
    return [int(token) for token in np.random.default_rng(seed).integers(0, size, count)]


def _score(policy: Policy) -> list[TailLogprobs]:
    """Score sequences as the learner does, several in a row: each alone, then with a prompt that
    two share.
    """
    prompt = _random_ids(policy.core, 13, 0)
    shared = [
        _sequence(prompt, _random_ids(policy.core, count, count), 0, count) for count in (9, 14)
    ]
    others = [
        _sequence(_random_ids(policy.core, 5, n), _random_ids(policy.core, 21 - n, 30 + n), n, n)
        for n in (1, 2)
    ]
    learner = Learner(policy, Optimizer(policy.flat, Learning()), Config())
    scored = list[TailLogprobs]()
    for sequences in (others, [*shared, *others]):
        logprobs_bs = learner.logprobs(_experience(sequences), reference=False)
        for sequence, logprobs_s in zip(sequences, logprobs_bs, strict=True):
            scored.append(
                TailLogprobs(
                    sequence.ids.tolist(), sequence.prompt, logprobs_s[: len(sequence.sampled)]
                )
            )
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
    """Lay sequences out as the learner gets rollouts; what only an update looks at is empty."""
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
    scored = list[TailLogprobs]()

    async def talk(stream: int, prompt: list[int]) -> None:
        ids = list[int]()
        for asked in (prompt, _random_ids(policy.core, 5, stream)):
            extension = await sampler.extend(stream, asked, limits, seed=stream)
            start = len(ids) + len(asked)
            ids = [*ids, *asked, *extension.ids.tolist()]
            scored.append(TailLogprobs(ids, start, torch.from_numpy(extension.logprobs)))

    async def talk_together() -> None:
        first = _random_ids(policy.core, 30, 0)
        second = _random_ids(policy.core, 11, 1)
        await event_loop.together(
            talk(stream, prompt) for stream, prompt in enumerate((first, first, second))
        )

    event_loop.run(talk_together())
    return scored


# Ways to log-probabilities: the name of each, and the function that takes it.
PATHS: dict[str, tuple[str, Callable[[Policy], list[TailLogprobs]]]] = {
    "scoring": ("packed scoring", _score),
    "decoding": ("decoding in this process", _decode),
}
