"""One object per environment: what training and evaluation need to know beside Gymnasium's API.

An environment that is listed here is trained, evaluated and prepared by name. All other modules ask
`find_environment`, and compare no names.
"""

from hgpo_rllib.environments.registry import (
    environment_id,
    find_environment,
    register_environment,
    short_names,
)
from hgpo_rllib.environments.spec import EnvironmentSpec, Games, OraclePlan, TaskGenerator

__all__ = [
    "EnvironmentSpec",
    "Games",
    "OraclePlan",
    "TaskGenerator",
    "environment_id",
    "find_environment",
    "register_environment",
    "short_names",
]

register_environment("hgpo/ALFWorld-v0", "hgpo_rllib.environments.alfworld:ALFWorld")
register_environment("hgpo/WebShop-v0", "hgpo_rllib.environments.webshop:WebShop")
