"""Messages and tools to token ids, each exactly once: what the sampler reads is what the learner
trains on.

The first messages are rendered whole. After that the history is appended to: a model's turn stays
as it was sampled, and the task's answer is rendered as the text that the template puts between that
turn and the next. A template that changes earlier turns can't be appended to, as Qwen3's, which
takes their thoughts out once the user speaks again: then the conversation is rendered whole, as the
beginning of another sequence. Tools go through the template if its format of calls is known;
otherwise a system message describes them, and their results come as a user's messages.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from uptrend.config import Config
from uptrend.records import Message, TasksetError, Tool
from uptrend.rollout.calls import (
    CALL_FORMATS,
    END_THINK_TAG,
    THINK_TAG,
    describe_tools,
    example_call,
    format_of,
    read_turn,
    tool_schemas,
)

if TYPE_CHECKING:
    from uptrend.policy.policy import Policy

# Text of a turn that is rendered only to find what the template puts after it.
PLACEHOLDER_TURN = "uptrend-last-words"
# First prompts that are kept rendered: the tasks of several steps, and of a held-out set.
MAX_CACHED_PROMPTS = 4096
# Tokens at a prompt's end among which a "<think>" is searched, with the line ends after it.
THINK_TAIL_TOKENS = 16
# Written by a script if its prompt began thoughts; the message read from it has nothing of them.
EMPTY_THOUGHTS = f"\n{END_THINK_TAG}\n\n"


class Renderer:
    """Turns messages into ids and a turn's ids into a message, through the model's chat template or
    as raw text.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop_ids: Sequence[int],
        chat: bool | None,
        trim: bool = False,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        """`template` are variables of the chat template, as `enable_thinking` is one of Qwen3's."""
        has_template = bool(tokenizer.chat_template)
        self._chat = has_template if chat is None else chat
        if self._chat and not has_template:
            raise TasksetError(
                "These tasks are asked as a chat, but the model has no chat template. "
                "Set chat = false in [model], or in [tasks] and [eval] where they say otherwise."
            )
        self._tokenizer = tokenizer
        # The wrapped tokenizer, if there is one, decodes several times faster, and leaves spaces
        # as they are.
        self._backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._stop_ids = tuple(stop_ids)
        self._trim = trim
        self._template_variables = dict(template or {})
        # Name of the format in which the model writes tool calls.
        self.format = format_of(tokenizer) if self._chat else "plain"
        self._calls = CALL_FORMATS[self.format]
        # Special tokens are not part of a message, and no text may be read as one. Tags of calls
        # and thoughts may be special tokens too, and are part of it.
        message_tags = {*self._calls.marks, THINK_TAG, END_THINK_TAG}
        special_ids = set(tokenizer.all_special_ids)
        control_texts = set(tokenizer.all_special_tokens)
        tag_ids: set[int] = set()
        for token_id, token in tokenizer.added_tokens_decoder.items():
            if token.special:
                special_ids.add(token_id)
                control_texts.add(token.content)
            if token.content in message_tags:
                tag_ids.add(token_id)
        self._dropped_ids = frozenset(special_ids - tag_ids)
        self._control_pattern = _any_of(control_texts - set(self._calls.marks))
        self._first_prompts: dict[tuple[object, ...], list[int]] = {}
        self._plain_first_prompts: dict[tuple[Message, ...], list[int]] = {}
        self._opens_thoughts_by_tail: dict[tuple[int, ...], bool] = {}
        self._closing_ids: list[int] | None = None
        self._plain_turns_kept: bool | None = None

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Return the ids of a rollout's first prompt; the list is shared, so don't change it."""
        # The fast path: a group asks for the same prompt many times.
        is_plain = not tools and not any(m.calls for m in messages)
        plain_key = tuple(messages)
        if is_plain and plain_key in self._plain_first_prompts:
            return self._plain_first_prompts[plain_key]

        written = self._add_tools(self._write_calls(messages, tools), tools)
        contents = ((m.role, m.content) for m in written)
        key = (*contents, json.dumps(tool_schemas(tools), sort_keys=True))
        if key not in self._first_prompts:
            if len(self._first_prompts) > MAX_CACHED_PROMPTS:
                self._first_prompts.clear()
                self._plain_first_prompts.clear()
            self._first_prompts[key] = self._render_first_prompt(written, tools)
        prompt = self._first_prompts[key]
        if is_plain:
            self._plain_first_prompts[plain_key] = prompt
        return prompt

    def _render_first_prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        if self._chat:
            return self._encode(self._apply_template(messages, tools, opens_turn=True))
        text = "".join(m.content for m in messages)
        if self._trim:
            text = text.rstrip(" ")
        # With the tokens that the tokenizer puts before every text, such as a BOS.
        ids: list[int] = self._tokenizer(text).input_ids
        return ids

    def next_prompt(
        self, turn: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int]:
        """Return the ids between a model's turn and its next one: the turn's close, the answers,
        the next opening.
        """
        written = self._write_calls(messages, tools)
        if not self._chat:
            return self._encode("".join(m.content for m in written))
        ids = self._encode(self._text_after_turn(written, tools, opens_turn=True))
        # The model has closed its turn, maybe with another of its stop tokens than the template's.
        is_closed = bool(turn) and turn[-1] in self._stop_ids
        if is_closed and ids[0] in self._stop_ids:
            return ids[1:]
        return ids

    def rewrites(self, messages: Sequence[Message], since: int, tools: Sequence[Tool]) -> bool:
        """Return True if the template changes a turn of the model, among the messages from number
        `since` on, once the last message is there.

        Spaces and line ends don't count: what was sampled stays as it is.
        """
        if not self._chat:
            return False
        if not self._keeps_plain_turns():
            return True
        turns = [m.content for m in self._write_calls(messages[since:], tools) if _is_turn(m)]
        # Templates take nothing out but thoughts, and rendering long conversations takes time.
        if not any(END_THINK_TAG in turn for turn in turns):
            return False
        written = self._add_tools(self._write_calls(messages, tools), tools)
        text = _without_spaces(self._apply_template(written, tools, opens_turn=True))
        position = 0
        for turn in map(_without_spaces, turns):
            position = text.find(turn, position)
            if position < 0:
                return True
            position += len(turn)
        return False

    def _keeps_plain_turns(self) -> bool:
        """Return True if the template leaves turns without thoughts as they were."""
        if self._plain_turns_kept is None:
            history = [
                Message("user", "x"),
                Message("assistant", PLACEHOLDER_TURN),
                Message("user", "x"),
                Message("assistant", PLACEHOLDER_TURN),
                Message("user", "x"),
            ]
            text = self._apply_template(history, (), opens_turn=True)
            self._plain_turns_kept = text.count(PLACEHOLDER_TURN) == 2
        return self._plain_turns_kept

    def whole_prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Return the ids of a whole conversation up to the model's next turn."""
        written = self._add_tools(self._write_calls(messages, tools), tools)
        return self._render_first_prompt(written, tools)

    def text(self, ids: Sequence[int], prompt: Sequence[int] = ()) -> str:
        """Return the text of a model's turn, without the token that ended it; `prompt` is what it
        had just read.
        """
        ids = self._without_stop(ids)
        text: str = self._backend.decode(ids, skip_special_tokens=True)
        text, _ = self._without_empty_thoughts(text, prompt)
        return text

    def read(self, ids: Sequence[int], prompt: Sequence[int] = ()) -> Message:
        """Read a model's turn as a message, its calls taken out of the text; `prompt` is what it
        had just read.
        """
        # `text` would leave out tags of calls that are special tokens.
        ids = [i for i in self._without_stop(ids) if i not in self._dropped_ids]
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        text, in_thoughts = self._without_empty_thoughts(text, prompt)
        return read_turn(self._calls, text, in_thoughts=in_thoughts)

    def write(self, message: Message, prompt: Sequence[int] = ()) -> list[int]:
        """Return the ids that a model would sample after `prompt` to write this message and to end
        its turn.
        """
        if self._closing_ids is None:
            self._closing_ids = self._find_closing_ids()
        text = self._break_control_tokens(self._calls.write(message))
        if self._opens_thoughts(prompt):
            if text.startswith(THINK_TAG):  # the prompt has the tag already
                text = text.removeprefix(THINK_TAG).removeprefix("\n")
            else:
                text = EMPTY_THOUGHTS + text
        return [*self._encode(text), *self._closing_ids]

    def _find_closing_ids(self) -> list[int]:
        """Return the stop token that the template closes a turn with, or else the model's first."""
        if self._chat:
            closing = self._encode(self._text_after_turn([], (), opens_turn=False))
            if closing and closing[0] in self._stop_ids:
                return closing[:1]
        return list(self._stop_ids[:1])

    def _opens_thoughts(self, prompt: Sequence[int]) -> bool:
        """Return True if a prompt ends inside thoughts, as DeepSeek-R1's template and
        Qwen3-Thinking's do.
        """
        tail = tuple(prompt[-THINK_TAIL_TOKENS:])
        if tail not in self._opens_thoughts_by_tail:
            if len(self._opens_thoughts_by_tail) > MAX_CACHED_PROMPTS:
                self._opens_thoughts_by_tail.clear()
            text: str = self._backend.decode(list(tail), skip_special_tokens=False)
            self._opens_thoughts_by_tail[tail] = text.rstrip().endswith(THINK_TAG)
        return self._opens_thoughts_by_tail[tail]

    def _without_empty_thoughts(self, text: str, prompt: Sequence[int]) -> tuple[str, bool]:
        """Return a turn's text without empty thoughts that its prompt began, and True if it begins
        inside other thoughts.
        """
        if not self._opens_thoughts(prompt):
            return text, False
        if text.startswith(EMPTY_THOUGHTS):
            return text.removeprefix(EMPTY_THOUGHTS), False
        return text, True

    def _without_stop(self, ids: Sequence[int]) -> list[int]:
        if len(ids) and ids[-1] in self._stop_ids:
            ids = ids[:-1]
        return list(ids)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def _break_control_tokens(self, text: str) -> str:
        """Put a space into control tokens in a text: a document could otherwise end its turn and
        begin another.
        """
        if self._control_pattern is None:
            return text
        return self._control_pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    def _write_calls(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """Write calls into the contents of messages; in the plain format, results are written as a
        user's text.
        """
        written: list[Message] = []
        for message in messages:
            content = self._break_control_tokens(self._calls.write(message))
            written.append(replace(message, content=content, calls=()))
        if not tools or self.format != "plain":
            return written
        if self._chat:
            return join_results(written)
        for i, message in enumerate(written):
            if message.role == "tool":
                written[i] = replace(message, content=f"\n{_result(message)}\n")
        return written

    def _add_tools(self, messages: list[Message], tools: Sequence[Tool]) -> list[Message]:
        """Add a description of the tools to the first messages if the template adds none."""
        if not tools or self.format != "plain":
            return messages
        if self._chat:
            return offer_tools(messages, tools)
        return [Message("system", f"{_offer(tools)}\n\n"), *messages]

    def _text_after_turn(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, opens_turn: bool
    ) -> str:
        """Return the text that the template puts after a turn's content, with these messages."""
        history = [Message("user", "x"), Message("assistant", PLACEHOLDER_TURN), *messages]
        text = self._apply_template(history, tools, opens_turn=opens_turn)
        _, placeholder, tail = text.partition(PLACEHOLDER_TURN)
        if not placeholder or PLACEHOLDER_TURN in tail:
            raise TasksetError(
                "The model's chat template shows none of the model's last turn, so nothing can be"
                " said after it. Set chat = false in [model]."
            )
        return tail

    def _apply_template(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, opens_turn: bool
    ) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                [{"role": m.role, "content": m.content} for m in messages],
                tools=tool_schemas(tools) if tools and self.format != "plain" else None,
                add_generation_prompt=opens_turn,
                tokenize=False,
                **self._template_variables,
            )
        except TemplateError as error:  # raised by templates on roles that they do not take
            roles = ", ".join(message.role for message in messages)
            raise TasksetError(
                f"The model's chat template refuses messages of the roles {roles}: {error}"
            ) from None
        return text


