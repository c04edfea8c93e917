"""Causes that curves alone show: a healthy run, bent in one way, and the causes named with their
severity.
"""

from typing import Any

import numpy as np
import pytest

from curve_runs import STEPS, evaluations, findings, flat, healthy, lacks, ramp, severities
from uptrend.doctor.diagnose import diagnose
from uptrend.records import Basis, RunView, Severity

NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
REWARD, SPREAD, CORRECT = "reward/mean", "reward/group_std/mean", "reward/correct/share"
KL, LOSS, ENTROPY, DEAD = (
    "kl/reference/mean",
    "loss/total",
    "learner/entropy/mean",
    "advantage/dead/share",
)
RATE, NORM, AFTER = "optimizer/lr", "gradient/norm/before", "gradient/norm/after"
UPDATE, WEIGHTS, CHANGED = "weights/update/norm", "weights/norm", "weights/changed/share"
SKIPPED, MADE = "optimizer/skipped/count", "optimizer/updates/count"
LENGTH, CUT, LONGEST = "sampling/length/mean", "sampling/ended/length/share", "sampling/length/max"
GAP, GAP_KL, RATIO, ESS = (
    "sampler/gap/mean",
    "sampler/kl/mean",
    "sampler/ratio/mean",
    "sampler/ess/share",
)
FAILED, ROLLOUTS = "sampling/failed/count", "sampling/rollouts/count"
TURNS, TOLD = "sampling/turns/mean", "tokens/tool/count"
EMPTY = RunView(source="log", trainer="unknown", name="", steps=np.arange(30), metrics={})
WAY, EVERY_OTHER = np.linspace(0, 1, STEPS), np.where(np.arange(STEPS) % 2 == 0, 1.0, 0.0)
FLAT, AT_BOTTOM = {REWARD: flat()}, {REWARD: flat(0.1, noise=0.02)}


def join(*parts: Any) -> Any:
    return np.concatenate(parts)


def config(**sections: Any) -> dict[str, Any]:
    return {"config": sections}


def learning(**keys: Any) -> dict[str, Any]:
    return config(learning=keys)


def held_out(*scores: float, tasks: int = 400, every: int = 20) -> dict[str, Any]:
    return {"evals": evaluations(*scores, tasks=tasks, every=every)}


def parts(**means: object) -> dict[str, object]:
    return {f"reward/part/{name}/mean": value for name, value in means.items()}


Table = dict[str, tuple[dict[str, Any], dict[str, Severity]]]

BOTTOM, CEILING, ONE = (
    "advantage.dead-groups-low",
    "advantage.dead-groups-high",
    "config.group-of-one",
)
SIDES = {"advantage/dead_low/share": 0.7, "advantage/dead_high/share": 0.1}
ALL_DEAD = {DEAD: 1.0, **AT_BOTTOM}
FEW_LIVE = {
    SPREAD: np.where(np.arange(STEPS) % 4 == 0, 0.2, 0.0),
    REWARD: abs(flat(0.05, noise=0.03)),
}
GROUPS: Table = {
    "dead, with their side counted": ({REWARD: flat(0.05, noise=0.01), DEAD: 0.8, **SIDES}, {BOTTOM: WARNING}),
    "only sides are counted": ({"without": (DEAD,), REWARD: flat(0.05, noise=0.01), **SIDES}, {BOTTOM: WARNING}),
    "dead at the top": ({REWARD: flat(0.9, noise=0.01), "reward/max": 1.0, DEAD: 0.95}, {CEILING: WARNING}),
    "dead at the bottom": ({REWARD: flat(0.02, noise=0.01), "reward/max": 1.0, DEAD: 0.95}, {BOTTOM: WARNING}),
    "dead because it has learned": ({DEAD: ramp(0.1, 0.9), REWARD: ramp(0.3, 0.98, noise=0.02)}, {CEILING: NOTE}),
    "dead by the groups' deviation": ({"without": (DEAD,), **FEW_LIVE}, {BOTTOM: WARNING}),
    "dead in a short run": ({"steps": 8, DEAD: 0.55, REWARD: flat(0.1, 8)}, {BOTTOM: NOTE}),
    "a reward that has leveled out high": (
        {REWARD: np.minimum(ramp(0.3, 1.5), 0.95), SPREAD: ramp(0.4, 0.05), DEAD: 0.2}, {CEILING: NOTE}),
    "a group of one": (config(sampling={"size": 1}), {ONE: CRITICAL}),
    "a group of eight": (config(sampling={"size": 8}), {}),
    "groups never differ in batches that do": (ALL_DEAD | {"reward/std": 0.4}, {BOTTOM: WARNING, ONE: NOTE}),
    "some groups differ": (ALL_DEAD | {DEAD: 0.9, "reward/std": 0.4}, {BOTTOM: WARNING}),
    "groups never differ, of a sure policy": (ALL_DEAD | {"reward/std": 0.4, ENTROPY: 0.04}, {BOTTOM: WARNING}),
}  # fmt: skip

STILL = {KL: 2e-5, **FLAT}
PULLED = {DEAD: 0.99, REWARD: flat(0.5, noise=0.02)}
HELD_KL = join([0.0], np.abs(flat(0.006, 119, 0.003)))
HELD = {
    **FLAT,
    KL: HELD_KL,
    LOSS: 10 * HELD_KL,
    NORM: join([2.0], np.full(119, 20.0)),
    "config": {},
}
REFERENCE: Table = {
    "runs away for nothing": ({KL: ramp(0, 3), **FLAT}, {"kl.runaway": WARNING}),
    "runs away for a reward": ({KL: ramp(0, 3)}, {"kl.runaway": NOTE}),
    "a heavy penalty strangles": (STILL | learning(kl={"beta": 1.0}), {"kl.strangles": WARNING}),
    "a reference that follows the policy": (STILL | learning(kl={"beta": 1.0, "reset_every": 10}), {}),
    "a light one does not": (STILL | learning(kl={"beta": 0.001}), {}),
    "a penalty that only the loss gives away": (HELD, {"kl.strangles": WARNING}),
    "a light one in the loss": (HELD | {LOSS: 0.01 * HELD_KL}, {}),
    "one that does not rule the gradient": (HELD | {NORM: 2.0}, {}),
    "another reference": ({KL: 0.3 + 0.05 * WAY}, {"kl.reference": WARNING}),
    "a first step that already moved": ({KL: join([0.03], np.full(119, 0.5))}, {}),
    "an estimator that can't be negative": ({KL: ramp(0, -0.5)}, {"kl.sign": CRITICAL}),
    "an estimator that may be": ({KL: ramp(0, -0.5), "trainer": "verl"}, {}),
    "dead groups leave the pull": (PULLED | learning(kl={"beta": 0.04}), {"kl.dead-group-pull": WARNING}),
    "dead groups, no known penalty": (PULLED, {"kl.dead-group-pull": NOTE}),
    "dead groups without a penalty": (PULLED | learning(kl={"beta": 0.0}), {}),
}  # fmt: skip

