"""Work for several processes that train together; `work(...)` has a launcher start them, each with
this file.

As a command: python ranked.py FUNCTION VALUE.json, where the function is one of those below.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def environment() -> dict[str, str]:
    """Variables for a launcher: one thread, nothing from a hub, and the tests on the path."""
    told = {
        key: value
        for key, value in os.environ.items()
        if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    return told | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}


def work(function: str, folder: Path, value: Any, count: int = 2, seconds: int = 900) -> None:
    """Call a function of this file in several processes at once."""
    given = folder / f"{function}.json"
    given.write_text(json.dumps(value))
    command = [*TORCHRUN, str(count), __file__, function, str(given)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]


def train(cases: list[dict[str, Any]]) -> None:
    """Make runs one after the other, or go on with them; `strays` has one process add something to
    its gradient.
    """
    from uptrend.config import load_config
    from uptrend.runner import runs
    from uptrend.runner.prepare import prepare

    for case in cases:
        path = Path(case["path"])
        if case.get("resumes"):
            runs.resume_run(path, case["sets"])
            continue
        prepared = prepare(load_config(case["table"], case["sets"]))
        if case.get("strays"):
            prepared = replace(
                prepared, components=replace(prepared.components, optimizer=_straying())
            )
        runs.start(prepared, path)


def _straying() -> Any:
    from uptrend.policy.optimizer import Applied, Optimizer

    class Straying(Optimizer):
        def apply(self, lr: float) -> Applied:
            self._flat.gradient.add_(1e-3 * int(os.environ["RANK"]))
            return super().apply(lr)

    return Straying


def save_to_a_full_disk(given: dict[str, Any]) -> None:
    """Save the memory of a sharded optimizer where no file may be larger than a few bytes."""
    import resource

    from uptrend.config import load_config
    from uptrend.records import CheckpointError
    from uptrend.runner.prepare import prepare

    prepared = prepare(load_config(given["table"], given["sets"]))
    optimizer = prepared.components.optimizer(prepared.policy.flat, prepared.config.learning)
    optimizer.apply(1e-4)  # makes the memory
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    try:
        optimizer.save(Path(given["folder"]))
    except CheckpointError as error:
        message = str(error)
    else:
        raise AssertionError("it was saved")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert message.startswith(f"{given['folder']} could not be written: "), message


def compare(given: dict[str, Any]) -> None:
    """Compare updates of several processes with one's, for steps whose groups do not divide by
    them.
    """
    import torch
    from hypothesis import given as drawn
    from hypothesis import settings
    from hypothesis import strategies as st
    from torch import Tensor

    from steps import advantages_of, config_of, rollouts_of
    from uptrend.config import Model
    from uptrend.policy.optimizer import Optimizer
    from uptrend.policy.policy import Policy, load_policy
    from uptrend.policy.sharded import ShardedOptimizer, shard
    from uptrend.training.learner import Learner, lay_out
    from uptrend.training.ranks import OneRank, Ranks, join_ranks

    torch.set_num_threads(1)
    ranks, folder, cpu = join_ranks(), given["model"], torch.device("cpu")
    wish = Model(name=folder)

    def load() -> Policy:
        return load_policy(folder, wish, cpu, seed=0, keep_reference=False)

    one, ddp, fsdp2 = load(), load(), shard(load(), cpu, folder, wish, 0)
    before = {name: weight.clone() for name, weight in one.named()}
    member = st.lists(st.integers(1, 6), min_size=1, max_size=1)
    group = st.tuples(st.integers(1, 8), st.lists(member, min_size=2, max_size=3))

    def learn(
        policy: Policy, ranks: Ranks, shapes: Any, seed: int, learning: dict[str, Any]
    ) -> tuple[Any, ...]:
        for slot in policy.flat.slots:
            policy.flat.put(slot, before[slot.name])
        config = config_of("sampling.groups=6", lr=1e-3, weight_decay=0.1, **learning)
        optimizer = (ShardedOptimizer if policy.is_sharded else Optimizer)(
            policy.flat, config.learning
        )
        learner = Learner(policy, optimizer, config)
        learner.join(ranks)
        rollouts = rollouts_of(shapes, seed)
        exp = lay_out(rollouts, config)
        given_bs = advantages_of(rollouts, exp, config).clone()
        if len(shapes) > 1:  # some groups are dead: nothing is computed of them
            given_bs[exp.groups_b % 3 == seed % 3] = 0
        old = (
            learner.logprobs(exp, reference=False, advantages_bs=given_bs)
            if learner.needs_old
            else None
        )
        done = learner.update(exp, given_bs, 1, old_bs=old, reference_bs=None)
        norms = torch.tensor([each.norm_before for each in done.applied])
        moments: list[Tensor] = [done.learner_bs, done.weights_bs, norms]
        return {name: weight.clone() for name, weight in policy.named()}, moments

    @settings(max_examples=given["examples"], derandomize=True, database=None, deadline=None)
    @drawn(
        st.lists(group, min_size=1, max_size=5),
        st.integers(0, 99),
        st.sampled_from([1, 2]),
        st.sampled_from([9, 60]),
    )
    def updates_are_equal(shapes: Any, seed: int, minibatches: int, tokens: int) -> None:
        learning = {
            "minibatches": min(minibatches, len(shapes)),
            "tokens": tokens,
            "skip_dead": True,
        }
        weights, others = learn(one, OneRank(), shapes, seed, learning)
        for policy in (ddp, fsdp2):
            found, measured = learn(policy, ranks, shapes, seed, learning)
            # As a whole: where a gradient is all but 0, Adam makes a step of its rounding. Norms
            # tell its scale.
            off, moved = (
                torch.cat(
                    [(other[name] - weight).flatten() for name, weight in weights.items()]
                ).norm()
                for other in (found, before)
            )
            assert off < 0.02 * moved + 1e-7, (off, moved)
            for mine, theirs in zip(measured, others, strict=True):
                torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4, equal_nan=True)

    updates_are_equal()


if __name__ == "__main__":
    globals()[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))
