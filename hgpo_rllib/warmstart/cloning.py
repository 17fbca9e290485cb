"""Behavior cloning of the pocket model."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

HEAD_SIZE = 32  # the smallest that vLLM's attention supports on CPUs
WARMUP_STEPS = 50
Encoded = tuple[list[int], list[int]]  # prompt, response with its end token


def make_model(
    tokenizer: PreTrainedTokenizerFast, hidden_size: int, layers: int, max_length: int
) -> Qwen2ForCausalLM:
    """Create a randomly initialized Qwen2 with tied embeddings and one key-value head."""
    config = Qwen2Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=hidden_size // HEAD_SIZE,
        num_key_value_heads=1,
        intermediate_size=3 * hidden_size,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.04,
    )
    return Qwen2ForCausalLM(config)


def encode(
    tokenizer: PreTrainedTokenizerFast, examples: Sequence[tuple[str, str]]
) -> list[Encoded]:
    """Return the token ids of prompts and responses; a response ends with the end token."""
    prompts = tokenizer([p for p, _ in examples], add_special_tokens=False)["input_ids"]
    responses = tokenizer([r for _, r in examples], add_special_tokens=False)["input_ids"]
    return [(p, [*r, tokenizer.eos_token_id]) for p, r in zip(prompts, responses, strict=True)]


def clone(
    model: Qwen2ForCausalLM,
    examples: Sequence[Encoded],
    optimizer_steps: int,
    batch_size: int,
    lr: float,
    prompt_loss: float,
    seed: int,
    decay: bool = True,
    on_progress: Callable[[int, float], None] = lambda step, loss: None,
) -> float:
    """Train in place; return the mean response loss (nats per token) of the last 100 steps.

    The loss is the cross-entropy of response tokens plus `prompt_loss` times that of prompt
    tokens. The learning rate warms up over 50 steps, and decays linearly to 5 % with `decay`.
    """
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    recent: list[float] = []
    for step, batch in enumerate(_batches(examples, batch_size, optimizer_steps, rng)):
        rate = lr * min(1, (step + 1) / WARMUP_STEPS)
        for group in optimizer.param_groups:
            group["lr"] = rate * (max(0.05, 1 - step / optimizer_steps) if decay else 1)
        response, prompt = _losses(model, [examples[i] for i in batch])
        optimizer.zero_grad()
        (response + prompt_loss * prompt).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent = [*recent[-99:], float(response.detach())]
        on_progress(step + 1, float(np.mean(recent)))
    model.eval()
    return float(np.mean(recent))


def _batches(
    examples: Sequence[Encoded], size: int, count: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield random batches of examples of similar length, to reduce padding."""
    lengths = np.array([len(p) + len(r) for p, r in examples])
    while count > 0:
        pool = rng.choice(len(examples), size=min(len(examples), size * 16), replace=False)
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        parts = [pool[i : i + size] for i in range(0, len(pool), size)]
        for part in rng.permutation(len(parts))[:count]:
            yield parts[part]
        count -= len(parts)


def _losses(model: Qwen2ForCausalLM, batch: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy of response tokens and of prompt tokens."""
    ids = pad_sequence([torch.tensor(p + r) for p, r in batch], batch_first=True)
    starts = torch.tensor([[len(p)] for p, _ in batch])  # of responses
    ends = torch.tensor([[len(p) + len(r)] for p, r in batch])
    places = torch.arange(1, ids.shape[1])
    # Padding is on the right and attention is causal, so no mask is needed.
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    losses = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    is_response = (places >= starts) & (places < ends)
    return losses[is_response].mean(), losses[places < starts].mean()
