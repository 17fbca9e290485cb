"""The policy server's yardstick: `vllm.LLM.generate` alone, in a process of its own."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from hgpo_rllib.bench.measure import new_process
from hgpo_rllib.policy_server.types import Prompt, Sampling

if TYPE_CHECKING:
    from vllm import LLM

_llm: "LLM | None" = None


class BareEngine:
    """vLLM's offline engine with the arguments of a replica, ready to be timed."""

    def __init__(self, arguments: dict[str, Any], variables: dict[str, str]):
        """Start it.

        Args:
            arguments: of the engine, as a replica's; `max_num_seqs` is its concurrency.
            variables: of its process's environment, as a replica's.
        """
        self._process: ProcessPoolExecutor = new_process()
        self._process.submit(_start, arguments, variables).result()

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> tuple[float, int]:
        """Seconds and response tokens of one call with these prompts."""
        return self._process.submit(_generate, prompts, sampling).result()

    def close(self) -> None:
        """End its process."""
        self._process.shutdown()


def _start(arguments: dict[str, Any], variables: dict[str, str]) -> None:
    global _llm
    os.environ.update(variables)  # vLLM and torch read them when they are imported
    from vllm import LLM

    _llm = LLM(**arguments)


def _generate(prompts: Sequence[Prompt], sampling: Sampling) -> tuple[float, int]:
    from hgpo_rllib.policy_server.vllm_engine import sampling_parameters

    assert _llm is not None, "not started"
    inputs: Any = [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts]
    parameters = [sampling_parameters(sampling, prompt.seed) for prompt in prompts]
    start = time.perf_counter()
    outputs = _llm.generate(inputs, parameters, use_tqdm=False)
    seconds = time.perf_counter() - start
    return seconds, sum(len(output.outputs[0].token_ids) for output in outputs)