SMALL = FLAT | {"without": (KL,), UPDATE: 1e-5, WEIGHTS: 47.0}
FELL = join(ramp(0.3, 0.8, 40, 0.03), flat(0.05, 80, 0.02))
SHRUNK = FLAT | {AFTER: 1e-4, NORM: 5.0, RATE: 0.01} | learning(max_grad_norm=1e-4)
NO_GRADIENT = FLAT | {NORM: 0.0, KL: 1e-7}
ROUNDED = {CHANGED: 0.03, UPDATE: 0.01}
TOOK = join(flat(0.7, 60, 0.02), flat(0.25, 60, 0.02))
BONUS = {REWARD: join(flat(0.6, 60, 0.03), flat(0.0, 60, 0.03)), ENTROPY: TOOK, RATE: 1e-5}
DYING = join(np.full(20, 0.1), np.full(100, 0.9))
SHORT = {"steps": 8, REWARD: flat(steps=8)}
SKIPS, SMALL_LR, LARGE_LR = "optimizer.skipped-updates", "optimizer.lr-small", "optimizer.lr-large"
FROZEN, TIGHT, ROUND, NO_STEPS = (
    "optimizer.frozen", "optimizer.clip-tight", "precision.update-underflow", "optimizer.dead-steps")  # fmt: skip


def warm_up(steps: int) -> dict[str, Any]:
    return {"steps": 30, REWARD: flat(steps=30), RATE: np.arange(1, 31) * 1e-6 / steps} | learning(
        steps=600
    )


# Of a model in fp32 with as many weights, whose updates change all of them or a thousandth.
def sized(weights: int, changed: float = 1.0, lr: float = 1e-5, **model: Any) -> dict[str, Any]:
    told = config(model={"weights": "fp32", **model}, learning={"lr": lr})
    moved = {
        CHANGED: changed,
        UPDATE: 0.01,
        "weights/update/norm/norm": 0.01,
        "weights/update/mlp/norm": 0.0,
    }
    return (
        FLAT
        | told
        | moved
        | {RATE: lr, "info": {"model": {"parameters": weights, "trainable": weights}}}
    )


