"""The model, its tokenizer, adapters, optimiser and checkpoints."""
