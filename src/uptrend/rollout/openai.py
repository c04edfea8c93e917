"""A model behind an OpenAI-compatible server plays tasks: messages and tools go to
/chat/completions, turn by turn.

Such a rollout has messages, a reward and an ending, and no tokens. Connection errors, 429 and 5xx
are tried again. Until the server has taken one turn, what it refuses ends the command with a
sentence, since it would refuse every rollout; later, a rollout that it refuses or leaves unanswered
has failed, and the others go on.
"""

import asyncio
import json
import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from uptrend.config import Sampling
from uptrend.records import ConfigError, Ending, Message, ModelError, Rollout, Tool
from uptrend.rollout.calls import CALL_FORMATS, read_parsed_turn, read_turn, tool_schemas
from uptrend.rollout.http import HttpClient, RequestRefused, proxy_of, sentence
from uptrend.rollout.play import (
    NextTurn,
    RolloutRequest,
    Timeouts,
    TurnFailed,
    derive_seed,
    message_turn,
    play_messages,
)
from uptrend.rollout.render import join_results, offer_tools
from uptrend.rollout.sampler import Extension, Limits
from uptrend.tasks import event_loop

PREFIX = "openai:"
KEY = "OPENAI_API_KEY"
# Seconds for a reply; rollouts side by side, each with one request at a time, where sampling.rows =
# 0 would be all.
TIMEOUT = 600.0
AT_ONCE = 32
# Times that a request is tried again, and the longest wait before one, in seconds: 1, 2, 4, … or
# what the server asks.
RETRIES = 5
LONGEST = 60.0
# No code for a prompt that is too long is common to all: sentences of vLLM, OpenAI, llama.cpp and
# others.
TOO_LONG = re.compile(
    r"context.?(length|size|window)|maximum model length|prompt is too long|too many tokens", re.I
)
# Sampling parameters with the values at which they do nothing: not every server knows all of them.
OFF = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "stop": ()}


