"""The RLlib Learner, its RLModule, and the losses as pure functions."""