SIZES: Table = {
    "a rate too small for a small model": (sized(10**6, lr=5e-7), {SMALL_LR: WARNING}),
    "the same for a large one": (sized(10**9, lr=5e-7), {}),
    "a rate too small for an adapter": (sized(10**9, lr=5e-7, lora={"r": 8}), {SMALL_LR: WARNING}),
    "a rate that breaks a large model": (sized(10**9, lr=3e-4) | {DEAD: DYING}, {LARGE_LR: WARNING}),
    "the same for a small one": (sized(10**6, lr=3e-4) | {DEAD: DYING}, {}),
    "groups that were dead before any update": (sized(10**9, lr=3e-4) | {DEAD: 0.8}, {}),
    "only norms move": (sized(10**6, changed=0.001), {FROZEN: WARNING}),
    "only norms move, and it learns": (sized(10**6, changed=0.001) | {REWARD: ramp(0.3, 0.7)}, {FROZEN: NOTE}),
    "adapters are few": (sized(10**6, changed=0.001, lora={"r": 8}, lr=1e-4), {}),
    "a rate of 0": (FLAT | {RATE: 0.0}, {"optimizer.schedule": CRITICAL}),
    "updates that move tokens by nats": (FLAT | {"learner/moved/mean": 2.0}, {LARGE_LR: WARNING}),
    "a narrow clip range": (FLAT | {"clip/high/share": 0.4} | learning(clip_low=3e-4), {}),
    "a clip below Adam's epsilon": (
        {NORM: 5.0} | learning(max_grad_norm=1e-10) | {"info": {"model": {"parameters": 10**6}}}, {TIGHT: WARNING}),
    "half of the updates skipped": ({SKIPPED: EVERY_OTHER, MADE: 1 - EVERY_OTHER}, {SKIPS: CRITICAL}),
    "one update skipped": ({SKIPPED: np.eye(STEPS)[4], MADE: 20.0}, {SKIPS: WARNING}),
    "one skipped in a short run": (SHORT | {SKIPPED: np.eye(8)[3], MADE: 20.0}, {}),
    "some skipped in a short run": (SHORT | {SKIPPED: np.eye(8)[3], MADE: 2.0}, {SKIPS: NOTE}),
    "no step of a short run made one": ({"steps": 3, MADE: 0.0, REWARD: flat(steps=3)}, {SKIPS: CRITICAL}),
    "too few steps to judge skips": ({"steps": 4, SKIPPED: [0, 1, 0, 0], MADE: 1.0, REWARD: flat(steps=4)}, {}),
    "steps without a gradient": (FLAT | {NORM: np.where(np.arange(STEPS) % 3 == 0, 0.0, 0.5)}, {NO_STEPS: WARNING}),
    "a policy that stays at its start": (FLAT | {KL: ramp(0.0002, 0.0004)}, {SMALL_LR: WARNING}),
    "a policy that leaves ever faster": (FLAT | {KL: 1e-5 * np.exp(ramp(0, 6))}, {SMALL_LR: NOTE}),
    "weights that hardly move": (SMALL, {SMALL_LR: WARNING}),
    "weights that hardly move and learn": ({k: v for k, v in SMALL.items() if k != REWARD}, {}),
    "held-out tasks that learn": (SMALL | held_out(0.38, 0.66, tasks=200), {}),
    "held-out tasks that hardly do": (SMALL | held_out(0.38, 0.42, tasks=200), {SMALL_LR: WARNING}),
    "a rate below any in use": (FLAT | {RATE: 1e-8, "config": {}}, {SMALL_LR: WARNING}),
    "a rate below any in use that learns": ({RATE: 1e-8, "config": {}}, {}),
    "usual rates": (FLAT | {RATE: 5e-7, "config": {}}, {}),
    "clipped tokens": (FLAT | {"clip/high/share": 0.4}, {LARGE_LR: NOTE}),
    "clipped tokens and a falling reward": (
        {REWARD: ramp(0.6, 0.2, noise=0.03), "clip/high/share": 0.4}, {LARGE_LR: WARNING}),
    "updates that are thrown away": (
        FLAT | {UPDATE: np.tile([0.0, 0.0, 0.06], 40), WEIGHTS: 47.0, RATE: 1e-5}, {SKIPS: CRITICAL}),
    "updates of a warm-up that round to nothing": (
        FLAT | {UPDATE: join(np.zeros(5), np.full(115, 0.06)), WEIGHTS: 47.0, RATE: ramp(0, 1e-5)}, {}),
    "clipped tokens that learn": ({"clip/high/share": 0.4}, {LARGE_LR: NOTE}),
    "long updates": (FLAT | {UPDATE: 1.5, WEIGHTS: 47.0}, {LARGE_LR: WARNING}),
    "long steps of many updates": (FLAT | {UPDATE: 1.5, WEIGHTS: 47.0} | learning(updates=16), {}),
    "long updates that learn": ({UPDATE: 1.5, WEIGHTS: 47.0}, {}),
    "updates of usual length": (FLAT | {UPDATE: 0.06, WEIGHTS: 47.0}, {}),
    "a fall at the peak of the rate": ({REWARD: FELL, RATE: 1e-4}, {}),
    "a fall after KL that jumps": ({REWARD: FELL, RATE: 1e-4, KL: np.where(WAY < 0.3, 0.1, 2.0)}, {LARGE_LR: WARNING}),
    "a fall after a gradient that spikes": (
        {REWARD: FELL, RATE: 1e-4, NORM: 0.5 + 20 * np.eye(STEPS)[38]}, {LARGE_LR: WARNING}),
    "a fall after clipped tokens": (
        {REWARD: FELL, RATE: 1e-4, "clip/low/share": 0.4 * np.eye(STEPS)[39]}, {LARGE_LR: WARNING}),
    "a fall before KL that jumps": ({REWARD: FELL, RATE: 1e-4, KL: np.where(WAY < 0.8, 0.1, 2.0)}, {}),
    "a fall long after it": ({REWARD: FELL, KL: np.where(WAY < 0.3, 0.1, 2.0), RATE: np.where(WAY < 0.25, 1e-4, 1e-6)}, {}),
    "a fall with entropy": (BONUS, {LARGE_LR: WARNING}),
    "a fall by a bonus that only the loss gives away": (BONUS | {LOSS: 5 * TOOK}, {}),
    "a rate that breaks the model": (FLAT | {RATE: 0.01, DEAD: DYING}, {LARGE_LR: WARNING}),
    "a rate at which nothing moves": (
        FLAT | {RATE: 0.01, ENTROPY: flat(0.7, noise=0.02)}, {TIGHT: WARNING, FROZEN: WARNING}),
    "a large rate at which entropy falls": (FLAT | {RATE: 0.01}, {}),
    "a schedule that ate the run": (FLAT | {RATE: ramp(0, 1.4e-7)}, {"optimizer.schedule": WARNING}),
    "a warm-up that leads nowhere": (warm_up(600), {"optimizer.schedule": WARNING}),
    "a usual warm-up": (warm_up(60), {}),
    "a clip under plain descent": ({NORM: 5.0} | learning(optimizer="sgd", max_grad_norm=0.01), {TIGHT: WARNING}),
    "a clip under Adam": ({NORM: 5.0} | learning(max_grad_norm=0.01), {}),
    "updates as long as the clip makes them": (SHRUNK | {UPDATE: 1.004e-6}, {TIGHT: WARNING}),
    "updates as long as Adam makes them": (SHRUNK | {UPDATE: 0.5}, {}),
    "updates that round to nothing": (FLAT | ROUNDED, {ROUND: CRITICAL}),
    "some that do in a run that learns": (ROUNDED, {ROUND: WARNING}),
    "updates that round in fp32": (FLAT | ROUNDED | config(model={"weights": "fp32"}), {SMALL_LR: CRITICAL}),
    "weights that all change": ({CHANGED: 0.999, UPDATE: 0.01}, {}),
    "frozen weights": ({CHANGED: 0.0, UPDATE: 0.0}, {FROZEN: CRITICAL}),
    "a gradient that never arrives": (NO_GRADIENT, {FROZEN: CRITICAL, NO_STEPS: WARNING, SMALL_LR: WARNING}),
    "a gradient rounded to 0 while the policy moves": (NO_GRADIENT | {KL: 0.05}, {NO_STEPS: WARNING}),
    "a gradient of 0 where groups are dead": (NO_GRADIENT | {KL: 0.05, DEAD: 0.99}, {NO_STEPS: WARNING}),
    "a gradient of 0 in a run that learns": ({NORM: 0.0}, {NO_STEPS: NOTE}),
}  # fmt: skip

SURPRISE = "sampler/surprise/mean"
NEW_SAMPLER: Table = {
    "tokens of the learner's own": ({SURPRISE: flat(0.0)}, {}),
    "tokens that are too likely": (FLAT | {SURPRISE: flat(-0.2)}, {"sampling.truncated-distribution": WARNING}),
    "tokens that are too likely, and it learns": ({SURPRISE: flat(-0.2)}, {"sampling.truncated-distribution": NOTE}),
    "another model's tokens": ({SURPRISE: flat(0.3)}, {"precision.mismatch": CRITICAL}),
    "tokens by a penalty": (
        FLAT | {SURPRISE: flat(0.3)} | config(sampling={"repetition_penalty": 1.5}),
        {"sampling.truncated-distribution": WARNING}),
    "tokens of old weights": ({SURPRISE: ramp(-0.1, 0.5, noise=0.05)}, {"sync.stale-weights": CRITICAL}),
    "few noisy points": ({"steps": 8, SURPRISE: flat(0.1, 8, noise=0.2), REWARD: flat(steps=8)}, {}),
}  # fmt: skip

