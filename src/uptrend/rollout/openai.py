"""A model behind an OpenAI-compatible server plays tasks: messages and tools go to
/chat/completions, turn by turn.

Such a rollout has messages, a reward and an ending, and no tokens. Connection errors, 429 and 5xx
are tried again. Until the server has taken one turn, a request that it refuses ends the command
with a sentence, since it would refuse every rollout; later, a rollout that it refuses or leaves
unanswered has failed, and the others go on.
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
from uptrend.rollout.http import HttpClient, RequestRefused, error_sentence, proxy_of
from uptrend.rollout.play import (
    NextTurn,
    RolloutRequest,
    Timeouts,
    TurnFailed,
    TurnPrompt,
    derive_seed,
    message_turn,
    play_messages,
)
from uptrend.rollout.render import join_results, offer_tools
from uptrend.rollout.sampler import Extension, Limits
from uptrend.tasks import event_loop

SERVER_PREFIX = "openai:"
KEY_VARIABLE = "OPENAI_API_KEY"
REPLY_TIMEOUT_S = 600.0
# Rollouts side by side if sampling.rows = 0, which would be all; each has one request at a time.
DEFAULT_ROWS = 32
# A request is tried again after 1, 2, 4, … seconds, or after what the server asks for.
MAX_RETRIES = 5
MAX_WAIT_S = 60.0
MAX_MODELS_SHOWN = 20
# Servers have no common status for a prompt that is too long: phrases of vLLM, OpenAI, llama.cpp
# and others.
PROMPT_TOO_LONG = re.compile(
    r"context.?(length|size|window)|maximum model length|prompt is too long|too many tokens", re.I
)
# Sampling parameters with the values at which they do nothing. These are not sent, because not
# every server knows all of them.
NEUTRAL_OPTIONS = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "stop": ()}


class ChatServer:
    """One model of a server, from `openai:URL#MODEL`; `key` names the environment variable with its
    key.
    """

    def __init__(
        self,
        target: str,
        key: str = KEY_VARIABLE,
        timeout: float = REPLY_TIMEOUT_S,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        url, _, model = target.removeprefix(SERVER_PREFIX).partition("#")
        if not re.match("https?://.", url):
            example = f"{SERVER_PREFIX}http://127.0.0.1:8000/v1#base"
            raise ConfigError(
                f"{target} should be {SERVER_PREFIX}URL#MODEL, for example {example}."
            )
        self._url = url.rstrip("/")
        self._key = key
        self._timeout = timeout
        self._note = note
        self._client = HttpClient(key, proxy_of(url))
        self._is_reached = False  # it has replied
        self._is_down = False  # all attempts at the last request have failed
        self._has_taken_turn = False
        self._describes_tools = False  # tools go into a message, because it refuses them otherwise
        self.problems: list[str] = []  # errors of rollouts
        self._models: list[str] = []  # that the server offers
        self._models = self._list_models()
        if not model:
            if len(self._models) != 1:
                example = f"{SERVER_PREFIX}{url}#MODEL"
                raise ModelError(f"{target} names no model: write {example}.{self._offered()}")
            model = self._models[0]
        self.model = model

    def _list_models(self) -> list[str]:
        """Return the names of the server's models; empty if it has no list."""
        try:
            reply = event_loop.run(self._request("/models"))
            return [str(model["id"]) for model in reply["data"]]
        except RequestRefused as refusal:
            if refusal.status in (404, 405):
                return []
            raise self._error(refusal.status, refusal.reason) from None
        except (LookupError, TypeError):
            return []

    def _offered(self) -> str:
        return f" It offers {', '.join(self._models[:MAX_MODELS_SHOWN])}." if self._models else ""

    async def complete(
        self, history: Sequence[Message], tools: Sequence[Tool], options: dict[str, Any]
    ) -> tuple[Message, Ending, int]:
        """Return the model's next message, what ended it, and the number of tokens up to there."""
        describes_tools = self._describes_tools
        body = {"model": self.model, **options}
        body |= _chat_body(history, tools, describes_tools=describes_tools)
        try:
            reply = await self._request("/chat/completions", body)
        except RequestRefused as refusal:
            if PROMPT_TOO_LONG.search(refusal.reason):
                raise TurnFailed(Ending.CONTEXT_FULL, refusal.reason) from None
            # Refused by a vLLM, for example, that was started without a parser for calls.
            refuses_tools = tools and not describes_tools and "tool" in refusal.reason.lower()
            # Unless it took tools before; or another turn has switched meanwhile.
            may_switch = self._describes_tools or not self._has_taken_turn
            if not (refuses_tools and may_switch):
                raise self._error(refusal.status, refusal.reason) from None
            if not self._describes_tools:
                reason = refusal.reason.rstrip(".")
                self._note(f"{self._url} takes no tools ({reason}): they are described in words.")
            self._describes_tools = True
            return await self.complete(history, tools, options)
        try:
            choice = reply["choices"][0]
            message = choice["message"]
            text = message.get("content") or ""
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            finish_reason = choice.get("finish_reason")
            stop_text = choice.get("stop_reason")
            used_tokens = int((reply.get("usage") or {}).get("total_tokens") or 0)
        except (LookupError, TypeError, AttributeError):
            problem = f"its reply is no chat completion: {str(reply)[:200]}"
            raise self._error(200, problem) from None
        self._has_taken_turn = True
        ended = Ending.LENGTH if finish_reason == "length" else Ending.STOP_TOKEN
        # vLLM cuts a stop text off, and names it here.
        if isinstance(stop_text, str) and stop_text in options.get("stop", ()):
            text += stop_text
            ended = Ending.STOP_TEXT
        if describes_tools and tools:
            return read_turn(CALL_FORMATS["plain"], text), ended, used_tokens
        return read_parsed_turn(text, calls), ended, used_tokens

    async def _request(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return a reply, read as JSON; try again if that may help."""
        # While it is down, one attempt of each rollout shows whether it is back.
        attempts = 1 if self._is_down else 1 + MAX_RETRIES
        problem = ""
        wait_s = 0.0
        for attempt in range(attempts):
            await asyncio.sleep(wait_s)
            # Random, so that requests that failed together are not all repeated together.
            wait_s = min(MAX_WAIT_S, 2.0**attempt) * random.uniform(0.5, 1.0)
            try:
                reply = await self._client.exchange(self._url + path, body, self._timeout)
            except TimeoutError:
                raise self._error(0, f"no reply within {self._timeout:g} s") from None
            except OSError as error:
                problem = str(error) or type(error).__name__
                if not self._is_reached:
                    break  # probably there is no server, and waiting would not help
                continue
            self._is_reached = True
            self._is_down = False
            reason = error_sentence(reply.content)
            if reply.status == 200:
                try:
                    return json.loads(reply.content)
                except ValueError:
                    raise self._error(200, f"its reply is not JSON: {reason}") from None
            if reply.status != 429 and reply.status < 500:
                raise RequestRefused(reply.status, reason)
            problem = f"{reply.status} {reason}"
            if re.fullmatch(r"\d+(\.\d+)?", reply.retry_after):
                wait_s = min(MAX_WAIT_S, float(reply.retry_after))
        self._is_down = True
        raise self._error(0, problem)

    def _error(self, status: int, reason: str) -> Exception:
        """Return the error of a request: before the first turn one that ends the command, then one
        that ends its rollout. A status of 0 or 200 is not part of its text.
        """
        problem = (
            f"{self._url}: {reason}" if status in (0, 200) else f"{self._url}: {status} {reason}"
        )
        if self._has_taken_turn:
            self.problems.append(problem)
            return TurnFailed(Ending.TASK_ERROR, problem)
        advice = ""
        if status in (401, 403):
            state = "holds another key than it wants" if os.environ.get(self._key) else "is not set"
            advice = f" The environment variable {self._key} {state}; --key names another one."
        elif status in (200, 404) or not self._is_reached:
            advice = (
                self._offered()
                or " Is the server running, and its address right? It usually ends in /v1."
            )
        return ModelError(f"{problem.rstrip('.')}.{advice}")


class ChatPlayer:
    """Plays tasks with a server, within a recipe's limits."""

    def __init__(self, server: ChatServer, sampling: Sampling) -> None:
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
        plays = play_messages(
            requests,
            lambda request: self._start_conversation(request, limits),
            limits,
            s.max_turns,
            s.rows or DEFAULT_ROWS,
            Timeouts.of(s),
            s.retries,
        )
        return event_loop.run(plays)

    def _start_conversation(self, request: RolloutRequest, limits: Limits) -> NextTurn:
        history: list[Message] = []
        options = {"max_tokens": limits.max_tokens, "temperature": limits.temperature}
        for name, neutral in NEUTRAL_OPTIONS.items():
            value = getattr(limits, name)
            if value != neutral:
                options[name] = value

        async def next_turn(prompt: TurnPrompt) -> Extension:
            history.extend(prompt.messages)
            seed = (
                derive_seed(request.seed, len(history)) >> 32
            )  # 31 bits, which every server takes
            message, ended, used_tokens = await self._server.complete(
                history, prompt.tools, {**options, "seed": seed}
            )
            history.append(message)
            if used_tokens >= limits.context:
                ended = Ending.CONTEXT_FULL
            return message_turn(message, ended)

        return next_turn


def _chat_body(
    history: Sequence[Message], tools: Sequence[Tool], *, describes_tools: bool
) -> dict[str, Any]:
    """Return messages and tools as the protocol has them; described tools and calls are texts of
    messages.
    """
    if tools and describes_tools:
        written: list[Message] = []
        for message in history:
            text = CALL_FORMATS["plain"].write(message)
            written.append(replace(message, content=text, calls=()))
        messages = offer_tools(join_results(written), tools)
        return {"messages": [{"role": m.role, "content": m.content} for m in messages]}
    body: dict[str, Any] = {"messages": _chat_messages(history)}
    if tools:
        body["tools"] = tool_schemas(tools)
    return body


def _chat_messages(history: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as the protocol has them: every call has one result, every result a call."""
    messages: list[dict[str, Any]] = []
    unanswered: list[str] = []  # ids of calls without a result

    def add_result(content: str) -> None:
        call_id = unanswered.pop(0)
        messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    for message in history:
        if message.role == "tool" and unanswered:
            add_result(message.content)
            continue
        # A task may have answered several calls at once: the others get empty results.
        while unanswered:
            add_result("")
        # The result of a call that could not be read has no call, and becomes a user's message.
        role = "user" if message.role == "tool" else message.role
        entry: dict[str, Any] = {"role": role, "content": message.content}
        messages.append(entry)
        for n, call in enumerate(message.calls):
            call_id = f"call{len(messages):03d}{n:02d}"  # nine characters, as Mistral wants them
            arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
            function = {"name": call.name, "arguments": arguments}
            entry.setdefault("tool_calls", [])
            entry["tool_calls"].append({"id": call_id, "type": "function", "function": function})
            unanswered.append(call_id)
    while unanswered:
        add_result("")
    return messages
