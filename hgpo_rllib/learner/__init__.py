"""From rows of tokens to gradients: an RLlib Learner with its module, and pure losses."""
