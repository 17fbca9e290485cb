"""Plays an environment of the package verifiers through the gateway of a run.

It does not import hgpo_rllib and runs in a virtual environment of its own (docs/gateway.md). Start
it when the run prints that the gateway waits for clients:

hgpo train verifiers_qwen1.5b
verifiers-venv/bin/python examples/gateway_verifiers.py http://127.0.0.1:8100 64 \\
  verifiers:ReasoningGymEnv \\
  '{"gym": "chain_sum", "num_train_examples": 1000, "num_eval_examples": 100}'

Arguments: the gateway, the number of episodes played at the same time, the environment (MODULE for
`MODULE.load_environment`, or MODULE:FUNCTION), and its arguments.
"""

import asyncio
import contextlib
import importlib
import json
import os
import sys
from typing import Any

import httpx
from verifiers.clients import resolve_client
from verifiers.types import ClientConfig

KEY = "HGPO_API_KEY"


def load(name: str, arguments: dict[str, Any]) -> Any:
    """Return the environment; its tools and the comparison of rollouts are not supported."""
    module, _, function = name.partition(":")
    env = getattr(importlib.import_module(module), function or "load_environment")(**arguments)
    if env.requires_group_rollouts:
        sys.exit(f"{name}: its rubric compares the rollouts of a group, which the run does itself")
    return env


async def play(env: Any, url: str, session: dict[str, Any]) -> dict[str, Any]:
    """Play the task of a session; return the body that ends the session."""
    split, _, number = session["game"].rpartition("/")
    rows = env.build_dataset() if split == "train" else env.build_eval_dataset()
    if rows is None or int(number) >= len(rows):
        count = 0 if rows is None else len(rows)
        sys.exit(f"no task {session['game']}: set env.options.tasks.{split} to at most {count}")
    config = ClientConfig(
        client_type="openai_chat_completions",
        api_base_url=f"{url}/sessions/{session['id']}/v1",
        api_key_var=KEY,
    )
    client = resolve_client(config)
    try:
        output = await env.run_rollout(rows[int(number)], client, "policy", {})
    finally:
        await client.close()
    if output["error"] is not None:
        return {"error": str(output["error"])}
    return {"won": output["reward"] >= env.pass_threshold, "reward": output["reward"]}


async def work(env: Any, url: str, gateway: httpx.AsyncClient) -> None:
    """Play sessions until the run has ended."""
    with contextlib.suppress(httpx.NetworkError, httpx.RemoteProtocolError):  # the run was killed
        while (reply := await gateway.post("/sessions")).status_code != 410:
            if reply.status_code == 204:  # nothing to play now
                continue
            session = reply.raise_for_status().json()
            end = await play(env, url, session)
            await gateway.post(f"/sessions/{session['id']}/end", json=end)


async def main(url: str, episodes: str, name: str, arguments: str = "{}") -> None:
    """See the module."""
    env = load(name, json.loads(arguments))
    headers = {"Authorization": f"Bearer {os.environ.get(KEY, 'none')}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as gateway:
        await asyncio.gather(*(work(env, url, gateway) for _ in range(int(episodes))))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
