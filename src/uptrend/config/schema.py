"""What a recipe can say: every key, its default and what it means.

`[tasks]` and `[eval]` also take the options of the taskset that they name; those are kept as given in
`options` and checked against the taskset's own dataclass by `runner`.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

Weights = Literal["fp32", "bf16"]
Loss = Literal["grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo"]
Scale = Literal["group", "batch", "none"]
Baseline = Literal["mean", "leave_one_out"]
Estimator = Literal["k1", "k2", "k3"]
Correction = Literal["none", "token", "sequence"]
Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Lora:
    """`model.lora`: train small adapters instead of all weights."""

    r: int = 16
    """Rank."""
    alpha: float = 32.0
    """The adapter's output is scaled by alpha / r."""
    dropout: float = 0.0
    """Dropout on the adapter's input while learning."""
    targets: tuple[str, ...] = ()
    """Names of the linear modules to adapt; empty for all of them."""


@dataclass(frozen=True)
class Model:
    """`[model]`"""

    name: str = "smollm2-135m"
    """A known model (`uptrend models list`), a hub id, or a folder."""
    weights: Weights = "fp32"
    """The precision of the weights that train; arithmetic on a GPU is bf16 either way."""
    lora: Lora | None = None
    """Adapters; without them all weights train."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""


@dataclass(frozen=True)
class Tasks:
    """`[tasks]`: what the run trains on."""

    name: str = "arithmetic"
    """A taskset (`uptrend tasks list`), or `module:Class`."""
    seed: int = 0
    """Chooses and orders the tasks; not the run's seed."""
    train: int = 500
    """How many tasks to train on."""
    stages: tuple[dict[str, Any], ...] = ()
    """A curriculum: tables with `start` (a step) and whatever then changes of this section."""
    options: dict[str, Any] = field(default_factory=dict)
    """The taskset's own options."""


@dataclass(frozen=True)
class Eval:
    """`[eval]`: the fixed held-out set, never trained on."""

    name: str = "arithmetic"
    """A taskset, or `module:Class`."""
    seed: int = 0
    """Chooses the held-out tasks; the same for all runs that are compared."""
    tasks: int = 200
    """How many held-out tasks."""
    every: int = 20
    """Evaluate every so many steps; 0 for only before the first and after the last."""
    attempts: int = 0
    """Sampled attempts a task for pass@k, at the sampling temperature; 0 for greedy accuracy alone."""
    options: dict[str, Any] = field(default_factory=dict)
    """The taskset's own options."""


@dataclass(frozen=True)
class Sampling:
    """`[sampling]`"""

    groups: int = 16
    """Tasks a step."""
    size: int = 16
    """Rollouts a group."""
    temperature: float = 1.0
    """Divides the logits."""
    top_p: float = 1.0
    """Keep the likeliest tokens that together reach this probability; 1 keeps all."""
    top_k: int = 0
    """Keep this many likeliest tokens; 0 keeps all."""
    max_tokens: int = 8
    """The most tokens that the model may say in a turn."""
    max_turns: int = 1
    """The most turns of a rollout."""
    context: int = 2048
    """The most tokens of a rollout, prompt included."""
    max_prompt: int = 0
    """The most tokens of the first prompt; a longer one is a failed rollout, never cut. 0 leaves it to the context."""
    stop: tuple[str, ...] = ()
    """Texts that end a turn."""
    trim: bool = False
    """Leave a raw prompt's last spaces for the model to say: most tokenizers join them to the word that follows."""
    resample: int = 0
    """How many more times to draw groups in place of dead ones (all rewards equal); 0 keeps them."""
    rows: int = 0
    """The most rollouts sampled side by side; 0 for all of a step's."""


@dataclass(frozen=True)
class Kl:
    """`learning.kl`: stay near the model that the run began with."""

    beta: float = 0.0
    """The penalty's weight; at 0 no reference model is kept."""
    estimator: Estimator = "k3"
    """k2 and k3 act in the loss, k1 in the reward."""


