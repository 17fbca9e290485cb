"""examples/gateway_verifiers.py with the real package, in the interpreter $HGPO_VERIFIERS_PYTHON.

verifiers cannot be installed next to the packages of this project (requirements/verifiers.txt).
"""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from hgpo_rllib.rollout.trajectory import Trajectory
from tests.paths import ROOT
from tests.unit.rollout.conftest import GatewayHarness

PYTHON = os.environ.get("HGPO_VERIFIERS_PYTHON")
pytestmark = pytest.mark.skipif(
    PYTHON is None,
    reason="HGPO_VERIFIERS_PYTHON does not name a Python with requirements/verifiers.txt",
)
PACKAGE = '''
import verifiers as vf
from datasets import Dataset


class Counting(vf.MultiTurnEnv):
    """Asks until the answer is "wait 2"."""

    async def env_response(self, messages, state, **kwargs):
        said = messages[-1].content
        reply = [vf.UserMessage(content=f"you said {said} to {state['answer']}")]
        if said == "wait 2":
            state["final_env_response"] = reply
        return reply


def load_environment(tasks):
    rows = [{"question": f"at {i}", "answer": str(i)} for i in range(tasks)]

    def reward(completion, answer, **kwargs):
        return 0.5 * len(completion) + 10 * (completion[-1].content.endswith(f"to {answer}"))

    return Counting(
        dataset=Dataset.from_list(rows),
        system_prompt="count",
        rubric=vf.Rubric(funcs=[reward]),
        max_turns=5,
    )
'''


def play(
    harness: GatewayHarness, folder: Path, name: str, **arguments: object
) -> tuple[Trajectory, str]:
    """Run the example for one episode; return the trajectory and the example's output."""
    (folder / "counting.py").write_text(PACKAGE)
    script = [str(PYTHON), str(ROOT / "examples" / "gateway_verifiers.py"), harness.url, "1"]
    log = folder / "log.txt"
    playing = harness.play()
    with log.open("w") as output:
        client = subprocess.Popen(
            [*script, name, json.dumps(arguments)],
            env={**os.environ, "PYTHONPATH": str(folder), "HF_HOME": str(folder)},
            stdout=output,
            stderr=output,
        )
    try:
        while not playing.done() and client.poll() is None:
            time.sleep(0.1)
        assert playing.done(), log.read_text()
        return playing.result(), log.read_text()
    finally:
        playing.cancel()
        client.terminate()
        client.wait(30)


@pytest.mark.timeout(180)
def test_a_multi_turn_environment(harness: GatewayHarness, tmp_path: Path) -> None:
    """The environment's messages become prompts; the rubric's reward is that of the last turn."""
    trajectory, log = play(harness, tmp_path, "counting", tasks=4)
    assert [step.reward for step in trajectory.steps] == [0, 0.5 * 4 + 10], log
    assert trajectory.won
    assert [turn.observation for turn in trajectory.turns] == ["at 3", "you said wait 1 to 3"]
    asked = harness.tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "count"},
            {"role": "user", "content": "at 3"},
            {"role": "assistant", "content": "wait 1"},
            {"role": "user", "content": "you said wait 1 to 3"},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    tokens = harness.tokenizer(asked, add_special_tokens=False)["input_ids"]
    assert harness.policy.asked[1].token_ids == tokens


@pytest.mark.timeout(180)
def test_an_environment_of_the_package(harness: GatewayHarness, tmp_path: Path) -> None:
    """A task of reasoning-gym is played in one turn, which "wait 1" does not solve."""
    arguments = {"gym": "chain_sum", "num_train_examples": 4, "system_prompt": "count"}
    trajectory, log = play(harness, tmp_path, "verifiers:ReasoningGymEnv", **arguments)
    assert len(trajectory.steps) == 1, log
    assert trajectory.episode_return < 0.5
    assert not trajectory.won
