# SPDX-License-Identifier: Apache-2.0
"""TVM: a negative index of a PyTorch program."""

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program


class Last(torch.nn.Module):
    def forward(self, x):
        return (x * 2)[:, -1] + 1


x = torch.arange(12.0).reshape(1, 3, 4)
mod = from_exported_program(torch.export.export(Last(), (x,)))
machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
found = machine["main"](tvm.runtime.tensor(x.numpy()))[0].numpy()
print("mended" if np.array_equal(found, Last()(x).numpy()) else "wrong")
