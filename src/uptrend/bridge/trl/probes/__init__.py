"""Questions to TRL's own model and to the user's own reward functions, asked while a run goes on."""
