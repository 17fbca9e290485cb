"""The policy server of this process: a Serve application that ends with the process."""

import logging
import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import DeploymentUnavailableError

from hgpo_rllib.placement import actor_options, replica_resources
from hgpo_rllib.policy_server.client import MAX_BATCH
from hgpo_rllib.policy_server.deployment import PolicyReplica, start_owner_liveness
from hgpo_rllib.policy_server.engine import find_engine
from hgpo_rllib.policy_server.replicas import RETRYABLE_ERRORS, describe_ray_error
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.model import ModelSettings
from hgpo_rllib.settings.policy_server import ENGINES, WEIGHT_TRANSPORTS, PolicyServerSettings

logger = logging.getLogger(__name__)
MAX_ONGOING_REQUESTS = 4096  # per replica; the engine queues requests beyond max_num_seqs
HEALTH_CHECK_TIMEOUT_S = 60  # an engine replies between two steps, such as a long prefill
SESSION_ROUTER = "hgpo_rllib.policy_server.router.GroupRouter"


class PolicyServer(AbstractContextManager["PolicyServer"]):
    """A running policy server. As a context manager it stops after the block.

    Ray and Serve must be running (`hgpo_rllib.run.cluster.ray_cluster`). With several replicas,
    requests with the same ``handle.options(session_id=…)`` go to the same replica. They go to
    another one if it has exited or does not tell Serve's router its queue length within 0.1 s.
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

        `agent` limits prompts and responses. `app` names the Serve application; None: a new name.

        Raises:
            RuntimeError: the engines did not start after Serve's three attempts.
        """
        self.app = app or f"policy-{uuid.uuid4().hex[:8]}"
        path = Path(str(model.model_path))
        if path.is_dir():  # else a name on the hub; replicas may have another working directory
            model = model.model_copy(update={"model_path": str(path.absolute())})
        options = replica_options(server)
        # Otherwise, replicas would have the variables of the job that started Serve's controller.
        environment = options["ray_actor_options"]["runtime_env"]
        of_job = ray.get_runtime_context().runtime_env.env_vars()
        environment["env_vars"] = of_job | environment["env_vars"]
        deployment = serve.deployment(
            PolicyReplica,
            name="policy",
            max_ongoing_requests=MAX_ONGOING_REQUESTS,
            health_check_period_s=2,  # time to detect an engine that has exited
            health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
            graceful_shutdown_wait_loop_s=0.1,  # default: 2 s before it stops without requests
            graceful_shutdown_timeout_s=5,
            logging_config={"enable_access_log": False},
            **options,
        )
        modules = ENGINES[server.engine], WEIGHT_TRANSPORTS[server.weight_transport]
        self._owner = start_owner_liveness()
        try:
            bound = deployment.bind(*modules, model, agent, server, seed, self._owner)
            self._handle = serve.run(bound, name=self.app, route_prefix=None)
        except BaseException:  # includes an interrupt while the engines start
            self.stop()
            raise

    def sleep(self) -> None:
        """Free the GPU memory of all engines until their next request.

        A replica that is lost meanwhile has freed its memory too. Serve starts it again, awake: if
        that happens during an update, both need the GPU's memory and the run can end.
        """
        # By default, `results` raises at the first error, before the other engines sleep.
        try:
            results = self._handle.broadcast("sleep").results(return_exceptions=True)
        except DeploymentUnavailableError as error:  # no replica is running
            results = [error]
        for result in results:
            if isinstance(result, RETRYABLE_ERRORS):
                logger.warning(
                    "policy server: %s while the engines went to sleep", describe_ray_error(result)
                )
            elif isinstance(result, BaseException):
                raise result

    def stop(self) -> None:
        """Stop the replicas."""
        try:
            serve.delete(self.app)
        finally:
            ray.kill(self._owner)  # remaining replicas then delete the application

    def __exit__(self, *_: Any) -> None:
        """Stop the replicas."""
        self.stop()


def replica_options(server: PolicyServerSettings) -> dict[str, Any]:
    """Return Serve's deployment options: number of replicas, their resources, request router."""
    variables = find_engine(ENGINES[server.engine]).env_vars(server)
    options: dict[str, Any] = {
        "num_replicas": server.num_replicas,
        "ray_actor_options": actor_options(replica_resources(server))
        | {"runtime_env": {"env_vars": variables}},
    }
    if server.max_replicas is not None:
        options["num_replicas"] = "auto"
        options["autoscaling_config"] = {
            "min_replicas": server.num_replicas,
            "max_replicas": server.max_replicas,
            "target_ongoing_requests": max(1, server.max_num_seqs // MAX_BATCH),
        }
    if server.most_replicas > 1:
        options["request_router_config"] = RequestRouterConfig(request_router_class=SESSION_ROUTER)
    return options
