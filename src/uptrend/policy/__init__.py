"""The model, its tokenizer, adapters, optimizer and checkpoints."""
