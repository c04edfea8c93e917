"""`uptrend eval openai:URL#MODEL`: a server of the standard library that speaks the protocol, well
and badly; vLLM.
"""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from served import serve_tiny
from uptrend.records import Ending, Message, ToolCall
from uptrend.records.schema import rollouts_of
from uptrend.rollout.openai import ChatServer
from uptrend.tasksets.musique.atlas import AtlasOptions, rows
from uptrend.tasksets.musique.play import TOOLS, write_reply

Uptrend = Callable[..., Any]
Reply = tuple[int, Any] | None
LOCK = threading.Lock()


def said(content: str | None, *calls: tuple[str, str], **choice: Any) -> Reply:
    """A completion; a call is its tool's name and its arguments as the server wrote them."""
    functions = [
        {"type": "function", "id": "x", "function": {"name": n, "arguments": a}} for n, a in calls
    ]
    message = {"role": "assistant", "content": content, "tool_calls": functions or None}
    usage = {"total_tokens": choice.pop("tokens", 100)}
    return 200, {
        "choices": [{"message": message, "finish_reason": "stop", **choice}],
        "usage": usage,
    }


def refused(status: int, text: str) -> Reply:
    return status, {"error": {"message": text, "code": status}}


class Stub(ThreadingHTTPServer):
    """Answers with what `reply` makes of a request's body; None drops the connection."""

    daemon_threads = True

    def __init__(self) -> None:
        self.reply: Callable[[dict[str, Any]], Reply] = lambda _: said("1")
        self.models: Reply = (200, {"data": [{"id": "base"}, {"id": "other"}]})
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.at_once = self.most = 0
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = f"openai:http://127.0.0.1:{self.server_port}/v1#base"


