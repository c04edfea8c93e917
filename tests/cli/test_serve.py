"""`uptrend models serve`: its command, and a server that is watched. tests/served.py starts a real one."""

import shlex
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models import write_model
from served import ROOT, free_port
from uptrend.runner import serve as serving

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


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("UPTREND_VLLM", raising=False)
    monkeypatch.chdir(tmp_path)


def make_vllm(folder: Path, asked: int = 0) -> Path:
    """An environment with a program that is no vLLM."""
    program = folder / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM.format(python=sys.executable, asked=asked))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def dry(uptrend: Uptrend, *options: object) -> tuple[dict[str, str], list[str]]:
    """Return the environment and the words of the command that would run."""
    words = shlex.split(uptrend("models", "serve", RECIPE, "--dry-run", *options).out)
    count = next(n for n, word in enumerate(words) if "=" not in word)
    return dict(word.split("=", 1) for word in words[:count]), words[count:]


def test_the_command_says_what_the_sampler_needs(uptrend: Uptrend, tmp_path: Path, tiny_folder: str) -> None:
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
    assert [path.name for path in worker.parent.iterdir()] == ["uptrend_worker.py"]  # nothing else to import there
    compile(worker.read_text(), worker, "exec")


def test_adapters_and_a_gpu(uptrend: Uptrend, tmp_path: Path) -> None:
    make_vllm(tmp_path / ".venv-vllm")  # found here
    lora = ("--set", "model.lora.r=20", "--set", "compute.device=cuda")
    environment, words = dry(uptrend, *lora)
    line = " ".join(words)
    assert "--enable-lora --max-loras 1 --max-lora-rank 32 --lora-target-modules down_proj gate_proj k_proj" in line
    assert "--dtype bfloat16" in line
    assert "--enforce-eager" not in line
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment
    _, words = dry(uptrend, *lora, "--set", 'model.lora.targets=["q_proj"]')
    assert words[words.index("--lora-target-modules") :][:3] == ["--lora-target-modules", "q_proj", "--host"]


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
    rank = uptrend("models", "serve", RECIPE, "--vllm", vllm, "--set", "model.lora.r=600", "--dry-run", code=2).err
    assert "model.lora.r = 600: vLLM serves adapters up to rank 512." in rank
    folder = write_model(tmp_path / "adapter")
    (folder / "adapter_config.json").write_text("{}")
    sets = ("--set", f"model.name={folder}", "--dry-run")
    assert "is an adapter's folder" in uptrend("models", "serve", RECIPE, "--vllm", vllm, *sets, code=2).err


def test_a_server_that_does_not_start_is_told_with_its_last_lines(uptrend: Uptrend, tmp_path: Path) -> None:
    vllm = make_vllm(tmp_path / "env")
    err = uptrend("models", "serve", RECIPE, "--vllm", vllm, "--port", free_port(), code=2).err
    assert "vLLM ended with exit code 3. Its log is " in err
    assert err.rstrip().endswith("ERROR out of memory")
    assert "again" not in err


def test_a_server_that_dies_is_started_again_a_few_times(
    uptrend: Uptrend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "RESTARTS", 2)
    vllm = make_vllm(tmp_path / "env", asked=1)
    err = uptrend("models", "serve", RECIPE, "--vllm", vllm, "--port", free_port(), code=2).err
    assert err.count("Ready after") == 3
    assert "vLLM ended with exit code 3. Starting it again (1 of 2)" in err
    assert "vLLM ended with exit code 3 2 times in a row. Starting it again (2 of 2)" in err
    assert "vLLM ended with exit code 3 3 times in a row. Its log is " in err