RESUMED = ({"event": "started"}, {"event": "resumed", "step": 60})
STOPPED = ({"event": "stopped", "step": 60}, {"event": "resumed"})
GROWN = 47 + 0.002 * np.arange(STEPS) + 0.0005 * np.random.default_rng(0).standard_normal(STEPS)
BACK = join(GROWN[:60], GROWN[:60])
FALL = {REWARD: join(ramp(0.3, 0.8, 60, 0.03), flat(0.05, 60, 0.02)),
        ENTROPY: join(flat(0.5, 50, 0.02), flat(4.0, 70, 0.1))}  # fmt: skip
DIP = join(ramp(0.3, 0.7, 50, 0.03), flat(0.2, 20, 0.03), ramp(0.5, 0.75, 50, 0.03))
NOISY = {"steps": 25, REWARD: flat(0.5, 25, 0.25)}
NAN, FALLEN, JUMP, BRIEF = "run.nonfinite", "run.collapsed", "run.resume-jump", "run.too-short"
OPERATION: Table = {
    "NaN on the last line": ({"nonfinite": {NORM: (120,)}}, {NAN: CRITICAL}),
    "NaN that passed": ({"nonfinite": {LOSS: (5,)}}, {NAN: WARNING}),
    "NaN at many steps": ({"nonfinite": {LOSS: tuple(range(5, 25))}}, {NAN: CRITICAL}),
    "NaN of what need not be finite": ({"nonfinite": {"reward/part/x/std": (5,)}}, {}),
    "NaN over no completion at all": ({"nonfinite": {ENTROPY: (1, 2)}, LENGTH: 0.0}, {}),
    "a loss that is NaN on dead steps": ({"nonfinite": {LOSS: (120,)}, DEAD: 1.0}, {NAN: CRITICAL}),
    "a weight that is NaN on dead steps": ({"nonfinite": {WEIGHTS: (120,)}, DEAD: 1.0}, {NAN: CRITICAL}),
    "an average over dead groups": ({"nonfinite": {ENTROPY: (120,), RATIO: (120,)}, DEAD: 1.0}, {}),
    "an average over no gradient": ({"nonfinite": {GAP: (3,)}, NORM: 1 - np.eye(STEPS)[2]}, {}),
    "an average over live groups": ({"nonfinite": {ENTROPY: (51,)}, NORM: 1 - np.eye(STEPS)[2]}, {NAN: WARNING}),
    "a collapse": (FALL, {FALLEN: CRITICAL}),
    "a dip that is made good": ({REWARD: DIP}, {BRIEF: NOTE}),
    "several runs in a log": ({"runs_in_log": 6}, {"run.restarts-concatenated": NOTE}),
    "a jump at a resume": (
        {"events": RESUMED, REWARD: join(flat(0.6, 60, 0.03), flat(0.3, 60, 0.03))}, {JUMP: WARNING, FALLEN: CRITICAL}),
    "a resume without one": ({"events": RESUMED}, {}),
    "weights that a resume did not restore": ({"events": STOPPED, WEIGHTS: BACK}, {JUMP: WARNING}),
    "weights that it did": ({"events": STOPPED, WEIGHTS: GROWN}, {}),
    "too short": (NOISY | {SPREAD: 0.3}, {BRIEF: NOTE}),
    "one point": ({"steps": 1, REWARD: [0.5], "trainer": "uptrend"}, {BRIEF: NOTE}),
    "one line of a log": ({"steps": 1, REWARD: [0.5]}, {}),
    "a short run that surely rises": ({"steps": 25, REWARD: ramp(0.2, 0.8, 25, 0.04), SPREAD: 0.02}, {}),
    "a short run that rises by little": ({"steps": 25, REWARD: ramp(0.4, 0.55, 25, 0.1), SPREAD: 0.02}, {BRIEF: NOTE}),
    "a short run that falls": ({"steps": 25, REWARD: ramp(0.8, 0.2, 25, 0.04), SPREAD: 0.02}, {FALLEN: CRITICAL}),
}  # fmt: skip

