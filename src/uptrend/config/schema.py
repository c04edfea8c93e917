"""Keys of a recipe: each with its default, its bounds and its meaning, which `uptrend explain` and
the site show.

`[tasks]` and `[eval]` also take the options of the taskset that they name: `tasks.pool` checks them
against its dataclass. `[[tasks]]`, a list of such tables, trains on several tasksets in one run.
"""

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NewType

from annotated_types import Ge, Gt, Le, Lt, Predicate

Weights = Literal["fp32", "bf16"]
Loss = Literal["grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo"]
# A function of a user's own: module:function or file.py:function.
FunctionName = NewType("FunctionName", str)
Scale = Literal["group", "batch", "none"]
Baseline = Literal["mean", "leave_one_out"]
Estimator = Literal["k1", "k2", "k3"]
Correction = Literal["none", "token", "sequence"]
CorrectionMode = Literal["truncate", "mask"]
Credit = Literal["rollout", "turn"]
Engine = Literal["in-process", "vllm"]
Parallel = Literal["auto", "ddp", "fsdp2", "zero3"]
Optimizers = Literal["adamw", "adamw-8bit"]
Schedule = Literal["constant", "linear", "cosine"]
TrackerName = Literal["wandb", "trackio", "tensorboard", "mlflow"]
Chat = Literal["auto", True, False]
Draw = Literal["order", "pass-rate"]

DEVICE_PATTERN = re.compile(r"auto|cpu|cuda(:\d+)?")
FOLDER_PATTERN = re.compile(r"[^\s./\\][^/\\\x00]*")
VARIABLE_PATTERN = re.compile(r"(\$[A-Za-z_]\w*)?")


@dataclass(frozen=True)
class Otherwise:
    """Sentence about a value outside its field's bounds, instead of the general one."""

    sentence: str


@dataclass(frozen=True)
class Chosen:
    """Sentence on the value of a field that its recipe leaves out, where the run chooses it."""

    sentence: str


# Values of [sampling] for tasksets that have none of their own (`SAMPLING_LIMITS`).
DEFAULT_MAX_TOKENS = 512
DEFAULT_CONTEXT = 2048
# Steps of the warm-up that a recipe leaves out, and the share of the run that it takes at most.
# Adam's first steps move each weight by the full rate, whatever the gradient's size.
WARMUP_STEPS = 5
MAX_CHOSEN_WARMUP_SHARE = 0.1
OWN_LIMIT = "the taskset's own"


@dataclass(frozen=True)
class Lora:
    """`model.lora`: train small adapters instead of all weights."""

    r: Annotated[int, Ge(1)] = 16
    """Rank."""
    alpha: Annotated[float, Gt(0)] = 32.0
    """Scale of the adapter's output: it is multiplied by alpha / r."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Dropout on the adapter's input during updates."""
    targets: tuple[str, ...] = ()
    """Names of the linear modules to adapt; empty for all of them."""


@dataclass(frozen=True)
class Model:
    """`[model]`"""

    name: Annotated[str, Predicate(str.strip), Otherwise("it is empty.")] = "smollm2-135m"
    """Known model (`uptrend models list`), hub id, or folder."""
    weights: Weights = "fp32"
    """Precision of the weights that train; arithmetic on a GPU is bf16 either way."""
    lora: Lora | None = None
    """Adapters; without them all weights train."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    chat: Chat = "auto"
    """Send prompts through the model's chat template, unless the tasks decide it; auto: if it
    improves the model's answers.
    """
    template: dict[str, Any] = field(default_factory=dict)
    """Variables of the chat template, for example { enable_thinking = false }."""


@dataclass(frozen=True)
class Tasks:
    """`[tasks]`: what the run trains on."""

    name: Annotated[str, Predicate(str.strip), Otherwise("it is empty.")] = "arithmetic"
    """Taskset (`uptrend tasks list`), or `module:Class`."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the choice and order of tasks; independent of the run's seed."""
    train: Annotated[int, Ge(1)] = 500
    """Number of tasks to train on."""
    draw: Draw = "order"
    """Draw tasks in a shuffled order, or only those whose pass rate, a running estimate, is between
    `pass_low` and `pass_high`.
    """
    pass_low: Annotated[float, Ge(0), Le(1)] = 0.02
    """Lowest estimated pass rate of a task that is drawn, with `draw = "pass-rate"`."""
    pass_high: Annotated[float, Ge(0), Le(1)] = 0.9
    """Highest estimated pass rate of a task that is drawn, with `draw = "pass-rate"`."""
    stages: tuple[dict[str, Any], ...] = ()
    """Curriculum: tables with `start` (a step) and the keys of this section that change then."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the taskset."""


