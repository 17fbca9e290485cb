"""The RLlib Learner: clipped token objective with a KL penalty to the starting policy."""

import logging
import math
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.policy.sample_batch import MultiAgentBatch
from ray.rllib.utils.annotations import override
from ray.rllib.utils.typing import StateDict
from torch import Tensor

from hgpo_rllib.advantages.estimators import NEEDS_TOKEN_VALUES
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.learner import sharding
from hgpo_rllib.learner.bad_batches import REMEDY, SKIPPED, describe_batch, find_problem
from hgpo_rllib.learner.batching import Columns, MiniBatch, plan_update, token_batch
from hgpo_rllib.learner.critic import parameter_groups, response_values, value_losses, value_weights
from hgpo_rllib.learner.data_parallel import (
    all_gather,
    learners_on_node,
    local_micro_batches,
    merge_across_learners,
    rank,
)
from hgpo_rllib.learner.gradients import GradientSum
from hgpo_rllib.learner.host_memory import set_up_host_memory
from hgpo_rllib.learner.lora import without_lora
from hgpo_rllib.learner.losses import mismatch, token_losses
from hgpo_rllib.learner.module import LLMModule, TokenScorer
from hgpo_rllib.learner.optimizer import OffloadedMoments, set_learning_rate
from hgpo_rllib.learner.statistics import Statistics
from hgpo_rllib.models import load_model
from hgpo_rllib.settings.learner import LearnerSettings

logger = logging.getLogger(__name__)


