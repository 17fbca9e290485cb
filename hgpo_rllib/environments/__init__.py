"""One spec per environment, with what training and evaluation need beyond Gymnasium's API.

The environments registered here can be trained, evaluated and prepared by name. Other modules call
`find_environment` and do not compare names.
"""

from hgpo_rllib.environments.registry import (
    environment_id,
    find_environment,
    register_environment,
    short_names,
)
from hgpo_rllib.environments.spec import (
    DemonstrationGenerator,
    EnvironmentSpec,
    Games,
    OraclePlan,
    TaskGenerator,
)

__all__ = [
    "DemonstrationGenerator",
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
register_environment("hgpo/TextCraft-v0", "hgpo_rllib.environments.textcraft:TextCraft")
