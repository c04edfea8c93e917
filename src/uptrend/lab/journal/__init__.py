"""What is written down after each verdict, and the page that shows it all."""

from uptrend.lab.journal.entry import ArmRun, Entry
from uptrend.lab.journal.recording import record

__all__ = ["ArmRun", "Entry", "record"]
