# SPDX-License-Identifier: Apache-2.0
"""Small models that bring out each way in which ExecuTorch keeps a tensor, exported and run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.runtime import Runtime
from torch import nn
from torch._higher_order_ops.map import map as torch_map

Model = tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, Any]]


class Residual(nn.Module):
    """Convolutions whose results are read late."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 4, 3, padding=1, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        early = torch.relu(self.first(x))
        return self.third(torch.relu(self.second(early)) + early).mean((2, 3))


class Views(nn.Module):
    """Reshapes, which ExecuTorch turns into views of one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.up(x)).reshape(4, 2, 32)
        z = (y * 2).view(8, 32)
        return self.down(z), y.view(2, 4, 32).sum(0)


class Branches(nn.Module):
    """A condition whose branches need memory of their own, and whose result is read late."""

    def forward(self, flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        before = x * 2

        def first(a: torch.Tensor) -> torch.Tensor:
            return torch.cat([a + 1, a * 3]).sum(0, keepdim=True) * a

        def second(a: torch.Tensor) -> torch.Tensor:
            return (a - 1) * (a + 4)

        chosen = torch.cond(flag, first, second, [before])
        other = torch.cat([x, before, x]) * 0.5
        return chosen + other.reshape(3, *x.shape).sum(0)


class Counter(nn.Module):
    """A state that outlives a call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x + 1) * (x - 2)
        self.state.add_(y)
        return torch.cat([self.state * 2, y, x]) * 3


class Batch(nn.Module):
    """A batch of a size that is known by its bound alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) * 2
        z = torch.cat([y, x], 1)
        return z.sum(1) + y.mean(1)


class Rows(nn.Module):
    """A loop over the rows of a tensor, between statements of its own memory."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        late = (y + 3) * y
        rows = torch_map(lambda row, other: (row * other + row) * 2, x, y)
        return (rows + late) * x


ROWS = torch.export.Dim("rows", min=2, max=64)

MODELS: dict[str, Callable[[], Model]] = {
    "residual": lambda: (Residual(), (torch.randn(1, 3, 16, 16),), {}),
    "views": lambda: (Views(), (torch.randn(8, 16),), {}),
    "branches": lambda: (Branches(), (torch.tensor(True), torch.randn(4, 8)), {}),
    "loop": lambda: (Rows(), (torch.randn(5, 8), torch.randn(8)), {}),
    "state": lambda: (Counter(), (torch.randn(4, 8),), {}),
    "dynamic": lambda: (Batch(), (torch.randn(8, 16),), {"dynamic_shapes": {"x": {0: ROWS}}}),
}


def exported(name: str) -> tuple[Any, Model]:
    """Export a model with weights and inputs that are the same in each process."""
    torch.manual_seed(0)
    model = MODELS[name]()
    module, inputs, options = model
    return torch.export.export(module.eval(), inputs, **options), model


def written(program: Any, planning: Any, path: Path, **config: Any) -> Any:
    """Write a program with a memory planning pass, and return what was written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = to_edge(copy.deepcopy(program)).to_executorch(
            ExecutorchBackendConfig(memory_planning_pass=planning, **config)
        )
    path.write_bytes(made.buffer)
    return made


def arena_bytes(made: Any) -> list[int]:
    """Return the bytes of each arena of a program's first method."""
    return list(made.executorch_program.execution_plan[0].non_const_buffer_sizes)


def runs(path: Path, *calls: tuple[torch.Tensor, ...]) -> list[list[torch.Tensor]]:
    """Call a program several times, and return the results of each call."""
    method = Runtime.get().load_program(path).load_method("forward")
    return [[result.clone() for result in method.execute(list(call))] for call in calls]