@dataclass(frozen=True)
class Learning:
    """`[learning]`"""

    steps: int = 100
    """How many steps."""
    lr: float = 1e-5
    """The learning rate, once warm."""
    schedule: Schedule = "constant"
    """What the learning rate does after the warm-up; linear and cosine fall to 0 at the last step."""
    warmup: int = 0
    """Steps over which the learning rate rises from 0."""
    loss: Loss = "grpo"
    """How tokens are weighted and clipped; see docs/algo.md."""
    scale: Scale = "group"
    """Divide advantages by the deviation of the group's rewards, of the step's, or not at all."""
    baseline: Baseline = "mean"
    """What a reward is compared with: its group's mean, or the mean of the others."""
    clip_low: float = 0.2
    """The ratio of new to old probability is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """And above at 1 + clip_high (for cispo: at clip_high itself)."""
    kl: Kl = field(default_factory=Kl)
    """The penalty for leaving the reference."""
    entropy: float = 0.0
    """The weight of an entropy bonus."""
    skip_dead: bool = False
    """Keep groups whose advantages are all 0 from the learner: same update, less time, fewer records."""
    mask_truncated: bool = False
    """Leave rollouts that were cut by length out of the loss."""
    correction: Correction = "none"
    """Weight tokens or sequences by learner/sampler probability, for a sampler that is not exact."""
    correction_cap: float = 2.0
    """The most that such a weight may be."""
    updates: int = 1
    """Passes over a step's rollouts."""
    minibatches: int = 1
    """Optimizer updates a pass; must divide sampling.groups."""
    max_grad_norm: float = 1.0
    """Gradients longer than this are shortened to it; 0 for never."""
    weight_decay: float = 0.0
    """AdamW's."""
    beta1: float = 0.9
    """AdamW's memory of the gradient."""
    beta2: float = 0.999
    """AdamW's memory of its square."""
    tokens: int = 16384
    """Tokens a micro-batch, padding included; changes memory and speed, never the result."""


@dataclass(frozen=True)
class Warmstart:
    """`[warmstart]`: supervised learning on the scripted expert's rollouts, by `uptrend warmstart`."""

    tasks: int = 500
    """How many training tasks the expert demonstrates."""
    epochs: int = 1
    """How often each demonstration is learned from."""
    batch: int = 16
    """Demonstrations an update."""
    lr: float = 2e-5
    """The learning rate, once warm."""
    schedule: Schedule = "linear"
    """What the learning rate does after the warm-up."""
    warmup: int = 0
    """Updates over which the learning rate rises from 0."""


@dataclass(frozen=True)
class Checkpoints:
    """`[checkpoints]`"""

    every: int = 0
    """Save every so many steps; 0 for only after the last (and when interrupted)."""
    keep: int = 1
    """How many to keep; older ones are removed."""


@dataclass(frozen=True)
class Doctor:
    """`[doctor]`: who looks on while `uptrend train` runs."""

    live: bool = True
    """Whether checks run on the records as they are written, in a process of their own."""
    stop_on: Literal["never", "warning", "critical"] = "never"
    """The least severity of a finding that ends the run, with a checkpoint."""


@dataclass(frozen=True)
class Compute:
    """`[compute]`"""

    device: str = "auto"
    """cpu, cuda, or auto."""
    threads: int = 0
    """CPU threads; 0 for OMP_NUM_THREADS, else one per core. Same threads, same numbers."""
    compile: Literal["auto", "never", "always"] = "auto"
    """Whether to compile the model: auto does where a run is long enough to pay it back."""


@dataclass(frozen=True)
class Config:
    """A whole recipe."""

    name: str = "run"
    """What the run is called."""
    seed: int = 0
    """The run's seed: sampling, order of tasks, dropout."""
    model: Model = field(default_factory=Model)
    tasks: Tasks = field(default_factory=Tasks)
    eval: Eval = field(default_factory=Eval)
    sampling: Sampling = field(default_factory=Sampling)
    learning: Learning = field(default_factory=Learning)
    warmstart: Warmstart = field(default_factory=Warmstart)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    doctor: Doctor = field(default_factory=Doctor)
    compute: Compute = field(default_factory=Compute)
