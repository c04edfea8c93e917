"""Numbers, durations and lists as people read them; plots (matplotlib) and pages (Jinja). No
torch.
"""
