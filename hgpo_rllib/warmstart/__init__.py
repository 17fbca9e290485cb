"""The pocket model: a tiny Qwen2 with its own tokenizer, cloned from scripted demonstrations."""
