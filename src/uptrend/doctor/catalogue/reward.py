"""Causes: reward."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix, Rival

NO_SIGNAL = (
    "reward.constant", "advantage.dead-groups-low", "optimizer.dead-steps", "kl.dead-group-pull",
)  # fmt: skip
"""What is seen where no rollout is ever paid."""

CAUSES = [
    Cause(
        "reward.gold-rejected",
        Kind.PROBE,
        what="The reward gives a known right answer less than its maximum, or a corrupted one the maximum, "
        "so the model is punished for being right.",
        rivals=(Rival("advantage.dead-groups-low", "there gold answers score the maximum; here they do not"),),
        experiment=Experiment("Gold answers reach the maximum reward and corrupted ones do not.", probe="gold"),
        fix=Fix(
            "Fix the scorer until every gold answer reaches the maximum and no corrupted one does; most often it "
            "slices, strips or parses text that is not there. A reward function is handed the completion alone.",
            {"trl": {"reward_funcs": "score completion itself, not completion[len(prompt):]"}},
        ),
        explains=(
            "context.completion-truncated",
            "data.wrong-gold",
            "sampling.no-stop",
            *NO_SIGNAL,
            "reward.strict-parser",
            "eval.unlike-training",
        ),
    ),
    Cause(
        "reward.constant",
        Kind.CURVE,
        what="Every rollout of many steps in a row got the same reward, so nothing can be compared and "
        "nothing is learned.",
        rivals=(
            Rival("reward.gold-rejected", "score a gold answer: if it too gets this value, the scorer is broken"),
            Rival("too-hard tasks", "gold scores the maximum, but of 64 attempts a task none does"),
            Rival("too-easy tasks", "the value is the maximum, and greedy answers are right too"),
        ),
        experiment=Experiment("Some of 64 sampled attempts a task earn another reward.", probe="dead-groups"),
        fix=Fix(
            "Score gold answers first. If they pass, take tasks that the model solves in 20% to 80% of attempts, "
            "or warm-start it; larger groups help only where some attempt is paid otherwise.",
            {"uptrend": {"sampling.size": 16, "sampling.temperature": 1.0}},
        ),
        explains=(
            "advantage.dead-groups-low",
            "advantage.dead-groups-high",
            "optimizer.dead-steps",
            "kl.dead-group-pull",
        ),
    ),
    Cause(
        "reward.misaligned",
        Kind.INVARIANT,
        what="Rewards were computed against another task's answer: the columns of the batch are not in the order "
        "of the rollouts.",
        rivals=(
            Rival("weak model", "re-scored by task id, a weak model's rewards stay the same"),
            Rival("reward.nondeterministic", "scored twice against its own answer, a rollout gets two values"),
        ),
        experiment=Experiment("Re-scoring each rollout by its task id gives the recorded reward.", probe="rescoring"),
        fix=Fix(
            "Carry the answer with the rollout and look it up by task id; never index a separate list by position "
            "after a shuffle, a repeat or a gather.",
            {
                "trl": {
                    "reward_funcs": "take answers from the column given as a keyword argument",
                    "remove_unused_columns": False,
                }
            },
        ),
        explains=("advantage.wrong-groups", "data.wrong-gold", "eval.unlike-training"),
    ),
    Cause(
        "reward.wrong-length",
        Kind.INVARIANT,
        what="The scorer returned another number of rewards than there were rollouts, and one value was spread "
        "over the rest.",
        rivals=(Rival("reward.constant", "given one right and one wrong rollout, a sound scorer returns two values"),),
        experiment=Experiment(
            "A right and a wrong rollout scored together get two different rewards.", probe="rescoring"
        ),
        fix=Fix(
            "Return one number for each completion, in the order given; fail loudly when the lengths differ.",
            {"trl": {"reward_funcs": "return a list as long as completions"}},
        ),
        explains=(*NO_SIGNAL, "advantage.dead-groups-high"),
    ),
    Cause(
        "reward.strict-parser",
        Kind.PROBE,
        what="The answer is right but the parser can't read it, so right rollouts are paid as wrong ones.",
        rivals=(
            Rival("real format errors", "a second, lenient reader does not find the right answer either"),
            Rival("context.completion-truncated", "the unread ones were cut by length, before the answer came"),
        ),
        experiment=Experiment(
            "A lenient reader finds the right answer in fewer than 2% of rollouts scored wrong.", probe="parser"
        ),
        fix=Fix(
            "Read answers as leniently as a person would (spaces, case, units, LaTeX, a trailing stop), or state "
            "the format in the prompt and pay for it apart from the answer."
        ),
        explains=(*NO_SIGNAL, "eval.unlike-training"),
    ),
    Cause(
        "reward.nondeterministic",
        Kind.PROBE,
        what="The same rollout scored twice gets two rewards, so part of the advantage is the scorer's noise.",
        rivals=(
            Rival("task.state-leaks", "a fresh workspace for each scoring makes the difference go away"),
            Rival("judge temperature", "at judge temperature 0 the two scores agree"),
        ),
        experiment=Experiment("Scoring 50 rollouts twice gives the same rewards.", probe="rescoring"),
        fix=Fix(
            "Fix the judge's temperature at 0 and every seed in the scorer; average several judgments where "
            "noise can't be had out.",
            {"verifiers": {"env.taskset.task.judges.sampling.temperature": 0.0}},
        ),
        explains=(
            "eval.unlike-training",
            "reward.misaligned",
            "reward.gold-rejected",
        ),
    ),
    Cause(
        "reward.component-dead",
        Kind.CURVE,
        what="One part of the reward has hardly any variance all run long: it pays or fines everyone alike and "
        "teaches nothing.",
        rivals=(
            Rival("rightly saturated", "it moved early in the run, then stayed at its best value"),
            Rival("reward.never-computed", "the event that the part pays for never occurs in the rollouts"),
        ),
        experiment=Experiment(
            "Paid for correctness alone, the run ends at least as high on held-out tasks.",
            arms={"control": {}, "without": {"tasks.reward": "exact"}},
            steps=50,
        ),
        fix=Fix(
            "Remove the part, or make the event that it pays for reachable: check its parser on gold answers, "
            "and warm-start the habit.",
            {
                "trl": {"reward_weights": "0 for this function"},
                "verifiers": {"env.taskset.task.rewards.NAME.weight": 0.0},
                "prime-rl": {"orchestrator.train.source.env.taskset.task.rewards.NAME.weight": 0.0},
            },
        ),
    ),
    Cause(
        "reward.component-dominates",
        Kind.CURVE,
        what="An auxiliary part of the reward, such as format or length, carries most of its variance, so that is "
        "what the run learns.",
        rivals=(
            Rival("warm-up", "the share falls by itself once the format is learned, within tens of steps"),
            Rival("reward.component-dead", "the answer's own part never moves: that is the fault behind it"),
        ),
        experiment=Experiment(
            "With correctness alone paid, held-out accuracy ends higher.",
            arms={"control": {}, "correctness": {"tasks.reward": "exact"}},
        ),
        fix=Fix(
            "Lower the part's weight until the answer carries most of the variance, or normalize parts one by "
            "one before adding them.",
            {
                "uptrend": {"tasks.reward": "exact"},
                "trl": {
                    "reward_weights": "1.0 for the answer, 0.1 for the rest",
                    "multi_objective_aggregation": "normalize_then_sum",
                },
                "verifiers": {"env.taskset.task.rewards.NAME.weight": 0.1},
                "prime-rl": {"orchestrator.train.source.env.taskset.task.rewards.NAME.weight": 0.1},
            },
        ),
        explains=("reward.component-dead", "reward.hackable"),
    ),
    Cause(
        "reward.hackable",
        Kind.CURVE,
        what="Training reward rises while held-out accuracy does not: the model has found something that pays and "
        "is not the task.",
        rivals=(
            Rival("data.memorized", "a second verifier agrees on training tasks: they are solved, but by heart"),
            Rival("eval.unlike-training", "scored by one path, training and held-out rollouts agree"),
            Rival("reward.component-dominates", "one logged part explains the whole rise"),
        ),
        experiment=Experiment(
            "With correctness alone paid, held-out accuracy rises with the reward.",
            arms={"control": {}, "correctness": {"tasks.reward": "exact"}},
        ),
        fix=Fix(
            "Read the 20 best-paid rollouts, close what they exploit, and pay for what the held-out verifier "
            "checks; keep the model near its start meanwhile.",
            {
                "uptrend": {"tasks.reward": "exact", "learning.kl.beta": 0.04},
                "trl": {"log_completions": True},
                "prime-rl": {"orchestrator.eval.interval": 20},
            },
        ),
    ),
    Cause(
        "reward.length-hacking",
        Kind.CURVE,
        what="Rollouts grow longer because length pays, and held-out accuracy stays where it was.",
        rivals=(
            Rival("real reasoning", "held-out accuracy rises with length, also among answers of equal length"),
            Rival("advantage.length-bias", "wrong rollouts grow faster than right ones, whatever the reward pays"),
        ),
        experiment=Experiment(
            "A loss without length bias keeps length down at the same accuracy.",
            arms={"control": {}, "dr_grpo": {"learning.loss": "dr_grpo", "learning.scale": "none"}},
            metric="sampling/length/mean",
            direction="down",
            smallest=0.2,
        ),
        fix=Fix(
            "Take length out of the reward or fine it, use a loss without length bias, and leave cut rollouts "
            "out of it.",
            {
                "uptrend": {"learning.loss": "dr_grpo", "learning.scale": "none", "learning.mask_truncated": True},
                "prime-rl": {"orchestrator.algo.length_penalty.type": "linear"},
            },
        ),
        explains=("reward.hackable", "context.completion-truncated"),
    ),
    Cause(
        "reward.scale-moves",
        Kind.CURVE,
        what="The reward's bounds or the mix of difficulty change over the run, so its mean can't be read as learning.",
        rivals=(
            Rival("learning", "drawn by kind of task, each curve rises by itself"),
            Rival("data.order", "the order of the tasks is what changes the mix"),
        ),
        experiment=Experiment(
            "With one mix of tasks from the first step to the last, less of the change in reward is left.",
            arms={"control": {}, "one mix": {"tasks.stages": []}},
            metric="reward/mean",
            direction="down",
        ),
        fix=Fix(
            "Bound every task's reward alike, shuffle difficulties, and judge by the fixed held-out set alone.",
            {
                "uptrend": {"tasks.stages": []},
                "trl": {"shuffle_dataset": True},
                "verifiers": {"shuffle_dataset": True},
                "verl": {"data.shuffle": True},
            },
        ),
        explains=("run.collapsed",),
    ),
    Cause(
        "reward.error-scored",
        Kind.CURVE,
        what="An exception or a default inside the scorer became a number, so failures of the scorer are learned "
        "from as if they were the model's.",
        rivals=(
            Rival("hard tasks", "the scorer's own error count is 0"),
            Rival("tool.errors-swallowed", "the tool failed during the rollout, not the scorer after it"),
        ),
        experiment=Experiment("Scoring the recorded rollouts again raises no exception."),
        fix=Fix(
            "Let the scorer raise or return None for what it can't score, and keep those rollouts out of the "
            "group; never return 0 from an except clause.",
            {"trl": {"reward_funcs": "return None, not 0.0, for what could not be scored"}},
        ),
        explains=NO_SIGNAL,
    ),
    Cause(
        "reward.never-computed",
        Kind.CURVE,
        what="The event that gives reward (an answer, a submission, a validation) does not occur in the rollouts.",
        rivals=(
            Rival("hard tasks", "the event occurs and is scored low"),
            Rival("context.completion-truncated", "rollouts are cut before the event could come"),
        ),
        experiment=Experiment(
            "With more turns and tokens the event occurs.",
            arms={"control": {}, "room": {"sampling.max_tokens": 512, "sampling.max_turns": 8}},
            metric="reward/std",
            smallest=0.01,
            steps=5,
        ),
        fix=Fix(
            "Score the end of every rollout, whatever was called; fine what never asks to be scored, and "
            "warm-start the habit.",
            {"verifiers": {"env.agent.max_turns": 8}, "prime-rl": {"orchestrator.train.source.env.agent.max_turns": 8}},
        ),
        explains=NO_SIGNAL,
    ),
]