RISE = ramp(0.1, 0.9, noise=0.05)
SOLVED = {REWARD: 1 - 0.6 * np.exp(-12 * WAY), SPREAD: 0.05}
EARLY = {REWARD: np.where(WAY < 0.2, 0.5 + 5 * WAY, 1.5) + ramp(0, 0, noise=0.03)}
RESTS = held_out(0.3, 0.6, *[0.7] * 8, tasks=200, every=12)
SANK = held_out(0.4, 0.1, 0.08, 0.1, 0.07, tasks=80, every=30)
WAVERING = ramp(0.4, 0.41, noise=0.1, seed=4)
GROWING = {LENGTH: ramp(200, 420, noise=5)}
STEP = join(np.zeros(40), np.linspace(0, 1, 40), np.ones(40))
WAVER = 0.05 * np.random.default_rng(3).standard_normal(STEPS)
PAID = {LENGTH: 3 + 9 * (STEP + WAVER), REWARD: -0.5 + 1.4 * (STEP + WAVER)}
INTO_LIMIT = {CUT: np.clip(2 * STEP - 1, 0, 1)}
CONSTANT, NO_PART, ONE_PART = (
    "reward.constant",
    "reward.component-dead",
    "reward.component-dominates",
)
HACKABLE, LONGER = "reward.hackable", "reward.length-hacking"
REWARDS: Table = {
    "constant at -1": ({REWARD: -1.0, SPREAD: 0.0}, {CONSTANT: WARNING}),
    "constant at 1": ({REWARD: 1.0, SPREAD: 0.0}, {CONSTANT: WARNING}),
    "a constant mean with spread": ({REWARD: 0.5}, {}),
    "constant at the end": (
        {REWARD: join(flat(0.5, 90), np.zeros(30)), SPREAD: join(np.full(90, 0.3), np.zeros(30))}, {CONSTANT: WARNING}),
    "constant at the top after learning": (
        {REWARD: join(ramp(0.2, 0.9, 80, 0.03), np.ones(40)), SPREAD: join(np.full(80, 0.3), np.zeros(40))},
        {CONSTANT: NOTE}),
    "a component at its floor": (
        parts(equation=0.0, format=ramp(0.1, 0.5, noise=0.05)) | {REWARD: ramp(0.1, 0.5, noise=0.05)},
        {NO_PART: WARNING, ONE_PART: WARNING, HACKABLE: WARNING}),
    "a penalty for length that nobody incurs": (parts(correctness=ramp(0.1, 0.5, noise=0.05), overlong=0.0), {}),
    "a component that everybody earns": (parts(correctness=ramp(0.1, 0.5, noise=0.05), format=1.0), {NO_PART: NOTE}),
    "format that rises alone": (
        parts(json_format=RISE, env=flat(0.96, noise=0.001)) | {REWARD: RISE + 0.96},
        {NO_PART: NOTE, ONE_PART: WARNING, HACKABLE: WARNING}),
    "noise that could hide a rise of the answer": (
        parts(format=ramp(0.7, 1.0, noise=0.02), correctness=ramp(0.3, 0.34, noise=0.15))
        | {REWARD: ramp(0.7, 1.0, noise=0.02)}, {ONE_PART: NOTE}),
    "one thing paid for twice": (
        parts(terminal=RISE, schema_score=RISE * 1.01, other=ramp(0, 1, noise=0.1, seed=9)), {ONE_PART: NOTE}),
    "components that never vary": (parts(one=0.0, two=0.0), {}),
    "fewer right answers": ({CORRECT: ramp(0.6, 0.3, noise=0.03)}, {HACKABLE: WARNING}),
    "held out stands still": (held_out(0.3, 0.31, 0.29, 0.3, 0.31, 0.3), {HACKABLE: WARNING}),
    "held out follows": (held_out(0.3, 0.4, 0.5, 0.6, 0.65, 0.7, tasks=200), {}),
    "too few tasks to tell": (held_out(0.3, 0.35, tasks=20, every=120), {}),
    "held out rests at the top": (held_out(0.4, 0.97, *[1.0] * 8, tasks=200, every=12) | SOLVED, {}),
    "both rest": (RESTS | EARLY, {}),
    "only training goes on": (RESTS | {REWARD: ramp(0.5, 1.5, noise=0.03)}, {HACKABLE: WARNING}),
    "another scale that may follow": (
        {REWARD: ramp(0, 4, noise=0.4), SPREAD: 4.0} | held_out(0.5, 0.62, tasks=60, every=120), {}),
    "held out falls alone": (SANK | {REWARD: WAVERING}, {HACKABLE: WARNING}),
    "training falls with it": (SANK | {REWARD: ramp(0.5, 0.2, noise=0.05)}, {}),
    "length that pays without the task": (
        GROWING | held_out(0.3, 0.29, tasks=200, every=STEPS), {LONGER: WARNING, HACKABLE: WARNING}),
    "length that pays with the task": (GROWING | held_out(0.3, 0.7, tasks=200, every=STEPS), {LONGER: NOTE}),
    "length that costs": (GROWING | {REWARD: ramp(0.7, 0.3, noise=0.03)}, {LONGER: NOTE}),
    "length into its limit": (PAID | INTO_LIMIT, {LONGER: WARNING}),
    "length that ends by itself": (PAID | {CUT: 0.05}, {LONGER: NOTE}),
    # Both rise, and from step to step they have nothing to do with each other: rambling after a
    # right answer.
    "length apart from the reward": (
        PAID | INTO_LIMIT | {REWARD: -0.5 + 1.4 * STEP + ramp(0, 0, noise=0.1, seed=5)}, {LONGER: NOTE}),
}  # fmt: skip

CONSTANT_LOW = {REWARD: -1.0, SPREAD: 0.0, DEAD: 1.0}
COUNTED = {FAILED: 16.0, ROLLOUTS: 64.0}
SPREAD_OVER = ALL_DEAD | parts(exact=flat(0.1)) | {"reward/part/exact/std": 0.0}
REJECTED, STRICT, NEVER = "reward.gold-rejected", "reward.strict-parser", "reward.never-computed"
WRONG_LENGTH, ERROR = "reward.wrong-length", "reward.error-scored"
SCORES: Table = {
    "the lowest reward for all": (CONSTANT_LOW, {REJECTED: NOTE, STRICT: NOTE}),
    "no reward for anyone": (CONSTANT_LOW | {REWARD: 0.0}, {REJECTED: NOTE, NEVER: NOTE}),
    "the best for all": (CONSTANT_LOW | {REWARD: 1.0}, {}),
    "the lowest after better ones": ({REWARD: np.where(np.arange(STEPS) < 20, 0.4, -1.0), SPREAD: 0.0}, {}),
    "one score for a batch": (SPREAD_OVER, {WRONG_LENGTH: WARNING}),
    "one score, no dead groups": (SPREAD_OVER | {DEAD: 0.1}, {}),
    "one score, with rollouts": (SPREAD_OVER | {"rollout_steps": (1, 2)}, {}),
    "many that failed": (COUNTED, {ERROR: WARNING}),
    "most that failed": (COUNTED | {FAILED: 40.0}, {ERROR: CRITICAL}),
    "few that failed": (COUNTED | {FAILED: 1.0}, {}),
}  # fmt: skip