class Server:
    """One model of a server, from `openai:URL#MODEL`; `key` names the environment variable with its
    key.
    """

    def __init__(
        self,
        target: str,
        key: str = KEY,
        timeout: float = TIMEOUT,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        url, _, self.model = target.removeprefix(PREFIX).partition("#")
        if not re.match("https?://.", url):
            example = f"{PREFIX}http://127.0.0.1:8000/v1#base"
            raise ConfigError(f"{target} should be {PREFIX}URL#MODEL, for example {example}.")
        self._url = url.rstrip("/")
        self._key = key
        self._timeout = timeout
        self._note = note
        self._client = HttpClient(key, proxy_of(url))
        self._reached = self._answered = self._is_down = self._in_words = False
        self.problems: list[str] = []  # failures that rollouts have
        self._offered: list[str] = []
        try:
            self._offered = [
                str(model["id"]) for model in event_loop.run(self._ask("/models"))["data"]
            ]
        except RequestRefused as refusal:
            # not every server has a list: the first turn tells the rest
            if refusal.args[0] not in (404, 405):
                raise self._failure(*refusal.args) from None
        except (LookupError, TypeError):
            pass
        if not self.model and len(self._offered) != 1:
            raise ModelError(f"{target} names no model: write {PREFIX}{url}#MODEL.{self._offer()}")
        self.model = self.model or self._offered[0]

    def _offer(self) -> str:
        return f" It offers {', '.join(self._offered[:20])}." if self._offered else ""

    async def complete(
        self, history: Sequence[Message], tools: Sequence[Tool], options: dict[str, Any]
    ) -> tuple[Message, Ending, int]:
        """Return the model's next message, what ended it, and the number of tokens up to there."""
        in_words = self._in_words
        try:
            body = {"model": self.model, **options, **_wire(history, tools, in_words=in_words)}
            reply = await self._ask("/chat/completions", body)
        except RequestRefused as refusal:
            status, text = refusal.args
            if TOO_LONG.search(text):
                raise TurnFailed(Ending.CONTEXT_FULL, text) from None
            # Such as a vLLM that was started without a parser for the model's calls.
            is_about_tools = tools and not in_words and "tool" in text.lower()
            if not is_about_tools or (self._answered and not self._in_words):
                raise self._failure(status, text) from None
            if not self._in_words:
                self._note(
                    f"{self._url} takes no tools ({text.rstrip('.')}): they are described in words."
                )
            self._in_words = True
            return await self.complete(history, tools, options)
        try:
            choice = reply["choices"][0]
            said = choice["message"]
            stop = choice.get("stop_reason")
            text = said.get("content") or ""
            calls = [call["function"] for call in said.get("tool_calls") or ()]
            used = int((reply.get("usage") or {}).get("total_tokens") or 0)
        except (LookupError, TypeError, AttributeError):
            raise self._failure(
                200, f"its reply is no chat completion: {str(reply)[:200]}"
            ) from None
        self._answered = True
        ended = Ending.LENGTH if choice.get("finish_reason") == "length" else Ending.STOP_TOKEN
        # vLLM tells which, and leaves it out
        if isinstance(stop, str) and stop in options.get("stop", ()):
            text = text + stop
            ended = Ending.STOP_TEXT
        return (
            read_turn(CALL_FORMATS["plain"], text)
            if in_words and tools
            else read_parsed_turn(text, calls),
            ended,
            used,
        )

    async def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return a reply, read as JSON; ask again where that may help."""
        problem = ""
        wait = 0.0
        for attempt in range(1 if self._is_down else RETRIES + 1):
            await asyncio.sleep(wait)
            # not all that failed together at once
            wait = min(LONGEST, 2.0**attempt) * random.uniform(0.5, 1.0)
            try:
                reply = await self._client.exchange(self._url + path, body, self._timeout)
            except TimeoutError:
                raise self._failure(0, f"no reply within {self._timeout:g} s") from None
            except OSError as error:
                problem = str(error) or type(error).__name__
                if not self._reached:  # nothing is there, and nobody wants to wait for that
                    break
                continue
            status = reply.status
            text = sentence(reply.content)
            self._reached = True
            self._is_down = False
            if status == 200:
                try:
                    return json.loads(reply.content)
                except ValueError:
                    raise self._failure(200, f"its reply is not JSON: {text}") from None
            if status != 429 and status < 500:
                raise RequestRefused(status, text)
            problem = f"{status} {text}"
            if re.fullmatch(r"\d+(\.\d+)?", reply.retry_after):
                wait = min(LONGEST, float(reply.retry_after))
        self._is_down = True  # one attempt of each rollout that follows shows whether it is back
        raise self._failure(0, problem)

    def _failure(self, status: int, text: str) -> Exception:
        """Return the error of a request: for a person before the first turn, of its rollout
        afterwards.
        """
        problem = f"{self._url}: {f'{status} ' * (status not in (0, 200))}{text}"
        if self._answered:
            self.problems.append(problem)
            return TurnFailed(Ending.TASK_ERROR, problem)
        way = ""
        if status in (401, 403):
            state = "holds another key than it wants" if os.environ.get(self._key) else "is not set"
            way = f" The environment variable {self._key} {state}; --key names another one."
        elif status in (200, 404) or not self._reached:
            way = (
                self._offer()
                or " Is the server running, and its address right? It usually ends in /v1."
            )
        return ModelError(f"{problem.rstrip('.')}.{way}")


class ChatPlayer:
    """Plays tasks with a server, within a recipe's limits."""

    def __init__(self, server: Server, sampling: Sampling) -> None:
        self._server = server
        self._sampling = sampling

    def play(
        self,
        requests: Sequence[RolloutRequest],
        *,
        temperature: float,
        sampling: Sampling | None = None,
    ) -> list[Rollout]:
        """Play rollouts at a temperature; 0 is greedy."""
        s = sampling or self._sampling
        limits = Limits.of(s, temperature)
        rows = s.rows or AT_ONCE
        plays = play_messages(
            requests,
            lambda request: self._conversation(request, limits),
            limits,
            s.max_turns,
            rows,
            Timeouts.of(s),
            s.retries,
        )
        return event_loop.run(plays)

    def _conversation(self, request: RolloutRequest, limits: Limits) -> NextTurn:
        history = list[Message]()
        options = {"max_tokens": limits.max_tokens, "temperature": limits.temperature}
        options |= {
            name: value for name, off in OFF.items() if (value := getattr(limits, name)) != off
        }

        async def next_turn(
            _: Sequence[int], new_messages: Sequence[Message], tools: Sequence[Tool]
        ) -> Extension:
            history.extend(new_messages)
            seed = (
                derive_seed(request.seed, len(history)) >> 32
            )  # 31 bits, which every server takes
            message, ended, used = await self._server.complete(
                history, tools, {**options, "seed": seed}
            )
            history.append(message)
            ended = Ending.CONTEXT_FULL if used >= limits.context else ended
            return message_turn(message, ended)

        return next_turn


def _wire(history: Sequence[Message], tools: Sequence[Tool], *, in_words: bool) -> dict[str, Any]:
    """Return messages and tools as the protocol has them; where tools are in words, all are
    messages.
    """
    if tools and in_words:
        written = [replace(m, content=CALL_FORMATS["plain"].write(m), calls=()) for m in history]
        return {
            "messages": [
                {"role": m.role, "content": m.content}
                for m in offer_tools(join_results(written), tools)
            ]
        }
    messages = list[dict[str, Any]]()
    waiting = list[str]()

    def answer(content: str) -> None:
        messages.append({"role": "tool", "tool_call_id": waiting.pop(0), "content": content})

    for m in (*history, Message("user", "")):
        if m.role == "tool" and waiting:
            answer(m.content)
            continue
        # every call needs a result, and a task may have answered several calls at once
        while waiting:
            answer("")
        # What answers a call that could not be read is a user's word: a result without its call is
        # refused.
        messages.append({"role": "user" if m.role == "tool" else m.role, "content": m.content})
        if m.calls:
            # as long as Mistral wants them
            waiting = [f"call{len(messages):03d}{n:02d}" for n in range(len(m.calls))]
            said = [
                {"name": c.name, "arguments": json.dumps(dict(c.arguments), ensure_ascii=False)}
                for c in m.calls
            ]
            calls = [
                {"id": id, "type": "function", "function": f}
                for id, f in zip(waiting, said, strict=True)
            ]
            messages[-1]["tool_calls"] = calls
    return {"messages": messages[:-1]} | ({"tools": tool_schemas(tools)} if tools else {})
