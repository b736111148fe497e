# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Lite Micro: the arena of a model, planned, and the plan written into its file."""

from tvm_ext.hosts.tflite_micro.arena_head import arena_of, greedy_plan
from tvm_ext.hosts.tflite_micro.cmsis_nn import CORES, cmsis_nn_scratch
from tvm_ext.hosts.tflite_micro.fit import Fit, Fitting, Proof, fit, prove
from tvm_ext.hosts.tflite_micro.interpreter import Usage, holds, is_installed
from tvm_ext.hosts.tflite_micro.read_arena import SUFFIX, axis_of, read_arena
from tvm_ext.hosts.tflite_micro.read_model import Model, read_model
from tvm_ext.hosts.tflite_micro.write_plan import with_plan

__all__ = [
    "CORES",
    "SUFFIX",
    "Fit",
    "Fitting",
    "Model",
    "Proof",
    "Usage",
    "arena_of",
    "axis_of",
    "cmsis_nn_scratch",
    "fit",
    "greedy_plan",
    "holds",
    "is_installed",
    "prove",
    "read_arena",
    "read_model",
    "with_plan",
]
