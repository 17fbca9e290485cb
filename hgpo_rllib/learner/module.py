"""The RLModule: a HuggingFace causal language model for training; vLLM serves its weights."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.utils.annotations import override
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from hgpo_rllib.learner.critic import Critic, hidden_states, make_critic
from hgpo_rllib.learner.lora import adapter_config, adapter_form, add_lora, merged_state
from hgpo_rllib.learner.sharding import full_parameters, load_full_parameters, shard
from hgpo_rllib.models import checkpoint_form, load_model
from hgpo_rllib.policy_server.engine import find_transport
from hgpo_rllib.policy_server.publisher import WeightPublisher
from hgpo_rllib.policy_server.types import WeightTag
from hgpo_rllib.settings.learner import ComputeDtype, resolve_compute_dtype, tokens_at_once

Restrictions = tuple[Tensor, Tensor]
"""Arguments `restricted` and `restriction` of `excluded_tokens`."""
EXCLUDED = -1e30
"""Logit of an excluded token: with minus infinity, the entropy and its gradient would be NaN."""


class LLMModule(TorchRLModule):
    """Compute log-probabilities of given tokens, and values. The policy server generates.

    ``model_config``: ``model_path`` (HuggingFace directory or name), ``serve_dtype`` (type of the
    published weights), ``weight_transport`` (where their transport is), ``temperature`` (of
    sampling), ``entropy_gradient`` (whether the objective has an entropy bonus), ``critic`` (its
    kind), ``critic_layers`` and ``critic_outputs`` (see `make_critic`), ``lora_rank``,
    ``lora_alpha`` and ``seed`` (of the adapters), and ``compute_dtype``,
    ``gradient_checkpointing`` and ``compile`` of `LearnerSettings`. RLlib's state includes the
    critic; exported checkpoints of the policy do not.
    """

    @override(TorchRLModule)
    def setup(self) -> None:
        """Load the model. Only learners build a module: env runners hold no weights."""
        path = self.model_config["model_path"]
        llm = load_model(path)
        if self.model_config["lora_rank"]:
            add_lora(llm, *(self.model_config[k] for k in ("lora_rank", "lora_alpha", "seed")))
        critic_options = (self.model_config[k] for k in ("critic_layers", "critic_outputs"))
        critic = make_critic(self.model_config["critic"], llm, path, *critic_options)
        self.scorer = TokenScorer(llm, critic, self.model_config)
        self._sharded = False
        self._gathered: dict[str, Tensor] = {}
        transport = find_transport(self.model_config["weight_transport"])
        dtype = getattr(torch, self.model_config["serve_dtype"])
        self._publisher = WeightPublisher(dtype, transport)
        self._tag: WeightTag | None = None

    @override(TorchRLModule)
    def _forward_train(self, batch: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        return self.scorer(batch)

    @property
    def llm(self) -> PreTrainedModel:
        """The policy's model."""
        return self.scorer.llm

    @override(TorchRLModule)
    def get_state(self, *args: Any, inference_only: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Return the parameters, or the tag of the published weights if `inference_only`.

        RLlib's weight sync then sends only a tag to the env runners; the weights go only to the
        policy server.
        """
        if not inference_only:
            state = self._full_parameters()
            on_cpu = next(self.parameters()).device.type == "cpu"  # from a GPU they are copies
            return {name: tensor.clone() if on_cpu else tensor for name, tensor in state.items()}
        if self._tag is None:
            self._tag = self._publish()
        return {"weight_tag": self._tag}

    @override(TorchRLModule)
    def set_state(self, state: dict[str, Any]) -> None:
        load_full_parameters(self, state)
        self.mark_weights_changed()

    def shard(self, device: torch.device) -> None:
        """Shard the parameters over the learners. Collective: all learners call this together."""
        self._sharded = True
        self.scorer.shard(device)
        self.mark_weights_changed()

    def mark_weights_changed(self) -> None:
        """Make the next weight sync publish a new version. Collective: all learners call it."""
        self._tag = None
        if self._sharded:
            self._gathered = full_parameters(self)

    def _full_parameters(self) -> dict[str, Tensor]:
        return self._gathered if self._sharded else full_parameters(self)

    def _publish(self) -> WeightTag:
        if self.model_config["lora_rank"]:
            adapters = adapter_form(self._trained_model_parameters())
            return self._publisher.publish(adapters, adapter_config(self.llm))
        return self._publisher.publish(self.model_state())

    def _trained_model_parameters(self) -> dict[str, Tensor]:
        """Return the trained parameters of the policy's model, by their names in it."""
        prefix = "scorer.llm."
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self._full_parameters().items()
            if name.startswith(prefix)
        }

    def model_state(self) -> dict[str, Tensor]:
        """Return the policy's weights in checkpoint form, adapters merged; on the first learner."""
        state = self._trained_model_parameters()
        if self.model_config["lora_rank"]:
            # One learner cannot gather the others' shards, but a frozen model does not change.
            whole = load_model(self.model_config["model_path"]) if self._sharded else self.llm
            state = merged_state(whole, state, adapter_config(self.llm))
        return checkpoint_form(state, self.llm.config)

    def close(self) -> None:
        """Release the published weights."""
        self._tag = None


