"""Settings that no recipe mentions: those of the model's files, of a trainer's sampler, and of
versions that are known to be bad.

`judge_files` compares a model's files with each other, from a run's records as from a loaded model:
preflight's probe asks the same function.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from uptrend.doctor.case import Case
from uptrend.doctor.check import (
    CRITICAL,
    NOTE,
    PROOF,
    SIGNAL,
    WARNING,
    Answer,
    Found,
    Lacking,
    check,
    warn_if,
)
from uptrend.doctor.known_bad import Combination, known_combinations, recorded_versions
from uptrend.present.formatting import assignments
from uptrend.records import Evidence

HIDDEN_ID = "sampling.hidden-settings"
VOCABULARY_ID = "tokens.vocabulary"
TEMPLATE_ID = "tokens.template"
# What a chat template may do with the thoughts of earlier turns so that a conversation, rendered
# with one more turn, does not begin with what was rendered before.
LOST_THOUGHTS = ("dropped", "rewritten")


@check(HIDDEN_ID)
def hidden_sampling(case: Case) -> Answer:
    """Report settings of the model's own files with which a trainer samples, and nobody asked
    for.
    """
    sampler = case.view.info.get("sampler")
    if not isinstance(sampler, Mapping) or "hidden" not in sampler:
        if case.view.trainer == "uptrend":
            return None  # its samplers take no setting from a model's files
        return Lacking(
            "the settings that the sampler takes from the model's files are not recorded"
        )
    hidden = sampler["hidden"]
    if not isinstance(hidden, Mapping) or not hidden:
        return None
    settings = assignments(hidden)
    summary = (
        f"The sampler takes {settings} from the model's own generation_config.json; the learner's"
        " log-probabilities do not."
    )
    evidence = Evidence(f"{sampler.get('engine', 'the sampler')} applies {settings}")
    return Found(WARNING, PROOF, summary, [evidence])


@check(VOCABULARY_ID, TEMPLATE_ID)
def model_files(case: Case) -> Answer:
    """Report files of a model that contradict each other."""
    model = case.view.info.get("model")
    files = model.get("files") if isinstance(model, Mapping) else None
    if not isinstance(files, Mapping):
        return Lacking("the model's files are not described in the records", VOCABULARY_ID)
    turns = case.value("sampling.max_turns") or 1
    return list(judge_files(files, turns, rewrites=case.view.trainer != "uptrend"))


def judge_files(files: Mapping[str, Any], turns: float, *, rewrites: bool) -> Iterator[Found]:
    """Yield what contradicts in a model's files, as `policy.model_files` describes them.

    `rewrites` is True for a trainer that renders the whole conversation anew at each turn and
    trains what it rendered last.
    """
    yield from _judge_vocabulary(files)
    tokenizer = files.get("tokenizer")
    fate = tokenizer.get("thoughts") if isinstance(tokenizer, Mapping) else ""
    if fate not in LOST_THOUGHTS or turns <= 1:
        return
    if rewrites:
        consequence = "a later turn is sampled after another text than is trained"
    else:
        consequence = "each rollout becomes several sequences, which costs time"
    summary = f"The chat template has the thoughts of earlier turns {fate}: {consequence}."
    evidence = Evidence("a conversation of two turns was rendered with thoughts in the first")
    yield Found(warn_if(rewrites), SIGNAL, summary, [evidence], TEMPLATE_ID)


def _judge_vocabulary(files: Mapping[str, Any]) -> Iterator[Found]:
    """Yield tokens that the model's files do not agree on."""
    tokenizer = files.get("tokenizer")
    embedding_rows = files.get("embeddings")
    tokens = tokenizer.get("tokens") if isinstance(tokenizer, Mapping) else None
    if not isinstance(embedding_rows, int) or not isinstance(tokens, int):
        return
    if tokens > embedding_rows:
        summary = (
            f"The tokenizer has {tokens:,} tokens and the embedding {embedding_rows:,} rows: a text"
            " with one of the others fails, or reads rows that were never trained."
        )
        evidence = Evidence("tokens / rows", tokens / embedding_rows)
        yield Found(CRITICAL, PROOF, summary, [evidence], VOCABULARY_ID)
    stops = files.get("stops")
    stop_ids = stops if isinstance(stops, list) else []
    unknown_ids = [id for id in stop_ids if isinstance(id, int) and id >= tokens]
    if unknown_ids:
        ids = ", ".join(map(str, unknown_ids))
        # Without any end token that it knows, the model can't end an answer.
        has_known_stop = len(unknown_ids) < len(stop_ids)
        summary = f"The model's files name end tokens that its tokenizer does not have: {ids}."
        evidence = Evidence(f"the tokenizer's last token is {tokens - 1}", float(tokens - 1))
        severity = WARNING if has_known_stop else CRITICAL
        yield Found(severity, PROOF, summary, [evidence], VOCABULARY_ID)


@check(*dict.fromkeys(combination.id for combination in known_combinations()))
def known_bad(case: Case) -> list[Found]:
    """Report versions and combinations that a public thread has shown to be bad."""
    return [
        _found_combination(combination, case)
        for combination in known_combinations()
        if combination.matches(case.view)
    ]


def _found_combination(combination: Combination, case: Case) -> Found:
    versions = recorded_versions(case.view)
    names = " with ".join(f"{name} {versions[name]}" for name in combination.packages)
    summary = (
        f"{names} is known for this: {combination.symptom}. What repairs it: {combination.change}."
    )
    # Nothing was measured in this run, and one that learns may not suffer from it.
    severity = NOTE if case.is_learning else WARNING
    return Found(severity, SIGNAL, summary, [Evidence(combination.source)], combination.id)
