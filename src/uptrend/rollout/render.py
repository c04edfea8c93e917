"""Messages and tools to token ids, each exactly once: what the sampler reads is what the learner
trains on.

The first messages are rendered whole. After that the history is only appended to: a model's turn
stays as it was sampled, and the task's answer is rendered as the text that the template puts
between that turn and the next. Tools go through the template where we know its format of calls;
otherwise they are described in words, and their results are a user's words.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from uptrend.config import Config
from uptrend.records import Message, TasksetError, Tool
from uptrend.rollout.calls import (
    END_THINK,
    FORMATS,
    THINK,
    describe,
    example_call,
    format_of,
    read_turn,
    schemas,
)

if TYPE_CHECKING:
    from uptrend.policy.policy import Policy

_LAST_WORDS = "uptrend-last-words"
# Number of first prompts that are kept rendered.
REMEMBERED = 4096
# Said by a script where its prompt began thoughts; nothing of them is left in the message.
NO_THOUGHTS = f"\n{END_THINK}\n\n"


class Renderer:
    """Turns messages into ids and a turn's ids into a message, through the model's chat template or
    as raw text.
    """

    def __init__(
        self, tokenizer: Any, stop_ids: Sequence[int], chat: bool | None, trim: bool = False
    ) -> None:
        chat = bool(tokenizer.chat_template) if chat is None else chat
        if chat and not tokenizer.chat_template:
            raise TasksetError(
                "These tasks are asked as a chat, but the model has no chat template. "
                "Set chat = false in [model], or in [tasks] and [eval] where they say otherwise."
            )
        self._tokenizer = tokenizer
        self._stop_ids = tuple(stop_ids)
        self._chat = chat
        self._trim = trim
        # the name of the format in which the model calls tools
        self.format = format_of(tokenizer) if chat else "plain"
        self._calls = FORMATS[self.format]
        # Special tokens are no part of what is said, and no text may be taken for one; the markup
        # of calls is both.
        added = tokenizer.added_tokens_decoder.items()
        marks = self._calls.marks
        special = {i for i, token in added if token.special} | set(tokenizer.all_special_ids)
        self._dropped = frozenset(
            special - {i for i, token in added if token.content in (*marks, THINK, END_THINK)}
        )
        texts = {token.content for _, token in added if token.special} | set(
            tokenizer.all_special_tokens
        )
        longest_first = sorted(
            (text for text in texts - set(marks) if len(text) > 1), key=len, reverse=True
        )
        self._control = (
            re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        )
        # The wrapped tokenizer, where there is one, decodes several times faster, and tidies
        # nothing up.
        self._backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._firsts: dict[tuple[object, ...], list[int]] = {}
        self._plain_firsts: dict[tuple[Message, ...], list[int]] = {}
        self._opened: dict[tuple[int, ...], bool] = {}
        self._close: list[int] | None = None

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Return the ids of a rollout's first prompt; they may be another rollout's too."""
        is_plain = not tools and not any(m.calls for m in messages)
        if is_plain and (known := self._plain_firsts.get(tuple(messages))) is not None:
            return known
        told = self._told(self._written(messages, tools), tools)
        key = (*((m.role, m.content) for m in told), json.dumps(schemas(tools), sort_keys=True))
        if key not in self._firsts:  # a group asks for the same prompt many times
            if len(self._firsts) > REMEMBERED:
                self._firsts.clear()
                self._plain_firsts.clear()
            if self._chat:
                self._firsts[key] = self._encode(self._template(told, tools, speak=True))
            else:
                text = "".join(m.content for m in told)
                self._firsts[key] = self._tokenizer(
                    text.rstrip(" ") if self._trim else text
                ).input_ids
        if is_plain:
            self._plain_firsts[tuple(messages)] = self._firsts[key]
        return self._firsts[key]

    def later(
        self, said: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int]:
        """Return the ids between a model's turn and its next one: the turn's close, the answers,
        the next opening.
        """
        written = self._written(messages, tools)
        if not self._chat:
            return self._encode("".join(m.content for m in written))
        ids = self._encode(self._after_words(written, tools, speak=True))
        closed = bool(said) and said[-1] in self._stop_ids
        # A model may close a turn with another of its stop tokens than the template does: it is
        # closed once.
        return ids[1:] if closed and ids[0] in self._stop_ids else ids

    def text(self, ids: Sequence[int], prompt: Sequence[int] = ()) -> str:
        """Return the text of a model's turn, without the token that ended it; `prompt` is what it
        had just read.
        """
        text: str = self._backend.decode(self._unstopped(ids), skip_special_tokens=True)
        return self._spoken(text, prompt)[0]

    def read(self, ids: Sequence[int], prompt: Sequence[int] = ()) -> Message:
        """Read a model's turn as a message, its calls taken out of the text; `prompt` is what it
        had just read.
        """
        # A tokenizer may count the markup of calls among its special tokens, which `text` leaves
        # out.
        kept = [i for i in self._unstopped(ids) if i not in self._dropped]
        text, in_thoughts = self._spoken(
            self._backend.decode(kept, skip_special_tokens=False), prompt
        )
        return read_turn(self._calls, text, in_thoughts=in_thoughts)

    def write(self, message: Message, prompt: Sequence[int] = ()) -> list[int]:
        """Return the ids that a model would sample after `prompt` to say this message and to end
        its turn.
        """
        if self._close is None:
            closing = self._encode(self._after_words([], (), speak=False))[:1] if self._chat else []
            self._close = (
                closing if closing and closing[0] in self._stop_ids else list(self._stop_ids[:1])
            )
        text = self._harmless(self._calls.write(message))
        return [
            *self._encode(NO_THOUGHTS + text if self._opens_thoughts(prompt) else text),
            *self._close,
        ]

    def _opens_thoughts(self, prompt: Sequence[int]) -> bool:
        """Return True where a prompt ends inside thoughts, as DeepSeek-R1's template and
        Qwen3-Thinking's do.
        """
        last = tuple(prompt[-16:])
        if last not in self._opened:
            if len(self._opened) > REMEMBERED:
                self._opened.clear()
            end: str = self._backend.decode(list(last), skip_special_tokens=False)
            self._opened[last] = end.rstrip().endswith(THINK)
        return self._opened[last]

    def _spoken(self, text: str, prompt: Sequence[int]) -> tuple[str, bool]:
        """Return a turn's text without empty thoughts that its prompt began, and True where it
        begins in others.
        """
        if not self._opens_thoughts(prompt):
            return text, False
        said = text.removeprefix(NO_THOUGHTS)
        return said, said == text

    def _unstopped(self, ids: Sequence[int]) -> list[int]:
        return list(ids[:-1] if len(ids) and ids[-1] in self._stop_ids else ids)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def _harmless(self, text: str) -> str:
        """Break up control tokens in a text: a document could otherwise end its turn and begin
        another.
        """
        return (
            self._control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
            if self._control
            else text
        )

    def _written(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """Write calls into the contents of messages; in the plain format, results are a user's
        words.
        """
        written = [
            replace(m, content=self._harmless(self._calls.write(m)), calls=()) for m in messages
        ]
        if not tools or self.format != "plain":
            return written
        if not self._chat:
            return [
                replace(m, content=f"\n{_result(m)}\n") if m.role == "tool" else m for m in written
            ]
        return join_results(written)

    def _told(self, messages: list[Message], tools: Sequence[Tool]) -> list[Message]:
        """Add the tools in words to the first messages where the template does not say them."""
        if not tools or self.format != "plain":
            return messages
        return (
            offer_tools(messages, tools)
            if self._chat
            else [Message("system", f"{_offer(tools)}\n\n"), *messages]
        )

    def _after_words(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, speak: bool
    ) -> str:
        """Return the text that the template puts after an assistant's words."""
        before = [Message("user", "x"), Message("assistant", _LAST_WORDS)]
        whole = self._template([*before, *messages], tools, speak=speak)
        _, found, tail = whole.partition(_LAST_WORDS)
        if not found or _LAST_WORDS in tail:
            raise TasksetError(
                "The model's chat template rewrites what was said before, "
                "so a rollout of several turns can't be appended to."
            )
        return tail

    def _template(self, messages: Sequence[Message], tools: Sequence[Tool], *, speak: bool) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [{"role": m.role, "content": m.content} for m in messages],
            tools=schemas(tools) if tools and self.format != "plain" else None,
            add_generation_prompt=speak,
            tokenize=False,
        )
        return text


