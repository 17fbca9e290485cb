"""The section `learner` of a run file."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hgpo_rllib.section import Section

Aggregation = Literal["token-mean", "seq-mean", "micro-batch-mean"]
KLEstimator = Literal["k1", "k2", "k3"]
RatioLevel = Literal["token", "sequence", "sequence-mean"]
CriticKind = Literal["none", "head", "separate"]
Dtype = Literal["float32", "bfloat16"]
ComputeDtype = Literal["auto", "float32", "bfloat16"]
Bound = Annotated[float, Field(ge=0, allow_inf_nan=True)]
Decay = Annotated[float, Field(ge=0, lt=1)]

LOGITS_AT_ONCE = 80_000_000
"""Maximum number of logits in memory. A float32 copy of them takes 0.3 GiB."""


class LearnerSettings(Section):
    """The PPO objective on tokens, and its optimizer. Formulas are in docs/algorithm.md, section
    7."""

    lr: float = Field(1e-6, gt=0)
    """Learning rate of AdamW."""
    lr_warmup_steps: int = Field(0, ge=0)
    """Number of optimizer steps of the linear learning-rate warm-up."""
    lr_decay_iterations: int | None = Field(None, ge=1)
    """Number of iterations over which the learning rate decays to zero. null: no decay."""
    lr_decay: Literal["linear", "cosine"] = "linear"
    """Shape of the learning-rate decay."""
    adam_betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Betas of AdamW: decay rates of the running averages of the gradient and its square."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW."""
    grad_clip: float = Field(1.0, gt=0, allow_inf_nan=True)
    """Maximum global norm of the gradient. `.inf`: no clipping."""
    old_logp: Literal["behavior", "recomputed"] = "behavior"
    """Denominator of the token ratio: `behavior` uses the log-probabilities of the inference
    engine, `recomputed` those of the learner at the same weights (as the released code).
    `recomputed` needs one more forward pass for the steps of all mini-batches but the first."""
    ratio_level: RatioLevel = "token"
    """Unit with one clipped probability ratio: `token`: each token (as the released code).
    `sequence`: the whole response, by the product over its tokens (the paper's Eq. 8, with
    `loss_aggregation=seq-mean`). `sequence-mean`: the whole response, by the geometric mean
    (GSPO, arXiv 2507.18071)."""
    policy_loss: Literal["ppo", "cispo"] = "ppo"
    """Policy loss: `ppo`: the clipped surrogate (as in the papers). `cispo`: the clipped ratio is a
    constant weight of the log-probability, so clipped tokens keep a gradient (CISPO, arXiv
    2506.13585)."""
    clip_low: float = Field(0.2, gt=0, le=1)
    """The ratio is clipped below at 1 - clip_low. 1: no lower bound (usual for `cispo`)."""
    clip_high: float = Field(0.2, gt=0)
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: float | None = Field(None, gt=1)
    """Upper bound of the loss of a token with a negative advantage A: dual_clip times -A
    (released: 3). null: no bound."""
    loss_aggregation: Aggregation = "token-mean"
    """How token losses are averaged. `token-mean`: over the tokens of the mini-batch.
    `seq-mean`: over the tokens of each step, then over steps. `micro-batch-mean`: over the
    tokens of each part of `micro_batch_steps` steps, then over parts (as the released code)."""
    micro_batch_steps: int = Field(16, ge=1)
    """Number of steps per part with `loss_aggregation=micro-batch-mean` (released: micro-batch
    per GPU). Otherwise unused."""
    kl_coeff: float = Field(0.01, ge=0)
    """Weight of the KL divergence to the reference model, the frozen initial policy. 0: no
    reference model."""
    kl_estimator: KLEstimator = "k3"
    """Estimator of the KL divergence per token, with d = log reference - log policy: `k1` is -d
    (its expected gradient is 0), `k2` is d²/2, `k3` is exp(d) - d - 1."""
    kl_clamp: float | None = Field(None, gt=0)
    """Clamp the KL estimate of a token to ± this value. It has no gradient outside (released:
    10). null: no clamp."""
    entropy_coeff: float = Field(0.0, ge=0)
    """Weight of the entropy bonus (released: 0.001)."""
    distillation_coeff: float = Field(0.01, gt=0)
    """Weight of the loss that distills the policy from a teacher with a plan, with
    `algorithm.estimator=sdar` (SDAR's scripts: 0.01). Otherwise unused."""
    drop_zero_advantage: bool = False
    """Skip steps with advantage 0 in all passes through the model. Averages still count them.
    With kl_coeff=0 and entropy_coeff=0 the gradient does not change; otherwise KL and entropy
    apply only to the remaining steps, and so does the distillation loss of `sdar`."""
    importance_level: Literal["token", "sequence"] = "token"
    """Level of the importance weight, the learner's probability divided by the engine's: of each
    token, or of the whole response of a step (the product over its tokens)."""
    importance_cap: float | None = Field(None, gt=0)
    """Multiply the policy loss by the importance weight, truncated at this value (usual: 2).
    null: no weighting. Requires old_logp=recomputed."""
    importance_mask: tuple[Bound, Bound] | None = None
    """Exclude tokens whose importance weight is outside [low, high] from the policy loss.
    Averages still count them. null: no mask. Requires old_logp=recomputed."""
    critic: CriticKind = "none"
    """Critic for the estimators `ppo`, `ppo_tokens`, `vetta` and `hiper`, trained in the same
    updates as the policy. `head`: a linear head on the hidden states of the policy. `separate`: a
    second model, initialized from the policy (as the released code). `none`: no critic."""
    critic_layers: int | None = Field(None, ge=1)
    """Number of layers of a `separate` critic, the first ones of the policy (VETTA: 2). A
    policy with fewer layers has all of them copied. null: all layers."""
    critic_lr: float | None = Field(None, gt=0)
    """Learning rate of the critic's parameters, with the warm-up and decay of `lr` (released: 10
    times lr). null: the value of lr."""
    value_coeff: float = Field(0.5, gt=0)
    """Weight of the value loss. It matters where policy and critic share parameters."""
    value_clip: float | None = Field(0.5, gt=0)
    """Clip range of PPO's value loss, in units of return (released: 0.5, where success gives
    10). null: no clipping."""
    mismatch_alarm: float | None = Field(0.01, gt=0)
    """Log a warning if the KL divergence between inference engine and learner exceeds this
    value, in nats per token. null: no warning."""
    max_ratio: float | None = Field(1e4, gt=1)
    """A mini-batch with a larger ratio is bad (see `on_bad_batch`). null: only
    mini-batches with a non-finite loss or gradient are."""
    on_bad_batch: Literal["stop", "skip"] = "stop"
    """What to do with a bad mini-batch, including one that runs out of GPU memory: `stop` ends
    the run before the optimizer step, `skip` skips the optimizer step and logs a warning."""
    on_no_signal: Literal["skip", "stop"] = "skip"
    """What to do in an iteration without gradient because all advantages are 0: `skip` the
    update and log a warning, or `stop` the run."""
    num_epochs: int = Field(1, ge=1)
    """Number of passes over the steps of an iteration."""
    minibatch_size: int = Field(256, ge=1)
    """Number of steps (turns; responses, if agents have several roles) per optimizer step."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Maximum number of tokens per forward pass, including padding. A longer response with its
    prompt, or a longer conversation, is a pass by itself. It limits memory and does not change
    results."""
    compute_dtype: ComputeDtype = "auto"
    """Data type of forward and backward passes (torch.autocast). `auto`: bfloat16 on a GPU,
    float32 on a CPU. CPUs without AVX-512 BF16 are slow with bfloat16. Weights, gradients and
    optimizer state stay in float32."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer for the backward pass and recompute the rest. Saves
    memory for one more forward pass; does not change results."""
    compile: bool = False
    """Compile the layers of the model with torch.compile. The first pass is slow, later passes
    are faster on GPUs."""
    offload_optimizer: bool = False
    """Keep AdamW's moments in host memory between optimizer steps. Saves 8 bytes of GPU memory per
    trained parameter during passes, and costs two transfers per step; does not change results."""
    shard_parameters: bool = False
    """Shard parameters, gradients and optimizer state across the learners (FSDP2), for models
    that do not fit on one of them. Otherwise each learner has a copy."""

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
        if self.critic != "none" and self.drop_zero_advantage:
            raise ValueError(
                "drop_zero_advantage leaves out steps that the critic learns from: "
                "set drop_zero_advantage=false with a critic"
            )
        if self.critic_layers is not None and self.critic != "separate":
            raise ValueError(
                "critic_layers is for a critic with layers of its own: set critic=separate, or "
                "critic_layers=null"
            )
        if self.policy_loss == "cispo" and self.dual_clip is not None:
            raise ValueError(
                "dual_clip bounds the loss of PPO: set dual_clip=null with policy_loss=cispo"
            )
        corrected = self.importance_cap is not None or self.importance_mask is not None
        if corrected and self.old_logp == "behavior":
            raise ValueError(
                "importance_cap and importance_mask compare the learner with the engine: "
                "set old_logp=recomputed (with behavior, the token ratio compares the two itself)"
            )
        if self.importance_mask is not None and self.importance_mask[0] >= self.importance_mask[1]:
            raise ValueError("importance_mask must be [low, high] with low < high")
        return self


def tokens_at_once(vocabulary: int) -> int:
    """Return the number of response tokens whose logits are in memory at the same time."""
    return max(1, LOGITS_AT_ONCE // vocabulary)


def resolve_compute_dtype(choice: ComputeDtype, on_gpu: bool) -> Dtype:
    """Return the data type of passes with `LearnerSettings.compute_dtype`, ``auto`` resolved."""
    if choice == "auto":
        return "bfloat16" if on_gpu else "float32"
    return choice


def check_sharding(learner: LearnerSettings, num_learners: int) -> None:
    """Raise a ValueError if parameters are sharded with fewer than two learners."""
    if learner.shard_parameters and num_learners < 2:
        raise ValueError(
            "learner.shard_parameters=true needs cluster.num_learners of 2 or more, not "
            f"{num_learners}"
        )
