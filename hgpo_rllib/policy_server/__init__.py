"""vLLM as a Ray Serve deployment: generates every action, and takes new weights after updates."""
