"""Weight transport ``nccl``: vLLM's transfer by NCCL, from the learner's GPU to GPUs of engines.

Never run on a GPU.
"""

from hgpo_rllib.policy_server.gpu_transfer import WeightsOnLearner
from hgpo_rllib.policy_server.types import PublishedWeights


def publish(weights: PublishedWeights) -> WeightsOnLearner:
    """See `WeightTransport`. Only the latest version is kept."""
    from hgpo_rllib.policy_server.vllm_sender import sender  # replicas do not need it

    return sender("nccl").publish(weights)


async def fetch(handle: WeightsOnLearner) -> PublishedWeights:
    """See `WeightTransport`. The engine gets the weights later, when it loads them."""
    return handle
