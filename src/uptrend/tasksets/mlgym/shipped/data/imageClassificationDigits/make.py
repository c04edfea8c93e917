"""Images of digits with changed brightness and contrast, drawn from digits.npz."""

import io
import zipfile
from pathlib import Path

import numpy as np

TRAIN, VALIDATION, TEST = 240, 160, 380


def make(seed: int, heldout: bool) -> dict[str, dict[str, bytes]]:
    """Return the files of one example; held-out examples are drawn from images that no other example uses."""
    # Only random() is drawn from, and only added, multiplied and compared: equal bytes on every machine.
    rng = np.random.Generator(np.random.PCG64([1998, seed, int(heldout)]))
    images, labels = load("images"), load("labels")
    # Five of nine images are for training examples. Neighbors in the file are by the same hand: both parts have all.
    usable = np.flatnonzero((np.arange(len(labels)) % 9 >= 5) == heldout)
    chosen = usable[np.argsort(rng.random(len(usable)), kind="stable")[: TRAIN + VALIDATION + TEST]]
    contrast, brightness = rng.random((2, len(chosen), 1))
    pixels = np.floor(images[chosen] * (0.25 + contrast) + 12 * brightness + 0.5).astype(int)
    answers = list(zip(range(1, len(chosen) + 1), labels[chosen].tolist(), strict=True))
    order = np.argsort(rng.random(VALIDATION + TEST), kind="stable") + TRAIN  # which splits the rows of test.csv are in
    return {
        "workspace": {
            "train.csv": table("label", labels[chosen[:TRAIN]].tolist(), pixels[:TRAIN].tolist()),
            "test.csv": table("id", range(TRAIN + 1, len(chosen) + 1), pixels[TRAIN:].tolist()),
        },
        "validation": {"answers.csv": column([answers[index] for index in sorted(order[:VALIDATION])])},
        "test": {"answers.csv": column([answers[index] for index in sorted(order[VALIDATION:])])},
    }


def load(name: str) -> np.ndarray:
    """Read an array of digits.npz; np.load would do it, but it also opens pickles."""
    with zipfile.ZipFile(Path(__file__).with_name("digits.npz")) as archive:
        return np.lib.format.read_array(io.BytesIO(archive.read(f"{name}.npy")), allow_pickle=False)


def table(first: str, names: range | list[int], pixels: list[list[int]]) -> bytes:
    """Write images as CSV, one per line after its label or id."""
    lines = [",".join(map(str, [name, *row])) for name, row in zip(names, pixels, strict=True)]
    return "\n".join([",".join([first, *(f"p{index}" for index in range(64))]), *lines, ""]).encode()


def column(answers: list[tuple[int, int]]) -> bytes:
    """Write labels as CSV."""
    return "\n".join(["id,label", *(f"{name},{label}" for name, label in answers), ""]).encode()
