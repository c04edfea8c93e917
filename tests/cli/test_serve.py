"""`uptrend models serve`: its command, and a server that is watched. tests/served.py starts a real
one.
"""

import contextlib
import http.client
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models import write_model
from served import ROOT, free_port, is_alive
from uptrend.rollout import vllm_supervisor as serving

Uptrend = Callable[..., Any]
RECIPE = ROOT / "recipes" / "tiny.toml"
# Answers /health until it was asked so often.
PROGRAM = """#!{python}
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
print("(APIServer pid=1) INFO starting", *sys.argv[1:], flush=True)
if {asked}:
    with http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler) as server:
        for _ in range({asked}):
            server.handle_request()
print("(APIServer pid=1) ERROR out of memory", flush=True)
os._exit(3)
"""

# Loads --middleware as vLLM does, answers on every path, and has a process of its own beside.
GUARDED = """#!{python}
import argparse, importlib, os, signal, subprocess, sys
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), engine.pid, flush=True)
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
parser = argparse.ArgumentParser()
for name in ("host", "port"):
    parser.add_argument("--" + name)
parser.add_argument("--middleware", action="append", default=[])
options, _ = parser.parse_known_args()
methods = ["GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT"]
async def answer(request):
    return PlainTextResponse("done")
async def talk(socket):
    await socket.accept()
app = Starlette(routes=[Route("/{{path:path}}", answer, methods=methods), WebSocketRoute("/{{path:path}}", talk)])
for name in {middleware}:
    module, _, kind = name.rpartition(".")
    app.add_middleware(getattr(importlib.import_module(module), kind))
signal.signal(signal.SIGTERM, lambda *_: (engine.kill(), os._exit(0)))  # uvicorn calls it when it has ended
uvicorn.run(app, host=options.host, port=int(options.port), lifespan="off")
"""
KEY = "correct-horse"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("UPTREND_VLLM", raising=False)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)


