"""Work that benchmarks/step.py gives: models by shape, ends of rollouts, several turns; and the
figures of a step.

Models are folders, so that every trainer reads the same.
"""

import json
import random
import shutil
import statistics
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
)

from uptrend.policy.known import find_model
from uptrend.records import Message, Task
from uptrend.tasks.answers import OneTurn
from uptrend.tasksets.arithmetic import Arithmetic, ArithmeticOptions
from uptrend.training.learner import Learner

# Steps of each contestant that are reported apart.
WARM = 3
# Names of LlamaConfig's fields, and their values by shape; `trial` is for a CPU.
FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
          "vocab_size", "tie_word_embeddings", "dtype")  # fmt: skip
SHAPES: dict[str, tuple[Any, ...]] = {
    "trial": (64, 2, 4, 2, 128, 50_000, False, "bfloat16"),
    "135m": (576, 30, 9, 3, 1536, 49_152, True, "float32"),  # SmolLM2's
    "0.5b": (1024, 24, 16, 4, 4096, 49_152, True, "float32"),
    "7b": (3584, 28, 28, 4, 18_944, 152_064, False, "bfloat16"),  # Qwen2.5's
}
# Rollouts and tokens of each that the share of tokens which end one is measured on.
ROWS, LONGEST = 64, 128


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def sync() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def make_shape(name: str, tokenizer: str, into: Path) -> Path:
    """Write a model of random weights, made on the GPU where there is one; return its folder."""
    source = tokenizer if Path(tokenizer).is_dir() else find_model(tokenizer)
    words = AutoTokenizer.from_pretrained(source)
    ends = {
        "bos_token_id": None,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
    }
    config = LlamaConfig(
        **dict(zip(FIELDS, SHAPES[name], strict=True)), **ends, max_position_embeddings=32_768
    )
    torch.manual_seed(0)
    with device():
        model = AutoModelForCausalLM.from_config(config, dtype=config.dtype)
    model.save_pretrained(into)
    words.save_pretrained(into)
    return into


def sample(folder: str, prompts: Sequence[str], tokens: int) -> np.ndarray:
    """Let the model go on after prompts, past every end; return the ids."""
    words = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16 if device().type == "cuda" else None
    )
    model.generation_config = GenerationConfig(pad_token_id=words.pad_token_id)  # without an end
    given = words(list(prompts), return_tensors="pt", padding=True).to(device())
    torch.manual_seed(0)
    out = model.to(device()).generate(
        input_ids=given.input_ids,
        attention_mask=given.attention_mask,
        do_sample=True,
        top_k=0,
        max_new_tokens=tokens,
    )
    return np.asarray(out[:, given.input_ids.shape[1] :].cpu())


def choose_ends(ids_nt: np.ndarray, vocabulary: int, rate: float) -> tuple[list[int], float]:
    """Choose tokens at random until about `rate` of the sampled ones end a rollout; return them and
    the share.

    Frequent tokens come last: with many rare ones, what the model learns changes little.
    """
    counts = np.bincount(ids_nt.ravel(), minlength=vocabulary)
    draw = random.Random(0).random
    candidates = sorted(
        range(vocabulary), key=lambda i: (max(int(counts[i]), rate / 4 * ids_nt.size), draw())
    )
    rank_nt = np.argsort(candidates)[ids_nt]

    def share(chosen: int) -> float:
        is_end_nt = rank_nt < chosen
        ended_n = is_end_nt.any(1)
        lengths_n = np.where(ended_n, is_end_nt.argmax(1) + 1, ids_nt.shape[1])
        return float(ended_n.sum() / lengths_n.sum())

    enough = bisect_left(range(len(candidates)), rate, key=share)
    chosen = max(1, min(enough, enough - 1, key=lambda count: abs(share(count) - rate)))
    return candidates[:chosen], share(chosen)


def with_ends(
    folder: str, prompts: Sequence[str], tokens: int, rate: float, into: Path
) -> tuple[Path, float]:
    """Make the same model with other tokens that end a rollout; return its folder and their
    measured share.

    The ends that it has end nothing any more: else lengths would depend on what it has learned.
    Uptrend stops at the union of the ids in generation_config.json, config.json and the tokenizer,
    TRL 1.16 at those of the first and the last, with its completion mask; so all three change.
    """
    shutil.copytree(folder, into, ignore=shutil.ignore_patterns("*.safetensors"))
    for weights in Path(folder).glob("*.safetensors"):
        (into / weights.name).symlink_to(weights.resolve())
    words = AutoTokenizer.from_pretrained(folder)
    ids_nt = sample(folder, [prompts[i % len(prompts)] for i in range(ROWS)], min(tokens, LONGEST))
    ends, share = choose_ends(ids_nt, AutoConfig.from_pretrained(folder).vocab_size, rate)
    # The tokenizer's own end becomes a special token, which must not occur in a prompt.
    taken = {*words.all_special_ids, *(i for ids in words(list(prompts)).input_ids for i in ids)}
    own = next(i for i in ends if i in {*words.get_vocab().values()} - taken)
    words.eos_token = words.convert_ids_to_tokens(own)
    words.save_pretrained(into)
    for file, value in {"config.json": own, "generation_config.json": ends}.items():
        told = json.loads((into / file).read_text())
        (into / file).write_text(json.dumps(told | {"eos_token_id": value}))
    return into, share


