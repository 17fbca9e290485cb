"""Convert groups to RLlib multi-agent episodes whose agents are the members."""

from collections.abc import Sequence
from itertools import groupby

from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from hgpo_rllib.rollout.trajectory import Trajectory

OUTPUTS = (
    "prompt_ids",
    "response_ids",
    "behaviour_logp",
    "weight_version",
    "completion",
    "is_valid",
)


def group_episodes(trajectories: Sequence[Trajectory]) -> list[MultiAgentEpisode]:
    """Return one RLlib episode per group, with the group's name as id and a module for all agents.

    The members' steps at time t form one environment step. They may have run at different times,
    since members are independent. Every step stores as extra model outputs: ``prompt_ids``,
    ``response_ids``, ``behaviour_logp``, ``weight_version``, ``completion`` and ``is_valid``.
    """
    groups = groupby(trajectories, key=lambda trajectory: trajectory.group)
    return [_episode(name, {f"member_{t.member}": t for t in members}) for name, members in groups]


def _episode(name: str, members: dict[str, Trajectory]) -> MultiAgentEpisode:
    episode = MultiAgentEpisode(id_=name, agent_to_module_mapping_fn=lambda *_: DEFAULT_MODULE_ID)
    episode.add_env_reset(
        observations={m: t.steps[0].turn.observation for m, t in members.items()},
        infos={m: t.info for m, t in members.items()},
    )
    last = max(map(len, members.values())) - 1
    for time in range(last + 1):
        steps = {m: t.steps[time] for m, t in members.items() if time < len(t)}
        episode.add_env_step(
            observations={m: step.observation for m, step in steps.items()},
            actions={m: step.turn.action for m, step in steps.items()},
            rewards={m: step.reward for m, step in steps.items()},
            infos={m: step.info for m, step in steps.items()},
            terminateds={m: s.terminated for m, s in steps.items()} | {"__all__": time == last},
            truncateds={m: s.truncated for m, s in steps.items()} | {"__all__": False},
            extra_model_outputs={
                m: {name: getattr(step.turn, name) for name in OUTPUTS} for m, step in steps.items()
            },
        )
    return episode