def _is_turn(message: Message) -> bool:
    return message.role == "assistant" and bool(message.content.strip())


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Compile a pattern of texts with two characters or more, the longest first; None if there is
    none.
    """
    # A single character can't be broken up.
    breakable = [text for text in texts if len(text) > 1]
    if not breakable:
        return None
    longest_first = sorted(breakable, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))


def make_renderer(policy: "Policy", config: Config, tasks_chat: bool | None) -> Renderer:
    """Return a renderer for tasks that are asked as a chat, as raw text, or (None) as `model.chat`
    says.
    """
    chat = config.model.chat if tasks_chat is None else tasks_chat
    # "auto" is resolved before a run; until then a model with a template uses it.
    as_chat = None if chat == "auto" else chat
    return Renderer(
        policy.tokenizer, policy.stop_ids, as_chat, config.sampling.trim, config.model.template
    )


def offer_tools(messages: list[Message], tools: Sequence[Tool]) -> list[Message]:
    """Add a description of tools, and how to call them in the plain format, to the system's
    message.
    """
    for i, message in enumerate(messages):
        if message.role == "system":
            system = replace(message, content=f"{message.content}\n\n{_offer(tools)}")
            return [*messages[:i], system, *messages[i + 1 :]]
    return [Message("system", _offer(tools)), *messages]


def join_results(messages: Sequence[Message]) -> list[Message]:
    """Write results as a user's text, in one message with those beside them: some templates insist
    that user and assistant take turns.
    """
    joined: list[Message] = []
    previous_role = ""
    for message in messages:
        is_result = message.role == "tool"
        written = Message("user", _result(message)) if is_result else message
        is_beside_result = is_result or previous_role == "tool"
        if is_beside_result and joined and joined[-1].role == written.role == "user":
            joined[-1] = Message("user", f"{joined[-1].content}\n{written.content}")
        else:
            joined.append(written)
        previous_role = message.role
    return joined


def _offer(tools: Sequence[Tool]) -> str:
    example = CALL_FORMATS["plain"].write(Message("assistant", "", (example_call(tools[0]),)))
    how = (
        "To call a tool, end your turn like this; its result comes between <result> and </result>:"
    )
    return f"{describe_tools(tools)}\n\n{how}\n{example}"


def _result(message: Message) -> str:
    return f"<result>\n{message.content}\n</result>"