@dataclass(frozen=True, kw_only=True)
class RepliesOptions(ArithmeticOptions):
    """The options of `Replies`."""

    turns: int = 2
    text: str = " Go on: "


class Replies(Arithmetic):
    """Arithmetic in which the task answers with the same text until the turns are over; the last
    answer counts.
    """

    name: ClassVar[str] = "replies"
    Options: ClassVar[type[Any]] = RepliesOptions

    def open(self, task: Task, seed: int) -> "Replying":  # noqa: ARG002
        return Replying(task, self.options)


class Replying(OneTurn):
    """Replies to every turn but the last."""

    def __init__(self, task: Task, options: RepliesOptions) -> None:
        super().__init__(task, options.reward)
        self._left, self._text = options.turns, options.text

    async def respond(self, message: Message) -> Sequence[Message] | None:
        await super().respond(message)
        self._left -= 1
        return [Message("user", self._text)] if self._left else None


def text_of(folder: str, tokens: int) -> str:
    """Return a text of about so many tokens."""
    words = AutoTokenizer.from_pretrained(folder)
    return str(
        words.decode(words(" and so on" * tokens, add_special_tokens=False).input_ids[:tokens])
    )


@dataclass(frozen=True)
class Work:
    """What a step's rollouts ask of a model in one pass: a group's prompt once, no padding, nothing
    twice.
    """

    rollouts: int
    sampled: int  # tokens that the model wrote
    tokens: int  # tokens through the layers
    pairs: int  # pairs of tokens in attention


def rows_of(rollout: Any) -> Iterator[tuple[str, int, int, int]]:
    """Return group, prompt, tail and sampled tokens of each sequence of a rollout."""
    for sequence in rollout.sequences:
        sampled, whole = int(sequence.sampled.sum()), len(sequence.ids)
        prompt = int(sequence.sampled.argmax()) if sampled else whole
        yield rollout.group, prompt, whole - prompt, sampled


