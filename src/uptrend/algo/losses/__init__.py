"""The losses, one file each. All of them are Σ_bt weight_bt · term_bt; they differ in the two factors."""

from uptrend.algo.losses.bnpo import BNPO
from uptrend.algo.losses.cispo import CISPO
from uptrend.algo.losses.dapo import DAPO
from uptrend.algo.losses.dr_grpo import DR_GRPO
from uptrend.algo.losses.grpo import GRPO
from uptrend.algo.losses.gspo import GSPO
from uptrend.algo.losses.surrogate import Loss, Terms

LOSSES: dict[str, Loss] = {
    "grpo": GRPO,
    "bnpo": BNPO,
    "dr_grpo": DR_GRPO,
    "dapo": DAPO,
    "gspo": GSPO,
    "cispo": CISPO,
}

__all__ = ["LOSSES", "Loss", "Terms"]
