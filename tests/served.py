"""vLLM as tests need it: the real one, started as users start it, and a small stand-in that can be
made to fail.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models import full_logits, make_policy

ROOT = Path(__file__).parents[1]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def is_alive(pid: int) -> bool:
    """Return True for a process that runs; one that nobody has collected after its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def serve_tiny(folder: Path, *options: str, code: int = 0) -> Iterator[tuple[str, int]]:
    """Run `uptrend models serve` with the tiny model; gives its address and the number of its
    process.

    Unless the test ends it, with the exit code `code`, Ctrl-C does.
    """
    environment = Path(os.environ.get("UPTREND_VLLM") or ROOT / ".venv-vllm")
    if not (environment / "bin" / "vllm").exists():
        pytest.skip(
            "needs vLLM: make setup-vllm, or UPTREND_VLLM=FOLDER of its virtual environment"
        )
    url, log = f"http://127.0.0.1:{(port := free_port())}", folder / "serve.log"
    program = f"import sys\nsys.argv = {['uptrend', 'models', 'serve', str(ROOT / 'recipes' / 'tiny.toml')]}"
    program += f"\nsys.argv += {['--port', str(port), '--vllm', str(environment), *options]}"
    program += "\nfrom uptrend.cli.main import main\nmain()"
    variables = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "UPTREND_HOME": str(folder)}
    with (
        log.open("w") as out,
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=out, stderr=out, env=variables
        ) as server,
    ):
        try:
            for _ in range(600):
                assert server.poll() is None, log.read_text()
                if "Ready after" in log.read_text():
                    break
                time.sleep(0.5)
            yield url, server.pid
        finally:
            groups = children(server.pid) if code == 0 else []
            if code == 0:
                server.send_signal(signal.SIGINT)
            assert server.wait(30) == code, log.read_text()
            for group in groups:
                with pytest.raises(ProcessLookupError):  # nothing of it is left
                    os.killpg(group, 0)


def children(pid: int) -> list[int]:
    """Numbers of the processes that a process has started."""
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def servers(pid: int) -> list[int]:
    """Numbers of the vLLM servers that `uptrend models serve` has started."""
    return [
        n
        for n in children(pid)
        if b"--served-model-name" in Path(f"/proc/{n}/cmdline").read_bytes()
    ]


class SmallVllm(ThreadingHTTPServer):
    """What the sampler asks of vLLM, in this process; `fault` names what is wrong with it."""

    daemon_threads = True

    def __init__(self, folder: str, port: int = 0, *, lora: bool = False) -> None:
        self.policy = make_policy(folder, lora=lora)
        self.lock, self.fault, self.name, self.adapters = threading.Lock(), "", "", list[str]()
        self.key = ""  # wanted on every path, where there is one
        self.asked: list[tuple[str, dict[str, Any]]] = []
        super().__init__(("127.0.0.1", port), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    def handle_error(self, *_: object) -> None:
        """Callers that have gone are no news."""

    def turns(self) -> list[dict[str, Any]]:
        """Requests of turns: those that the comparison makes have several prompts."""
        with self.lock:
            turns = [body for path, body in self.asked if path == "/v1/completions"]
        return [body for body in turns if isinstance(body["prompt"][0], int)]

    def reply(self, path: str, body: dict[str, Any]) -> Any:
        """Answer as vLLM does."""
        if path == "/v1/models":
            base = {
                "id": "small",
                "max_model_len": 64 if self.fault == "short" else 512,
                "parent": None,
            }
            return {"data": [base, *({"id": name, "parent": "small"} for name in self.adapters)]}
        if path == "/tokenize":
            ids = self.policy.tokenizer(body["prompt"], add_special_tokens=False).input_ids
            return {"tokens": ids[::-1] if self.fault == "tokenizer" else ids}
        if path == "/collective_rpc" and body["method"] == "uptrend_load":
            self.put(load_file(body["kwargs"]["path"]))
            self.name = self.name if self.fault == "same name" else body["kwargs"]["name"]
            return {"results": [None]}
        if path == "/collective_rpc":
            return {"results": [self.name]}
        if path == "/v1/load_lora_adapter":
            self.put(load_file(Path(body["lora_path"]) / "adapter_model.safetensors"))
            self.adapters.append(body["lora_name"])
        if path == "/v1/unload_lora_adapter":
            self.adapters.remove(body["lora_name"])
        return self.complete(body) if path == "/v1/completions" else {"success": True}

    def put(self, weights: dict[str, torch.Tensor]) -> None:
        if self.fault == "no effect":
            return
        for slot in self.policy.flat.slots:
            self.policy.flat.view(slot).copy_(weights[slot.name.replace(".default.", ".")])

    def complete(self, body: dict[str, Any]) -> Any:
        if body["model"] not in ("small", *self.adapters):
            return 404, {"error": {"message": f"The model {body['model']} does not exist."}}
        prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
        draws, choices = torch.Generator().manual_seed(body["seed"]), []
        for index, prompt in enumerate(prompts):
            ids, logprobs = list[int](), list[float]()
            while len(ids) < body["max_tokens"] and ids[-1:] not in (
                [i] for i in body.get("stop_token_ids", ())
            ):
                logits = full_logits(self.policy, [*prompt, *ids])[-1]
                drawn = torch.softmax(logits / (body["temperature"] or 1e-6), -1)
                ids.append(int(torch.multinomial(drawn, 1, generator=draws)))
                scale = 1.0 if self.fault == "raw" else body["temperature"] or 1.0
                logprobs.append(float(torch.log_softmax(logits / scale, -1)[ids[-1]]))
            about = {
                "finish_reason": "abort" if self.fault == "aborts" else "stop",
                "stop_reason": None,
            }
            choices.append(
                {
                    "index": index,
                    "token_ids": ids,
                    "logprobs": {"token_logprobs": logprobs},
                    **about,
                }
            )
        return {"model": body["model"], "choices": choices}


class _Handler(BaseHTTPRequestHandler):
    server: SmallVllm
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body, stub = (
            json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}"),
            self.server,
        )
        with stub.lock:
            stub.asked.append((self.path, body))
        if stub.fault == "dead" or (stub.fault == "hangs" and self.path == "/v1/completions"):
            time.sleep(6.0 if stub.fault == "hangs" else 0)
            with contextlib.suppress(OSError):  # the caller may have gone first
                self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        has_key = not stub.key or self.headers["Authorization"] == f"Bearer {stub.key}"
        with stub.lock:
            if not has_key:
                answer: Any = (401, {"error": {"message": "no key"}})
            elif stub.fault == self.path:
                answer = (500, {"error": {"message": "no"}})
            else:
                answer = stub.reply(self.path, body)
        status, content = answer if isinstance(answer, tuple) else (200, answer)
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Silent."""
