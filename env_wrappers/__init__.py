"""Text environments as plain Gymnasium environments (no Ray, no torch).

Importing this package registers ``hgpo/ALFWorld-v0`` and ``hgpo/WebShop-v0``; ``gymnasium.make``
and ``make_vec`` import an environment itself, and with it its engine, only when it is first made.
"""

import gymnasium

# The checker validates every observation against its space, which costs more than a step does.
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