@dataclass(frozen=True)
class TaskSource:
    """One of `[[tasks]]`, beside the keys of `[tasks]`."""

    tasks: Tasks
    label: str = ""
    """Name in metrics, records and `--set tasks.LABEL.KEY=VALUE`; by default the taskset's name."""
    weight: Annotated[
        float,
        Gt(0),
        Otherwise("it should be above 0: leave a taskset out to draw nothing from it."),
    ] = 1.0
    """Share of a step's groups, as a part of all weights."""

    @property
    def where(self) -> str:
        """Beginning of its keys in messages and overrides."""
        return f"tasks.{self.label}" if self.label else "tasks"


@dataclass(frozen=True)
class Eval:
    """`[eval]`: the fixed held-out set, never trained on."""

    name: str = "arithmetic"
    """Taskset, or `module:Class`; by default that of `[tasks]` with its options. Empty with several
    `[[tasks]]`: the held-out tasks of each, in `sets`, and all of them together.
    """
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the choice of held-out tasks; the same for all runs that are compared."""
    tasks: Annotated[int, Ge(1)] = 200
    """Number of held-out tasks."""
    every: Annotated[int, Ge(0)] = 20
    """Steps between evaluations; 0 for only before the first step and after the last."""
    attempts: Annotated[int, Ge(0)] = 0
    """Sampled attempts per task for pass@k; 0 for greedy accuracy alone."""
    max_tokens: Annotated[int, Ge(0)] = 0
    """Maximum tokens of a turn in evaluations; 0 for sampling.max_tokens."""
    max_turns: Annotated[int, Ge(0)] = 0
    """Maximum turns of a rollout in evaluations; 0 for sampling.max_turns."""
    context: Annotated[int, Ge(0)] = 0
    """Maximum tokens of a rollout in evaluations; 0 for sampling.context."""
    temperature: Annotated[float, Ge(0)] = 0.0
    """Temperature of the sampled attempts; 0 for sampling.temperature."""
    sets: tuple[dict[str, Any], ...] = ()
    """Further held-out sets: tables with `label` and the keys of this section that differ. Accuracy
    is the first set's.
    """
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the taskset."""