def work_of(rollouts: Iterable[tuple[str, int, int, int]]) -> Work:
    """Add up rollouts: group, tokens of the prompt, tokens after it, and how many of those the
    model wrote.
    """
    rows, prompts = list(rollouts), dict[str, int]()
    for group, prompt, _, _ in rows:
        prompts[group] = prompt
    return Work(
        len(rows),
        sum(sampled for *_, sampled in rows),
        sum(prompts.values()) + sum(tail for _, _, tail, _ in rows),
        sum(p * (p + 1) // 2 for p in prompts.values())
        + sum(p * n + n * (n + 1) // 2 for _, p, n, _ in rows),
    )


@dataclass(frozen=True)
class Cost:
    """Cost of a step: a forward pass to sample, further ones, and passes with a gradient."""

    layers: int  # weights of the layers
    head: int  # weights of the output head, applied to sampled tokens alone
    attention: int  # layers times channels of attention
    forwards: int  # by the reference, and before several updates
    updates: int
    frozen: bool  # weights need no gradient: adapters are trained, whose own cost is left out

    @classmethod
    def of(cls, folder: str, *, forwards: int, updates: int, frozen: bool) -> "Cost":
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        named = {name: p.numel() for name, p in model.named_parameters()}
        layers = sum(
            n for name, n in named.items() if "embed" not in name and "lm_head" not in name
        )
        channels = config.num_attention_heads * (getattr(config, "head_dim", 0) or 0)
        attention = config.num_hidden_layers * (channels or config.hidden_size)
        return cls(
            layers,
            model.get_output_embeddings().weight.numel(),
            attention,
            forwards,
            updates,
            frozen,
        )

    def flops(self, work: Work) -> float:
        """Operations of a step; 2 per weight and token forwards, 4 backwards, 4 per pair and
        channel.
        """
        dense = 2.0 * (self.layers * work.tokens + self.head * work.sampled)
        pairs = 4.0 * self.attention * work.pairs
        return (1 + self.forwards) * (dense + pairs) + self.updates * (
            (2 if self.frozen else 3) * dense + 3 * pairs
        )

    def tokens(self, work: Work) -> int:
        """Tokens through the model, in all passes of a step."""
        return (1 + self.forwards + self.updates) * work.tokens


@dataclass
class Timing:
    """Course of one contestant, with one entry per step."""

    seconds: list[float] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    phases: list[dict[str, float]] = field(default_factory=list)
    recorder: list[float] = field(
        default_factory=list
    )  # CPU seconds of the recorder's thread, so far
    used: float = 0.0  # GiB of the device in use at most, at the end of a step, by whoever

    def add(self, began: float) -> None:
        """Take the time of a step; before anything else is counted."""
        sync()
        self.seconds.append(time.perf_counter() - began)
        if torch.cuda.is_available():
            free, whole = torch.cuda.mem_get_info()
            self.used = max(self.used, (whole - free) / 2**30)


def memory(timing: Timing) -> dict[str, float]:
    """GiB at most in this process: torch's on a GPU, and the whole device's at the ends of steps;
    else the host's.
    """
    if torch.cuda.is_available():
        # Graphs keep their memory in pools of their own, which are reserved; the driver's share
        # counts in `used`.
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return {"allocated": peaks[0] / 2**30, "reserved": peaks[1] / 2**30, "used": timing.used}
    # Not getrusage, which in a process that was just started counts the peak of the one that
    # started it.
    status = Path("/proc/self/status")  # Linux's
    told = status.read_text().partition("VmHWM:")[2] if status.exists() else ""
    return {"host": int(told.split()[0]) / 2**20} if told else {}


def summary(timing: Timing, cost: Cost, peak: float | None) -> dict[str, Any]:
    warm, work = timing.seconds[WARM:], timing.work[WARM:]
    quartiles = statistics.quantiles(warm, n=4) if len(warm) > 1 else [float("nan")] * 3
    phases = {
        k: statistics.median(p[k] for p in timing.phases[WARM:] if k in p)
        for k in (timing.phases or [{}])[-1]
    }
    rates = {
        "sampled_per_s": statistics.median(w.sampled / s for w, s in zip(work, warm, strict=True)),
        "tokens_per_s": statistics.median(
            cost.tokens(w) / s for w, s in zip(work, warm, strict=True)
        ),
        "tflops": statistics.median(
            cost.flops(w) / s / 1e12 for w, s in zip(work, warm, strict=True)
        ),
    }
    return {
        "median": statistics.median(warm), "q1": quartiles[0], "q3": quartiles[2], "first": timing.seconds[0],
        "steps": len(warm), "seconds": timing.seconds, "reward_first": statistics.mean(timing.rewards[:3]),
        "reward_last": statistics.mean(timing.rewards[-3:]), "phases": phases,
        "length": sum(w.sampled for w in work) / sum(w.rollouts for w in work), **rates,
        "mfu": rates["tflops"] / peak if peak else None,
    }  # fmt: skip


@contextmanager
def phase(name: str, *, is_on: bool = True) -> Iterator[None]:
    """Name a phase in the profile; a GPU's kernels are waited for, so that they begin inside of
    it.
    """
    if not is_on:
        yield
        return
    with torch.profiler.record_function(f"phase/{name}"):
        yield
        sync()


class PhasedLearner(Learner):
    """Learner whose passes are phases of a profile."""

    def logprobs(self, *given: Any, **named: Any) -> Any:
        with phase("reference" if named["reference"] else "old"):
            return super().logprobs(*given, **named)

    def update(self, *given: Any, **named: Any) -> Any:
        with phase("update"):
            return super().update(*given, **named)


def print_profile(profiler: Any) -> None:
    """Print what took longest in a step, on the device and on the host."""
    on_host = torch.autograd.DeviceType.CPU
    events = [
        e for e in profiler.events() if e.device_type != on_host and not e.name.startswith("phase/")
    ]
    averages = [e for e in profiler.key_averages() if not e.key.startswith("phase/")]
    phases = [
        e for e in profiler.events() if e.device_type == on_host and e.name.startswith("phase/")
    ]
    for name in dict.fromkeys(p.name for p in phases):
        spans = [p.time_range for p in phases if p.name == name]
        inside = [e for e in events if any(s.start <= e.time_range.start <= s.end for s in spans)]
        busy, long = (
            sum(t.elapsed_us() for t in ts) for ts in ([e.time_range for e in inside], spans)
        )
        print(
            f"profile  {name}: {long / 1e3:.2f} ms, kernels {busy / 1e3:.2f} ms in {len(inside)} launches"
        )
    tables = {
        "device": (
            25,
            [(e.self_device_time_total, e) for e in averages if e.device_type != on_host],
        ),
        "host": (15, [(e.self_cpu_time_total, e) for e in averages if e.device_type == on_host]),
    }
    for where, (most, rows) in tables.items():
        whole = sum(microseconds for microseconds, _ in rows)
        print(f"profile  {where}: {whole / 1e3:.2f} ms in all")
        for microseconds, e in sorted(rows, key=lambda row: -row[0])[:most]:
            print(
                f"  {microseconds / 1e3:9.3f} ms {microseconds / max(whole, 1):6.1%} {e.count:7} x  {e.key[:100]}"
            )
