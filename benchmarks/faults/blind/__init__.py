"""Faults written as user code by people who never saw the checks. README.md says how they were made
and kept apart.
"""
