"""Settings that a model's files carry and no recipe mentions: sampling in generation_config.json,
end tokens, the tokenizer's size, and what the chat template does to thoughts.

Read from the loaded objects, of our own runs and of a watched trainer's alike.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

# Settings of `generate()` by which tokens are drawn from another distribution than the model's,
# each with the values that change nothing. None is never a change.
NEUTRAL_GENERATION: Mapping[str, tuple[Any, ...]] = {
    "temperature": (1, 1.0),
    "top_k": (0, -1),
    "top_p": (1, 1.0),
    "min_p": (0, 0.0),
    "top_h": (1, 1.0),
    "typical_p": (1, 1.0),
    "epsilon_cutoff": (0, 0.0),
    "eta_cutoff": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "encoder_repetition_penalty": (1, 1.0),
    "no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "num_beams": (1,),
    "guidance_scale": (1, 1.0),
    "penalty_alpha": (0, 0.0),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "bad_words_ids": ([],),
    "sequence_bias": ({},),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
}
# Names under which configs have the number of experts.
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
# A conversation that shows what a template does to the thoughts of an earlier turn.
THOUGHT = "I add two and two."
THOUGHTFUL = f"<think>\n{THOUGHT}\n</think>\n\nFour."
QUESTION = {"role": "user", "content": "What is 2 + 2?"}
ANSWER = {"role": "assistant", "content": THOUGHTFUL}
FOLLOW_UP = {"role": "user", "content": "And 3 + 3?"}


def describe_model(model: Any, tokenizer: Any, template: str | None = None) -> dict[str, Any]:
    """Return what a model's files decide, for run.json; `template` replaces the tokenizer's own."""
    config = model.config.get_text_config()
    rows = int(model.get_input_embeddings().num_embeddings)
    generation = getattr(model, "generation_config", None)
    experts = [getattr(config, name, None) for name in EXPERT_COUNTS]
    return {
        "type": str(config.model_type),
        "attention": str(getattr(config, "_attn_implementation", None) or ""),
        "experts": max((count for count in experts if isinstance(count, int)), default=0),
        "embeddings": rows,
        "generation": shaping_settings(generation),
        "stops": end_tokens(generation, config, tokenizer),
        "tokenizer": _describe_tokenizer(tokenizer, template),
    }


def shaping_settings(generation: Any) -> dict[str, Any]:
    """Return the settings of a generation config that shape the distribution; without those that
    change nothing.
    """
    shaping: dict[str, Any] = {}
    for name, neutral in NEUTRAL_GENERATION.items():
        value = getattr(generation, name, None)
        if value is not None and value not in neutral:
            shaping[name] = copy.deepcopy(value)
    return shaping


def hidden_settings(applied: Any, files: Any, intended: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with which `generate()` samples although nobody asked for them.

    `applied` is the config that a trainer passes to it; where that has None, the value of `files`,
    the model's own config, is in force. `intended` are the values that the trainer's arguments
    name.
    """
    merged = copy.copy(applied)
    for name in NEUTRAL_GENERATION:
        if getattr(merged, name, None) is None:
            setattr(merged, name, getattr(files, name, None))
    in_force = shaping_settings(merged)
    return {name: value for name, value in in_force.items() if intended.get(name) != value}


def end_tokens(*sources: Any) -> list[int]:
    """Return every token that ends a turn by a model's configs and its tokenizer, ascending."""
    ids: set[int] = set()
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        values = value if isinstance(value, Sequence) else [value]
        ids |= {int(id) for id in values if id is not None}
    return sorted(ids)


def _describe_tokenizer(tokenizer: Any, template: str | None) -> dict[str, Any]:
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor, its own
    ids = tokenizer.get_vocab().values()
    return {
        "kind": type(tokenizer).__name__,
        "tokens": max(ids, default=-1) + 1,
        "bos": tokenizer.bos_token_id,
        "eos": tokenizer.eos_token_id,
        "pad": tokenizer.pad_token_id,
        "padding_side": tokenizer.padding_side,
        "thoughts": _fate_of_thoughts(tokenizer, template),
    }


def _fate_of_thoughts(tokenizer: Any, template: str | None) -> str:
    """Return what a chat template does to the thoughts of an earlier turn: kept, dropped,
    rewritten; empty without a template.
    """
    template = template or tokenizer.chat_template
    if not template:
        return ""
    conversation = [QUESTION, ANSWER, FOLLOW_UP]
    try:
        begin = tokenizer.apply_chat_template([QUESTION], chat_template=template, tokenize=False)
        whole = tokenizer.apply_chat_template(conversation, chat_template=template, tokenize=False)
    except Exception:  # a template may refuse a conversation, in whatever way it likes
        return "refused"
    if THOUGHT not in whole:
        return "dropped"
    is_kept = whole.startswith(begin) and THOUGHTFUL in whole
    return "kept" if is_kept else "rewritten"
