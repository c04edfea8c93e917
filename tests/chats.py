"""Real models' chat templates on small tokenizers, with the tokens that they need."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, pre_tokenizers

from uptrend.records import Message, Tool, ToolCall
from uptrend.rollout.calls import CALL_FORMATS, tool_schemas

FOLDER = Path(__file__).parent / "data" / "templates"
SPECIAL = {  # tokens that the models' own tokenizers call special
    "qwen2_5": ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    "qwen3": ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    "llama3_1": (
        "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>",
    ),
    "gemma3": ("<bos>", "<start_of_turn>", "<end_of_turn>"),
}  # fmt: skip
ADDED = {  # tokens that they have, and do not call special
    "qwen2_5": ("<tool_call>", "</tool_call>"),
    "qwen3": (
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
        "<think>",
        "</think>",
    ),
}
STARTS = {"llama3_1": "<|begin_of_text|>", "gemma3": "<bos>"}
ENDS = {
    "qwen2_5": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "llama3_1": "<|eot_id|>",
    "gemma3": "<end_of_turn>",
}
LLAMA_WORDS = (  # as Llama 3's tokenizer cuts a text
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

ARGUMENTS = {"query": {"type": "string"}, "most": {"type": "integer"}}
SEARCH = Tool(
    "search",
    "Searches\nthe documents.",
    {"type": "object", "properties": ARGUMENTS, "required": ["query"]},
)
FINISH = Tool("finish", "Ends.", {"type": "object", "properties": {}})


# Ends a template as DeepSeek-R1's and Qwen3-Thinking's do: the model begins inside its thoughts.
PREFILL = "{%- if add_generation_prompt %}{{- '<think>\n' }}{%- endif %}"


def put_on(
    tokenizer: Any, name: str, *, all_special: bool = False, thinks: bool = False
) -> tuple[Any, list[int]]:
    """The tokenizer with a model's template and tokens, and its stop ids; the turn's close is not
    the first.
    """
    added = list(ADDED.get(name, ()))
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [*SPECIAL[name], *(added if all_special else ())]}
    )
    tokenizer.add_tokens(added)
    if name in STARTS:
        tokenizer.bos_token = STARTS[name]
    if name == "llama3_1" and "ByteLevel" in str(tokenizer.backend_tokenizer.pre_tokenizer):
        # Line breaks stay together before whatever follows, so that a prompt's end is the same with
        # and without it.
        split = pre_tokenizers.Split(Regex(LLAMA_WORDS), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    tokenizer.chat_template = (FOLDER / f"{name}.jinja").read_text(
        encoding="utf-8"
    ) + PREFILL * thinks
    return tokenizer, [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(ENDS[name])]


def whole(tokenizer: Any, messages: list[Message], tools: list[Tool], *, speak: bool) -> list[int]:
    """The ids of the template's own rendering of a conversation, calls in OpenAI's form."""
    text = tokenizer.apply_chat_template(
        [_openai(m) for m in messages],
        tools=tool_schemas(tools) or None,
        add_generation_prompt=speak,
        tokenize=False,
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def _openai(message: Message) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        said["tool_calls"] = [
            {"type": "function", "function": vars(call)} for call in message.calls
        ]
    return said


def calling(content: str, *queries: str) -> Message:
    """An assistant's message that searches."""
    return Message("assistant", content, tuple(ToolCall("search", {"query": q}) for q in queries))


def in_words(messages: Sequence[Message]) -> list[Message]:
    """A conversation as a template without tools is told it: written out here by hand."""
    offer = (
        "You can call these tools:\nsearch(query: string, most: optional integer): Searches the documents.\n"
        "finish(): Ends.\n\n"
        "To call a tool, end your turn like this; its result comes between <result> and </result>:\n"
        '<tool>{"name": "search", "arguments": {"query": "..."}}</tool>'
    )
    told: list[Message] = []
    for m in messages:
        content = CALL_FORMATS["plain"].write(m) if m.calls else m.content
        content += f"\n\n{offer}" if m.role == "system" else ""
        content = f"<result>\n{content}\n</result>" if m.role == "tool" else content
        role = "user" if m.role == "tool" else m.role
        if told and told[-1].role == role:
            told[-1] = Message(role, f"{told[-1].content}\n{content}")
        else:
            told.append(Message(role, content))
    return told
