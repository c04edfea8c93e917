"""What the peers' detectors are taken to mean, generously: any of these ids counts as the right
cause.

Their detectors name symptoms (a plateau, a spike); where a planted cause is one that their text
offers as a reason, it is counted as named.
"""

DEAD = ("advantage.dead-groups-low", "advantage.dead-groups-high", "reward.constant", "reward.gold-rejected",
        "reward.wrong-length", "reward.never-computed", "sampling.temperature-low", "sampling.few-generations",
        "advantage.metric-blind", "config.group-of-one", "optimizer.dead-steps", "kl.dead-group-pull",
        "context.completion-truncated", "sampling.no-stop")  # fmt: skip
STILL = ("optimizer.lr-small", "optimizer.schedule", "optimizer.frozen", "kl.strangles", "precision.update-underflow",
         "sync.stale-weights")  # fmt: skip
TOO_FAR = ("optimizer.lr-large", "kl.runaway", "run.collapsed")

RLDOCTOR: dict[str, tuple[str, ...]] = {
    "advantage_collapse": DEAD,
    "clip_saturation": (*TOO_FAR, "sync.off-policy", "precision.mismatch", "policy.dropout-on"),
    "entropy_collapse": ("sampling.entropy-collapse", "sampling.entropy-explosion", "sampling.temperature-low"),
    "gradient_pathology": (*TOO_FAR, "run.nonfinite", "optimizer.skipped-updates", "optimizer.frozen",
                           "optimizer.dead-steps", "advantage.blow-up"),
    "kl_drift": (*TOO_FAR, "kl.sign", "kl.reference", "kl.strangles"),
    "length_pathology": ("reward.length-hacking", "sampling.length-collapse", "context.completion-truncated",
                         "sampling.no-stop"),
    "plateau": (*STILL, *DEAD, "run.too-short"),
    "reward_composition": ("reward.component-dead", "reward.component-dominates"),
    "reward_hacking": ("reward.hackable", "reward.length-hacking", "reward.component-dominates", "data.memorized"),
}  # fmt: skip
RLWATCH: dict[str, tuple[str, ...]] = {
    "entropy_collapse": RLDOCTOR["entropy_collapse"],
    "kl_explosion": RLDOCTOR["kl_drift"],
    "reward_hacking": RLDOCTOR["reward_hacking"],
    "advantage_variance": (*DEAD, "advantage.blow-up", "advantage.wrong-groups"),
    "loss_nan": ("run.nonfinite", "optimizer.skipped-updates"),
    "gradient_norm_spike": RLDOCTOR["gradient_pathology"],
    "reward_mean_drift": (
        *TOO_FAR,
        "run.resume-jump",
        "reward.scale-moves",
        "data.order",
        "reward.hackable",
    ),
}
PEERS = {"rldoctor": RLDOCTOR, "rlwatch": RLWATCH}
