"""A vLLM server for a recipe: its command and environment, and a supervisor that starts it again if
it dies.

    python -P -m uptrend.rollout.vllm_supervisor

is the watcher, a second process that ends the server when the supervisor is gone, because a killed
supervisor can't. The supervisor names the server's process group in a request; when it ends, so
does the watcher's stdin.
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

# Environment variable with the folder that a run and its servers share, if they are on several
# machines.
WEIGHTS_FOLDER_VARIABLE = "UPTREND_WEIGHTS"
KEY_VARIABLE = "VLLM_API_KEY"  # environment variable with a server's key, as vLLM itself reads it
DOCKER_IMAGE = "vllm/vllm-openai:v0.32.0"
CONTAINER_FOLDER = "/uptrend"  # folder of the worker extension in a container
WORKER_MODULE = "uptrend_worker"  # name under which vLLM imports the worker extension
# vLLM's options that decide who reaches a server.
PROTECTED_OPTIONS = ("--host", "--port", "--api-key")
# Characters, dashes included, from which on vLLM takes the beginning of an option's name.
MIN_OPTION_LENGTH = 4
# Parts of the names of 2-d weights that have no adapter. Not LoRA's own list: PEFT adapts every
# linear module but the output layer.
UNADAPTED_MODULES = ("embed", "lm_head", "norm", "wte", "wpe")
# Values that vLLM takes for --max-lora-rank.
VLLM_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# Tokens of a batch without chunked prefill: a prompt is read in one, so at least the longest.
MIN_BATCHED_TOKENS = 8192

# A server that dies again this soon after its last start, this many times, is given up.
MAX_RESTARTS = 3
RESTART_WINDOW_S = 600.0
HEALTH_POLL_S = 0.5
PROGRESS_PERIOD_S = 10.0  # between lines of a starting server's log that are shown
STATUS_TIMEOUT_S = 5.0  # for a reply to a request without a key
WATCHER_TIMEOUT_S = 5.0  # for an answer of the watcher
END_TIMEOUT_S = 20.0  # for a server to end by itself, and to clean up
END_POLL_S = 0.1


@dataclass(frozen=True)
class ServerPlan:
    """A server's command line, with what it needs beside."""

    command: list[str]
    environment: dict[str, str]  # variables beside those of this process
    url: str
    log: Path

    def __str__(self) -> str:
        """The command as a shell takes it."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join([*variables, *self.command])


def plan_server(
    config: Config,
    host: str = "127.0.0.1",
    port: int = 8000,
    vllm: Path | None = None,
    options: tuple[str, ...] = (),
    *,
    docker: bool = False,
) -> ServerPlan:
    """Plan the server of a recipe's model from which `sampling.engine = "vllm"` can sample."""
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
    # A folder with one module: a path to all of Uptrend's packages would bring other versions of
    # vLLM's own.
    worker_folder = home() / "vllm"
    worker_folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(vllm_worker.__file__, worker_folder / f"{WORKER_MODULE}.py")
    log = worker_folder / f"{port}.log"

    environment = {
        "PYTHONPATH": CONTAINER_FOLDER if docker else str(worker_folder),
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

    arguments = ["serve", str(folder or model)]
    arguments += ["--middleware", f"{WORKER_MODULE}.{_choose_middleware(host, options)}"]
    arguments += _recipe_options(config, folder, is_cuda=is_cuda)
    arguments += ["--host", "0.0.0.0" if docker else host, "--port", str(port), *options]
    # An address that stands for all of this machine's is reached by loopback.
    reached_host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    url = f"http://{_bracketed(reached_host)}:{port}"
    if not docker:
        return ServerPlan([find_vllm(vllm), *arguments], environment, url, log)
    address = f"{_bracketed(host)}:{port}"
    container = _docker_command(address, port, folder, worker_folder, environment)
    return ServerPlan([*container, *arguments], {}, url, log)


def _docker_command(
    address: str, port: int, folder: Path | None, worker_folder: Path, environment: dict[str, str]
) -> list[str]:
    """Return the command that starts vLLM in a container, without vLLM's own arguments."""
    command = ["docker", "run", "--rm", "--init", "--gpus", "all", "--ipc=host"]
    command += ["--publish", f"{address}:{port}"]
    volumes = [f"{worker_folder}:{CONTAINER_FOLDER}:ro"]
    if folder:
        volumes.append(f"{folder}:{folder}:ro")
    else:
        cache = Path("~/.cache/huggingface").expanduser()
        volumes.append(f"{cache}:/root/.cache/huggingface")
    weights_folder = os.environ.get(WEIGHTS_FOLDER_VARIABLE)
    if weights_folder:
        volumes.append(f"{weights_folder}:{weights_folder}:ro")
    for volume in volumes:
        command += ["--volume", volume]
    for name, value in environment.items():
        command += ["--env", f"{name}={value}"]
    for name in (KEY_VARIABLE, "HF_TOKEN"):
        if name in os.environ:
            command += ["--env", name]  # without its value, which the command line would show
    return [*command, "--entrypoint", "vllm", DOCKER_IMAGE]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _choose_middleware(host: str, options: tuple[str, ...]) -> str:
    """Return the class that refuses requests of others; raise ConfigError if none could."""
    for option in options:
        name = option.partition("=")[0].replace("_", "-")
        for protected in PROTECTED_OPTIONS:
            if len(name) >= MIN_OPTION_LENGTH and protected.startswith(name):
                is_key = protected == "--api-key"
                instead = f"set {KEY_VARIABLE}" if is_key else f"name {protected} before the --"
                raise ConfigError(
                    f"{option} after -- would leave this server unprotected: {instead}."
                )
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


def _recipe_options(config: Config, folder: Path | None, *, is_cuda: bool) -> list[str]:
    """Return vLLM's options for a recipe."""
    options = ["--served-model-name", config.model.name, "--max-model-len", str(config.longest)]
    options += ["--logprobs-mode", "processed_logprobs"]
    options += ["--worker-extension-cls", f"{WORKER_MODULE}.Worker"]
    options += ["--generation-config", "vllm"]  # sampling parameters are the recipe's alone
    if is_cuda:
        options += ["--dtype", "bfloat16"]
    else:
        options += ["--dtype", "float32", "--enforce-eager"]
        # On a CPU, vLLM 0.32 ends at a prompt with a seed that is read in chunks: its generators
        # can't be set back.
        batched_tokens = max(MIN_BATCHED_TOKENS, config.longest)
        options += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(batched_tokens)]
    lora = config.model.lora
    if lora is not None:
        options += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(_vllm_rank(lora.r))]
        targets = lora.targets or (folder and linear_modules(folder))
        if targets:
            options += ["--lora-target-modules", *targets]
    return options


