"""The section `learner` of a run file."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hgpo_rllib.section import Section

Aggregation = Literal["token-mean", "seq-mean", "micro-batch-mean"]
KLEstimator = Literal["k1", "k2", "k3"]
Level = Literal["token", "sequence"]
CriticKind = Literal["none", "head", "separate"]
Bound = Annotated[float, Field(ge=0, allow_inf_nan=True)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class LearnerSettings(Section):
    """The PPO objective on tokens and its optimiser; formulas in docs/algorithm.md, section 7."""

    lr: float = Field(1e-6, gt=0)
    """AdamW learning rate."""
    lr_warmup_steps: int = Field(0, ge=0)
    """Optimiser steps over which the rate rises linearly; Adam's first steps are its largest."""
    lr_decay_iterations: int | None = Field(None, ge=1)
    """Iterations over which the rate falls to zero; null: constant."""
    lr_decay: Literal["linear", "cosine"] = "linear"
    """Shape of that fall."""
    adam_betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's decay rates of the gradient's mean and of its square."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW weight decay."""
    grad_clip: float = Field(1.0, gt=0, allow_inf_nan=True)
    """Largest global norm of a gradient; `.inf`: any."""
    old_logp: Literal["behaviour", "recomputed"] = "behaviour"
    """What the token ratio divides by: the log-probabilities of the engine that sampled, or those
    that the learner computes at the same weights (released), for which the steps of all but the
    first mini-batch pass through the model once more."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """The token ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(0.2, gt=0)
    """The token ratio is clipped above at 1 + clip_high."""
    dual_clip: float | None = Field(None, gt=1)
    """Where the advantage A is negative, the ratio is cut at this (released: 3), and the loss of a
    token is at most dual_clip times -A; null: not bounded."""
    loss_aggregation: Aggregation = "token-mean"
    """How token losses become one: the mean over the tokens of the mini-batch; the mean over its
    steps of each step's mean; or, as released, the mean over parts of `micro_batch_steps` steps of
    each part's token mean."""
    micro_batch_steps: int = Field(16, ge=1)
    """Steps of such a part (released: micro-batch per GPU); other aggregations do not read it."""
    kl_coeff: float = Field(0.01, ge=0)
    """Weight of the KL to the frozen starting policy; 0: no reference model."""
    kl_estimator: KLEstimator = "k3"
    """Estimate of the KL on a token, with d = log reference - log policy: -d (its gradient is 0 in
    expectation: no pull), d²/2, or exp(d) - d - 1."""
    kl_clamp: float | None = Field(None, gt=0)
    """A token's estimate is clamped at ± this, and has no gradient outside (released: 10)."""
    entropy_coeff: float = Field(0.0, ge=0)
    """Weight of the entropy bonus (released: 0.001)."""
    drop_zero_advantage: bool = False
    """Leave steps with advantage 0 out of all passes through the model. Their policy gradient is 0,
    and all denominators still count them: with kl_coeff=0 and entropy_coeff=0 the gradient is the
    same. Otherwise the KL and the entropy bonus then act on the other steps alone."""
    importance_level: Level = "token"
    """Importance weight of what the engine sampled, the learner's probability over the engine's: of
    each token, or of a step's whole response (its product)."""
    importance_cap: float | None = Field(None, gt=0)
    """Multiply the policy loss by that weight, truncated at this (usual: 2); null: no weights.
    Needs old_logp=recomputed."""
    importance_mask: tuple[Bound, Bound] | None = None
    """Take the policy loss from tokens (steps, at that level) with a weight outside these bounds;
    denominators still count them. Needs old_logp=recomputed."""
    critic: CriticKind = "none"
    """Values for `algorithm.estimator=ppo`, which needs them: of a linear head on the policy's
    hidden states (`head`), or of a model of its own that begins as a copy of the policy
    (`separate`; released). It reads a step's prompt, and learns in the same updates."""
    critic_lr: float | None = Field(None, gt=0)
    """Learning rate of the critic's own parameters, with the warm-up and decay of `lr` (released:
    10 times lr); null: lr."""
    value_coeff: float = Field(0.5, gt=0)
    """Weight of the value loss; it matters where policy and critic share parameters."""
    value_clip: float | None = Field(0.5, gt=0)
    """The value loss falls no further once a value has moved by this in an update, in units of
    return (released: 0.5, where success gives 10); null: it does."""
    mismatch_alarm: float | None = Field(0.01, gt=0)
    """Warn in an iteration in which the KL between engine and learner, nats a token, passes this;
    null: never."""
    max_ratio: float | None = Field(1e4, gt=1)
    """A mini-batch with a larger token ratio is bad; null: only those with a loss or gradient that
    is not finite are."""
    on_bad_batch: Literal["stop", "skip"] = "stop"
    """What a bad mini-batch does, one that runs out of memory included: end the run before its
    optimiser step, or leave out the step, with a warning."""
    on_no_signal: Literal["skip", "stop"] = "skip"
    """What an iteration does in which the objective has no gradient, because all advantages are 0:
    no update, with a warning, or end the run."""
    num_epochs: int = Field(1, ge=1)
    """Passes over an iteration's steps."""
    minibatch_size: int = Field(256, ge=1)
    """Steps (turns) per optimiser step."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Padded tokens per forward pass; bounds memory, changes no result."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """What passes through the model are computed in (torch's autocast); weights, gradients and the
    optimiser stay in float32."""
    gradient_checkpointing: bool = False
    """Keep each layer's input alone for the backward pass and compute the rest again: less memory,
    one more forward pass; changes no result."""
    compile: bool = False
    """Compile the model's layers (torch.compile): faster passes on GPUs after a slow first one."""
    shard_parameters: bool = False
    """Cut parameters, gradients and the optimiser's state up between the learners (FSDP2): for
    models that one of them cannot hold. Otherwise each has a copy."""

    @model_validator(mode="after")
    def _critics_learn_from_every_step(self) -> Self:
        if self.critic != "none" and self.drop_zero_advantage:
            raise ValueError(
                "drop_zero_advantage leaves out steps that the critic learns from: "
                "set drop_zero_advantage=false with a critic"
            )
        return self

    @model_validator(mode="after")
    def _weights_have_a_numerator(self) -> Self:
        corrected = self.importance_cap is not None or self.importance_mask is not None
        if corrected and self.old_logp == "behaviour":
            raise ValueError(
                "importance_cap and importance_mask compare the learner with the engine: "
                "set old_logp=recomputed (with behaviour, the token ratio compares the two itself)"
            )
        if self.importance_mask is not None and self.importance_mask[0] >= self.importance_mask[1]:
            raise ValueError("importance_mask must be [low, high] with low < high")
        return self


def check_sharding(learner: LearnerSettings, num_learners: int, lora_rank: int) -> None:
    """Raise a ValueError unless there is a whole model, and learners to share its parameters."""
    if learner.shard_parameters and num_learners < 2:
        raise ValueError(
            "learner.shard_parameters=true needs cluster.num_learners of 2 or more, not "
            f"{num_learners}"
        )
    if learner.shard_parameters and lora_rank:
        raise ValueError(
            "learner.shard_parameters=true is for models that are trained whole: set "
            "model.lora_rank=0"
        )
