"""HGPO in one file, to read from top to bottom: `python examples/hgpo_minimal.py`

A language model of 0.4 million parameters learns six household games (ALFWorld, in text) by
reinforcement learning, on the CPU of a laptop. This file implements the whole method
(Hierarchy-of-Groups Policy Optimization, arXiv 2602.22817) with PyTorch and transformers. The
package hgpo_rllib does the same at scale: vLLM on Ray Serve generates, RLlib trains, and the values
fixed here are settings. tests/unit/project/test_minimal.py compares the two. An iteration:

1. Play.    A group of 8 members plays each game. Members are independent: the language model gets
            the observation of one member and generates its action.
2. Compare. Each step gets an advantage: did the episode go better from here than from the other
            steps of the group with the same observation and the same history?
3. Update.  Make the tokens of good steps more likely and those of bad steps less likely, with
            PPO's clipped loss and a KL penalty that keeps the model near its starting point.

A *step* is one observation, one response of the model and one action. A *trajectory* is the list of
steps of one episode. A *group* is the list of trajectories of the members that played one game.
"""

import argparse
import copy
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

import env_wrappers  # noqa: F401  registers hgpo/ALFWorld-v0 with Gymnasium


@dataclass(frozen=True)
class Settings:
    """Values of tuned_examples/alfworld_six_games.yaml, the same experiment with the package."""

    games: int = 6
    group_size: int = 8  # N, members per game
    max_steps: int = 20  # per episode
    max_prompt_tokens: int = 480
    max_response_tokens: int = 32
    context_length: int = 2  # K: past turns that a prompt shows, and the deepest comparison
    weight_alpha: float = 1.0  # α: a comparison at depth k has weight (k + 1)^α
    gamma: float = 0.95  # discount per step
    invalid_penalty: float = 0.1  # for a response without a well-formed action
    lr: float = 5e-4
    lr_warmup_steps: int = 20  # optimizer steps; Adam's first steps are its largest
    adam_betas: tuple[float, float] = (0.9, 0.98)
    grad_clip: float = 1.0
    minibatch_size: int = 128  # agent steps per optimizer step
    clip: float = 0.2  # ε of PPO
    kl_coeff: float = 0.01  # β


@dataclass
class Step:
    """One turn of one member: observation, response, action and reward."""

    observation: str
    action: str
    valid: bool  # the response was well-formed
    prompt: list[int]  # token ids
    response: list[int]  # sampled token ids, including the end token
    old_logp: Tensor  # log-probability of each response token when sampled, shape (tokens,)
    reward: float = 0.0
    step_return: float = 0.0
    advantage: float = 0.0


Trajectory = list[Step]

# ---- 1. Play -------------------------------------------------------------------------------------
#
# A language model has no memory between calls: each turn is a new prompt, which repeats the last K
# observations and actions. K is also the longest history by which steps are compared below, so that
# steps compared at depth K had the same observations in their prompts.


def write_prompt(info: dict[str, Any], observation: str, past: Trajectory, memory: int) -> str:
    """Return the prompt of one turn, in the format of the model's demonstrations."""
    shown = past[-memory:] if memory else []
    history = "".join(f"{shorten(step.observation)} > {step.action}\n" for step in shown)
    side_actions = ("examine", "look", "inventory")
    actions = [a for a in info["admissible_actions"] if a.split()[0] not in side_actions]
    return (
        f"Task: {info['goal']}\nStep {len(past) + 1}\n{history}{shorten(observation)}\n"
        f"Actions: {', '.join(actions)}\nTask: {info['goal']}"
    )


def shorten(observation: str) -> str:
    """Remove what the list of actions repeats: the room's furniture and the place of arrival."""
    if observation.startswith("You are in the middle of a room"):
        return "You look around."
    return re.sub(r"^You arrive at [^.]*\. ", "", observation)


def parse_response(response: str) -> tuple[str, bool]:
    """Return the action in ``<think>…</think><action>…</action>``, and whether the format is valid.

    The action of a malformed response is also played, as far as it can be parsed. Usually nothing
    happens: the turn is wasted, and the penalty teaches the format.
    """
    lower = response.lower()
    start, end = lower.find("<action>"), lower.find("</action>")
    if start < 0 or end < 0:
        return lower[-30:], False
    thought = "<think>" in response and "</think>" in response
    chinese = re.search("[\u4e00-\u9fff]", response)  # the released code's rule, for Qwen models
    return lower[start + len("<action>") : end].strip(), thought and not chinese


