"""vLLM as a Ray Serve deployment that generates all actions and loads new weights after updates."""