GONE = {ENTROPY: np.exp(ramp(0, -6))}
TOP = GONE | {REWARD: flat(0.97, noise=0.01), "reward/min": 0.0, "reward/max": 1.0}
SOME_CUT = 0.4 + 0.15 * np.random.default_rng(3).standard_normal(STEPS)
STUCK = {CUT: 1.0, REWARD: flat(-0.3), "reward/min": -1.0, "reward/max": 1.0}
COPIES = {DEAD: 0.8, REWARD: flat(0.6, noise=0.02), ENTROPY: 0.04}
FAILING = {DEAD: 0.8, CUT: 1.0, "reward/max": 1.0, "reward/min": 0.0, **AT_BOTTOM}
UNMOVED = FAILING | {LONGEST: 512.0, RATE: 1e-9, "config": {}}
COLLAPSE, NO_STOP, COLD = (
    "sampling.entropy-collapse",
    "sampling.no-stop",
    "sampling.temperature-low",
)
TRUNCATED, SHRINK = "context.completion-truncated", "sampling.length-collapse"
COMPLETIONS: Table = {
    "entropy goes while the reward is flat": (GONE | FLAT, {COLLAPSE: WARNING}),
    "entropy goes while the reward rises": (GONE, {COLLAPSE: NOTE}),
    "entropy goes at the top": (TOP, {COLLAPSE: NOTE}),
    "entropy goes below the top": (TOP | {REWARD: flat(0.7, noise=0.01)}, {COLLAPSE: WARNING}),
    "entropy goes as the reward falls": (TOP | {REWARD: ramp(0.99, 0.92, noise=0.002)}, {COLLAPSE: WARNING}),
    "entropy spent before the run": ({ENTROPY: ramp(0.04, 0.015), **FLAT}, {COLLAPSE: WARNING}),
    "entropy that a bonus of the wrong sign takes": (BONUS | {LOSS: 5 * TOOK}, {COLLAPSE: WARNING}),
    "entropy that explodes": (
        {ENTROPY: ramp(0.2, 6.0), REWARD: ramp(0.8, 0.0, noise=0.03)}, {"sampling.entropy-explosion": CRITICAL}),
    "cut completions score lower": (
        {CUT: SOME_CUT, REWARD: 0.6 - 0.5 * SOME_CUT + flat(0, noise=0.02)}, {TRUNCATED: WARNING}),
    "more are cut as the reward falls": (
        {CUT: ramp(0.0, 0.8), REWARD: ramp(0.8, 0.1, noise=0.03)}, {TRUNCATED: WARNING}),
    "cut completions that learn": ({CUT: 1.0}, {NO_STOP: NOTE}),
    "cut completions that stay low": (STUCK | {CORRECT: 0.02}, {NO_STOP: WARNING}),
    "more right than end by themselves": (STUCK | {CORRECT: 0.35}, {NO_STOP: NOTE}),
    "endings that name others only": ({"without": (CUT,), "sampling/ended/stop-token/share": 1.0}, {}),
    "lengths collapse with the reward": (
        {LENGTH: ramp(200, 3), REWARD: ramp(0.8, 0.1, noise=0.03)}, {SHRINK: WARNING}),
    "lengths collapse while it rises": ({LENGTH: ramp(200, 3)}, {SHRINK: NOTE}),
    "completions without a token": ({LENGTH: 0.0, REWARD: np.nan}, {"context.prompt-truncated": CRITICAL}),
    "copies from the first step on": (COPIES, {COLD: WARNING}),
    "copies of a policy that grew sure": (COPIES | {ENTROPY: np.where(WAY < 0.25, 0.7, 0.04)}, {COLLAPSE: WARNING}),
    "copies where rollouts can be asked": (COPIES | {"rollout_steps": (1, 2)}, {}),
    "copies that learn": ({DEAD: 0.8, ENTROPY: 0.04}, {}),
    "no dead groups": ({ENTROPY: 0.04, **FLAT}, {}),
    "cut after few tokens where groups fail": (FAILING | {LONGEST: 2.0}, {TRUNCATED: WARNING}),
    "cut with room where groups fail": (FAILING | {LONGEST: 512.0}, {NO_STOP: WARNING}),
    "cut where groups succeed": (FAILING | {REWARD: flat(0.95, noise=0.02)}, {NO_STOP: NOTE}),
    "cut where a reward is spread": (FAILING | {DEAD: 1.0, LONGEST: 2.0, "reward/std": 0.0}, {TRUNCATED: WARNING}),
    "cut where updates are too small": (UNMOVED, {NO_STOP: WARNING}),
}  # fmt: skip

MISMATCH, STALE, OFF_POLICY = "precision.mismatch", "sync.stale-weights", "sync.off-policy"
BLIND, PADDING, DROPOUT = "mask.attention-blind", "tokens.padding", "policy.dropout-on"
NOT_ONE = {"trainer": "uptrend", "learner/ratio/mean": ramp(1.0, 1.0, noise=0.02)}
SAMPLER: Table = {
    "a usual difference": ({GAP: 0.01}, {}),
    "a difference from the first steps on": ({GAP: 0.15}, {MISMATCH: CRITICAL}),
    "a learner that reads something else": ({GAP: 2.0}, {MISMATCH: CRITICAL, BLIND: WARNING, PADDING: WARNING}),
    "a difference from the second step on": ({GAP: join([1e-6], np.full(119, 0.05))}, {STALE: CRITICAL}),
    "a policy that turns to noise": ({GAP: np.linspace(0.007, 0.06, STEPS)}, {}),
    "a sampler that never gets the weights": ({GAP_KL: ramp(1e-5, 0.4)}, {STALE: CRITICAL}),
    "a gap that widens with entropy": ({GAP_KL: ramp(1e-5, 0.05), ENTROPY: ramp(0.2, 6)}, {}),
    "KL from the start": ({GAP_KL: 0.5}, {MISMATCH: CRITICAL}),
    "few effective tokens from the start": ({ESS: 0.1}, {MISMATCH: CRITICAL}),
    "few effective tokens at last": ({ESS: ramp(1.0, 0.1)}, {OFF_POLICY: WARNING}),
    "a ratio that leaves at last": ({RATIO: ramp(1.0, 3.0)}, {OFF_POLICY: WARNING}),
    "a small gap": ({GAP_KL: 0.002, RATIO: 1.0}, {}),
    "dropout in the learner": (NOT_ONE, {DROPOUT: WARNING}),
    "several updates on a step's rollouts": (NOT_ONE | learning(updates=2), {}),
}  # fmt: skip