def pad_left(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return token ids as one left-padded tensor, and its attention mask."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


@torch.no_grad()
def sample(
    model: PreTrainedModel, prompts: list[list[int]], limit: int
) -> list[tuple[list[int], Tensor]]:
    """Sample one response per prompt; return its token ids and their log-probabilities.

    The update trains on exactly these ids. Encoding the text of a response again could give
    different ids, since a text can be split into tokens in many ways.
    """
    ids, mask = pad_left(prompts)
    output = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=limit,
        do_sample=True,
        top_k=0,  # transformers' default is 50, but PPO needs the full distribution
        output_logits=True,
        return_dict_in_generate=True,
    )
    responses = output.sequences[:, ids.shape[1] :]
    log_probs = torch.stack(output.logits, dim=1).log_softmax(-1)  # (rows, tokens, vocabulary)
    logp = log_probs.gather(-1, responses[:, :, None])[:, :, 0]
    before_end = (responses == model.generation_config.eos_token_id).cumsum(-1) == 0
    lengths = (before_end.sum(-1) + 1).clamp(max=responses.shape[1]).tolist()
    return [(responses[i, :n].tolist(), logp[i, :n]) for i, n in enumerate(lengths)]


@dataclass
class Member:
    """State of a group member during its episode."""

    env: gym.Env
    observation: str
    info: dict[str, Any]
    past: Trajectory
    done: bool = False


