"""Baseline of the policy server: `vllm.LLM.generate`.

The functions run in a separate process. It imports nothing that reads the variables of a replica
before they are set.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

from hgpo_rllib.policy_server.types import Prompt, Sampling

_llm: Any = None


def start(arguments: dict[str, Any], variables: dict[str, str]) -> None:
    """Start the engine with the engine arguments and environment variables of a replica."""
    global _llm
    # vLLM and torch read them at import. Standard output is for the results.
    os.environ.update(variables | {"VLLM_LOGGING_STREAM": "ext://sys.stderr"})
    from vllm import LLM

    _llm = LLM(**arguments)


def generate(prompts: Sequence[Prompt], sampling: Sampling) -> tuple[float, int]:
    """Return seconds and response tokens of one call with these prompts."""
    from hgpo_rllib.policy_server.vllm_engine import sampling_parameters

    inputs: Any = [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts]
    parameters = [sampling_parameters(sampling, prompt) for prompt in prompts]
    begin = time.perf_counter()
    outputs = _llm.generate(inputs, parameters, use_tqdm=False)
    seconds = time.perf_counter() - begin
    return seconds, sum(len(output.outputs[0].token_ids) for output in outputs)
