# SPDX-License-Identifier: Apache-2.0
"""Rules of LayerGroup: which kernels can be cut, what a slice needs, and what lies in its place."""

from __future__ import annotations

from mutants import Fault, Rule

_ANALYSIS = "passes/layer_group/analysis"
_PLANNING = "passes/layer_group/planning"
_REWRITE = "passes/layer_group/rewrite"
_TESTS = "tests/layer_group"

_TAKEN = f"{_TESTS}/analysis/test_written_kernels.py::test_what_is_taken_and_why_the_rest_is_left"
_GAPS = f"{_TESTS}/analysis/test_written_kernels.py::test_rows_that_are_not_known_are_all_read"
_BACK = f"{_TESTS}/analysis/test_backward.py"
_BACKWARD = f"{_TESTS}/analysis/test_backward.py::test_ranges_need_what_each_of_their_indices_needs"
_SAME = f"{_TESTS}/analysis/test_written_kernels.py::test_each_gives_the_same_in_a_group"
_SHARED = (
    f"{_TESTS}/analysis/test_written_kernels.py"
    "::test_a_buffer_takes_the_place_of_another_though_results_need_other_rows_of_both"
)
_BOUNDARIES = f"{_TESTS}/rewrite/test_boundaries.py"
_LEFT = f"{_TESTS}/test_left_alone.py"
_GROUPS = f"{_TESTS}/rewrite/test_group_kernels.py"
_PROPERTY = f"{_TESTS}/test_layer_group_property.py"
_NETWORKS = f"{_TESTS}/analysis/test_networks.py"
_MEMORY = f"{_NETWORKS}::test_softmax_needs_working_memory_and_normalization_along_the_rows_more"
_SLICES = f"{_TESTS}/planning/test_slicing.py"
_REPLAY = f"{_TESTS}/planning/test_replay.py"
_LOCAL = f"{_TESTS}/planning/test_local_memory.py"
_RUNS = f"{_TESTS}/rewrite/test_part_loops.py"
_RULES = f"{_TESTS}/analysis/test_part_rules.py"
_CORES = f"{_TESTS}/rewrite/test_cores.py"
_OUTSIDE = f"{_TESTS}/rewrite/test_accesses_outside.py"

