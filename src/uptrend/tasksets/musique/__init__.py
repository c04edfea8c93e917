"""Multi-hop questions with retrieval tools: MuSiQue's files, hub datasets, and an invented
world.
"""
