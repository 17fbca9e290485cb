"""Distribute groups over EnvRunner actors, and play those of a lost actor again."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import ray
from ray.actor import ActorHandle
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.policy_server.replicas import (
    ACTOR_LOST_ERRORS,
    POLL_INTERVAL_S,
    RETRY_INTERVAL_S,
    Replicas,
    describe_ray_error,
)
from hgpo_rllib.policy_server.types import WeightTag
from hgpo_rllib.rollout.group import Group, PlayedGroup

logger = logging.getLogger(__name__)


def runner_actors(group: EnvRunnerGroup) -> list[ActorHandle]:
    """Return all env runner actors of a group, also lost ones, which Ray restarts.

    Raises:
        RunStoppedError: an actor did not start. Ray does not restart it, and RLlib would leave it
            out from now on.
    """
    actors = list(group._worker_manager.actors().values())
    for actor in actors:
        try:
            ray.get(actor.ping.remote())
        except RayActorError as error:
            if error.actor_init_failed:
                reason = describe_ray_error(error.args[0])
                raise RunStoppedError(f"an env runner did not start: {reason}") from error
        except OutOfMemoryError:  # Ray's memory monitor killed it, and Ray restarts it
            pass
    return actors


class RunnerActors:
    """Play the groups of one rollout on actors. Use it on one event loop.

    An actor gets a further group when it has played one, so slow groups do not delay others.
    """

    def __init__(
        self, actors: Sequence[ActorHandle], replicas: Replicas, group_size: int, max_episodes: int
    ):
        """Create the players of one rollout.

        Args:
            actors: actors of `HGPOEnvRunner`.
            replicas: replicas of the policy server. This process logs their outages, as the
                output of actors is not shown. Their `max_outage_s` is also the time limit while all
                actors are lost.
            group_size: number of members of each group.
            max_episodes: maximum number of concurrent episodes on all actors together, but at
                least one per actor. Those of other rollouts at the same time are not counted.
        """
        self._episodes = max(1, max_episodes // len(actors))
        self._replicas = replicas
        self._ready: asyncio.Queue[ActorHandle] = asyncio.Queue()
        for _ in range(max(1, self._episodes // group_size)):
            for actor in actors:
                self._ready.put_nowait(actor)
        self._count = len(actors)
        self._lost: set[ActorHandle] = set()
        self._all_lost_since: float | None = None

    async def play(self, weights: Callable[[], WeightTag], group: Group) -> PlayedGroup:
        """Play a group on an actor, with the current `weights`; repeat it if the actor is lost.

        Raises:
            RunStoppedError: all actors were lost for `max_outage_s`, or the policy server does not
                respond.
        """
        while True:
            actor = await self._ready.get()
            try:
                played = await self._request(actor, weights(), group)
            except ACTOR_LOST_ERRORS as error:  # the actor, or the object with its result
                self._on_lost(actor, error)
                continue
            except BaseException:  # the actor can still play other groups
                self._ready.put_nowait(actor)
                raise
            self._ready.put_nowait(actor)
            self._lost.discard(actor)
            self._all_lost_since = None
            return played

    async def _request(self, actor: ActorHandle, weights: WeightTag, group: Group) -> PlayedGroup:
        reference = actor.play_group.remote(group, weights, self._episodes)
        request = asyncio.wrap_future(reference.future())
        try:
            while not (await asyncio.wait({request}, timeout=POLL_INTERVAL_S))[0]:
                self._all_lost_since = None  # calls to lost actors fail at once
                await self._replicas.any_running()
            return request.result()
        except RayTaskError as error:
            raise error.cause from None
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise

    def _on_lost(self, actor: ActorHandle, error: RayError) -> None:
        if actor not in self._lost:  # warn once, not for each of its groups
            logger.warning("lost an env runner (%s), retrying its groups", type(error).__name__)
            self._lost.add(actor)
        if len(self._lost) == self._count:
            now = time.monotonic()
            self._all_lost_since = self._all_lost_since or now
            if now - self._all_lost_since > self._replicas.max_outage_s:
                raise RunStoppedError(
                    f"all env runners have been lost for {self._replicas.max_outage_s:g} s "
                    f"(policy_server.max_outage_s): {describe_ray_error(error)}"
                )
        # Ray restarts the actor in the meantime.
        asyncio.get_running_loop().call_later(RETRY_INTERVAL_S, self._ready.put_nowait, actor)
