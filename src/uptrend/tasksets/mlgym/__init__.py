"""`mlgym`: an agent that does small machine-learning tasks with one command per turn, scored
outside its sandbox.
"""
