"""A vLLM server for a recipe: its command and environment, and a process that is watched and
started again.

    python -P -m uptrend.rollout.vllm_supervisor

is the watcher: it ends a server whose supervisor is gone, since one that was killed can't do so
itself. The supervisor names the server's process group in a request, and its own end is the end of
stdin.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from uptrend.config import Config
from uptrend.policy.known import find_model, home
from uptrend.records import ConfigError, ModelError
from uptrend.records.worker_process import WorkerDied, WorkerProcess, answer_requests
from uptrend.rollout import vllm_worker
from uptrend.rollout.http import is_loopback

# Environment variable with the folder that a run and its servers share, where they are not on one
# machine.
WEIGHTS_FOLDER_VARIABLE = "UPTREND_WEIGHTS"
KEY_VARIABLE = "VLLM_API_KEY"  # environment variable with a server's key, as vLLM itself reads it
IMAGE = "vllm/vllm-openai:v0.32.0"
INSIDE = "/uptrend"  # folder of the worker extension in a container
MODULE = "uptrend_worker"  # name under which vLLM imports it
RESTARTS = 3  # times that a server is started again within `SOON` of its last start
SOON = 600.0  # seconds
OURS = ("--host", "--port", "--api-key")  # vLLM's options that decide who reaches a server
WATCH_S = 5.0  # seconds for an answer of the watcher
END_S = 20.0  # seconds that a server gets to end by itself, and to clean up
# Not LoRA's: PEFT adapts every linear module but the output layer.
NO_TARGETS = ("embed", "lm_head", "norm", "wte", "wpe")


@dataclass(frozen=True)
class Served:
    """A server's command line, with what it needs beside."""

    command: list[str]
    environment: dict[str, str]  # variables beside those of this process
    url: str
    log: Path

    def __str__(self) -> str:
        """The command as a shell takes it."""
        return shlex.join(
            [*(f"{key}={value}" for key, value in self.environment.items()), *self.command]
        )


