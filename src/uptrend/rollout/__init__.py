"""Play tasks against a sampler; the samplers."""