@dataclass(frozen=True)
class Sampling:
    """`[sampling]`"""

    groups: Annotated[int, Ge(1)] = 16
    """Tasks per step."""
    size: Annotated[
        int,
        Ge(2),
        Otherwise(
            "a group of one has nothing to compare with. Use at least 2; 8 or 16 learn well."
        ),
    ] = 16
    """Rollouts per group."""
    temperature: Annotated[
        float, Gt(0), Otherwise("all rollouts of a group would be the same. Use 0.7 to 1.0.")
    ] = 1.0
    """Divisor of the logits."""
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    """Keep the likeliest tokens that together reach this probability; 1 keeps all."""
    top_k: Annotated[int, Ge(0)] = 0
    """Keep this many likeliest tokens; 0 keeps all (with top_p or min_p: of the 1,024
    likeliest).
    """
    min_p: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Keep tokens whose probability is at least min_p × the likeliest one's; 0 keeps all."""
    repetition_penalty: Annotated[float, Gt(0)] = 1.0
    """Divisor of positive logits, and factor of negative ones, of tokens that the context has
    already; 1 for no penalty.
    """
    max_tokens: Annotated[
        int,
        Ge(1),
        Chosen(f"{OWN_LIMIT}: arithmetic 8, musique and mlgym 256, others {DEFAULT_MAX_TOKENS}"),
    ] = DEFAULT_MAX_TOKENS
    """Maximum tokens of a turn."""
    max_turns: Annotated[int, Ge(1), Chosen(f"{OWN_LIMIT}: musique 8, mlgym 10, others 1")] = 1
    """Maximum turns of a rollout."""
    context: Annotated[
        int, Chosen(f"{OWN_LIMIT}: musique and mlgym 4096, others {DEFAULT_CONTEXT}")
    ] = DEFAULT_CONTEXT
    """Maximum tokens of a rollout, prompt included."""
    max_prompt: Annotated[int, Ge(0)] = 0
    """Maximum tokens of the first prompt; a longer one is a failed rollout, never cut. 0 leaves it
    to the context.
    """
    stop: Annotated[
        tuple[str, ...],
        Predicate(all),
        Otherwise("it holds an empty text, which would end every turn at once."),
    ] = ()
    """Texts that end a turn."""
    trim: bool = False
    """Cut the spaces at the end of a raw prompt, for the model to write: most tokenizers join them
    to the word that follows.
    """
    overlong: Annotated[int, Ge(0)] = 0
    """Tokens before the limit over which a penalty on a rollout's length rises from 0 to
    `overlong_penalty`.
    """
    overlong_penalty: Annotated[float, Gt(0)] = 1.0
    """Maximum penalty on a rollout's length, subtracted from its reward; a rollout that the limit
    cut gets all of it.
    """
    resample: Annotated[int, Ge(0)] = 0
    """Number of times to draw groups in place of dead ones (all rewards equal); 0 keeps them."""
    rows: Annotated[int, Ge(0)] = 0
    """Maximum number of rollouts sampled side by side; 0 for all of a step's."""
    tool_timeout: Annotated[float, Ge(0)] = 600.0
    """Seconds after which a play that responds, scores or closes has failed; waiting for its turn
    does not count. 0 for no limit.
    """
    rollout_timeout: Annotated[float, Ge(0)] = 0.0
    """Seconds after which a rollout's turns end, the current one unfinished; it is scored as it is.
    0 for no limit.
    """
    engine: Engine = "in-process"
    """Sampler: the training process itself, or vLLM servers (`uptrend models serve RECIPE` starts
    one).
    """
    servers: tuple[str, ...] = ("http://127.0.0.1:8000",)
    """Addresses of the vLLM servers; streams are spread over them, and go to another if one fails.
    """
    ahead: Annotated[int, Ge(0)] = 0
    """Steps that rollouts may be older than the weights that learn from them: they are sampled
    during updates. 0 waits.
    """
    retries: Annotated[int, Ge(0)] = 2
    """Number of times to play a rollout again if its sandbox failed; an error of the task itself is
    recorded.
    """


@dataclass(frozen=True)
class Kl:
    """`learning.kl`: stay near the model that the run began with."""

    beta: Annotated[float, Ge(0)] = 0.0
    """Weight of the penalty; at 0 no reference model is kept."""
    estimator: Estimator = "k3"
    """Estimator of the KL divergence; k2 and k3 act in the loss, k1 in the reward."""
    reset_every: Annotated[int, Ge(0)] = 0
    """Steps after which the policy becomes the reference, again and again; 0 for never."""


