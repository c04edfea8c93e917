"""Says why a run does not learn: checks on records, and probes with the model. Checks need no
torch.
"""
