"""Journal of a lab: entries after each verdict, fixes, and the page that shows it all."""

from uptrend.lab.journal.recording import record
from uptrend.lab.journal.stored import ArmRun, Entry

__all__ = ["ArmRun", "Entry", "record"]