@dataclass(frozen=True)
class Learning:
    """`[learning]`"""

    steps: Annotated[int, Ge(1)] = 100
    """Number of steps."""
    lr: Annotated[
        float,
        Gt(0),
        Le(1),
        Chosen(
            "by the model's size: 1e-5 below a billion weights, 1e-6 from there up; ten times that"
            " with model.lora"
        ),
    ] = 1e-5
    """The learning rate, once warm. A step of Adam moves each weight by about the rate, so more
    weights move the output further; adapters are few and begin at zero. The run's first lines say
    which rate was chosen.
    """
    schedule: Schedule = "constant"
    """Course of the learning rate after the warm-up; linear and cosine fall to 0 at the last
    step.
    """
    warmup: Annotated[
        int, Ge(0), Chosen(f"{WARMUP_STEPS}, or a tenth of learning.steps where that is less")
    ] = WARMUP_STEPS
    """Steps over which the learning rate rises from 0."""
    loss: Loss | FunctionName = "dapo"
    """Variant of the loss: how tokens are weighted and clipped; or your own, as `module:function`
    or `file.py:function`.
    """
    advantages: Literal["group"] | FunctionName = "group"
    """Rewards compared with their group's; or your own advantages, as `module:function` or
    `file.py:function`.
    """
    scale: Scale = "group"
    """Divide advantages by the deviation of the group's rewards, of the step's, or not at all."""
    baseline: Baseline = "mean"
    """Level that a reward is compared with: its group's mean, or the mean of the others."""
    credit: Credit = "rollout"
    """Credit for rewards: to the whole rollout, or, if a task gives rewards by turn, to each turn
    for those that follow it.
    """
    clip_low: Annotated[float, Ge(0), Chosen("0.2; with gspo 3e-4")] = 0.2
    """Lower clip: the ratio of new to old probability is clipped at 1 - clip_low."""
    clip_high: Annotated[float, Ge(0), Chosen("0.2; with gspo 4e-4, with cispo 5")] = 0.2
    """Upper clip: the ratio is clipped at 1 + clip_high (for cispo: at clip_high itself)."""
    clip_max: Annotated[float, Ge(0)] = 0.0
    """Bound of the ratio for negative advantages (two-sided clipping), for example 4; 0 for
    none.
    """
    kl: Kl = field(default_factory=Kl)
    """Penalty for leaving the reference."""
    entropy: float = 0.0
    """Weight of an entropy bonus."""
    skip_dead: bool = False
    """Keep groups whose advantages are all 0 from the learner: same update, less time, fewer
    records.
    """
    mask_truncated: bool = False
    """Leave rollouts that were cut by length, context, turns or time out of the loss."""
    correction: Annotated[
        Correction,
        Chosen(
            'none; with sampling.engine = "vllm" or sampling.ahead token, with correction_mode ='
            ' "mask", correction_floor = 0.5 and correction_cap = 5'
        ),
    ] = "none"
    """Weight tokens or sequences by learner/sampler probability, for a sampler that is not
    exact.
    """
    correction_cap: Annotated[float, Gt(0), Chosen("2; beside a correction that is chosen 5")] = 2.0
    """Upper bound of these weights."""
    correction_floor: Annotated[
        float, Ge(0), Chosen("0; beside a correction that is chosen 0.5")
    ] = 0.0
    """Lower bound of these weights."""
    correction_mode: Annotated[
        CorrectionMode, Chosen("truncate; beside a correction that is chosen mask")
    ] = "truncate"
    """Set weights outside these bounds to the bound, or to 0 (mask, as IcePop does with 0.5 to 5).
    """
    updates: Annotated[int, Ge(1)] = 1
    """Passes over a step's rollouts."""
    minibatches: Annotated[int, Ge(1)] = 1
    """Optimizer updates per pass; must divide sampling.groups."""
    max_grad_norm: Annotated[float, Ge(0)] = 1.0
    """Norm above which gradients are clipped to it; 0 for never."""
    optimizer: Optimizers = "adamw"
    """Optimizer; `adamw-8bit` keeps AdamW's moments in 8 bits: 2 bytes per weight instead of 8
    (extra `eightbit`).
    """
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """AdamW's weight decay, of all weights but norms and biases."""
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    """AdamW's decay of the mean gradient."""
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.999
    """AdamW's decay of the mean squared gradient."""
    tokens: Annotated[
        int, Ge(0), Chosen("0 on a GPU; 16384 on a CPU, and where weights are sharded")
    ] = 16384
    """Tokens per micro-batch, filler included; changes memory and speed, never the result. 0 takes
    as many as fit.
    """


@dataclass(frozen=True)
class Warmstart:
    """`[warmstart]`: supervised learning on the scripted expert's rollouts, or on recorded
    conversations, by `uptrend warmstart`.
    """

    file: str = ""
    """Conversations to imitate in place of the expert: a .jsonl file, each line an object with
    `messages` of `role` and `content`; the assistant's are learned. `sampling.context` bounds a
    conversation. A relative path starts at the recipe's folder, else at the current one.
    """
    tasks: Annotated[int, Ge(1)] = 500
    """Number of training tasks that the expert demonstrates, or of conversations from the start of
    `file`.
    """
    per_task: Annotated[int, Ge(1)] = 1
    """Demonstrations of each task, if its taskset has scripts of mixed quality to imitate."""
    epochs: Annotated[int, Ge(1)] = 1
    """Passes over the demonstrations."""
    batch: Annotated[int, Ge(1)] = 16
    """Demonstrations per update."""
    lr: Annotated[float, Gt(0), Le(1), Chosen("2e-5; 2e-4 with model.lora")] = 2e-5
    """The learning rate, once warm."""
    schedule: Schedule = "linear"
    """Course of the learning rate after the warm-up."""
    warmup: Annotated[int, Ge(0)] = 0
    """Updates over which the learning rate rises from 0."""


