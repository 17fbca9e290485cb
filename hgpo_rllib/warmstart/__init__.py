"""The pocket model: a tiny Qwen2 with its own tokenizer, trained on scripted demonstrations."""