def _vllm_rank(r: int) -> int:
    """Return the least of vLLM's ranks that holds an adapter of rank r."""
    for rank in VLLM_LORA_RANKS:
        if rank >= r:
            return rank
    raise ConfigError(f"model.lora.r = {r}: vLLM serves adapters up to rank {VLLM_LORA_RANKS[-1]}.")


def linear_modules(folder: Path) -> list[str]:
    """Return the names of a model's linear modules, as its weight files have them."""
    names: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_size))
        for key, tensor in header.items():
            is_matrix = key.endswith(".weight") and len(tensor["shape"]) == 2
            if is_matrix and not any(part in key for part in UNADAPTED_MODULES):
                names.add(key.split(".")[-2])
    return sorted(names)


def find_vllm(folder: Path | None = None) -> str:
    """Return the `vllm` program: of a virtual environment's folder, $UPTREND_VLLM's, the PATH or
    .venv-vllm.
    """
    chosen = folder or os.environ.get("UPTREND_VLLM")
    program = Path(chosen or ".venv-vllm") / "bin" / "vllm"
    if not chosen:
        on_path = shutil.which("vllm")
        if on_path:
            return on_path
    if program.exists():
        return str(program)
    if chosen:
        raise ModelError(
            f"There is no vLLM in {chosen}: it should be a virtual environment's folder."
        )
    raise ModelError(
        "There is no vLLM here. Install it into an environment of its own (python -m venv"
        " .venv-vllm && .venv-vllm/bin/pip install vllm) and name that with --vllm or"
        " UPTREND_VLLM, or use --docker."
    )