def play(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, envs: list[gym.Env], s: Settings
) -> list[list[Trajectory]]:
    """Play one group per game. Each call of `generate` serves one turn of all members."""
    # The seed of this environment is the number of the game. Games are deterministic: members of a
    # group start in the same state and differ only by what the model samples for them.
    members = [Member(env, *env.reset(seed=i // s.group_size), []) for i, env in enumerate(envs)]
    while playing := [member for member in members if not member.done]:
        texts = [write_prompt(m.info, m.observation, m.past, s.context_length) for m in playing]
        prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
        prompts = [prompt[-s.max_prompt_tokens :] for prompt in prompts]
        responses = sample(model, prompts, s.max_response_tokens)
        for m, prompt, (tokens, logp) in zip(playing, prompts, responses, strict=True):
            action, valid = parse_response(tokenizer.decode(tokens, skip_special_tokens=True))
            valid = valid and tokens[-1] == tokenizer.eos_token_id  # ended before the limit
            observation, reward, terminated, truncated, m.info = m.env.step(action)
            m.past.append(Step(m.observation, action, valid, prompt, tokens, logp, float(reward)))
            m.observation, m.done = observation, terminated or truncated
    trajectories = [member.past for member in members]
    return [trajectories[i : i + s.group_size] for i in range(0, len(envs), s.group_size)]


# ---- 2. Compare ----------------------------------------------------------------------------------
#
# The environment rewards only the winning step (10). Which steps before it were good? The return of
# a step measures how well the episode went from there. Its advantage is the return minus the return
# expected there. PPO learns that expectation with a value network. Here it is the mean return of
# comparable steps in the group, and the difference is divided by their standard deviation.
#
# At depth k, steps are comparable if their observation and the k observations before it are equal.
# A kitchen looks the same with or without the mug in the hand; only the history differs. Deeper
# groups are therefore fairer, but smaller. HGPO compares at all depths 0 … K and takes the mean
# with weights proportional to (k + 1)^α.


def set_returns(trajectory: Trajectory, gamma: float, invalid_penalty: float) -> None:
    """Set the discounted sum of rewards from each step on. A penalty affects only its own step."""
    total = 0.0
    for step in reversed(trajectory):
        total = step.reward + gamma * total
        step.step_return = total - invalid_penalty * (not step.valid)


def set_advantages(group: list[Trajectory], context_length: int, weight_alpha: float) -> None:
    """Set HGPO's advantage of each step in a group."""
    steps = [step for trajectory in group for step in trajectory]
    returns = np.array([step.step_return for step in steps])
    weighted_sum, weight_sum = np.zeros(len(steps)), np.zeros(len(steps))
    for k in range(context_length + 1):
        for rows in rows_by_history(group, k):
            level = normalized(returns[rows])
            # A step that is alone at this depth, or exactly average, has advantage 0 and weight 0:
            # this depth gives no information about it, so only its other depths count.
            weight = (k + 1) ** weight_alpha * (level != 0)
            weighted_sum[rows] += weight * level
            weight_sum[rows] += weight
    for step, total, weight in zip(steps, weighted_sum, weight_sum, strict=True):
        step.advantage = float(total / weight) if weight else 0.0


def rows_by_history(group: list[Trajectory], k: int) -> list[list[int]]:
    """Group the indices of steps with the same observation and k previous observations.

    The history of a step with fewer than k predecessors is its whole past. It is shorter than that
    of later steps, so it matches only steps whose episodes started in the same way.
    """
    rows: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    places = ((trajectory, t) for trajectory in group for t in range(len(trajectory)))
    for row, (trajectory, t) in enumerate(places):
        rows[tuple(step.observation for step in trajectory[max(0, t - k) : t + 1])].append(row)
    return list(rows.values())


def normalized(returns: np.ndarray) -> np.ndarray:
    """Return (return - mean) / standard deviation; exactly 0 if the return equals the mean.

    Without the rounding, a difference of 1e-16 between equal returns would be divided by a standard
    deviation that is also nearly 0, and count as an advantage.
    """
    difference = returns - returns.mean()
    difference[np.abs(difference) <= 1e-12 * np.abs(returns).max()] = 0.0
    return difference / (returns.std() + 1e-6)


# ---- 3. Update -----------------------------------------------------------------------------------


def response_logp(model: PreTrainedModel, steps: list[Step]) -> Tensor:
    """Return the log-probabilities of all response tokens, ordered by step, shape (tokens,)."""
    # Padding is on the left, so all responses are in the last columns. Only these need logits;
    # prompts are ten times as long.
    ids, mask = pad_left([step.prompt + step.response for step in steps])
    lengths = [len(step.response) for step in steps]
    logits = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),  # count from the first real token
        logits_to_keep=max(lengths) + 1,
    ).logits[:, :-1]  # logits at one token predict the next
    logp = logits.log_softmax(-1).gather(-1, ids[:, -max(lengths) :, None])[:, :, 0]
    return torch.cat([row[-length:] for row, length in zip(logp, lengths, strict=True)])


def hgpo_loss(
    model: PreTrainedModel, reference: PreTrainedModel, steps: list[Step], s: Settings
) -> tuple[Tensor, Tensor]:
    """Return mean loss and mean KL of response tokens; each token has its step's advantage."""
    logp = response_logp(model, steps)
    with torch.no_grad():
        reference_logp = response_logp(reference, steps)
    old_logp = torch.cat([step.old_logp for step in steps])
    advantage = logp.new_tensor([step.advantage for step in steps for _ in step.response])
    # PPO. After the first mini-batch, the model differs from the one that sampled; the probability
    # ratio corrects for that. A token whose ratio has left 1 ± ε in the direction of its advantage
    # has no gradient, which limits the change per iteration.
    ratio = (logp - old_logp).clamp(-20, 20).exp()
    clipped = ratio.clamp(1 - s.clip, 1 + s.clip)
    policy_loss = -torch.minimum(ratio * advantage, clipped * advantage)
    # Schulman's k3 estimate of KL(model || reference) from the sampled tokens. It is never negative
    # and has a lower variance than -d.
    d = (reference_logp - logp).clamp(-20, 20)
    kl = d.exp() - d - 1
    return (policy_loss + s.kl_coeff * kl).mean(), kl.mean()


# ---- All together --------------------------------------------------------------------------------


def train(model_path: Path, data: Path, iterations: int, seed: int) -> None:
    """Train and print one line per iteration; its KL is that of the last mini-batch."""
    s = Settings()
    torch.manual_seed(seed)
    # AutoTokenizer would rebuild a Qwen2 tokenizer from the vocabulary and drop the pre-tokenizer;
    # PreTrainedTokenizerFast reads tokenizer.json as it is.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), s.lr, s.adam_betas)
    warmup = LambdaLR(optimizer, lambda taken: min(1.0, (taken + 1) / s.lr_warmup_steps))
    options: dict[str, Any] = {"data": data, "max_steps": s.max_steps}
    envs = [gym.make("hgpo/ALFWorld-v0", **options) for _ in range(s.games * s.group_size)]
    for iteration in range(1, iterations + 1):
        groups = play(model, tokenizer, envs, s)
        for group in groups:  # steps of different games are never compared
            for trajectory in group:
                set_returns(trajectory, s.gamma, s.invalid_penalty)
            set_advantages(group, s.context_length, s.weight_alpha)
        steps = [step for group in groups for trajectory in group for step in trajectory]
        parts = max(1, round(len(steps) / s.minibatch_size))
        for rows in torch.randperm(len(steps)).tensor_split(parts):
            loss, kl = hgpo_loss(model, reference, [steps[row] for row in rows], s)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), s.grad_clip)
            optimizer.step()
            warmup.step()
        rate = np.mean([trajectory[-1].reward > 0 for group in groups for trajectory in group])
        line = f"iteration {iteration:2}: success {rate:4.0%}, {len(steps)} steps, KL {kl:.3f}"
        print(line, flush=True)


def prepare() -> tuple[Path, Path]:
    """Return the folders of the model and of the games; the first call creates them in minutes.

    The model is trained to imitate a scripted player that knows how to do the tasks but searches at
    random. Without this warm start, no episode would be won and there would be nothing to learn.
    """
    from hgpo_rllib.config import load_config
    from hgpo_rllib.warmstart import prepare

    run_file = Path(__file__).parents[1] / "tuned_examples" / "alfworld_six_games.yaml"
    config = load_config(run_file, [])
    data = prepare.make_data(config, lambda done, total: None)
    if not prepare.model_path(config).is_dir():
        print("making the pocket model, once", flush=True)
        examples = prepare.make_demonstrations(config, lambda done, total: None)
        prepare.make_model_directory(config, examples, lambda step, loss: None)
    return prepare.model_path(config), data


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="HGPO on six ALFWorld games, in one file.")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train(*prepare(), arguments.iterations, arguments.seed)
