"""HGPO-RLlib: LLM agents for long-horizon text tasks, trained with HGPO on Ray RLlib and Serve."""

__version__ = "0.1.0"
