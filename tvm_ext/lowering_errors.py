# SPDX-License-Identifier: Apache-2.0
"""Which pass of TVM's and which operator of the network an error of the lowering came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm.ir import IRModule, Op
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassContext

from passes.ir import first_line
from passes.ir.operators import operator_name
from passes.relax import bindings_of
from tvm_ext.tensor_names import names_from_modules


@pass_instrument
class _Running:
    """Notes the passes that have begun and not ended, each with the module that it was given."""

    def __init__(self) -> None:
        self.passes: list[tuple[str, IRModule]] = []
        self.last = IRModule()  # What the pass that began last was given, of those for networks

    def run_before_pass(self, mod: IRModule, info: Any) -> None:
        self.passes.append((str(info.name), mod))
        if any(isinstance(func, relax.Function) for func in mod.functions.values()):
            self.last = mod

    def run_after_pass(self, _mod: IRModule, _info: Any) -> None:
        self.passes.pop()


def where_it_fails(error: Exception, lower: Callable[[], object]) -> str:
    """Return the first line of an error, with the pass and, if it is known, the operator.

    `lower` raised the error, and is run once more; an error that does not come again is said alone.
    """
    noted, ctx = _Running(), PassContext.current()
    text = first_line(error)
    try:
        with PassContext(
            opt_level=ctx.opt_level,
            required_pass=list(ctx.required_pass),
            disabled_pass=list(ctx.disabled_pass),
            instruments=[*(ctx.instruments or ()), noted],
            config=dict(ctx.config),
        ):
            lower()
    except Exception:  # any of TVM's passes may raise anything
        name, mod = noted.passes[-1] if noted.passes else ("", noted.last)
        where = _failing_operator(mod, text if name else None)
        if where:
            return f"{where}: {text}"
        return f"{text} (in TVM's pass {name})" if name else text
    return text


def _failing_operator(mod: IRModule, text: str | None) -> str:
    """Name the first operator whose legalization raises an error of this text; empty if none does.

    ``FoldConstant`` legalizes operators, too: those that ``LegalizeOps`` has left. Without a text,
    code is generated, and the first operator that is left is named.
    """
    for func in mod.functions.values():
        for binding in bindings_of(func.body) if isinstance(func, relax.Function) else ():
            call = binding.value
            is_operator = isinstance(call, relax.Call) and isinstance(call.op, Op)
            legalize = call.op.get_attr("FLegalize") if is_operator else None
            if legalize is None:
                continue
            name = names_from_modules(func).get(binding.var.__chandle__())
            named = f"{operator_name(call.op)} ({name or binding.var.name})"
            if text is None:
                return named
            try:
                legalize(relax.BlockBuilder(mod), call)
            except Exception as error:  # outside of a function, some raise another one
                if first_line(error) == text:
                    return named
    return ""
