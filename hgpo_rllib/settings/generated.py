"""The sections `games`, `store` and `warm_start` of a run file: generated data and pocket model."""

from typing import Literal

from pydantic import Field, field_validator

from hgpo_rllib.section import Section, Seed, check_unique


class GamesSettings(Section):
    """Generated ALFWorld games, used for training and the warm start if `env.data` is null."""

    train: int = Field(240, ge=1)
    """Number of games in the split `train`."""
    valid_seen: int = Field(48, ge=0)
    """Number of held-out games in the floor plans of `train`."""
    valid_unseen: int = Field(48, ge=0)
    """Number of held-out games in floor plans that `train` does not use."""
    test: int = Field(0, ge=0)
    """Number of further held-out games, in all floor plans. Choose settings on the other splits,
    and evaluate on this one at the end."""
    rooms: list[Literal["kitchen", "livingroom", "bedroom", "bathroom"]] = Field(
        ["kitchen", "livingroom", "bedroom", "bathroom"]
    )
    """Room types of the generated games."""
    task_types: list[str] | None = Field(None, min_length=1)
    """Task types to generate. null: all six."""
    max_receptacles: int = Field(60, ge=2)
    """Maximum number of receptacles in a room."""
    seed: Seed = 0
    """Seed of the generator."""

    _types_are_different = field_validator("task_types")(check_unique)


class StoreSettings(Section):
    """A generated WebShop catalogue, used for training and the warm start if `env.data` is null.

    Fields as in `env_wrappers.webshop.synthetic_products.CatalogueSpec`.
    """

    products: int = Field(400, ge=1)
    """Number of products. Each product with an instruction gives about eight goals."""
    seed: Seed = 0
    """Seed of the generator."""
    lookalikes: int = Field(3, ge=1, le=6)
    """Number of products of the same brand and kind, with the same words in their titles. With
    several, only their pages tell which one is wanted; more of them take more steps."""
    attributes: int = Field(27, ge=3, le=27)
    """Maximum number of attributes of a product. More of them make titles and pages longer, and
    instructions name more of them."""
    human: float = Field(0.25, ge=0, le=1)
    """Fraction of the products with instructions that have a human one too, which says half of the
    traits in other words. They are the goals with `env.options.goals=human`."""


class WarmStartSettings(Section):
    """The pocket model: a small Qwen2 trained on scripted demonstrations of training tasks."""

    games: int = Field(480, ge=1)
    """Number of tasks to demonstrate. With `env.data`, and for TextCraft: tasks of
    `env.train_split`, evenly spaced (all of them if it has fewer). Otherwise separate games in the
    floor plans of `train` (ALFWorld), or the first goals of the train split (WebShop)."""
    demonstrations: int = Field(3, ge=1)
    """Number of demonstrations per task."""
    max_steps: int = Field(20, ge=1)
    """Maximum length of a demonstration in steps. Demonstrations without success by then are
    discarded."""
    action_noise: float = Field(0.15, ge=0, le=1)
    """Probability that a perturbed action is executed instead of the expert's. The label stays
    the expert's action."""
    random_moves: float = Field(0.3, ge=0, le=1)
    """Probability that the expert goes to a random place (ALFWorld), gets a random item (TextCraft)
    or makes the mistake that a decision permits (WebShop) instead of what it wants to do. The model
    learns these actions, so a larger value leaves more to reinforcement learning."""
    vocabulary: int = Field(1000, ge=300)
    """Size of the BPE vocabulary."""
    hidden_size: int = Field(96, ge=32, multiple_of=32)
    """Hidden size. Must be a multiple of 32, because the heads have 32 dimensions, the smallest
    size that vLLM supports on CPUs."""
    layers: int = Field(3, ge=1)
    """Number of transformer layers."""
    optimizer_steps: int = Field(6000, ge=1)
    """Number of optimizer steps, each on `batch_size` prompts."""
    exercise_steps: int = Field(0, ge=0)
    """Number of optimizer steps on exercises, before those on demonstrations (ALFWorld only). An
    exercise asks for another object than the demonstration and has only a thought as response, so
    that the model learns to compare the goal with what can be taken."""
    exercise_lr: float = Field(1e-3, gt=0)
    """Learning rate of exercises, constant after the warm-up."""
    batch_size: int = Field(16, ge=1)
    """Number of prompts per optimizer step."""
    lr: float = Field(3e-3, gt=0)
    """Peak learning rate of demonstrations. It decays linearly."""
    prompt_loss: float = Field(1.0, ge=0)
    """Weight of the mean loss of prompt tokens, which is added to that of response tokens."""
    seed: Seed = 0
    """Seed of demonstrations, initial weights and batches."""
