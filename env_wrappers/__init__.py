"""Text environments as plain Gymnasium environments (no Ray, no torch).

Importing this package registers ``hgpo/ALFWorld-v0``; ``gymnasium.make`` and ``make_vec`` import
the environment itself, and with it the game engine, only when it is first made.
"""

import gymnasium

# The checker validates every observation against its space, which costs more than a step does.
gymnasium.register(
    id="hgpo/ALFWorld-v0",
    entry_point="env_wrappers.alfworld.env:ALFWorldEnv",
    vector_entry_point="env_wrappers.alfworld.vector:ALFWorldVectorEnv",
    order_enforce=True,
    disable_env_checker=True,
)
