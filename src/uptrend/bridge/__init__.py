"""Other trainers, trackers and formats, made readable as our own."""
