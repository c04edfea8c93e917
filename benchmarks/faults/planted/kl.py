"""The penalty for leaving the reference: too heavy, of the wrong sign, or against the wrong model."""

from benchmarks.faults.fault import Fault, Strength, of_settings
from benchmarks.faults.planted.known import known
from benchmarks.faults.planted.signal import HARD

FAULTS = (
    Fault("kl.sign", (known("kl-negated"),)),
    Fault("kl.reference", (known("other-reference"),)),
    of_settings("kl.strangles", {"learning.kl.beta": 50.0}, {"learning.kl.beta": 10.0}, steps=40, seeds=2),
    Fault("kl.dead-group-pull", (Strength("hard tasks", settings={**HARD, "learning.kl.beta": 0.5}),), steps=15,
          also=("advantage.dead-groups-low",), fix=("learning.kl.beta", "tasks.", "sampling.size")),
    of_settings("kl.runaway", {"learning.kl.beta": 1e-4, "learning.lr": 3e-3}, steps=40, seeds=2,
                also=("optimizer.lr-large",), fix=("learning.kl.beta", "learning.lr")),
)  # fmt: skip