def plan_server(
    config: Config,
    host: str = "127.0.0.1",
    port: int = 8000,
    vllm: Path | None = None,
    options: tuple[str, ...] = (),
    *,
    docker: bool = False,
) -> Served:
    """Return the command that serves a recipe's model so that `sampling.engine = "vllm"` can sample
    from it.
    """
    model = find_model(config.model.name)
    folder = Path(model).resolve() if Path(model).is_dir() else None
    if folder and (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{model} is an adapter's folder, which vLLM can't serve merged. Merge it into its base"
            " first (PEFT's merge_and_unload, then save_pretrained), and name that folder in"
            " model.name."
        )
    is_cuda = docker or config.compute.device.startswith("cuda")
    if config.compute.device == "auto":
        is_cuda = is_cuda or shutil.which("nvidia-smi") is not None
    own = home() / "vllm"
    own.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(vllm_worker.__file__, own / f"{MODULE}.py")
    environment = {
        "PYTHONPATH": (
            INSIDE if docker else str(own)
        ),  # of this one module: a whole package path would bring other versions of vLLM's packages
        # vLLM starts processes by python -c: a file of the current folder must not take the place
        # of a module.
        "PYTHONSAFEPATH": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # for new weights and an empty prefix cache
    }
    if config.model.lora is not None:
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if folder:
        environment["HF_HUB_OFFLINE"] = "1"
    if not is_cuda:
        environment["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
    command = [
        "vllm",
        "serve",
        str(folder or model),
        "--middleware",
        f"{MODULE}.{_choose_check(host, options)}",
    ]
    command += _flags(config, folder, is_cuda=is_cuda)
    command += ["--host", "0.0.0.0" if docker else host, "--port", str(port), *options]
    # Reached from here, all addresses are this machine's.
    from_here = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    url = f"http://{_bracketed(from_here)}:{port}"
    if not docker:
        return Served([find_vllm(vllm), *command[1:]], environment, url, own / f"{port}.log")
    outside = ["docker", "run", "--rm", "--init", "--gpus", "all", "--ipc=host"]
    outside += ["--publish", f"{_bracketed(host)}:{port}:{port}"]
    outside += ["--volume", f"{own}:{INSIDE}:ro"]
    cache = Path("~/.cache/huggingface").expanduser()
    outside += [
        "--volume",
        f"{folder}:{folder}:ro" if folder else f"{cache}:/root/.cache/huggingface",
    ]
    if weights := os.environ.get(WEIGHTS_FOLDER_VARIABLE):
        outside += ["--volume", f"{weights}:{weights}:ro"]
    outside += [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
    outside += [
        word for key in (KEY_VARIABLE, "HF_TOKEN") if key in os.environ for word in ("--env", key)
    ]
    return Served(
        [*outside, "--entrypoint", "vllm", IMAGE, *command[1:]], {}, url, own / f"{port}.log"
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _choose_check(host: str, options: tuple[str, ...]) -> str:
    """Return the layer that refuses requests; raise ConfigError where none could keep others
    out.
    """
    for option in options:
        name = option.partition("=")[0].replace("_", "-")
        # vLLM takes any beginning of a name that is long enough.
        if ours := next((word for word in OURS if len(name) > 3 and word.startswith(name)), None):
            instead = f"set {KEY_VARIABLE}" if ours == "--api-key" else f"name {ours} before the --"
            raise ConfigError(f"{option} after -- would leave this server unprotected: {instead}.")
    key = os.environ.get(KEY_VARIABLE, "")
    if not key and is_loopback(host):
        return vllm_worker.RefusePages.__name__
    if not key:
        raise ConfigError(
            f"--host {host} needs a key, since who reaches the server can replace its weights. Set"
            f" {KEY_VARIABLE} to the same secret here and where training runs, for example: export"
            f" {KEY_VARIABLE}=$(openssl rand -hex 32)"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"{KEY_VARIABLE} should hold ASCII letters, digits and signs without spaces."
        )
    return vllm_worker.RequireKey.__name__


def _flags(config: Config, folder: Path | None, *, is_cuda: bool) -> list[str]:
    """Return what vLLM has to be told of a recipe."""
    flags = ["--served-model-name", config.model.name, "--max-model-len", str(config.longest)]
    flags += ["--logprobs-mode", "processed_logprobs", "--worker-extension-cls", f"{MODULE}.Worker"]
    flags += ["--generation-config", "vllm"]  # sampling parameters are the recipe's alone
    flags += ["--dtype", "bfloat16"] if is_cuda else ["--dtype", "float32", "--enforce-eager"]
    # a prompt with a seed that is read in parts ends vLLM 0.32 on a CPU, whose generators can't go
    # back
    if not is_cuda:
        flags += [
            "--no-enable-chunked-prefill",
            "--max-num-batched-tokens",
            str(max(8192, config.longest)),
        ]
    if (lora := config.model.lora) is not None:
        flags += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(_rank(lora.r))]
        if targets := lora.targets or (folder and linear_modules(folder)):
            flags += ["--lora-target-modules", *targets]
    return flags


def _rank(r: int) -> int:
    """Return the least of the ranks that vLLM has room for."""
    ranks = (1, 8, 16, 32, 64, 128, 256, 320, 512)
    if r > ranks[-1]:
        raise ConfigError(f"model.lora.r = {r}: vLLM serves adapters up to rank {ranks[-1]}.")
    return next(rank for rank in ranks if rank >= r)


def linear_modules(folder: Path) -> list[str]:
    """Return the names of a model's linear modules, as its weight files have them."""
    names = set[str]()
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        names |= {
            key.split(".")[-2]
            for key, about in header.items()
            if key.endswith(".weight")
            and len(about["shape"]) == 2
            and not any(word in key for word in NO_TARGETS)
        }
    return sorted(names)


def find_vllm(folder: Path | None = None) -> str:
    """Return the `vllm` program: of a virtual environment's folder, $UPTREND_VLLM's, the PATH or
    .venv-vllm.
    """
    told = folder or os.environ.get("UPTREND_VLLM")
    places = [Path(told)] if told else [Path(".venv-vllm")]
    found = None if told else shutil.which("vllm")
    found = found or next(
        (str(p / "bin" / "vllm") for p in places if (p / "bin" / "vllm").exists()), None
    )
    if found is None:
        raise ModelError(
            f"There is no vLLM in {told}: it should be a virtual environment's folder."
            if told
            else (
                "There is no vLLM here. Install it into an environment of its own (python -m venv"
                " .venv-vllm && .venv-vllm/bin/pip install vllm) and name that with --vllm or"
                " UPTREND_VLLM, or use --docker."
            )
        )
    return found


def serve(served: Served, say: Callable[[str], None]) -> None:
    """Run a server until it is interrupted; one that ends by itself is started again, a few
    times.
    """
    if _status(f"{served.url}/health"):
        raise ModelError(
            f"Something answers at {served.url} already. End it, or choose another --port."
        )
    # ends the server too, as Ctrl-C does
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    served.log.write_text("")
    watcher = WorkerProcess("uptrend.rollout.vllm_supervisor")
    deaths = 0
    try:
        while True:
            began = time.monotonic()
            code, was_ready = _run(served, watcher, say)
            deaths = deaths + 1 if time.monotonic() - began < SOON else 1
            told = f"vLLM ended with exit code {code}" + (
                f" {deaths} times in a row" if deaths > 1 else ""
            )
            if not was_ready or deaths > RESTARTS:
                raise ModelError(
                    f"{told}. Its log is {served.log}; the last lines:\n{_last_lines(served.log)}"
                )
            say(
                f"{told}. Starting it again ({deaths} of {RESTARTS}); the sampler gives it the"
                " current weights."
            )
    finally:
        signal.signal(signal.SIGTERM, before)
        watcher.close()


def _run(served: Served, watcher: WorkerProcess, say: Callable[[str], None]) -> tuple[int, bool]:
    """Start a server and wait for its end; return its exit code, and True where it had become
    ready.
    """
    began = time.monotonic()
    told = 0.0
    is_ready = False
    _watch(watcher, 0)  # it takes a second to start, in which there should be no server yet
    with served.log.open("a") as out:
        process = subprocess.Popen(
            served.command,
            stdout=out,
            stderr=out,
            env={**os.environ, **served.environment},
            process_group=0,
        )
    try:
        _watch(watcher, process.pid)
        while (code := process.poll()) is None:
            seconds = time.monotonic() - began
            if not is_ready and _status(f"{served.url}/health") == 200 and _has_check(served.url):
                is_ready = True
                say(f"Ready after {seconds:.0f} s: {served.url} (Ctrl-C ends it).")
            elif not is_ready and seconds - told >= 10:
                told = seconds
                say(f"  {seconds:4.0f} s  {_last_lines(served.log, 1)[:120]}")
            time.sleep(0.5)
        return code, is_ready
    finally:
        end_group(process.pid, process.poll)
        process.wait()
        _watch(watcher, 0)


def _has_check(url: str) -> bool:
    """Return True where a server refuses requests without the key, or has none; raise ModelError
    where it answers.
    """
    status = _status(url) if os.environ.get(KEY_VARIABLE) else 401
    if status not in (0, 401):
        raise ModelError(
            f"{url} answers requests without the key ({status} instead of 401), so this server was"
            " ended. An option after -- or a variable of vLLM's must have switched its"
            " --middleware off."
        )
    return status == 401


def _watch(watcher: WorkerProcess, group: int) -> None:
    """Name the process group that ends with this process; 0 for none."""
    try:
        watcher.call(group, WATCH_S)
    except (WorkerDied, TimeoutError) as error:
        raise ModelError(
            f"The process that would end vLLM with this one does not answer ({error})."
        ) from error


def _status(url: str) -> int:
    """Return the status of a reply to a request without a key; 0 where nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, HTTPException):
        return 0


def _last_lines(log: Path, count: int = 5) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join(line.partition(") ")[2] or line for line in lines[-count:])


# ---- The watcher.


def end_group(leader: int, reap: Callable[[], object] = lambda: None) -> None:
    """End a process and its whole group: it gets time to do so itself. `reap` collects a caller's
    own child.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader, signal.SIGTERM)
    limit = time.monotonic() + END_S
    try:
        while time.monotonic() < limit:
            reap()  # until then it is still of the group
            os.killpg(leader, 0)
            time.sleep(0.1)
    except ProcessLookupError:  # nobody is left
        return
    finally:  # also where a second Ctrl-C ends the wait
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)


def watch() -> None:
    """Wait for the end of the supervisor, then end the group that it named last."""
    group = 0

    def remember(request: Any) -> dict[str, Any]:
        nonlocal group
        group = int(request)
        return {}

    answer_requests(remember)
    if group:
        end_group(group)


if __name__ == "__main__":
    watch()
