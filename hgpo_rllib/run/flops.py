"""Estimate tokens, FLOP and seconds of an iteration from the settings. The functions are pure.

They count products of matrices (2 FLOP per parameter and token forward, 4 backward) and attention.
"""

from dataclasses import dataclass

from hgpo_rllib.config import RunConfig
from hgpo_rllib.run.model_size import ModelSize

PEAK_FLOPS = {"H100": 989e12, "A100": 312e12, "RTX 4090": 165e12, "L4": 121e12}
"""FLOP/s of dense bfloat16 products with float32 sums, from NVIDIA's data sheets (H100: SXM)."""
USED = 0.4
"""Share of `PEAK_FLOPS` that the estimate of seconds assumes."""


@dataclass(frozen=True)
class Turn:
    """Tokens of one turn."""

    prompt: int
    response: int

    @property
    def tokens(self) -> int:
        """Tokens of prompt and response."""
        return self.prompt + self.response


TYPICAL = {"alfworld_full": Turn(450, 150)}
"""Mean turns by prompt, of Qwen2.5 with K = 2.

ALFWorld: a log of the first of such iterations has 3,830,959 tokens in 128 episodes of at most 50
steps (https://github.com/ZJU-REAL/SDAR/issues/51), i.e. 600 per turn. Its prompts have 1,350
characters on average (24 generated games, random actions) plus the chat template.
"""
PAPER = {("alfworld_full", "Qwen/Qwen2.5-1.5B-Instruct"): "282 to 298 s on 2 x H100"}
"""Published seconds of an iteration by prompt and model."""


def full_turn(config: RunConfig) -> Turn:
    """Return a turn whose prompt and response have full length."""
    return Turn(config.agent.max_prompt_tokens, config.agent.max_response_tokens)


def work(config: RunConfig, model: ModelSize, turn: Turn) -> dict[str, float]:
    """Return the work of an iteration whose turns all have this length, by name.

    Every episode has `env.max_steps` steps. Trained tokens are those of all epochs together, FLOP
    those of all engines or learners. With GPUs there are the seconds of sampling and update on
    each kind of GPU, at `USED` of its peak; one step off policy, the two overlap.
    """
    server, cluster, rollout = config.policy_server, config.cluster, config.rollout
    turns = rollout.groups_per_iteration * rollout.group_size * config.env.max_steps
    sampling = turns * forward_flop(model, turn.tokens, turn.response)
    update = turns * update_flop(config, model, turn, turns)
    found = {
        "turns": turns,
        "tokens in prompts": turns * turn.prompt,
        "tokens sampled": turns * turn.response,
        "tokens trained": turns * turn.tokens * config.learner.num_epochs,
        "FLOP of sampling": sampling,
        "FLOP of the update": update,
    }
    if server.replica_gpus and cluster.learner_gpus:
        sampling /= server.num_replicas * server.tensor_parallel_size
        update /= cluster.num_learners
        overlap = rollout.schedule != "synchronous" and cluster.learner_gpus == 1
        flop = max(sampling, update) if overlap else sampling + update
        found |= {f"seconds on {gpu}": flop / (USED * peak) for gpu, peak in PEAK_FLOPS.items()}
    return found


def forward_flop(model: ModelSize, tokens: int, responses: int) -> float:
    """Return the FLOP of a forward pass of one row.

    Args:
        model: its layers multiply all tokens, its head those that predict a response token.
        tokens: length of the row. A token attends to itself and those before it: two products
            with ``q`` values per layer and position.
        responses: number of response tokens.
    """
    return _products(model, tokens, responses) + _attention(model, tokens)


def _products(model: ModelSize, tokens: int, responses: int) -> float:
    return 2.0 * (model.matrices * tokens + model.head * responses)


def _attention(model: ModelSize, tokens: int) -> float:
    return 4.0 * model.attention * model.layers * tokens * (tokens + 1) / 2


def update_flop(config: RunConfig, model: ModelSize, turn: Turn, turns: int) -> float:
    """Return the FLOP of one turn in an update.

    A backward pass has twice the FLOP of the forward pass, of which LoRA needs half for the frozen
    matrices. Gradient checkpointing computes the layers again, at most: torch leaves out the last
    product of each. With recomputed log-probabilities, all mini-batches but the first have one more
    forward pass.
    """
    learner, lora = config.learner, config.model.lora_rank > 0
    forward = forward_flop(model, turn.tokens, turn.response)
    again = learner.gradient_checkpointing
    training = _products(model, turn.tokens, turn.response) * (2 if lora else 3)
    training += 3 * _attention(model, turn.tokens) + again * forward_flop(model, turn.tokens, 0)
    flop = learner.num_epochs * (training + (learner.kl_coeff > 0) * forward)
    if learner.old_logp == "recomputed":
        flop += forward * (1 - 1 / max(1, round(turns / learner.minibatch_size)))
    if learner.critic != "none":  # values before the update
        flop += forward_flop(model, turn.prompt, 0)
    if learner.critic == "separate":
        flop += learner.num_epochs * (3 + again) * forward_flop(model, turn.prompt, 0)
    return flop
