"""The RLlib Learner: the clipped objective on tokens, with a KL to the starting policy."""

from typing import Any

import numpy as np
import torch
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override
from torch import Tensor

from hgpo_rllib.learner.batching import micro_batches, minibatches, token_batch
from hgpo_rllib.learner.losses import clipped_policy_loss, k3_kl
from hgpo_rllib.learner.module import token_log_probs
from hgpo_rllib.models import load_model
from hgpo_rllib.rollout.group import POLICY_ID


class HGPOLearner(TorchLearner):
    """One RLlib update = one iteration: all its epochs, mini-batches and micro-batches.

    RLlib's own mini-batch iterator never shuffles in the first epoch and wraps the last
    mini-batch around, so the update iterates itself.
    """

    @override(TorchLearner)
    def build(self) -> None:
        """Build module and optimiser, and the frozen reference when the objective uses one."""
        super().build()
        self._reference = None
        if self.config.kl_coeff > 0:
            self._reference = load_model(self.config.model_path).to(self._device)
            self._reference.requires_grad_(False)
        self._rng = np.random.default_rng(self.config.seed)

    @override(TorchLearner)
    def configure_optimizers_for_module(self, module_id: str, config=None) -> None:
        """AdamW; `_set_learning_rate` applies the warm-up."""
        parameters = self.get_parameters(self._module[module_id])
        optimizer = torch.optim.AdamW(
            parameters, lr=config.lr, betas=config.adam_betas, weight_decay=config.weight_decay
        )
        self.register_optimizer(
            module_id=module_id,
            optimizer=optimizer,
            params=parameters,
            lr_or_lr_schedule=config.lr,
        )

    @override(TorchLearner)
    def compute_loss_for_module(
        self, *, module_id: str, config, batch: dict[str, Tensor], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        """Sum of token losses over ``batch["denominator"]``, the tokens of the mini-batch.

        Micro-batches thereby add up to the mean over all tokens of the mini-batch.
        """
        logp = fwd_out["logp"]
        loss, clipped = clipped_policy_loss(
            logp, batch["behaviour_logp"], batch["advantage"], config.clip_low, config.clip_high
        )
        self._statistics.add("policy_loss", loss)
        self._statistics.add("clip_fraction", clipped.float())
        self._statistics.add("entropy", fwd_out["entropy"])
        self._statistics.count += len(logp)
        if self._reference is not None:
            with torch.no_grad():
                reference = token_log_probs(self._reference, batch, config.temperature)["logp"]
            kl = k3_kl(logp, reference)
            self._statistics.add("kl", kl)
            loss = loss + config.kl_coeff * kl
        self._statistics.add("loss", loss)
        return loss.sum() / batch["denominator"]

    @override(TorchLearner)
    def _update(self, batch: dict[str, Any], **kwargs: Any) -> tuple[Any, Any, Any]:
        columns = batch[POLICY_ID]
        lengths = (columns["prompt_length"] + columns["response_length"]).numpy()
        self._statistics = TokenMeans()
        norms = []
        config = self.config
        for number, rows in enumerate(
            minibatches(len(lengths), config.minibatch_size, config.num_epochs, self._rng)
        ):
            for optimizer in self._optimizer_parameters:
                optimizer.zero_grad(set_to_none=True)
            denominator = columns["response_length"][torch.from_numpy(rows)].sum()
            for micro in micro_batches(rows, lengths, config.micro_batch_tokens):
                tokens = token_batch(columns, micro, self._device)
                tokens["denominator"] = denominator.to(self._device)
                outputs = {POLICY_ID: self.module[POLICY_ID].forward_train(tokens)}
                if number == 0:  # the weights are still those that sampled
                    gap = (outputs[POLICY_ID]["logp"].detach() - tokens["behaviour_logp"]).abs()
                    self._statistics.maximum("behaviour_logp_gap", gap)
                losses = self.compute_losses(fwd_out=outputs, batch={POLICY_ID: tokens})
                losses[POLICY_ID].backward()
            norms.append(self._clip_and_step())
        results = self._statistics.means() | {"grad_norm": float(np.mean(norms))}
        for name, value in results.items():
            self.metrics.log_value((POLICY_ID, name), value, window=1)
        return outputs, {POLICY_ID: results["loss"]}, {}

    def _clip_and_step(self) -> float:
        self._set_learning_rate()
        parameters = list(self._params.values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.config.grad_clip)
        self.apply_gradients({reference: p.grad for reference, p in self._params.items()})
        return float(norm)

    def _set_learning_rate(self) -> None:
        """Warm-up by optimiser steps, decay by iterations; both counts survive a resume."""
        optimizer = self.get_optimizer(POLICY_ID)
        taken = int(next(iter(optimizer.state.values()))["step"]) if optimizer.state else 0
        warm = min(1.0, (taken + 1) / max(1, self.config.lr_warmup_steps))
        decay = self.config.lr_decay_iterations
        done = self._weights_seq_no - 1  # RLlib counts the present update already
        left = 1.0 if decay is None else max(0.0, 1 - done / decay)
        for group in optimizer.param_groups:
            group["lr"] = self.config.lr * warm * left

    @override(Learner)
    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """The next weight sync publishes the new weights."""
        super().after_gradient_based_update(timesteps=timesteps)
        self.module[POLICY_ID].unwrapped().weights_changed()

    def score_tokens(self, prompt_ids: np.ndarray, response_ids: np.ndarray) -> np.ndarray:
        """Log-probabilities the learner gives to a response, shape ``(response tokens,)``."""
        ids = torch.from_numpy(np.concatenate([prompt_ids, response_ids]).astype(np.int64))[None]
        position = torch.arange(len(prompt_ids), ids.shape[1])
        batch = {"ids": ids, "row": torch.zeros_like(position), "position": position}
        batch = {key: value.to(self._device) for key, value in batch.items()}
        with torch.no_grad():
            return self.module[POLICY_ID].forward_train(batch)["logp"].cpu().numpy()


class TokenMeans:
    """Running means over the tokens of an update."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: dict[str, float] = {}
        self._maxima: dict[str, float] = {}

    def add(self, name: str, values: Tensor) -> None:
        """Add one value per token; `count` is advanced by the caller, once for all names."""
        self._sums[name] = self._sums.get(name, 0.0) + float(values.detach().sum())

    def maximum(self, name: str, values: Tensor) -> None:
        """Keep the largest value."""
        # np.maximum, unlike max, keeps a NaN
        self._maxima[name] = float(np.maximum(self._maxima.get(name, 0.0), float(values.max())))

    def means(self) -> dict[str, float]:
        """Means and maxima by name."""
        return {name: total / self.count for name, total in self._sums.items()} | self._maxima