@dataclass(frozen=True)
class Checkpoints:
    """`[checkpoints]`"""

    every: Annotated[int, Ge(0)] = 50
    """Steps between checkpoints, beside those after the last step and when interrupted, which are
    all at 0.
    """
    keep: Annotated[int, Ge(1)] = 1
    """Number of checkpoints to keep; older ones are removed."""
    best: bool = False
    """Also keep the checkpoint of the highest held-out accuracy, as `checkpoints/best`; of equal
    ones the earliest.
    """


@dataclass(frozen=True)
class Doctor:
    """`[doctor]`: checks while `uptrend train` runs."""

    live: bool = True
    """Run checks on the records as they are written, in a process of their own."""
    stop_on: Literal["never", "warning", "critical"] = "never"
    """Lowest severity of a finding that ends the run, with a checkpoint."""


@dataclass(frozen=True)
class Track:
    """`[track]`: services that show a run as it goes on. They do not change it."""

    to: tuple[TrackerName, ...] = ()
    """Trackers that receive metrics, evaluations, sample rollouts and findings."""
    project: Annotated[str, Predicate(str.strip), Otherwise("it is empty.")] = "uptrend"
    """Project of the trackers, MLflow's experiment."""
    name: str = ""
    """Name of the run in the trackers; empty for the name of its directory."""
    rollouts: Annotated[int, Ge(0)] = 4
    """Number of sample rollouts of the first step and of each that is evaluated; 0 for none."""
    webhook: Annotated[
        str,
        Predicate(VARIABLE_PATTERN.fullmatch),
        Otherwise(
            "name the environment variable that holds the URL, such as $SLACK_URL: run.json keeps"
            " no secrets."
        ),
    ] = ""
    """Environment variable with the URL that warnings and critical findings are posted to, such as
    `$SLACK_URL`.
    """


@dataclass(frozen=True)
class Compute:
    """`[compute]`"""

    device: Annotated[
        str, Predicate(DEVICE_PATTERN.fullmatch), Otherwise("it should be auto, cpu or cuda.")
    ] = "auto"
    """Device of the model: cpu, cuda, or auto."""
    parallel: Parallel = "auto"
    """Weights of several processes: each has all of them (ddp), or a part (fsdp2, zero3); auto asks
    accelerate, else ddp.
    """
    processes: Annotated[int, Ge(1)] = 1
    """Number of processes with which the lab starts this recipe. Elsewhere torchrun or accelerate
    sets it.
    """
    threads: Annotated[int, Ge(0)] = 0
    """CPU threads; 0 for OMP_NUM_THREADS, else one per core, or one beside a GPU. Same threads,
    same numbers.
    """
    compile: Literal["auto", "never", "always"] = "auto"
    """Compile layers; auto does it on a GPU if the time that it saves the rest of a run is twice
    what it takes.
    """


@dataclass(frozen=True)
class Config:
    """A whole recipe."""

    name: Annotated[
        str,
        Predicate(FOLDER_PATTERN.fullmatch),
        Otherwise(
            "it becomes a folder: use letters, digits and hyphens, for example arithmetic-lr-2e-5."
        ),
    ] = "run"
    """Name of the run."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the run: of sampling, the order of tasks and dropout."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Sentences for the notes of run.json; a value that was adjusted or chosen adds one."""
    omitted: frozenset[str] = field(default=frozenset(), compare=False)
    """Dotted keys that the recipe leaves out, without those that were chosen since; none of a
    config that was not loaded.
    """
    model: Model = field(default_factory=Model)
    tasks: Tasks = field(default_factory=Tasks)
    sources: tuple[TaskSource, ...] = ()
    """Tasksets of `[[tasks]]`, of which `tasks` is the first; empty for one taskset."""
    eval: Eval = field(default_factory=Eval)
    sampling: Sampling = field(default_factory=Sampling)
    learning: Learning = field(default_factory=Learning)
    warmstart: Warmstart = field(default_factory=Warmstart)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    doctor: Doctor = field(default_factory=Doctor)
    track: Track = field(default_factory=Track)
    compute: Compute = field(default_factory=Compute)

    @property
    def all_sources(self) -> tuple[TaskSource, ...]:
        """Tasksets that the run trains on: those of `[[tasks]]`, or that of `[tasks]`."""
        return self.sources or (TaskSource(self.tasks),)

    @property
    def longest(self) -> int:
        """Maximum tokens of a rollout, those of evaluations included."""
        set_contexts = [int(table.get("context", 0)) for table in self.eval.sets]
        return max(self.sampling.context, self.eval.context, *set_contexts)
