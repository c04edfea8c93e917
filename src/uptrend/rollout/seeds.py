"""Seeds from what a thing is, not from when it happens: the same rollout has the same seed after a resume."""

import hashlib


def derive(*parts: int | str) -> int:
    """A 63-bit seed from any identifying parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
