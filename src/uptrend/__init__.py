"""Uptrend: RL post-training that explains itself.

    run = uptrend.train(model="smollm2-135m", data=rows, reward=f, steps=100)
    run = uptrend.train("recipes/tiny.toml")
    uptrend.Run("runs/tiny").metrics
    uptrend.resume("runs/tiny", ["learning.steps=200"])
    uptrend.evaluate("runs/tiny").held.accuracy
    uptrend.replay("runs/tiny", step=0, steps=12, overrides=["learning.loss=dr_grpo"])
    uptrend.diagnose("outputs/trainer_state.json").findings
    uptrend.load_config("recipes/tiny.toml", ["learning.lr=2e-5"])

Importing this loads no torch; training does.
"""

from uptrend.config import load_config
from uptrend.records import Report, Reward, Run, Task
from uptrend.runner import diagnose, evaluate, replay
from uptrend.runner.api import resume, train
from uptrend.tasks.functions import remote
from uptrend.tasks.taskset import Taskset
from uptrend.training.observer import Observer

__version__ = "0.2.0"
__all__ = [
    "Observer",
    "Report",
    "Reward",
    "Run",
    "Task",
    "Taskset",
    "__version__",
    "diagnose",
    "evaluate",
    "load_config",
    "remote",
    "replay",
    "resume",
    "train",
]