class TokenScorer(nn.Module):
    """Policy and optional critic in one module, so that they can be sharded together."""

    def __init__(self, llm: PreTrainedModel, critic: Critic | None, config: Mapping[str, Any]):
        """`config`: see `LLMModule`."""
        super().__init__()
        self.llm = llm
        self.critic = critic
        self.temperature: float = config["temperature"]
        self.entropy_gradient: bool = config["entropy_gradient"]
        self.compute_dtype: ComputeDtype = config["compute_dtype"]
        for trunk in self._trunks():
            if config["gradient_checkpointing"]:
                trunk.gradient_checkpointing_enable({"use_reentrant": False})
            if config["compile"]:
                trunk.compile(dynamic=True)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: RLlib trains in training mode, but dropout changes the ratios.

        Only layers that gradient checkpointing computes again are in training mode, as transformers
        asks for it.
        """
        super().train(False)
        for module in self.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = mode
        return self

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return log-probabilities if the batch has responses, values if it has their positions."""
        device = batch["ids"].device
        dtype = self._resolved_dtype(device)
        mixed, outputs, hidden = dtype != torch.float32, {}, None
        # Each matrix is used once, so a cache of converted ones would only take memory.
        with torch.autocast(device.type, dtype, enabled=mixed, cache_enabled=False):
            if self.critic is not None and self.critic.trunk is None:
                hidden = hidden_states(self.llm, batch["ids"])
            if "position" in batch:
                options = (self.temperature, self.entropy_gradient)
                outputs = token_log_probs(self.llm, batch, *options, hidden=hidden)
            if self.critic is not None and "value_position" in batch:
                outputs["value"] = self.critic(batch, hidden)
        return outputs

    def freeze(self, device: torch.device) -> None:
        """Stop training, and store matrices in the compute type of the device.

        Results do not change, since autocast would round the matrices in every pass. Embeddings and
        norms stay as they are, and so does a head that is tied to the embedding.
        """
        self.requires_grad_(False)
        dtype, embedding = self._resolved_dtype(device), self.llm.get_input_embeddings()
        if dtype == torch.float32:
            return
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.weight is not embedding.weight:
                module.to(dtype)

    def _resolved_dtype(self, device: torch.device) -> torch.dtype:
        return getattr(
            torch, resolve_compute_dtype(self.compute_dtype, on_gpu=device.type != "cpu")
        )

    def shard(self, device: torch.device) -> None:
        """Shard the parameters over the learners."""
        shard(self, [layer for trunk in self._trunks() for layer in trunk.layers], device)

    def _trunks(self) -> list[PreTrainedModel]:
        """Return the decoders without heads."""
        own = None if self.critic is None else self.critic.trunk
        return [self.llm.base_model, *([own] if own is not None else [])]