class HGPOLearner(TorchLearner):
    """Learner whose `_update` runs all epochs, mini-batches and micro-batches of an iteration.

    It does not use RLlib's mini-batch iterator, which does not shuffle the first epoch and fills
    up the last mini-batch with rows from the start.
    """

    @property
    def policy(self) -> LLMModule:
        """The only module."""
        return self.module[DEFAULT_MODULE_ID]

    @override(TorchLearner)
    def build(self) -> None:
        """Build module and optimizer, and the frozen reference if the objective uses one."""
        super().build()
        if self._device.type == "cpu":
            set_up_host_memory()
        else:
            # A learner on a GPU reserves no CPU. Ray then limits it to one thread, which is slow
            # at converting the weights for the engines.
            threads = joblib.cpu_count() // learners_on_node(self.config.num_learners)
            torch.set_num_threads(max(1, threads))
        self._settings = self.config.settings(LearnerSettings)
        self._moments = OffloadedMoments(self.get_optimizer(), self._settings.offload_optimizer)
        self._gradients = GradientSum([*self._params.values()], self._settings.shard_parameters)
        self._gathered_optimizer: StateDict = {}
        self._reference = None
        if self._settings.kl_coeff > 0 and not self.config.lora_rank:
            model = load_model(self.config.model_path)
            config = self.policy.model_config
            self._reference = TokenScorer(model, None, config | {"entropy_gradient": False})
            self._reference.freeze(self._device)
            if self._settings.shard_parameters:
                self._reference.shard(self._device)
            else:
                self._reference.to(self._device)

    @override(TorchLearner)
    def _map_module_to_device(self, module: MultiRLModule) -> None:
        """Move the module to the device; layer by layer if sharded, as the whole may not fit."""
        if self.config.shard_parameters:
            module[DEFAULT_MODULE_ID].shard(self._device)
        else:
            super()._map_module_to_device(module)

    @override(TorchLearner)
    def _make_modules_ddp_if_necessary(self) -> None:
        """Skip DDP, which hangs when one learner runs out of memory: see `GradientSum`."""

    @override(TorchLearner)
    def _convert_batch_type(self, batch: MultiAgentBatch, **kwargs: Any) -> MultiAgentBatch:
        """Keep columns in host memory; RLlib would move the whole batch to the device.

        Mini-batches are planned in host memory, and each micro-batch is moved when it is used.
        """
        return batch

    @override(TorchLearner)
    def configure_optimizers_for_module(self, module_id: str, config=None) -> None:
        """Register AdamW; `set_learning_rate` applies warm-up and decay."""
        groups = parameter_groups(self._module[module_id])
        optimizer = torch.optim.AdamW(
            [{"params": group} for group in groups],
            lr=config.lr,
            betas=config.adam_betas,
            weight_decay=config.weight_decay,
            fused=True,  # torch's default on GPUs takes memory of the size of the parameters
        )
        self.register_optimizer(
            module_id=module_id,
            optimizer=optimizer,
            params=[parameter for group in groups for parameter in group],
            lr_or_lr_schedule=config.lr,
        )

    @override(TorchLearner)
    def compute_loss_for_module(
        self, *, module_id: str, config, batch: dict[str, Tensor], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        """Return a micro-batch's part of the objective: the sum of weighted token losses."""
        losses = token_losses(self._settings, batch, fwd_out)
        weight = batch["weight"].to(losses.loss.dtype)
        loss = (losses.loss * weight).sum()
        if "value" in fwd_out:
            old, target = batch["value"], batch["value_target"]
            unweighted, cut = value_losses(fwd_out["value"], old, target, self._settings.value_clip)
            value_loss = (unweighted * batch["value_weight"].to(unweighted.dtype)).sum()
            self._statistics.add("value_clip_fraction", cut)
            self._statistics.add("value_loss", value_loss)
            loss = loss + self._settings.value_coeff * value_loss
        for name, values in losses.statistics.items():
            self._statistics.add(name, values)
        self._statistics.add("loss", loss)
        self._statistics.add("policy_loss", (losses.policy_loss * weight).sum())
        return loss

    @torch.no_grad()
    def _reference_logp(self, tokens: dict[str, Tensor]) -> Tensor:
        if self._reference is not None:
            return self._reference(tokens)["logp"]
        tokens = {k: v for k, v in tokens.items() if k != "value_position"}  # without the critic
        with without_lora(self.policy.llm):
            return self.policy.forward_train(tokens)["logp"]

    @override(TorchLearner)
    def _update(self, batch: dict[str, Any], **kwargs: Any) -> tuple[Any, Any, Any]:
        columns = dict(batch[DEFAULT_MODULE_ID])
        # Seed with the update number, so that a resumed run shuffles like an uninterrupted one.
        rng = np.random.default_rng([self.config.seed or 0, self._weights_seq_no])
        plan = plan_update(columns, self._settings, rng)
        if self._has_no_signal(columns, plan):
            self._log({"skipped_batches": float(len(plan))})
            return {}, {}, {}
        self._measured = Statistics()  # engine/learner mismatch at the sampling weights
        if self._settings.old_logp == "recomputed":
            # The first mini-batch's training pass computes old_logp of its rows itself.
            rows = np.setdiff1d(np.concatenate([part.trained for part in plan]), plan[0].trained)
            columns["old_logp"] = self._recomputed_logp(columns, rows)
        update, skipped = Statistics(), 0
        for number in range(len(plan)):
            applied = self._optimize(columns, plan, number)
            skipped += not applied
            if applied:
                update.merge(self._statistics)
        self._check_parameters()
        if skipped < len(plan):
            self.policy.mark_weights_changed()  # the next weight sync publishes them
        results = update.values() | self._mismatch() | {"skipped_batches": float(skipped)}
        self._log(results)
        return {}, {DEFAULT_MODULE_ID: results.get("loss", math.nan)}, {}

    def model_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the model's weights on the first learner; to send tensors, Ray would copy them."""
        state = self.policy.model_state() if rank() == 0 else {}
        return {name: tensor.numpy(force=True) for name, tensor in state.items()}

    def free_gpu_memory(self) -> None:
        """Free gradients and torch's cache, for an engine that shares the GPU."""
        self.get_optimizer().zero_grad()
        torch.cuda.empty_cache()  # does nothing without a GPU

    def _log(self, results: dict[str, float]) -> None:
        self.metrics.log_dict(results, key=DEFAULT_MODULE_ID, window=1)

    def _has_no_signal(self, columns: dict[str, Tensor], plan: list[MiniBatch]) -> bool:
        """Return whether no term of the objective has a gradient; stop the run if so configured."""
        settings = self._settings
        rows = np.concatenate([part.trained for part in plan])
        other_terms = settings.kl_coeff > 0 or settings.entropy_coeff > 0
        other_terms |= not columns.keys().isdisjoint(("value", "teacher_logp"))
        if columns["advantage"].numpy()[rows].any() or (len(rows) and other_terms):
            return False
        rows = np.arange(len(columns["advantage"]))
        message = (
            f"update {self._weights_seq_no}: nothing to learn from, all advantages are 0 "
            f"({describe_batch(columns, rows)})"
        )
        if settings.on_no_signal == "stop":
            raise RunStoppedError(f"{message}; set learner.on_no_signal=skip to go on")
        logger.warning("%s; the update is skipped (learner.on_no_signal=skip)", message)
        return True

    @torch.no_grad()
    def _recomputed_logp(self, columns: Columns, rows: NDArray[np.int64]) -> Tensor:
        """Compute the log-probabilities of this learner's share of the rows, NaN elsewhere.

        Must be called before the first optimizer step.
        """
        dtype = torch.promote_types(next(iter(self._params.values())).dtype, torch.float32)
        old_logp = torch.full(columns["response_ids"].shape, math.nan, dtype=dtype)
        for micro in self._micro_batches(columns, rows):
            tokens = token_batch(columns, micro, self._device)
            logp = self.policy.forward_train(tokens)["logp"]
            if "behavior_logp" in tokens:
                self._measure_mismatch(logp, tokens["behavior_logp"])
            old_logp[tokens["row"].cpu(), tokens["offset"].cpu()] = logp.cpu()
        return old_logp

    def _micro_batches(self, columns: Columns, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the micro-batches of this learner's share of the rows."""
        lengths = (columns["prompt_length"] + columns["response_length"]).numpy()
        return local_micro_batches(columns, rows, lengths, self._settings)

    def _optimize(self, columns: dict[str, Tensor], plan: list[MiniBatch], number: int) -> bool:
        """Process one mini-batch; its metrics are in `_statistics`.

        Returns:
            Whether the optimizer step was taken; False if a bad mini-batch was skipped.
        """
        self._statistics = Statistics()
        for name in ("loss", "policy_loss"):  # 0 if all rows of the mini-batch are dropped
            self._statistics.add(name, torch.zeros((), device=self._device))
        problem = self._compute_gradients(columns, plan[number], first=number == 0)
        if problem is None:
            optimizer = self.get_optimizer()
            done = self._weights_seq_no - 1  # RLlib already counts the current update
            set_learning_rate(optimizer, self._settings, done)
            try:
                with self._moments.loaded():
                    optimizer.step()
                sharding.reshard(self.policy)  # without a pass, stale copies can remain
            except torch.OutOfMemoryError as error:
                raise RunStoppedError(
                    "out of memory in the optimizer step: use learner.offload_optimizer=true, "
                    "model.lora_rank, or learner.shard_parameters=true with more learners "
                    f"({error})"
                ) from error
            return True
        message = (
            f"bad mini-batch {number + 1} of {len(plan)} in update {self._weights_seq_no}: "
            f"{problem}; it has {describe_batch(columns, plan[number].rows)}"
        )
        if self._settings.on_bad_batch == "stop":
            raise RunStoppedError(f"{message}; {REMEDY}")
        logger.warning("%s; %s", message, SKIPPED)
        if number == 0 and "old_logp" in columns:
            self._complete_old_logp(columns, plan[0])
        return False

    def _compute_gradients(
        self, columns: dict[str, Tensor], part: MiniBatch, first: bool
    ) -> str | None:
        """Compute a mini-batch's clipped gradients; return what is wrong with them, or None."""
        problem = None
        try:
            self._accumulate_gradients(columns, part, first)
        except torch.OutOfMemoryError as error:
            size = self._settings.micro_batch_tokens
            problem = f"out of memory with learner.micro_batch_tokens={size}: lower it ({error})"
        self._gradients.complete()
        problems, statistics = zip(*all_gather((problem, self._statistics.cpu())), strict=True)
        if first and "old_logp" in columns:  # all rows are computed, for this and later epochs
            columns["old_logp"] = merge_across_learners(columns["old_logp"], self._device)
        if any(problems):
            return next(filter(None, problems))
        self._statistics = Statistics.from_parts(statistics)
        groups = parameter_groups(self.policy)
        for name, group in zip(("grad_norm", "critic_grad_norm"), groups, strict=False):
            norm = torch.nn.utils.clip_grad_norm_(group, self._settings.grad_clip)
            self._statistics.add(name, sharding.full_tensor(norm).cpu())
        return find_problem(self._statistics.values(), self._settings.max_ratio)

    def _complete_old_logp(self, columns: dict[str, Tensor], part: MiniBatch) -> None:
        """Compute the ``old_logp`` missing after a first training pass that ran out of memory.

        Its optimizer step is skipped, so the weights are still the sampling weights. Without
        gradients, this needs much less memory.
        """
        old_logp = columns["old_logp"]
        missing = part.trained[old_logp[torch.from_numpy(part.trained), 0].isnan().numpy()]
        if len(missing):
            found = merge_across_learners(self._recomputed_logp(columns, missing), self._device)
            old_logp[missing] = found[missing]

    def _accumulate_gradients(
        self, columns: dict[str, Tensor], part: MiniBatch, first: bool
    ) -> None:
        """Compute a mini-batch's gradients; `first`: weights are still the sampling weights."""
        weight = torch.zeros(len(columns["advantage"]), dtype=torch.float64)
        weight[torch.from_numpy(part.trained)] = torch.from_numpy(part.weight)
        weights = {"weight": weight}
        if "value" in columns:
            critic_outputs = self.policy.model_config["critic_outputs"]
            weights["value_weight"] = value_weights(columns, part.rows, critic_outputs)
        parts = self._micro_batches(columns, part.trained)
        self._gradients.begin(len(parts))
        for micro in parts:
            tokens = token_batch(columns | weights, micro, self._device)
            if self._settings.kl_coeff > 0:  # before activations take memory
                tokens["reference_logp"] = self._reference_logp(tokens)
            outputs = self.policy.forward_train(tokens)
            logp = outputs["logp"].detach()
            if first:
                self._measure_mismatch(logp, tokens["behavior_logp"])
                if "old_logp" in columns:
                    tokens["old_logp"] = logp
                    columns["old_logp"][tokens["row"].cpu(), tokens["offset"].cpu()] = logp.cpu()
            tokens.setdefault("old_logp", tokens["behavior_logp"])
            self.compute_loss_for_module(
                module_id=DEFAULT_MODULE_ID, config=self.config, batch=tokens, fwd_out=outputs
            ).backward()

    def _measure_mismatch(self, learner_logp: Tensor, behavior_logp: Tensor) -> None:
        for name, values in mismatch(learner_logp, behavior_logp).items():
            self._measured.add(name, values)

    def _mismatch(self) -> dict[str, float]:
        """Return the update's mismatch metrics, and warn if the KL exceeds the threshold."""
        values = Statistics.from_parts(all_gather(self._measured.cpu())).values()
        alarm = self._settings.mismatch_alarm
        kl = values.get("behavior_kl", 0.0)  # absent if all measured rows were dropped
        if alarm is not None and not kl <= alarm:
            corrected = self._settings.importance_cap is not None
            remedy = (
                "" if corrected else "; old_logp=recomputed with importance_cap=2 corrects for it"
            )
            logger.warning(
                f"update {self._weights_seq_no}: engine and learner disagree on sampled tokens: KL "
                f"{kl:.3g} exceeds learner.mismatch_alarm={alarm:g} (log-probabilities "
                f"differ by {values['behavior_logp_gap_mean']:.3g} on average, by "
                f"{values['behavior_logp_gap']:.3g} at most){remedy}"
            )
        return values

    def _check_parameters(self) -> None:
        """Stop the run before it saves parameters that are not finite."""
        norm = torch.nn.utils.get_total_norm(self._params.values())
        if not sharding.full_tensor(norm).isfinite():
            raise RunStoppedError(
                f"update {self._weights_seq_no}: the policy's parameters are not finite; the run "
                "ends and saves nothing: resume it from its last checkpoint with a smaller "
                "learner.lr"
            )

    @override(TorchLearner)
    def _get_optimizer_state(self) -> StateDict:
        """Return the state by parameter name, so that any number of learners can load it."""
        if not self._settings.shard_parameters:
            self.gather_optimizer_state()
        state, self._gathered_optimizer = self._gathered_optimizer, {}
        return state

    def gather_optimizer_state(self) -> None:
        """Gather the optimizer state on the first learner. Collective: all learners call it."""
        optimizer = self.get_optimizer()
        with self._moments.loaded():
            self._gathered_optimizer = sharding.full_optimizer_state(self.policy, optimizer)

    @override(TorchLearner)
    def _set_optimizer_state(self, state: StateDict) -> None:
        with self._moments.loaded():
            sharding.load_full_optimizer_state(self.policy, self.get_optimizer(), state)

    def values(self, columns: Columns) -> NDArray[np.float64]:
        """Return the critic's values of every response, see `response_values`. Collective."""
        per_token = self.config.estimator in NEEDS_TOKEN_VALUES
        return response_values(self.policy, columns, self._settings, self._device, per_token)

    def token_logp(self, columns: Columns) -> NDArray[np.float64]:
        """Return the log-probability of every response token, NaN after a response. Collective."""
        logp = self._recomputed_logp(columns, np.arange(len(columns["prompt_length"])))
        return merge_across_learners(logp, self._device).double().numpy()

    @torch.no_grad()
    def response_logp(self, prompt_ids: np.ndarray, response_ids: np.ndarray) -> np.ndarray:
        """Return the learner's log-probabilities of a response, shape ``(response tokens,)``."""
        ids = torch.from_numpy(np.concatenate([prompt_ids, response_ids]).astype(np.int64))[None]
        position = torch.arange(len(prompt_ids), ids.shape[1])
        batch = {"ids": ids, "sequence": torch.zeros_like(position), "position": position}
        batch = {key: value.to(self._device) for key, value in batch.items()}
        return self.policy.forward_train(batch)["logp"].cpu().numpy()
