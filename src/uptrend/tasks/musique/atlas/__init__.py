"""An invented atlas: multi-hop questions over people, places and works that exist nowhere, made offline by seed.

Every question has a small world of its own, so that nothing learned from one answers another.
"""

from uptrend.tasks.musique.atlas.examples import AtlasOptions, row, rows

__all__ = ["AtlasOptions", "row", "rows"]
