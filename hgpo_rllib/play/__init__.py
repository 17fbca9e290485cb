"""Games played by others than the model: by experts for demonstrations, and by a person."""