def make_vllm(
    folder: Path, asked: int = 0, program_text: str = PROGRAM, middleware: str = "()"
) -> Path:
    """An environment with a program that is no vLLM."""
    program = folder / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(
        program_text.format(python=sys.executable, asked=asked, middleware=middleware)
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def dry(uptrend: Uptrend, *options: object) -> tuple[dict[str, str], list[str]]:
    """Return the environment and the words of the command that would run."""
    words = shlex.split(uptrend("models", "serve", RECIPE, "--dry-run", *options).out)
    count = next(n for n, word in enumerate(words) if "=" not in word)
    return dict(word.split("=", 1) for word in words[:count]), words[count:]


def test_the_command_says_what_the_sampler_needs(
    uptrend: Uptrend, tmp_path: Path, tiny_folder: str
) -> None:
    vllm = make_vllm(tmp_path / "env")
    sets = ("--set", "compute.device=cpu", "--set", "eval.context=3000")
    environment, words = dry(uptrend, "--vllm", vllm, "--port", 8123, *sets, "--", "--seed", 3)
    assert words[:3] == [str(vllm / "bin" / "vllm"), "serve", tiny_folder]
    assert words[-6:] == ["--host", "127.0.0.1", "--port", "8123", "--seed", "3"]
    line = " ".join(words)
    for expected in ("--max-model-len 3000", "--logprobs-mode processed_logprobs", "--dtype float32 --enforce-eager",
                     "--served-model-name tiny", "--worker-extension-cls uptrend_worker.Worker"):  # fmt: skip
        assert expected in line
    assert "lora" not in line
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    worker = Path(environment["PYTHONPATH"]) / "uptrend_worker.py"
    assert [path.name for path in worker.parent.iterdir()] == [
        "uptrend_worker.py"
    ]  # nothing else to import there
    compile(worker.read_text(), worker, "exec")


def test_adapters_and_a_gpu(uptrend: Uptrend, tmp_path: Path) -> None:
    make_vllm(tmp_path / ".venv-vllm")  # found here
    lora = ("--set", "model.lora.r=20", "--set", "compute.device=cuda")
    environment, words = dry(uptrend, *lora)
    line = " ".join(words)
    assert (
        "--enable-lora --max-loras 1 --max-lora-rank 32 --lora-target-modules down_proj gate_proj k_proj"
        in line
    )
    assert "--dtype bfloat16" in line
    assert "--enforce-eager" not in line
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment
    _, words = dry(uptrend, *lora, "--set", 'model.lora.targets=["q_proj"]')
    assert words[words.index("--lora-target-modules") :][:3] == [
        "--lora-target-modules",
        "q_proj",
        "--host",
    ]


def test_a_container_gets_the_model_and_the_worker(uptrend: Uptrend, tiny_folder: str) -> None:
    _, words = dry(uptrend, "--docker", "--port", 8123)
    assert words[:2] == ["docker", "run"]
    line = " ".join(words)
    for expected in (f"--volume {tiny_folder}:{tiny_folder}:ro", ":/uptrend:ro", "--env PYTHONPATH=/uptrend",
                     "--ipc=host", "--publish 127.0.0.1:8123:8123", "--host 0.0.0.0 --port 8123",
                     f"--entrypoint vllm vllm/vllm-openai:v0.32.0 serve {tiny_folder} "):  # fmt: skip
        assert expected in line


def test_what_can_t_be_served(uptrend: Uptrend, tmp_path: Path) -> None:
    empty = uptrend("models", "serve", RECIPE, "--vllm", tmp_path, "--dry-run", code=2).err
    assert f"There is no vLLM in {tmp_path}" in empty
    vllm = make_vllm(tmp_path / "env")
    rank = uptrend(
        "models", "serve", RECIPE, "--vllm", vllm, "--set", "model.lora.r=600", "--dry-run", code=2
    ).err
    assert "model.lora.r = 600: vLLM serves adapters up to rank 512." in rank
    folder = write_model(tmp_path / "adapter")
    (folder / "adapter_config.json").write_text("{}")
    sets = ("--set", f"model.name={folder}", "--dry-run")
    assert (
        "is an adapter's folder"
        in uptrend("models", "serve", RECIPE, "--vllm", vllm, *sets, code=2).err
    )


def test_a_server_that_does_not_start_is_told_with_its_last_lines(
    uptrend: Uptrend, tmp_path: Path
) -> None:
    vllm = make_vllm(tmp_path / "env")
    err = uptrend("models", "serve", RECIPE, "--vllm", vllm, "--port", free_port(), code=2).err
    assert "vLLM ended with exit code 3. Its log is " in err
    assert err.rstrip().endswith("ERROR out of memory")
    assert "again" not in err


def test_a_server_that_dies_is_started_again_a_few_times(
    uptrend: Uptrend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_RESTARTS", 2)
    vllm = make_vllm(tmp_path / "env", asked=1)
    err = uptrend("models", "serve", RECIPE, "--vllm", vllm, "--port", free_port(), code=2).err
    assert err.count("Ready after") == 3
    assert "vLLM ended with exit code 3. Starting it again (1 of 2)" in err
    assert "vLLM ended with exit code 3 2 times in a row. Starting it again (2 of 2)" in err
    assert "vLLM ended with exit code 3 3 times in a row. Its log is " in err


@contextlib.contextmanager
def supervisor(
    tmp_path: Path, *options: str, **variables: str
) -> Iterator[tuple["subprocess.Popen[bytes]", int, Path]]:
    """`uptrend models serve` with a program that loads its middleware; gives process, port and what
    it printed.
    """
    vllm = make_vllm(tmp_path / "env", program_text=GUARDED, middleware="options.middleware")
    port, printed = free_port(), tmp_path / "printed"
    command = [sys.executable, "-m", "uptrend", "models", "serve", str(RECIPE), "--vllm", str(vllm)]
    with (
        printed.open("w") as out,
        subprocess.Popen(
            [*command, "--port", str(port), *options], stderr=out, env=os.environ | variables
        ) as process,
    ):
        try:
            yield process, port, printed
        finally:
            process.terminate()
            process.wait(60)


def wait_for(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.05)


def ask(port: int, path: str, method: str = "POST", **headers: str) -> int:
    """Return the status of a reply; headers are written with underscores."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("docker", [False, True])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "gpu-node", ""])
def test_an_address_beyond_this_machine_needs_a_key(
    uptrend: Uptrend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, docker: bool
) -> None:
    engine = ("--docker",) if docker else ("--vllm", make_vllm(tmp_path / "env"))
    options = ("models", "serve", RECIPE, "--dry-run", *engine, "--host", host)
    refusal = uptrend(*options, code=2).err
    assert f"--host {host} needs a key" in refusal
    assert "export VLLM_API_KEY=" in refusal
    monkeypatch.setenv("VLLM_API_KEY", "")
    assert "needs a key" in uptrend(*options, code=2).err
    monkeypatch.setenv("VLLM_API_KEY", "two words")
    assert "without spaces" in uptrend(*options, code=2).err
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    command = uptrend(*options).out
    assert "--middleware uptrend_worker.RequireKey" in command
    assert KEY not in command  # a command line is for everybody who lists processes
    assert ("--env VLLM_API_KEY " in command) == docker


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_this_machine_alone_needs_no_key(uptrend: Uptrend, tmp_path: Path, host: str) -> None:
    _, words = dry(uptrend, "--vllm", make_vllm(tmp_path / "env"), "--host", host)
    assert words[-4:-2] == ["--host", host]
    assert words[words.index("--middleware") + 1] == "uptrend_worker.RefusePages"


@pytest.mark.parametrize(
    "option", ["--host=0.0.0.0", "--host", "--hos", "--port=1", "--api-key", "--api_key=x"]
)
def test_options_after_dashes_do_not_open_the_server(
    uptrend: Uptrend, tmp_path: Path, option: str
) -> None:
    vllm = make_vllm(tmp_path / "env")
    refusal = uptrend(
        "models", "serve", RECIPE, "--vllm", vllm, "--dry-run", "--", option, "0.0.0.0", code=2
    ).err
    assert f"{option} after -- would leave this server unprotected" in refusal


@pytest.mark.slow
def test_every_path_but_health_needs_the_key(tmp_path: Path) -> None:
    with supervisor(tmp_path, "--host", "0.0.0.0", VLLM_API_KEY=KEY) as (process, port, printed):
        wait_for(lambda: "Ready after" in printed.read_text() or process.poll() is not None)
        paths = ["/collective_rpc", "/sleep", "/reset_prefix_cache", "/update_weights", "/pause", "/invocations",
                 "/tokenize", "/v1/models", "/metrics", "/docs", "/", "//health", "/health/", "/health/../pause",
                 "/HEALTH", "/pause?/health", "/health%2fpause"]  # fmt: skip
        for path in paths:
            for method in ("GET", "POST", "DELETE", "OPTIONS"):
                assert ask(port, path, method) == 401, (method, path)
        for wrong in (
            "Bearer",
            "Bearer wrong",
            f"Bearer {KEY}x",
            f"Bearer  {KEY}",
            f"Basic {KEY}",
            KEY,
        ):
            assert ask(port, "/collective_rpc", Authorization=wrong) == 401, wrong
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
        assert ask(
            port, "/v1/realtime", "GET", Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==", **upgrade
        ) in (401, 403)
        assert {ask(port, path, Authorization=f"Bearer {KEY}") for path in paths} == {200}
        assert ask(port, "/health", "GET") == 200


@pytest.mark.slow
def test_without_a_key_web_pages_get_no_answer(tmp_path: Path) -> None:
    with supervisor(tmp_path) as (process, port, printed):
        wait_for(lambda: "Ready after" in printed.read_text() or process.poll() is not None)
        for origin in ("https://evil.example", "null", f"http://127.0.0.1:{port}"):
            assert ask(port, "/collective_rpc", Origin=origin, Content_Type="text/plain") == 403
        assert ask(port, "/collective_rpc") == 200


@pytest.mark.slow
def test_a_server_that_answers_without_the_key_is_ended(
    uptrend: Uptrend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As vLLM with another front end would, which loads no middleware."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    vllm, port = make_vllm(tmp_path / "env", program_text=GUARDED), free_port()
    err = uptrend(
        "models", "serve", RECIPE, "--vllm", vllm, "--host", "0.0.0.0", "--port", port, code=2
    ).err
    assert "answers requests without the key (200 instead of 401)" in err
    assert "Ready" not in err
    pids = (tmp_path / "home" / "vllm" / f"{port}.log").read_text().split()[:2]
    assert not any(is_alive(int(pid)) for pid in pids)


@pytest.mark.slow
@pytest.mark.parametrize("until", ["started", "ready"])
def test_a_supervisor_that_is_killed_takes_its_server_along(tmp_path: Path, until: str) -> None:
    with supervisor(tmp_path) as (process, port, printed):
        log = tmp_path / "home" / "vllm" / f"{port}.log"
        wait_for(lambda: log.exists() and len(log.read_text().split()) >= 2)
        if until == "ready":
            wait_for(lambda: "Ready after" in printed.read_text())
        pids = [int(pid) for pid in log.read_text().split()[:2]]
        assert all(is_alive(pid) for pid in pids)
        process.send_signal(signal.SIGKILL)
        process.wait()
        try:
            wait_for(lambda: not any(is_alive(pid) for pid in pids))
        finally:
            for pid in filter(is_alive, pids):
                os.kill(pid, signal.SIGKILL)