class Handler(BaseHTTPRequestHandler):
    server: Stub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(self.server.models)

    def do_POST(self) -> None:
        body, stub = json.loads(self.rfile.read(int(self.headers["Content-Length"]))), self.server
        with LOCK:
            stub.asked.append(body)
            stub.keys.add(self.headers["Authorization"])
            stub.at_once += 1
            stub.most = max(stub.most, stub.at_once)
        time.sleep(0.01)
        reply = stub.reply(body)
        with LOCK:
            stub.at_once -= 1
        self.answer(reply)

    def answer(self, reply: Reply) -> None:
        if reply is None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        data = reply[1] if isinstance(reply[1], bytes) else json.dumps(reply[1]).encode()
        self.send_response(reply[0])
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):  # nobody may wait for it any more
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def recipe(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A recipe of three questions with tools, and their answers."""
    made = [
        next(iter(rows(1, hops, AtlasOptions(hops=(hops,), paragraphs=6)))) for hops in (2, 3, 4)
    ]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    path = tmp_path / "recipe.toml"
    path.write_text(
        '[eval]\nname = "musique"\nfile = "questions.jsonl"\nsplit = "heldout"\nretriever = "golden"\n'
        'attempts = 2\n[sampling]\nmax_tokens = 50\nmax_turns = 4\ntemperature = 0.7\ntop_p = 0.9\nstop = ["@"]\n'
    )
    return path, {row["question"]: row["answer"] for row in made}


def play(
    uptrend: Uptrend, target: str, tasks: object, *sets: str, options: tuple[object, ...] = ()
) -> tuple[Any, Any]:
    """Evaluate; return what was printed, and the rollouts as they were written."""
    out = Path("out.jsonl").resolve()
    given = [word for each in sets for word in ("--set", each)]
    printed = uptrend("eval", target, "--tasks", tasks, *given, "--out", out, *options)
    return printed, [json.loads(line) for line in out.read_text().splitlines()]


def test_a_server_plays_with_tools(
    stub: Stub, recipe: Any, uptrend: Uptrend, monkeypatch: Any
) -> None:
    """One call that can't be read, two calls at once, a right call, and the answer."""

    def expert(body: dict[str, Any]) -> Reply:
        turn = sum(m["role"] == "assistant" for m in body["messages"])
        answer = next(a for q, a in recipe[1].items() if q in body["messages"][1]["content"])
        return (
            said("Let me see.", ("retrieve_documents", '{"query": ')),
            said(None, *[("retrieve_documents", '{"query": "x"}')] * 2),
            said("", ("retrieve_documents", '{"query": "who"}')),
            said(write_reply("so", (), answer), stop_reason="@"),
        )[turn]

    stub.reply = expert
    monkeypatch.setenv("MY_KEY", "secret")
    told = uptrend(
        "eval",
        stub.target,
        "--tasks",
        recipe[0],
        "--key",
        "MY_KEY",
        "--out",
        "out.parquet",
        "--json",
    ).json
    assert (told["accuracy"], told["failed"], told["pass_at"]) == (1.0, 0, {"1": 1.0, "2": 1.0})
    assert stub.keys == {"Bearer secret"}
    # 3 greedy rollouts and 6 sampled ones, each with a seed of its own at every turn; a greedy one
    # has its first's.
    assert len(stub.asked) == 9 * 4
    assert len({body["seed"] for body in stub.asked}) == 6 * 4
    assert {body["temperature"] for body in stub.asked} == {0.0, 0.7}
    common = {"model": "base", "max_tokens": 50, "top_p": 0.9, "stop": ["@"]}
    assert all(common.items() <= body.items() and "top_k" not in body for body in stub.asked)
    assert [tool["function"]["name"] for tool in stub.asked[0]["tools"]] == [
        tool.name for tool in TOOLS
    ]
    _, _, unread, told_wrong, two, first, second, one, result = max(
        (b["messages"] for b in stub.asked), key=len
    )
    assert (unread["role"], told_wrong["role"], "tool_calls" in unread) == (
        "assistant",
        "user",
        False,
    )
    assert "arguments are not a JSON object" in told_wrong["content"]
    assert [call["id"] for call in two["tool_calls"]] == [
        first["tool_call_id"],
        second["tool_call_id"],
    ]
    assert first["tool_call_id"] != second["tool_call_id"]
    assert ("Make one a turn" in first["content"], second["content"]) == (True, "")
    assert one["tool_calls"][0]["function"] == {
        "name": "retrieve_documents",
        "arguments": '{"query": "who"}',
    }
    assert (result["role"], result["tool_call_id"]) == ("tool", one["tool_calls"][0]["id"])
    rollouts = rollouts_of(pq.read_table("out.parquet"))
    assert {(r.ended, r.sequences, r.error) for r in rollouts} == {(Ending.STOP_TEXT, (), None)}
    messages = rollouts[0].messages
    assert messages[2].problem
    assert messages[-3].calls == (ToolCall("retrieve_documents", {"query": "who"}),)
    assert messages[-1].content.endswith("</answer>@")


def test_tools_in_words_where_a_server_takes_none(
    stub: Stub, recipe: Any, uptrend: Uptrend
) -> None:
    def words(body: dict[str, Any]) -> Reply:
        if "tools" in body:
            return refused(400, '"auto" tool choice requires --enable-auto-tool-choice')
        if body["messages"][-1]["content"].startswith("<result>"):
            return said(write_reply("so", (), "?"))
        return said('<tool>{"name": "retrieve_documents", "arguments": {"query": "who"}}</tool>')

    stub.reply = words
    printed, lines = play(uptrend, stub.target, recipe[0])
    assert printed.err.count("they are described in words") == 1
    assert [(line["turns"], len(line["calls"]), line["ended"]) for line in lines] == [
        (2, 1, "stop-token")
    ] * 9
    assert "retrieve_documents(query: string)" in stub.asked[-1]["messages"][0]["content"]
    assert {m["role"] for m in stub.asked[-1]["messages"]} == {"system", "user", "assistant"}


@pytest.mark.parametrize(
    ("reply", "models", "target", "says"),
    [
        (
            refused(401, "no key"),
            None,
            "",
            "401 no key. The environment variable OPENAI_API_KEY is not set",
        ),
        (refused(404, "no such model"), None, "", "404 no such model. It offers base, other."),
        (
            refused(404, "Not Found"),
            refused(404, "Not Found"),
            "",
            "404 Not Found. Is the server running",
        ),
        (None, (200, b"<html>"), "", "its reply is not JSON: <html>. Is the server running"),
        ((200, b"{nothing"), None, "", "its reply is not JSON: {nothing. It offers base, other."),
        ((200, {"choices": []}), None, "", "its reply is no chat completion: {'choices': []}"),
        (refused(400, "top_k is unknown."), None, "", ": 400 top_k is unknown.\n"),
        (refused(503, "loading"), None, "", "503 loading"),
        (None, None, "URL/v1", "names no model: write openai:http"),
        (None, None, "openai:localhost:8000", "should be openai:URL#MODEL"),
        (None, None, "openai:http://127.0.0.1:9/v1#base", "refused. Is the server running"),
    ],
)
def test_what_is_wrong_with_a_server(
    stub: Stub, uptrend: Uptrend, reply: Reply, models: Reply, target: str, says: str
) -> None:
    stub.reply, stub.models = lambda _: reply, models or stub.models
    target = target.replace("URL/", stub.target.partition("v1")[0]) or stub.target
    assert says in uptrend("eval", target, "--tasks", "binary", "--set", "eval.tasks=2", code=2).err


def test_what_is_tried_again_and_what_fails_alone(stub: Stub, uptrend: Uptrend) -> None:
    """The first request is dropped, then put off twice; two others are too slow and refused, and
    fail alone.
    """
    tries: dict[str, int] = {}

    def reply(body: dict[str, Any]) -> Reply:
        question = body["messages"][-1]["content"]
        tries[question] = tries.get(question, 0) + 1
        number = list(tries).index(question)
        if number == 0:
            return [None, refused(429, "slow down"), refused(502, "bad gateway"), said("1")][
                tries[question] - 1
            ]
        if number == 2:
            time.sleep(1)
        return refused(400, "odd") if number == 3 else said("0", tokens=5000 if number == 1 else 9)

    stub.reply = reply
    sets = ("eval.tasks=5", "sampling.rows=1")
    printed, lines = play(uptrend, stub.target, "arithmetic", *sets, options=("--timeout", 0.5))
    assert list(tries.values()) == [4, 1, 1, 1, 1]
    assert [line["ended"] for line in lines] == [
        "stop-token",
        "context-full",
        *["task-error"] * 2,
        "stop-token",
    ]
    assert [(line["error"] or "").rpartition(": ")[2] for line in lines[2:]] == [
        "no reply within 0.5 s",
        "400 odd",
        "",
    ]
    assert "2 could not be scored" in printed.out
    assert "The server failed in 2 rollouts, which have no reward; first: http" in printed.err
    assert "a server gets them as a chat" in printed.err


def test_tasks_may_come_first_and_the_model_second(
    stub: Stub, recipe: Any, uptrend: Uptrend
) -> None:
    told = uptrend(
        "eval", recipe[0], "--model", stub.target, "--set", "eval.attempts=0", "--json"
    ).json
    assert (told["target"], told["tasks"]) == (stub.target, 3)
    twice = uptrend("eval", recipe[0], "--model", stub.target, "--tasks", "binary", code=2)
    assert "--tasks binary names other tasks" in twice.err


@pytest.mark.parametrize("at", [0, 1])
def test_a_context_that_is_full(stub: Stub, recipe: Any, uptrend: Uptrend, at: int) -> None:
    full = "This model's maximum context length is 2048 tokens."
    stub.reply = lambda body: (
        refused(400, full) if len(body["messages"]) > 2 * at + 1 else said("Hm.")
    )
    _, lines = play(uptrend, stub.target, recipe[0], "eval.attempts=0")
    found = [
        (line["ended"], line["error"], line["turns"], line["reward"] is None) for line in lines
    ]
    assert found == [("context-full", None if at else f"prompt: {full}", at, at == 0)] * 3


def test_requests_are_bounded_and_no_torch_is_needed(
    stub: Stub, make_run: Callable[..., Path]
) -> None:
    """With a run's own tasks and limits."""
    run = make_run(
        "demo", steps=1, overrides=("eval.tasks=12", "sampling.rows=3", "sampling.max_tokens=5")
    )
    arguments = ["uptrend", "eval", stub.target, "--tasks", str(run), "--json"]
    without = "import sys\nfor name in ('torch', 'transformers'): sys.modules[name] = None\n"
    code = f"{without}sys.argv = {arguments}\nfrom uptrend.cli.main import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["tasks"]) == (0, 12), done.stderr
    assert (len(stub.asked), stub.most, stub.asked[0]["max_tokens"]) == (12, 3, 5)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real vLLM that serves the tiny model, with a parser for calls."""
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    with serve_tiny(
        tmp_path_factory.mktemp("vllm"), "--set", "sampling.context=1024", "--", *tools
    ) as (url, _):
        yield f"openai:{url}/v1#tiny"


@pytest.mark.slow
def test_vllm_plays_as_this_process_does(vllm: str, recipe: Any, uptrend: Uptrend) -> None:
    here, there = (
        play(uptrend, t, "arithmetic", "eval.tasks=40", "eval.chat=true")[1] for t in ("tiny", vllm)
    )
    same = [
        (a["said"], a["ended"]) == (b["said"], b["ended"]) for a, b in zip(here, there, strict=True)
    ]
    assert sum(same) >= 38  # other kernels may round a tie to another side
    # Several turns with tools of which it knows nothing, until the context is full.
    _, lines = play(uptrend, vllm, recipe[0], "sampling.max_turns=20")
    assert {(line["ended"], line["error"]) for line in lines} == {("context-full", None)}
    assert min(line["turns"] for line in lines) > 1
    # A conversation with a call and its result is taken as it is.
    call = Message("assistant", "", (ToolCall(TOOLS[0].name, {"query": "who"}),))
    history = [Message("user", "Who?"), call, Message("tool", "Nobody.")]
    message, ended, used = asyncio.run(
        ChatServer(vllm).complete(history, TOOLS, {"max_tokens": 3, "temperature": 0.0})
    )
    assert (message.role, ended, used > 3) == ("assistant", Ending.LENGTH, True)
