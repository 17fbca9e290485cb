"""Baseline of the policy server: `vllm.LLM.generate` in a separate process."""

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
    """vLLM's offline engine with the arguments of a replica."""

    def __init__(self, arguments: dict[str, Any], variables: dict[str, str]):
        """Start the engine.

        Args:
            arguments: engine arguments of a replica; `max_num_seqs` is the concurrency.
            variables: environment variables of a replica.
        """
        self._process: ProcessPoolExecutor = new_process()
        self._process.submit(_start, arguments, variables).result()

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> tuple[float, int]:
        """Return seconds and response tokens of one call with these prompts."""
        return self._process.submit(_generate, prompts, sampling).result()

    def close(self) -> None:
        """Stop the engine's process."""
        self._process.shutdown()


def _start(arguments: dict[str, Any], variables: dict[str, str]) -> None:
    global _llm
    os.environ.update(variables)  # vLLM and torch read them at import
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