IDLE = {TURNS: 1.0, TOLD: 0.0, **FLAT}
ALLOWED = config(sampling={"max_turns": 10})
UNCALLED, SWALLOWED = "tool.never-called", "tool.errors-swallowed"
TOOLS: Table = {
    "turns that are not used": (IDLE | ALLOWED, {UNCALLED: WARNING}),
    "turns that are not used by a run that learns": ({TURNS: 1.0, TOLD: 0.0} | ALLOWED, {UNCALLED: NOTE}),
    "tokens from tools": (IDLE | ALLOWED | {TOLD: 9.0}, {}),
    "one turn allowed": (IDLE | config(sampling={"max_turns": 1}), {}),
    # TRL's log counts calls only where there are tools; another's turns say nothing.
    "TRL's count of calls": (IDLE, {UNCALLED: WARNING}),
    "another trainer's turns": (IDLE | {"trainer": "verl"}, {}),
    "rollouts that tools failed": (COUNTED | {"sampling/ended/tool-error/share": 0.25}, {SWALLOWED: WARNING}),
}  # fmt: skip

BY_HEART = {CORRECT: ramp(0.3, 0.95, noise=0.03)}
LATE = {CORRECT: join(flat(0.3, 40, 0.03), ramp(0.3, 0.95, 80, 0.03))}
UNSURE = {REWARD: WAVERING, CORRECT: ramp(0.4, 0.43, noise=0.1)}
FEW, MANY = (config(tasks={"train": tasks}, sampling={"groups": 12}) for tasks in (12, 2000))
MEMORIZED, INSIDE = "data.memorized", "eval.noise"
HELD_OUT: Table = {
    "training that leaves held out behind": (
        BY_HEART | held_out(0.3, 0.3, every=STEPS), {MEMORIZED: WARNING, INSIDE: NOTE}),
    "held out that follows": (BY_HEART | held_out(0.3, 0.8, every=STEPS), {}),
    "an evaluation before training rose": (LATE | held_out(0.3, 0.28, every=40), {INSIDE: NOTE}),
    "held out that falls alone": (UNSURE | SANK | FEW, {MEMORIZED: WARNING}),
    "tasks that were met once at most": (UNSURE | SANK | MANY, {}),
    "one bad draw of 20 tasks": (UNSURE | held_out(0.4, 0.5, 0.45, 0.1, tasks=20, every=40) | FEW, {}),
    "a change inside its interval": (held_out(0.5, 0.53, tasks=100), {INSIDE: NOTE}),
    "a change beyond it": (held_out(0.3, 0.6, tasks=100), {}),
}  # fmt: skip

# Ids that each table is about, by how they begin.
TABLES: list[tuple[tuple[str, ...], Table]] = [
    (("advantage.", ONE), GROUPS),
    (("kl.",), REFERENCE),
    (("optimizer.", ROUND), SIZES),
    (("run.",), OPERATION),
    ((CONSTANT, NO_PART, ONE_PART, HACKABLE, LONGER), REWARDS),
    (
        (
            REJECTED,
            STRICT,
            NEVER,
            WRONG_LENGTH,
            ERROR,
            "reward.misaligned",
            "reward.nondeterministic",
        ),
        SCORES,
    ),
    (("sampling.", "context."), COMPLETIONS),
    ((MISMATCH, "sync.", "sampling.truncated", "tokens.", "policy.", BLIND), SAMPLER),
    ((MISMATCH, "sync.", "sampling.truncated"), NEW_SAMPLER),
    ((UNCALLED, SWALLOWED), TOOLS),
    (("data.", "eval."), HELD_OUT),
]
CASES = [
    pytest.param(causes, *case, id=name) for causes, table in TABLES for name, case in table.items()
]


@pytest.mark.parametrize(("causes", "bent", "expected"), CASES)
def test_bent_curves(
    causes: tuple[str, ...], bent: dict[str, Any], expected: dict[str, Severity]
) -> None:
    assert severities(healthy(**bent), causes) == expected


@pytest.mark.parametrize("causes", [causes for causes, _ in TABLES])
def test_a_healthy_run_has_none(causes: tuple[str, ...]) -> None:
    assert severities(healthy(), causes) == {}


# Bent curves, a cause, and its first piece of evidence: the figure, and the step where it matters.
FIGURES: list[tuple[dict[str, Any], str, float, int | None]] = [
    (GROUPS["dead, with their side counted"][0], BOTTOM, 0.8, None),
    ({KL: ramp(0, 3), **FLAT}, "kl.runaway", 2.625, None),
    (SIZES["half of the updates skipped"][0], SKIPS, 0.5, 1),
    ({"nonfinite": {ENTROPY: (3, 51)}, NORM: 1 - np.eye(STEPS)[2]}, NAN, 0.0, 51),
    ({"events": STOPPED, WEIGHTS: BACK}, JUMP, 0.118, 60),
    ({REWARD: -1.0, SPREAD: 0.0}, CONSTANT, -1.0, 1),
]


@pytest.mark.parametrize(("bent", "id", "value", "step"), FIGURES)
def test_figures(bent: dict[str, Any], id: str, value: float, step: int | None) -> None:
    evidence = findings(healthy(**bent), id)[id].evidence[0]
    assert (evidence.value or 0.0) == pytest.approx(value, rel=0.05)
    assert step is None or evidence.step == step


def test_a_collapse_says_what_went_first_and_noise_is_none() -> None:
    fall, first = findings(healthy(**FALL), FALLEN)[FALLEN].evidence[:2]
    assert abs((fall.step or 0) - 60) <= 6
    assert (first.metric, first.step) == (ENTROPY, 51)
    for seed in range(30):
        assert findings(healthy(**{REWARD: ramp(0.5, 0.5, noise=0.5, seed=seed)}), FALLEN) == {}


def test_a_few_points_are_counted_and_have_no_power() -> None:
    short = healthy(steps=3, trainer="uptrend", **{REWARD: [0.2, 0.2, 0.2], SPREAD: 1e-17})
    shown = findings(short, BRIEF)[BRIEF].evidence[0]
    assert (shown.text, shown.value) == ("3 points of 20.", None)


@pytest.mark.parametrize(
    ("spread", "advice"), [(0.3, "It would take about"), (0.01, "sample more")]
)
def test_a_short_run_says_how_many_points_would_do(spread: float, advice: str) -> None:
    short = findings(healthy(**NOISY, **{SPREAD: spread}), BRIEF)[BRIEF]
    assert 0 < (short.evidence[0].value or 0) < 0.3
    assert advice in short.summary