def make_renderer(policy: "Policy", config: Config, tasks_chat: bool | None) -> Renderer:
    """Return a renderer for tasks that are asked as a chat, as raw text, or (None) as `model.chat`
    says.
    """
    chat = config.model.chat if tasks_chat is None else tasks_chat
    # Nobody has decided yet: as before there was a choice, the template where there is one.
    as_chat = None if chat == "auto" else chat
    return Renderer(policy.tokenizer, policy.stop_ids, as_chat, config.sampling.trim)


def offer_tools(messages: list[Message], tools: Sequence[Tool]) -> list[Message]:
    """Add tools in words, and how to call them in the plain format, to the system's message."""
    place = next((i for i, m in enumerate(messages) if m.role == "system"), None)
    if place is None:
        return [Message("system", _offer(tools)), *messages]
    system = replace(messages[place], content=f"{messages[place].content}\n\n{_offer(tools)}")
    return [*messages[:place], system, *messages[place + 1 :]]


def join_results(messages: Sequence[Message]) -> list[Message]:
    """Make results a user's words, in one message with those beside them: some templates insist on
    taking turns.
    """
    joined: list[Message] = []
    before = ""
    for m in messages:
        spoken = Message("user", _result(m)) if m.role == "tool" else m
        if "tool" in (before, m.role) and joined and joined[-1].role == spoken.role == "user":
            joined[-1] = Message("user", f"{joined[-1].content}\n{spoken.content}")
        else:
            joined.append(spoken)
        before = m.role
    return joined


def _offer(tools: Sequence[Tool]) -> str:
    example = FORMATS["plain"].write(Message("assistant", "", (example_call(tools[0]),)))
    how = (
        "To call a tool, end your turn like this; its result comes between <result> and </result>:"
    )
    return f"{describe(tools)}\n\n{how}\n{example}"


def _result(message: Message) -> str:
    return f"<result>\n{message.content}\n</result>"
