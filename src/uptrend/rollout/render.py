"""Messages to token ids, each exactly once: what the sampler reads is what the learner trains on.

The first messages are rendered whole. After that the history is only appended to: a model's turn stays as it
was sampled, and what the task answers is rendered as the text that the template puts between that turn and
the next.
"""

from collections.abc import Sequence
from typing import Any

from uptrend.records import Message, TasksetError, Tool

_LAST_WORDS = "uptrend-last-words"
REMEMBERED = 4096
"""How many first prompts are kept rendered."""


class Renderer:
    """Turns messages into ids, through the model's chat template or as raw text."""

    def __init__(self, tokenizer: Any, stop_ids: Sequence[int], chat: bool, trim: bool = False) -> None:
        if chat and not tokenizer.chat_template:
            raise TasksetError(
                "These tasks are asked as a chat, but the model has no chat template. "
                "Set chat = false in [tasks] and [eval]."
            )
        self._tokenizer, self._stop_ids, self._chat = tokenizer, set(stop_ids), chat
        self._trim = trim
        self._firsts: dict[tuple[object, ...], list[int]] = {}

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The ids of a rollout's first prompt."""
        key = (*((m.role, m.content) for m in messages), *(t.name for t in tools))
        if key not in self._firsts:  # a group asks for the same prompt many times
            if len(self._firsts) > REMEMBERED:
                self._firsts.clear()
            self._firsts[key] = self._first(messages, tools)
        return self._firsts[key]

    def _first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        if not self._chat:
            text = "".join(m.content for m in messages)
            ids: list[int] = self._tokenizer(text.rstrip(" ") if self._trim else text).input_ids
            return ids
        return self._encode(self._template(messages, tools, speak=True))

    def later(self, said: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The ids between a model's turn and its next one: the turn's close, the answers, the next opening."""
        if not self._chat:
            return self._encode("".join(m.content for m in messages))
        before = [Message("user", "x"), Message("assistant", _LAST_WORDS)]
        whole = self._template([*before, *messages], tools, speak=True)
        _, found, tail = whole.partition(_LAST_WORDS)
        if not found or _LAST_WORDS in tail:
            raise TasksetError(
                "The model's chat template rewrites what was said before, "
                "so a rollout of several turns can't be appended to."
            )
        ids = self._encode(tail)
        closed = bool(said) and said[-1] in self._stop_ids
        return ids[1:] if closed and ids[0] == said[-1] else ids

    def text(self, ids: Sequence[int]) -> str:
        """What a model's turn says, without the token that ended it."""
        kept = ids[:-1] if len(ids) and ids[-1] in self._stop_ids else ids
        # The wrapped tokenizer itself, where there is one: several times faster, and nothing is tidied up.
        backend = getattr(self._tokenizer, "backend_tokenizer", self._tokenizer)
        text: str = backend.decode(list(kept), skip_special_tokens=True)
        return text

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def _template(self, messages: Sequence[Message], tools: Sequence[Tool], *, speak: bool) -> str:
        schemas = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": dict(t.parameters)},
            }
            for t in tools
        ]
        text: str = self._tokenizer.apply_chat_template(
            [{"role": m.role, "content": m.content} for m in messages],
            tools=schemas or None,
            add_generation_prompt=speak,
            tokenize=False,
        )
        return text
