"""Text environments as plain Gymnasium environments (no Ray, no torch).

Importing this package registers ``hgpo/ALFWorld-v0``, ``hgpo/WebShop-v0`` and
``hgpo/TextCraft-v0``. ``gymnasium.make`` and ``make_vec`` import an environment and its engine when
it is first created.
"""

import gymnasium

# The passive checker validates every observation, which costs more than a step.
gymnasium.register(
    id="hgpo/ALFWorld-v0",
    entry_point="env_wrappers.alfworld.env:ALFWorldEnv",
    order_enforce=True,
    disable_env_checker=True,
)
gymnasium.register(
    id="hgpo/WebShop-v0",
    entry_point="env_wrappers.webshop.env:WebShopEnv",
    order_enforce=True,
    disable_env_checker=True,
)
gymnasium.register(
    id="hgpo/TextCraft-v0",
    entry_point="env_wrappers.textcraft.env:TextCraftEnv",
    order_enforce=True,
    disable_env_checker=True,
)
