"""Text environments as plain Gymnasium environments (no Ray, no torch).

Importing this package registers ``hgpo/ALFWorld-v0``, ``hgpo/WebShop-v0``,
``hgpo/TextCraft-v0``, ``hgpo/ScienceWorld-v0``, ``hgpo/Gymnasium-v0``, ``hgpo/Client-v0`` and
``hgpo/Mixture-v0``. ``gymnasium.make`` and ``make_vec`` import an environment and its engine when
it is first created.
"""

import gymnasium

for _id, _entry_point in (
    ("hgpo/ALFWorld-v0", "env_wrappers.alfworld.env:ALFWorldEnv"),
    ("hgpo/WebShop-v0", "env_wrappers.webshop.env:WebShopEnv"),
    ("hgpo/TextCraft-v0", "env_wrappers.textcraft.env:TextCraftEnv"),
    ("hgpo/ScienceWorld-v0", "env_wrappers.scienceworld.env:ScienceWorldEnv"),
    ("hgpo/Gymnasium-v0", "env_wrappers.gymnasium_env:GymnasiumEnv"),
    ("hgpo/Client-v0", "env_wrappers.client:ClientEnv"),
    ("hgpo/Mixture-v0", "env_wrappers.mixture:MixtureEnv"),
):
    # The passive checker validates every observation, which costs more than a step.
    gymnasium.register(id=_id, entry_point=_entry_point, disable_env_checker=True)
