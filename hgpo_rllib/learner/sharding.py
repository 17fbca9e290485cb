"""Shard parameters over the learners with torch's FSDP2, for models too large for one learner.

Full parameters exist in two places: those of one layer while it computes, and, after an update, a
copy of all in the first learner's host memory for publishing and saving.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
PARTIAL = StateDictOptions(full_state_dict=True, cpu_offload=True, strict=False)


def shard(scorer: nn.Module, layers: Iterable[nn.Module], device: torch.device) -> None:
    """Shard each layer's parameters, and those outside of the layers.

    All learners must run the same number of passes, since each pass gathers every layer from all
    learners. A model in host memory is moved to the device layer by layer.
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    # What is outside of the layers stays whole between the passes of a model that is trained. A
    # frozen one has no backward pass, after which torch would shard it again.
    trained = any(parameter.requires_grad for parameter in scorer.parameters())
    fully_shard(scorer, mesh=mesh, reshard_after_forward=not trained)
    for module in scorer.modules():
        if isinstance(module, FSDPModule):  # sum gradients, as `GradientSum` does
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor of a result from sharded parameters. Collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return the trained parameters in full in host memory, on the first learner only.

    Collective: if parameters are sharded, all learners must call this together.
    """
    reshard(module)
    state = get_model_state_dict(module, options=FULL)
    # torch keeps a frozen parameter under its second name: a head tied to the embedding has two.
    parameters = module.named_parameters(remove_duplicate=False)
    frozen = {name for name, parameter in parameters if not parameter.requires_grad}
    return {name: tensor for name, tensor in state.items() if name not in frozen}


def load_full_parameters(module: nn.Module, state: dict[str, Any]) -> None:
    """Load the result of `full_parameters`; every learner must have the full `state`."""
    missing = {name for name, p in module.named_parameters() if p.requires_grad} - state.keys()
    if missing:
        raise ValueError(f"the checkpoint lacks {', '.join(sorted(missing))}")
    reshard(module)
    set_model_state_dict(module, dict(state), options=PARTIAL)  # torch adds to it


def full_optimizer_state(module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer's full state by parameter name; see `full_parameters`.

    Empty before the first step. Otherwise torch would take a step with learning rate 0 to
    initialize the state.
    """
    if not optimizer.state:
        return {}
    reshard(module)
    state = get_optimizer_state_dict(module, optimizer, options=FULL)
    on_cpu = next(module.parameters()).device.type == "cpu"
    return copy.deepcopy(state) if on_cpu else state  # from a GPU it is a copy already


def load_full_optimizer_state(
    module: nn.Module, optimizer: Optimizer, state: dict[str, Any]
) -> None:
    """Load the result of `full_optimizer_state`; every learner must have the full `state`.

    Collective. Options such as the weight decay stay those of `optimizer`. torch's
    `set_optimizer_state_dict` would need memory for two copies of the moments.
    """
    if not state:
        return
    reshard(module)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            saved = state["state"][name]
            optimizer.state[parameter] = {k: _placed(v, parameter) for k, v in saved.items()}


def _placed(value: Tensor, parameter: Tensor) -> Tensor:
    """Return a copy of an optimizer's value where its parameter is, and sharded like it."""
    if value.dim() and isinstance(parameter, DTensor):
        return distribute_tensor(value, parameter.device_mesh, parameter.placements)
    return value.to(parameter.device, copy=True)


def reshard(module: nn.Module) -> None:
    """Reshard all modules: a pass without gradients leaves those outside the layers unsharded."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
