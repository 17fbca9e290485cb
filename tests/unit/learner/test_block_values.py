"""The critic of HiPER: three values at three places, each trained where it has a target."""

import pytest
import torch

from tests.unit.learner.learner_reference import (
    assert_equal,
    critic_of,
    llm_of,
    logp_and_entropy,
    make_columns,
    make_learner,
    step_losses,
    update,
)
from tests.unit.learner.test_token_values import COMMON, every_kind

pytestmark = pytest.mark.usefixtures("exact_norms")


@every_kind
def test_an_update_is_that_of_plain_losses(model_path: str, kind: dict) -> None:
    """The value loss adds the means over sub-goals, switches and actions of the mini-batch."""
    learner = make_learner(model_path, estimator="hiper", **COMMON | kind)
    columns = make_columns(llm_of(learner))
    columns["response_length"].clamp_(min=2)
    with torch.no_grad():
        for row in range(7):
            logp, _ = logp_and_entropy(llm_of(learner), columns, row)
            columns["behavior_logp"][row, : len(logp)] = logp.float()
    generator = torch.Generator().manual_seed(0)
    columns["advantage"] = torch.randn(7, 5, generator=generator)
    columns["value"] = torch.from_numpy(learner.values(columns)).float()
    critic = critic_of(learner)
    assert critic is not None
    assert critic.head.out_features == 3
    places = [(row, column) for row in range(7) for column in (0, 1, 2 + row % 2)]
    places = [(row, c) for row, c in places if c <= columns["response_length"][row]]
    places = [(row, c) for row, c in places if c > 0 or row % 3 == 0]  # where a segment begins
    columns["value_target"] = torch.full((7, 6), torch.nan)
    losses: list[list[torch.Tensor]] = [[], [], []]
    for row, column in places:
        target = float(torch.randn((), generator=generator))
        columns["value_target"][row, column] = target
        prompt = columns["prompt_ids"][row, : columns["prompt_length"][row]].long()
        response = columns["response_ids"][row, : max(column - 1, 0)].long()
        trunk = llm_of(learner).model if critic.trunk is None else critic.trunk
        ids = torch.cat([prompt, response])[None]
        output = critic.head(trunk(input_ids=ids).last_hidden_state[0, -1])
        head = min(column, 2)
        assert output[head].item() == pytest.approx(columns["value"][row, column].item(), abs=1e-6)
        losses[head].append((output[head] - columns["value_target"][row, column]) ** 2 / 2)
    value_loss = torch.stack([torch.stack(part).mean() for part in losses]).sum()
    llm, settings = llm_of(learner), learner._settings
    token_losses = [step_losses(llm, llm, None, columns, settings, row) for row in range(7)]
    parameters = list(learner.policy.parameters())
    expected = torch.autograd.grad(torch.cat(token_losses).mean() + 0.5 * value_loss, parameters)
    assert update(learner, columns)["value_loss"] == pytest.approx(value_loss.item(), abs=1e-6)
    assert_equal([p.grad for p in parameters], expected, 1e-6)
