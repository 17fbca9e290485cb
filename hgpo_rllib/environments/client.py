"""Tasks that a client of the gateway plays, with an environment of its own."""

from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments.spec import BuiltInSpec
from hgpo_rllib.errors import ConfigError


class Client(BuiltInSpec):
    """See `EnvironmentSpec`."""

    def check(self, config: RunConfig, split: str) -> None:
        """Check that there is a gateway, and the numbers of tasks."""
        if config.rollout.gateway_port is None:
            raise ConfigError(
                f"env.env_id: only clients of the gateway play {self.env_id}: set "
                "rollout.gateway_port of hgpo train (docs/gateway.md)"
            )
        super().check(config, split)
