"""From episodes to gradients: an RLlib Learner with its connector, module, and pure losses."""
