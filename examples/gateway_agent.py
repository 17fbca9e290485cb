"""An agent that plays ALFWorld through the gateway of a run. It does not import hgpo_rllib.

hgpo train alfworld_six_games rollout.gateway_port=8100
python examples/gateway_agent.py http://127.0.0.1:8100 8    # with 8 processes
"""

import contextlib
import multiprocessing
import os
import re
import sys
from typing import Any

import httpx
import openai
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld import EnvInfos
from textworld.envs.pddl import PddlEnv

SIDE_ACTIONS = ("examine", "help", "inventory", "look")


def brief(observation: str) -> str:
    """Shorten what the list of actions repeats."""
    if "You are in the middle of a room" in observation:
        return "You look around."
    return re.sub(r"^You arrive at [^.]*\. ", "", observation)


def play(env: AlfredDemangler, policy: openai.OpenAI, session: dict[str, Any]) -> bool:
    """Play the session's game; return whether it was won."""
    goal, history = session["goal"], list[str]()
    env.load(session["game"])
    state = env.reset()
    while not state["won"] and len(history) < session["max_turns"]:
        observation = state.feedback
        actions = [a for a in state["admissible_commands"] if a.split()[0] not in SIDE_ACTIONS]
        lines = [f"Task: {goal}", f"Step {len(history) + 1}", *history[-2:], brief(observation)]
        prompt = "\n".join([*lines, f"Actions: {', '.join(actions)}", f"Task: {goal}"])
        reply = policy.chat.completions.create(
            model="policy",
            messages=[{"role": "user", "content": prompt}],
            extra_body={"anchor": observation},  # HGPO groups the steps with equal anchors
        )
        completion = (reply.choices[0].message.content or "").lower()
        found = re.search("<action>(.*?)</action>", completion, re.DOTALL)
        action = found[1].strip() if found else completion[-30:]
        history.append(f"{brief(observation)} > {action}")
        state, _, _ = env.step(action)
    return state["won"]


def work(url: str) -> None:
    """Play sessions until the run has ended."""
    infos = EnvInfos(admissible_commands=True, won=True)
    env = AlfredDemangler(PddlEnv(infos), shuffle=False)
    key = os.environ.get("HGPO_API_KEY", "none")
    client = openai.OpenAI(base_url=url, api_key=key)
    gateway = httpx.Client(base_url=url, timeout=60, headers={"Authorization": f"Bearer {key}"})
    with contextlib.suppress(httpx.NetworkError, httpx.RemoteProtocolError):  # the run was killed
        while (reply := gateway.post("/sessions")).status_code != 410:
            if reply.status_code == 204:  # nothing to play now
                continue
            session = reply.raise_for_status().json()
            path = f"/sessions/{session['id']}"
            try:
                won = play(env, client.with_options(base_url=f"{url}{path}/v1"), session)
            except openai.OpenAIError:  # the session has ended
                continue
            gateway.post(f"{path}/end", json={"won": won, "reward": 10.0 * won})


if __name__ == "__main__":
    for _ in range(int(sys.argv[2])):
        multiprocessing.Process(target=work, args=sys.argv[1:2]).start()
