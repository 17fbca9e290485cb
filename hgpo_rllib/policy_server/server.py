"""The policy server of this process: a Serve application that ends with the process."""

import logging
import uuid
from typing import Any, Self

import ray
from ray import serve

from hgpo_rllib.config import AgentSettings, ModelSettings, PolicyServerSettings
from hgpo_rllib.policy_server.deployment import start_policy_server
from hgpo_rllib.policy_server.owner_liveness import start_owner_liveness
from hgpo_rllib.policy_server.replicas import LOST, describe

logger = logging.getLogger(__name__)


class PolicyServer:
    """A running policy server. As a context manager it stops after the block.

    Ray and Serve must be running (`hgpo_rllib.run.cluster.ray_cluster`).
    """

    def __init__(
        self,
        model: ModelSettings,
        agent: AgentSettings,
        server: PolicyServerSettings,
        seed: int = 0,
        app: str | None = None,
    ):
        """Start the replicas and wait until they are ready.

        Args:
            model: model settings.
            agent: agent settings, for the limits of prompts and responses.
            server: policy server settings.
            seed: seed of the run.
            app: name of the Serve application; None: a new name.

        Raises:
            RuntimeError: the engines did not start after Serve's three attempts.
        """
        self.app = app or f"policy-{uuid.uuid4().hex[:8]}"
        self._owner = start_owner_liveness()
        try:
            self._handle = start_policy_server(
                self.app, model, agent, server, seed=seed, owner=self._owner
            )
        except BaseException:  # includes an interrupt while the engines start
            self.stop()
            raise

    def sleep(self) -> None:
        """Free the GPU memory of all engines until their next request.

        A replica that is lost meanwhile has freed its memory too. Serve starts it again.
        """
        try:
            self._handle.broadcast("sleep").results()
        except LOST as error:
            logger.warning("policy server: %s while the engines went to sleep", describe(error))

    def stop(self) -> None:
        """Stop the replicas."""
        serve.delete(self.app)
        ray.kill(self._owner)

    def __enter__(self) -> Self:
        """Return the running server."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Stop it."""
        self.stop()
