"""Let experts (for demonstrations) and people play, instead of the model."""