# Bent curves, a cause, and how sure it is.
SURE: list[tuple[dict[str, Any], str, Basis]] = [
    (GROUPS["dead, with their side counted"][0], BOTTOM, Basis.PROOF),
    (GROUPS["dead at the top"][0], CEILING, Basis.SIGNAL),
    ({REWARD: flat(0.4, noise=0.01), DEAD: 0.95}, BOTTOM, Basis.SUSPICION),
    (SIZES["a rate at which nothing moves"][0], FROZEN, Basis.SUSPICION),
    (REWARDS["format that rises alone"][0], HACKABLE, Basis.SIGNAL),
    (CONSTANT_LOW, REJECTED, Basis.SUSPICION),
    (FAILING, NO_STOP, Basis.SIGNAL),
    (UNMOVED, NO_STOP, Basis.SUSPICION),
]


@pytest.mark.parametrize(("bent", "id", "basis"), SURE)
def test_how_sure(bent: dict[str, Any], id: str, basis: Basis) -> None:
    assert findings(healthy(**bent), id)[id].basis is basis


@pytest.mark.parametrize(
    ("bent", "id"), [(ALL_DEAD | config(sampling={"size": 1}), ONE), (SPREAD_OVER, WRONG_LENGTH), (COPIES, COLD),
                     (CONSTANT_LOW, CONSTANT)])  # fmt: skip
def test_the_cause_of_dead_groups_comes_first(bent: dict[str, Any], id: str) -> None:
    assert diagnose(healthy(**bent)).findings[0].id == id


KLS = {
    "kl.runaway", "kl.strangles", "kl.reference", "kl.sign", "kl.dead-group-pull", "kl.no-gradient",
}  # fmt: skip
BY_TOKEN = {
    MISMATCH,
    STALE,
    OFF_POLICY,
    "sampling.truncated-distribution",
    "tokens.template",
    PADDING,
    BLIND,
}
UNCOUNTED = {"evals": ({"step": 0, "reward": 0.3}, {"step": 20, "reward": 0.5})}
OF_SIZES = ("optimizer.", ROUND)
# A run, ids by how they begin, and all of these that could not be looked for.
LACKING: list[tuple[RunView, Any, set[str]]] = [
    (healthy(without=(DEAD, SPREAD)), "advantage.dead", {BOTTOM, CEILING}),
    (healthy(4), "advantage.dead", {BOTTOM, CEILING}),
    (healthy(without=(KL,)), "kl.", KLS),
    (healthy(**{KL: 0.0}), "kl.", KLS),
    (healthy(), OF_SIZES, {SKIPS, FROZEN, ROUND}),
    (healthy(without=(KL,)), OF_SIZES, {SKIPS, FROZEN, ROUND, SMALL_LR}),
    (
        healthy(8),
        OF_SIZES,
        {SKIPS, FROZEN, ROUND, SMALL_LR, LARGE_LR, NO_STEPS, "optimizer.schedule"},
    ),
    (healthy(**{UPDATE: 0.01}), OF_SIZES, {SKIPS, ROUND}),
    (healthy(**{MADE: 1.0}), OF_SIZES, {FROZEN, ROUND}),
    (healthy(8), "run.", {FALLEN, "run.ranks-diverge"}),
    (EMPTY, "run.", {FALLEN, BRIEF, "run.ranks-diverge"}),
    (healthy(**NOISY, **{SPREAD: 1e-5}), "run.too", {BRIEF}),
    (healthy(), (CONSTANT, NO_PART, ONE_PART, HACKABLE, LONGER), {NO_PART, ONE_PART, HACKABLE}),
    (EMPTY, (CONSTANT, LONGER, "reward.scale"), {CONSTANT, LONGER, "reward.scale-moves"}),
    (EMPTY, ("sampling.entropy", TRUNCATED), {COLLAPSE, "sampling.entropy-explosion", TRUNCATED}),
    (healthy(), tuple(BY_TOKEN), BY_TOKEN),
    (healthy(), (UNCALLED, SWALLOWED, "task."), {UNCALLED, SWALLOWED, "task.state-leaks"}),
    (healthy(**BY_HEART), (MEMORIZED, INSIDE), {MEMORIZED, INSIDE}),
    (healthy(**UNCOUNTED), INSIDE, {INSIDE}),
]


@pytest.mark.parametrize(("view", "causes", "lacking"), LACKING)
def test_what_is_lacking(view: RunView, causes: Any, lacking: set[str]) -> None:
    assert lacks(view, causes) == lacking


def test_processes_with_different_weights() -> None:
    def digests(*values: str, trainer: str = "uptrend") -> RunView:
        events = tuple(
            {"event": "digest", "step": 3, "process": i, "digest": v} for i, v in enumerate(values)
        )
        return healthy(events=events, trainer=trainer)

    found = findings(digests("aa", "aa", "ab"), "run.ranks")["run.ranks-diverge"]
    assert (found.severity, found.evidence[0].value, found.evidence[0].step) == (CRITICAL, 2, 3)
    assert findings(digests("aa", "aa"), "run.ranks") == {}
    for alone in (digests("aa"), digests("aa", trainer="trl")):
        assert lacks(alone, "run.ranks") == {"run.ranks-diverge"}


def test_the_last_word_of_a_probe_stands() -> None:
    told = {"event": "probed", "id": PADDING, "basis": "proof", "summary": "It leaks.",
            "evidence": [{"text": "By 0.3 nats.", "value": 0.3, "metric": None, "step": 4}]}  # fmt: skip
    events = (
        told | {"severity": "note"},
        told | {"severity": "critical"},
        told | {"id": "no.such"},
    )
    found = findings(healthy(events=events, rollout_steps=(1,)), PADDING)[PADDING]
    assert (found.severity, found.summary) == (CRITICAL, "It leaks.")
    assert (found.evidence[0].value, found.evidence[0].step) == (0.3, 4)


@pytest.mark.parametrize(("updates", "cause"), [(1, LARGE_LR), (16, OFF_POLICY)])
def test_a_long_step_of_many_updates_is_no_large_rate(updates: int, cause: str) -> None:
    long = FLAT | {UPDATE: 1.5, WEIGHTS: 47.0} | learning(updates=updates)
    assert severities(healthy(**long), (LARGE_LR, OFF_POLICY)) == {cause: WARNING}
