"""Causes: task and tools."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix, Rival

CAUSES = [
    Cause(
        "tool.errors-swallowed",
        Kind.CURVE,
        what="A tool failed, the rollout went on, and the model was paid as if it had been wrong.",
        rivals=(
            Rival("misuse", "the scripted expert's own calls succeed"),
            Rival("reward.error-scored", "the scorer failed, not a tool"),
        ),
        experiment=Experiment("The scripted expert's calls succeed on every task.", probe="gold"),
        fix=Fix(
            "Record the failure as a failed rollout without a reward; retry what is the tool's own fault, with a "
            "time limit.",
            {
                "verifiers": {"env.agent.retries.max_retries": 2},
                "prime-rl": {"orchestrator.train.source.env.agent.retries.max_retries": 2},
            },
        ),
        explains=("tool.never-called", "advantage.dead-groups-low"),
    ),
    Cause(
        "tool.never-called",
        Kind.CURVE,
        what="The model hardly ever calls the tools that the task needs.",
        rivals=(
            Rival("not needed", "answers without a call are as often right"),
            Rival("tokens.template", "the tools are not in the prompt at all"),
            Rival("tool.multi-call", "calls are made and refused by the template"),
        ),
        experiment=Experiment(
            "Tools are in the prompt, and a call as the expert makes it is understood.", probe="tool-calls"
        ),
        fix=Fix(
            "Show the tools in the prompt, warm-start on demonstrations that call them, and leave enough turns.",
            {
                "uptrend": {"sampling.max_turns": 8, "sampling.max_tokens": 128},
                "trl": {"tools": "the callables themselves", "max_tool_calling_iterations": 8},
                "prime-rl": {"inference.vllm.tool_call_parser": "auto"},
            },
            untranslated=("sampling.max_tokens",),
        ),
        explains=("reward.never-computed",),
    ),
    Cause(
        "tool.multi-call",
        Kind.PROBE,
        what="The chat template refuses a turn with several tool calls, so such rollouts fail.",
        rivals=(Rival("tool.errors-swallowed", "single calls fail as well"),),
        experiment=Experiment("A turn with two calls can be rendered.", probe="tool-calls"),
        fix=Fix(
            "Allow one call a turn and say so in the prompt, or use a template that renders several.",
            {
                "trl": {"processing_class": "a tokenizer whose chat_template renders several calls"},
                "prime-rl": {"orchestrator.renderer.name": "a renderer of this family that renders several calls"},
            },
        ),
        explains=("tool.errors-swallowed",),
    ),
    Cause(
        "task.state-leaks",
        Kind.INVARIANT,
        what="Rollouts share state: what one does is seen by another, and the same actions get other results.",
        rivals=(Rival("clocks and random numbers", "differences stay with a fresh workspace and fixed seeds"),),
        experiment=Experiment("The same actions played twice, and in parallel, see the same results.", probe="state"),
        fix=Fix(
            "Give every rollout a workspace of its own, made anew and removed after; keep no state in the taskset.",
            {
                "verifiers": {"env.agent.runtime.type": "docker"},
                "prime-rl": {"orchestrator.train.source.env.agent.runtime.type": "docker"},
            },
        ),
        explains=("reward.nondeterministic", "advantage.dead-groups-low"),
    ),
    Cause(
        "task.evaluator-exposed",
        Kind.INVARIANT,
        what="A rollout can read or change the answers or the evaluator, so cheating pays.",
        rivals=(Rival("reward.hackable", "a scripted cheater fails: what pays is in the reward, not in the files"),),
        experiment=Experiment(
            "A scripted cheater that reads, links and overwrites files does not score.", probe="cheater"
        ),
        fix=Fix(
            "Keep answers and evaluator outside the workspace, score a copy from outside, and allow no links out "
            "of it.",
        ),
        explains=("reward.hackable", "advantage.dead-groups-high"),
    ),
]
