# SPDX-License-Identifier: Apache-2.0
"""Memory that nothing but a buffer at a computed address reaches; sizes that a call computes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import tvm
import tvm_ffi
from address_runs import at_addresses, built_under, poisoned
from program_text import program
from tvm import tirx
from tvm.ir.transform import Pass, PassContext
from tvm.tirx.analysis import undefined_vars

from tvm_ext.transform import AscendPlanMemory, PlanAddresses, StorageRewrite

ADDRESSES = {
    "access_ptr": "x.access_ptr('rw')",
    "address_of": "T.address_of(x[16])",
    "handle_add_byte_offset": "T.handle_add_byte_offset(x.data, 64)",
    "another name": "x.data",
}

PLANS: dict[str, Pass] = {
    "sound": StorageRewrite(sound=True),
    "arena": poisoned(PlanAddresses(form="arena")),
    "address": at_addresses(PlanAddresses(form="address")),
    "Ascend": AscendPlanMemory(form="arena", target="ascend/910b-llvm"),
    "Ascend, mirrored": AscendPlanMemory(form="arena", search="mirror", target="ascend/910b-llvm"),
}

GIVEN = np.arange(64, dtype="float32")


def reached_by(address: str, other_use: str = "") -> tirx.PrimFunc:
    return program(f"""
def main(a: 64, b: 64):
    x: local.UB 96
    {other_use or "T.evaluate(0)"}
    v = T.decl_buffer((64,), data={address}, scope="local.UB")
    y, z: local.UB 64
    v[i] = a[i] for i in range(64)
    y[i] = a[63 - i] for i in range(64)
    z[i] = y[i] + v[63 - i] for i in range(64)
    b[i] = z[63 - i] for i in range(64)
""")


def check(func: tirx.PrimFunc, expected: np.ndarray, plans: Mapping[str, Pass] = PLANS) -> None:
    """Compare what a function computes under each plan."""
    # TVM would cut memory down to the one element whose address is taken.
    with PassContext(disabled_pass=["s_tir.CompactBufferAllocation"]):
        built = built_under(func, plans)
    for plan, run in built.items():
        found = tvm.runtime.tensor(np.zeros_like(GIVEN))
        run(tvm.runtime.tensor(GIVEN), found)
        np.testing.assert_array_equal(found.numpy(), expected, plan)


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES)
def test_a_buffer_at_a_computed_address_has_memory(address: str):
    check(reached_by(address), 2 * GIVEN)


@pytest.mark.parametrize("other_use", ["", "x[0] = a[0]"])
@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES)
def test_the_mirrored_pass_does_with_it_what_the_stock_pass_does(address: str, other_use: str):
    mod = tvm.IRModule({"main": reached_by(address, other_use)})
    try:
        expected = tirx.transform.StorageRewrite()(mod)
    except tvm.error.InternalError:
        with pytest.raises(ValueError, match=r"'x' is accessed before its declaration"):
            StorageRewrite()(mod)
    else:
        assert tvm_ffi.structural_equal(StorageRewrite()(mod), expected, map_free_vars=True)
    sound = StorageRewrite(sound=True)(mod)["main"]
    assert not undefined_vars(sound.body, sound.params)


SIZED = """
def main(a: 64, b: 64):
    x = T.alloc_buffer(({size},), scope="{scope}")
    y: local.UB 64
    x[i] = a[i] for i in T.serial({rounds})
    y[i] = x[63 - i] for i in range(64)
    b[i] = y[63 - i] for i in range(64)
"""


@pytest.mark.parametrize("extent", ["T.call_extern('int32', 'abs', -64)", "64"])
def test_a_call_in_an_extent_is_no_size(extent: str):
    # Of a size that is not known no memory can be made for addresses.
    plans = PLANS | {"address": PlanAddresses(form="address")}
    check(program(SIZED.format(size=64, rounds=extent, scope="local.UB")), GIVEN, plans)
    allocated = SIZED.replace("{size}", extent).replace("{rounds}", "64")
    # On a core each buffer needs a place.
    ours = {name: plan for name, plan in plans.items() if not name.startswith("Ascend")}
    check(program(allocated.replace("{scope}", "local.UB")), GIVEN, ours)
    check(program(allocated.replace("{scope}", "global")), GIVEN, plans)


def test_a_buffer_without_elements_needs_no_place():
    func = program("""
    def main(a: 64, b: 64):
        x: local.UB 0
        y: local.UB 64
        x[i] = a[i] for i in range(0)
        y[i] = a[63 - i] for i in range(64)
        b[i] = x[i] for i in range(0)
        b[i] = y[63 - i] for i in range(64)
    """)
    check(func, GIVEN)
