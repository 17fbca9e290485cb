"""ScienceWorld: elementary science in text, on the original simulator."""