def token_log_probs(
    llm: PreTrainedModel,
    batch: dict[str, Tensor],
    temperature: float,
    entropy_gradient: bool = False,
    hidden: Tensor | None = None,
) -> dict[str, Tensor]:
    """Compute log-probabilities of the response tokens at a sampling temperature.

    Rows are right padded and attention is causal, so no token attends to padding and no mask is
    needed. Only positions that predict a response token go through the output head.

    Args:
        llm: a causal language model whose logits are ``head(hidden states)``.
        batch: see `hgpo_rllib.learner.batching.token_batch`.
        temperature: divisor of the logits, as in the sampler.
        entropy_gradient: whether the entropy has a gradient, which takes memory.
        hidden: hidden states of ``batch["ids"]``; None: computed here.

    Returns:
        ``logp`` and ``entropy`` of the predicted distribution, shape ``(tokens,)``, in float32 or
        the model's type if it is wider.
    """
    if hidden is None:
        hidden = hidden_states(llm, batch["ids"])
    predicting = hidden[batch["sequence"], batch["position"] - 1]
    tokens = batch["ids"][batch["sequence"], batch["position"]]
    size = tokens_at_once(llm.config.vocab_size)
    starts = range(0, max(len(tokens), 1), size)
    parts = []
    for start in starts:
        part = slice(start, start + size)
        arguments = (
            *(llm, predicting[part], tokens[part], temperature, entropy_gradient),
            _restrictions(batch, start, size),
        )
        if len(starts) > 1 and torch.is_grad_enabled():
            # The backward pass computes the logits of one part at a time again.
            scored = checkpoint(
                _score_tokens, *arguments, use_reentrant=False, preserve_rng_state=False
            )
        else:
            scored = _score_tokens(*arguments)
        parts.append(scored)
    logp, entropy = map(torch.cat, zip(*parts, strict=True))
    return {"logp": logp, "entropy": entropy}


def _restrictions(batch: dict[str, Tensor], start: int, size: int) -> Restrictions | None:
    """Return `restricted` and `restriction` of some positions; see `excluded_tokens`."""
    if "restriction" not in batch:
        return None
    index = batch["restricted"] - start
    inside = (index >= 0) & (index < size)
    return index[inside], batch["restriction"][inside]


def _score_tokens(
    llm: PreTrainedModel,
    predicting: Tensor,
    tokens: Tensor,
    temperature: float,
    entropy_gradient: bool,
    restrictions: Restrictions | None,
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each token and the entropy of its distribution."""
    log_probs = _log_probs(llm, predicting, temperature, restrictions)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(-1, tokens[:, None])[:, 0], entropy


def _log_probs(
    llm: PreTrainedModel, predicting: Tensor, temperature: float, restrictions: Restrictions | None
) -> Tensor:
    """Return the log-probabilities of all tokens; frees the logits, which are as large."""
    logits = llm.get_output_embeddings()(predicting)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    if restrictions is not None:
        logits = logits.masked_fill(excluded_tokens(*restrictions, logits.shape), EXCLUDED)
    return logits.log_softmax(-1)


def excluded_tokens(restricted: Tensor, restriction: Tensor, shape: torch.Size) -> Tensor:
    """Return whether a grammar excluded each token of the vocabulary at each position.

    Args:
        restricted: index of a position for each restriction.
        restriction: a permitted ``id``, or an excluded ``~id``.
        shape: positions and vocabulary size.
    """
    permitted = restriction >= 0
    excluded = torch.zeros(shape, dtype=torch.bool, device=restricted.device)
    excluded[restricted[permitted]] = True
    excluded[restricted, restriction.where(permitted, ~restriction)] = ~permitted
    return excluded
