"""The section `learner` of a run file."""

from pydantic import Field

from hgpo_rllib.section import Section


class LearnerSettings(Section):
    """The PPO objective on tokens and its optimiser."""

    lr: float = Field(1e-6, gt=0)
    """AdamW learning rate."""
    lr_warmup_steps: int = Field(0, ge=0)
    """Optimiser steps over which the rate rises linearly; Adam's first steps are its largest."""
    lr_decay_iterations: int | None = Field(None, ge=1)
    """Iterations over which the rate falls linearly to zero; null: constant."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the gradient's mean and of its square."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW weight decay."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest global norm of a gradient."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """The token ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(0.2, gt=0)
    """The token ratio is clipped above at 1 + clip_high."""
    kl_coeff: float = Field(0.01, ge=0)
    """Weight of the KL to the frozen starting policy (k3 estimator); 0: no reference model."""
    num_epochs: int = Field(1, ge=1)
    """Passes over an iteration's steps."""
    minibatch_size: int = Field(256, ge=1)
    """Steps (turns) per optimiser step."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Padded tokens per forward pass; bounds memory."""
