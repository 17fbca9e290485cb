"""Baseline of the learner: its update as a plain PyTorch loop without RLlib and options.

It has the default objective of docs/algorithm.md, section 7, sorts batches by length, and computes
logits of response tokens only, as an efficient single script would.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from hgpo_rllib.config import RunConfig
from hgpo_rllib.learner.batching import Columns, minibatches, row_sequences
from hgpo_rllib.learner.optimizer import learning_rate
from hgpo_rllib.models import load_model
from hgpo_rllib.settings.learner import resolve_compute_dtype


class PlainLoop:
    """Model, frozen reference model if the objective has a KL term, and optimizer."""

    def __init__(self, run: RunConfig, columns: Columns, device: torch.device):
        """Load the models; every update uses the batch `columns`."""
        self.run, self.columns, self.device = run, columns, device
        self.model = load_model(str(run.model.model_path)).to(device)
        settings = run.learner
        self.frozen: PreTrainedModel | None = None
        if settings.kl_coeff > 0:
            self.frozen = load_model(str(run.model.model_path)).to(device).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.lr,
            betas=settings.adam_betas,
            weight_decay=settings.weight_decay,
        )
        on_gpu = device.type != "cpu"
        self.dtype = getattr(torch, resolve_compute_dtype(settings.compute_dtype, on_gpu))
        self.updates = self.steps = 0

    def update(self) -> None:
        """Run all epochs of mini-batches."""
        self.updates += 1
        settings = self.run.learner
        rng = np.random.default_rng([self.run.seed, self.updates])
        sequence = row_sequences(self.columns)
        for rows in minibatches(sequence, settings.minibatch_size, settings.num_epochs, rng):
            self.optimizer.zero_grad()
            tokens = int(self.columns["response_length"][torch.from_numpy(rows)].sum())
            for part in self._parts(rows):
                (self._loss(part) / tokens).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.grad_clip)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(settings, self.steps, self.updates - 1)
            self.optimizer.step()
            self.steps += 1

    def _parts(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        lengths = (self.columns["prompt_length"] + self.columns["response_length"]).numpy()
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        parts: list[list[int]] = [[]]
        for row in rows:
            if (len(parts[-1]) + 1) * lengths[row] > self.run.learner.micro_batch_tokens:
                parts.append([])
            parts[-1].append(int(row))
        return [np.array(part) for part in parts if part]

    def _loss(self, part: NDArray[np.int64]) -> Tensor:
        """Return the loss summed over the response tokens of these rows."""
        prompts, responses = self.columns["prompt_length"], self.columns["response_length"]
        ids = torch.zeros(len(part), int((prompts + responses)[part].max()), dtype=torch.long)
        places, old, advantage = [], [], []
        for i, row in enumerate(part):
            start, length = int(prompts[row]), int(responses[row])
            ids[i, :start] = self.columns["prompt_ids"][row, :start]
            ids[i, start : start + length] = self.columns["response_ids"][row, :length]
            places += [(i, start + offset) for offset in range(length)]
            old.append(self.columns["behavior_logp"][row, :length])
            advantage.append(self.columns["advantage"][row].expand(length))
        row, position = torch.tensor(places).T.to(self.device)
        ids, a = ids.to(self.device), torch.cat(advantage).to(self.device)
        logp = self._logp(self.model, ids, row, position)
        ratio = (logp - torch.cat(old).to(self.device)).exp()
        low, high = 1 - self.run.learner.clip_low, 1 + self.run.learner.clip_high
        loss = torch.maximum(-ratio * a, -ratio.clamp(low, high) * a)
        if self.frozen is None:
            return loss.sum()
        with torch.no_grad():
            frozen = self._logp(self.frozen, ids, row, position)
        difference = frozen - logp
        kl = difference.exp() - difference - 1
        if self.run.learner.kl_clamp is not None:
            kl = kl.clamp(max=self.run.learner.kl_clamp)
        return (loss + self.run.learner.kl_coeff * kl).sum()

    def _logp(self, model: PreTrainedModel, ids: Tensor, row: Tensor, position: Tensor) -> Tensor:
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            logits = model.get_output_embeddings()(hidden[row, position - 1])
        logp = (logits.float() / self.run.rollout.temperature).log_softmax(-1)
        return logp.gather(-1, ids[row, position][:, None])[:, 0]
