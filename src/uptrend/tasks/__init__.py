"""Interface of tasksets, their registry, tasks and rewards of your own, and the tasks of a run. No
torch.
"""