ENTRIES: tuple[Rule | Fault, ...] = (
    Rule("LayerGroup kernels: buffers and blocks", f"{_ANALYSIS}/stages.py",
         ("known_shape", "read_stage", "check_block"),
         (_TAKEN, f"{_LEFT}::test_a_view_whose_begin_is_computed_is_left_alone",
          f"{_BOUNDARIES}::test_a_view_is_read_where_it_begins")),
    Rule("LayerGroup kernels: loops", f"{_ANALYSIS}/stages.py",
         ("_in_order_of_loops", "_is_plain", "_spatial", "_inner"), (_TAKEN,)),
    Rule("LayerGroup kernels: bodies", f"{_ANALYSIS}/stages.py",
         ("_statements", "at_place", "_StatementReader.read", "_StatementReader._expression",
         "_StatementReader._load"), (_TAKEN,)),
    Rule("LayerGroup kernels: rows of blocks", f"{_ANALYSIS}/read_kernel.py",
         ("Kernel.results", "Kernel.reads_results", "_read", "_check_order", "_nests"),
         (_TAKEN, _GAPS, _NETWORKS + "::test_letters_of_convolutions", _LEFT)),
    Rule("LayerGroup letters: contractions", f"{_ANALYSIS}/kernel_calls.py",
         ("KernelCall.contractions",),
         (f"{_NETWORKS}::test_as_many_rows_as_a_weight_has_elements_are_no_channels", _NETWORKS,
          _PROPERTY)),
    Rule("LayerGroup in place: working memory", f"{_ANALYSIS}/kernel_calls.py",
         ("KernelCall.memory", "KernelCall._replaced_by"),
         (_SAME, _NETWORKS, _GROUPS, _SHARED)),
    Rule("LayerGroup in place: element by element", f"{_ANALYSIS}/stages.py",
         ("Stage.reads_in_place",), (_SAME, _MEMORY, _BACK)),
    Rule("LayerGroup in place: the slice of a result", f"{_ANALYSIS}/kernel_calls.py",
         ("KernelCall._needs_its_slice",),
         (f"{_GROUPS}::test_working_memory_in_the_place_of_a_result_that_every_slice_makes_whole",
         _SAME, f"{_GROUPS}::test_all_layers_as_one_group", _NETWORKS, _BACK)),
    Rule("LayerGroup sums: part by part", f"{_ANALYSIS}/kernel_calls.py",
         ("KernelCall.sum_stage", "KernelCall.sums", "KernelCall.after_sums", "_along"),
         (_RULES, _BACK)),
    Fault("LayerGroup sums fault: parts need parts of any axis", f"{_PLANNING}/spans.py",
          "made.needed(spans) == read", "True", (_RULES,)),
    Rule("LayerGroup halo: values of indices", "passes/ir/index_values.py", (),
         (_TAKEN, _GAPS, _BACK, _SAME, "tests/addresses/test_in_place_rules.py",
          f"{_GROUPS}::test_rows_are_there_however_a_product_is_rounded")),
    Rule("LayerGroup halo: what a kernel reads", f"{_ANALYSIS}/regions.py", (),
         (_TAKEN, _GAPS, _BACK, _SAME,
          f"{_GROUPS}::test_rows_are_there_however_a_product_is_rounded")),
    Rule("LayerGroup halo: what a result reads through its stages", f"{_ANALYSIS}/kernel_calls.py",
         ("read_results", "_read_result", "_through", "_has_gaps", "_is_ordered", "united"),
         (_TAKEN, _GAPS, _BACK, _SAME, _LEFT)),
    Rule("LayerGroup networks: what is a layer", f"{_ANALYSIS}/read_network.py",
         ("_BlockReader._why_not_at_all", "_BlockReader._read_kernel_call", "_BlockReader._kernel",
         "_BlockReader._describe", "_BlockReader._outputs"),
         (_BOUNDARIES, _LEFT, _NETWORKS)),
    Rule("LayerGroup networks: tuples and other names", f"{_ANALYSIS}/layer_tensor_names.py", (),
         (_BOUNDARIES, _LEFT, _NETWORKS, _PROPERTY)),
    Rule("LayerGroup halo: slices", f"{_PLANNING}/slicing.py",
         ("GroupSlices.resident", "GroupSlices.kept", "TensorSlices.is_kept", "Slicer.add",
         "Slicer._need", "Slicer._cut_output", "_tensor_slices", "region_needed"),
         (_SLICES, _REPLAY, _RUNS, _CORES)),
    Rule("LayerGroup halo: spans", f"{_PLANNING}/spans.py", (),
         (_BACKWARD, _GAPS, _RULES, _SLICES, _REPLAY)),
    Rule("LayerGroup live ranges: time steps", f"{_PLANNING}/time_steps.py",
         ("time_steps", "rebalance", "live_ranges"), (_REPLAY, _LOCAL)),
    Rule("LayerGroup slots: lanes and windows", f"{_PLANNING}/lanes.py", (),
         (_REPLAY, _LOCAL)),
    Rule("LayerGroup slots: loops over parts", f"{_PLANNING}/loops.py", (),
         (_RUNS, _RULES, _CORES, _REPLAY)),
    Rule("LayerGroup order: dependencies", f"{_PLANNING}/layer_groups.py", ("by_dependencies",),
         (f"{_TESTS}/planning/test_search.py",)),
    Rule("LayerGroup groups", f"{_PLANNING}/network.py",
         ("NetworkIndex.__init__", "Group.outputs", "Group.loaded"),
         (_SLICES, f"{_TESTS}/planning/test_search.py")),
    Fault("LayerGroup groups fault: runs are alike whatever leaves them", f"{_PLANNING}/network.py",
          "self._layers[number], same, behind", "self._layers[number], same",
          (f"{_TESTS}/planning/test_repeats.py",)),
    Fault("LayerGroup groups fault: runs are alike whatever their layers sum in parts",
          f"{_PLANNING}/network.py", "(own, sums.get(name), after, ", "(own, after, ",
          (f"{_TESTS}/planning/test_repeats.py",)),
    Fault("LayerGroup groups fault: runs are alike whatever is read behind their sums",
          f"{_PLANNING}/network.py", "(own, sums.get(name), after, ", "(own, sums.get(name), ",
          (f"{_TESTS}/planning/test_repeats.py",)),
    Rule("LayerGroup groups: what can be cut", f"{_PLANNING}/lanes.py", ("Lanes.can_be_cut",),
         (_SLICES, f"{_TESTS}/planning/test_search.py", _GROUPS)),
    Rule("LayerGroup groups: what a walk leaves out", f"{_PLANNING}/planned_group.py",
         ("Walk._add", "Walk._move", "Step.bound"),
         (f"{_TESTS}/planning/test_search.py",)),
    Rule("effects: what overwrites its arguments", "passes/relax/bindings.py",
         ("OpaqueValues.overwrite_arguments",),
         (f"{_LEFT}::test_a_call_in_place_leaves_its_block_alone",)),
    Fault("LayerGroup groups fault: runs are alike whatever their layers do",
          f"{_PLANNING}/network.py",
          "return alone, tuple(operands), self._tensors((layer.output,))",
          "return tuple(operands), self._tensors((layer.output,))",
          (f"{_TESTS}/planning/test_repeats.py",)),
    Fault("LayerGroup cores fault: what each core loads as a whole counts once",
          f"{_PLANNING}/cost.py", "elements *= cut.cores", "elements *= 1", (_CORES,)),
    Fault("LayerGroup cores fault: a core reads what another one makes", f"{_PLANNING}/loops.py",
          "if able and not (cores > 1 and group.readers(layer.output)):", "if able:", (_CORES,)),
    Rule("LayerGroup writing: a group's function", f"{_REWRITE}/group_function.py", (),
         (_BOUNDARIES, _GROUPS, _CORES, _RUNS, _OUTSIDE)),
    Rule("LayerGroup writing: local memory", f"{_REWRITE}/local_buffers.py", (),
         (_GROUPS, _RUNS, _OUTSIDE)),
    Fault("LayerGroup writing fault: a stage goes on behind the last slice",
          f"{_REWRITE}/slice_values.py", "        if stage < last:", "        if stage < 0:",
          (_GROUPS, _RUNS)),
    Fault("LayerGroup writing fault: a function is given the address of another element",
          f"{_REWRITE}/loop_functions.py", "tir.new_load(var, [number(0)] * len(ty.shape))",
          "tir.new_load(var, [number(1)] * len(ty.shape))", (_GROUPS,)),
    Fault("LayerGroup writing fault: a part may end too early", f"{_REWRITE}/local_buffers.py",
          "((spans.begin < low) | (spans.end > high))", "(spans.begin < low)",
          (f"{_TESTS}/rewrite/test_held_parts.py",)),
    Rule("LayerGroup writing: loops of a slice, and what they may read",
         f"{_REWRITE}/kernel_slices.py", (), (_GROUPS, _OUTSIDE, _RUNS)),
    Fault("LayerGroup writing fault: TVM simplifies quotients of numbers of unknown sign",
          f"{_REWRITE}/loop_functions.py",
          "return reinterpreted(structural_mutate(division, [(tir.Var, on_var)]))",
          "return structural_mutate(division, [(tir.Var, on_var)])",
          (f"{_TESTS}/rewrite/test_loop_functions.py",)),
    Rule("LayerGroup writing: calls", f"{_REWRITE}/group_calls.py", (),
         (_BOUNDARIES, _GROUPS, f"{_TESTS}/rewrite/test_group_calls.py", _OUTSIDE)),
)  # fmt: skip