def serve(plan: ServerPlan, notify: Callable[[str], None]) -> None:
    """Run a server until it is interrupted; start it again if it ends by itself, a few times.

    `notify` receives sentences on its state for the user.
    """
    if _status(f"{plan.url}/health"):
        raise ModelError(
            f"Something answers at {plan.url} already. End it, or choose another --port."
        )
    # An exit runs the `finally` clauses that end the server, as Ctrl-C does.
    previous_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    plan.log.write_text("")
    watcher = WorkerProcess("uptrend.rollout.vllm_supervisor")
    n_deaths = 0  # each soon after its start
    try:
        while True:
            started = time.monotonic()
            code, was_ready = _run(plan, watcher, notify)
            if time.monotonic() - started >= RESTART_WINDOW_S:
                n_deaths = 0
            n_deaths += 1
            ending = f"vLLM ended with exit code {code}"
            if n_deaths > 1:
                ending += f" {n_deaths} times in a row"
            if not was_ready or n_deaths > MAX_RESTARTS:
                lines = _last_lines(plan.log)
                raise ModelError(f"{ending}. Its log is {plan.log}; the last lines:\n{lines}")
            notify(
                f"{ending}. Starting it again ({n_deaths} of {MAX_RESTARTS}); the sampler gives it"
                " the current weights."
            )
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
        watcher.close()


def _run(
    plan: ServerPlan, watcher: WorkerProcess, notify: Callable[[str], None]
) -> tuple[int, bool]:
    """Start a server and wait for its end; return its exit code, and True if it had become
    ready.
    """
    started = time.monotonic()
    last_shown_s = 0.0
    is_ready = False
    # The watcher takes a second to start, in which no server should run that it does not know.
    _name_group(watcher, 0)
    with plan.log.open("a") as log:
        process = subprocess.Popen(
            plan.command,
            stdout=log,
            stderr=log,
            env={**os.environ, **plan.environment},
            process_group=0,
        )
    try:
        _name_group(watcher, process.pid)
        code = process.poll()
        while code is None:
            seconds = time.monotonic() - started
            if not is_ready:
                if _status(f"{plan.url}/health") == 200 and _refuses_without_key(plan.url):
                    is_ready = True
                    notify(f"Ready after {seconds:.0f} s: {plan.url} (Ctrl-C ends it).")
                elif seconds - last_shown_s >= PROGRESS_PERIOD_S:
                    last_shown_s = seconds
                    notify(f"  {seconds:4.0f} s  {_last_lines(plan.log, 1)[:120]}")
            time.sleep(HEALTH_POLL_S)
            code = process.poll()
        return code, is_ready
    finally:
        end_group(process.pid, process.poll)
        process.wait()
        _name_group(watcher, 0)


def _refuses_without_key(url: str) -> bool:
    """Return True for a server that refuses requests without the key, or has none; raise ModelError
    if it answers.
    """
    if not os.environ.get(KEY_VARIABLE):
        return True
    status = _status(url)
    if status not in (0, 401):
        raise ModelError(
            f"{url} answers requests without the key ({status} instead of 401), so this server was"
            " ended. An option after -- or a variable of vLLM's must have switched its"
            " --middleware off."
        )
    return status == 401


def _name_group(watcher: WorkerProcess, group: int) -> None:
    """Tell the watcher which process group ends with this process; 0 for none."""
    try:
        watcher.call(group, WATCHER_TIMEOUT_S)
    except (WorkerDied, TimeoutError) as error:
        raise ModelError(
            f"The process that would end vLLM with this one does not answer ({error})."
        ) from error


def _status(url: str) -> int:
    """Return the status of a reply to a request without a key; 0 if there is none."""
    try:
        with urllib.request.urlopen(url, timeout=STATUS_TIMEOUT_S) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, HTTPException):
        return 0


def _last_lines(log: Path, count: int = 5) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    # Without vLLM's prefix "(APIServer pid=1) ".
    return "\n".join(line.partition(") ")[2] or line for line in lines[-count:])


# The watcher


def end_group(leader: int, reap: Callable[[], object] = lambda: None) -> None:
    """End a process and its whole group, after a while by force; `reap` collects a caller's own
    child.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader, signal.SIGTERM)
    deadline = time.monotonic() + END_TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            reap()  # a dead child is a member of the group until then
            os.killpg(leader, 0)
            time.sleep(END_POLL_S)
    except ProcessLookupError:
        return  # the group has ended
    finally:  # also if a second Ctrl-C ends the wait
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
