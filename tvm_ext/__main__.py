"""The command line: ``python -m tvm_ext``."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import tvm
import tvm_ffi
from tvm import relax
from tvm.error import DiagnosticError
from tvm.ir import IRModule
from tvm.script import ir as script_ir
from tvm.script import relax as script_relax
from tvm.script import tirx as script_tirx
from tvm.target import Target
from tvm.tirx import PrimFunc
from tvm.tirx.layout import Axis

from tvm_ext import plan_command
from tvm_ext.comparison import (
    Allocations,
    ByScope,
    Comparison,
    FunctionComparison,
    compare_function,
    first_line,
    known_target,
    split,
)

_PROG = "tvm_ext"
_DEFAULT_WORKLOAD = "resnet18"
_DEFAULT_WIDTH = 80
_CONTAINERS = ("ffi.Array", "ffi.Dict", "ffi.List", "ffi.Map")
_PLAIN = range(64)
"""The type indices below those of objects: fields of such a type are saved as they are."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say in one line what is wrong, where argparse would add the usage."""
        raise ValueError(f"{message} (see 'python -m {self.prog} --help')")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the program's name; those of the process by default.

    Returns
    -------
    int
        The exit status: 0; 1 when the command found what it looks for; 2 on bad input, with one
        line on the standard error stream.
    """
    parser = _Parser(prog=_PROG, description="Memory planning passes for TVM.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add_command in (_add_compare, _add_plan):
        add_command(commands)
    try:
        args = parser.parse_args(argv)
        status: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, `head` for one, has seen enough. Python would fail once more on leaving.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as a shell says that SIGPIPE ended it
    except (OSError, ValueError) as error:
        print(f"{_PROG}: error: {_one_line(error)}", file=sys.stderr)
        return 2
    return status


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _add_plan(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="place the buffers of a CSV file",
        description="Give each buffer of a CSV file an offset, so that no two share bytes while "
        "both are live.",
        epilog="Exit status: 0 when the plan fits, 1 when it does not, 2 on bad input.",
    )
    plan_command.add_arguments(parser)
    parser.set_defaults(run=plan_command.run)


# ------------------------------------------------------------------------------------- compare


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="hold our StorageRewrite against the stock one",
        description="Run TVM's StorageRewrite and ours on each PrimFunc of a program, and show "
        "side by side the allocations and bytes by storage scope, whether the IR is equal, and "
        "the time of both passes.",
        epilog="Exit status: 0 when all functions are equal, 1 when one is not, 2 on bad input. "
        "A .py file is run, as Python runs it: give only files that you trust.",
    )
    parser.add_argument(
        "program",
        nargs="?",
        default=_DEFAULT_WORKLOAD,
        metavar="WORKLOAD | FILE",
        help="a workload that --list names, a TVMScript file (.py), or a module saved with "
        f"tvm.ir.save_json (.json); {_DEFAULT_WORKLOAD} by default",
    )
    parser.add_argument(
        "--target",
        metavar="T",
        help="lower the program for this target first, by the stock pipeline up to "
        "StorageRewrite: a name such as llvm or cuda, a tag, or a JSON object. A workload is "
        "always lowered, by default for the first of its targets. A file without a target has to "
        "stand right before StorageRewrite; one that does so with a target is not lowered again, "
        "the target is noted on its functions that name none",
    )
    parser.add_argument("--list", action="store_true", help="list the workloads and leave")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write the data to this file too")
    parser.add_argument(
        "--fail-on-difference",
        action="store_true",
        help="stop at the first function that differs and print the difference in full",
    )
    parser.set_defaults(run=_compare)


def _compare(args: argparse.Namespace) -> int:
    if args.list:
        _print_workloads()
        return 0
    if args.json is not None:
        _check_writable(args.json)
    rows: list[FunctionComparison] = []
    for mod in _progress(_load(args.program, args.target)):
        try:
            rows.append(compare_function(mod))
        except ValueError as error:
            raise ValueError(f"{args.program}: {error}") from error
        if args.fail_on_difference and not rows[-1].equal:
            break
    comparison = Comparison(tuple(rows))
    if args.json is not None:
        args.json.write_text(comparison.to_json() + "\n", encoding="utf-8")
    print("\n".join(render(comparison, shutil.get_terminal_size().columns)))
    if args.fail_on_difference and not comparison.equal:
        print(f"\nthe first function that differs: {rows[-1].name}\n{rows[-1].difference}")
    return 0 if comparison.equal else 1


def _check_writable(path: Path) -> None:
    # Before the work, which may be long; what it misses is found on writing.
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a directory")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"cannot write {path}: permission denied")


def _progress(modules: list[IRModule]) -> Iterable[IRModule]:
    if not sys.stderr.isatty():
        return modules
    try:
        from tqdm import tqdm
    except ImportError:  # the extra `cli` is not installed
        return modules
    bar: Iterable[IRModule] = tqdm(modules, unit="function", leave=False)
    return bar


def _print_workloads() -> None:
    from tvm_ext import workloads

    names = workloads.names()
    width = max(map(len, names))
    columns = shutil.get_terminal_size().columns
    for name in names:
        workload = workloads.find(name)
        text = f"{name:{width}}  {workload.description} [{', '.join(workload.targets)}]"
        print(textwrap.fill(text, columns, subsequent_indent=" " * (width + 2)))


# ----------------------------------------------------------------------------------- the table


def render(comparison: Comparison, width: int = _DEFAULT_WIDTH) -> list[str]:
    """Write a comparison as a table, with totals at the end.

    Parameters
    ----------
    comparison : Comparison
        The data.
    width : int
        Columns of the terminal; names and scopes are shortened to fit.

    Returns
    -------
    list of str
        Lines of at most `width` characters, where `width` is 80 or more.
    """
    table = [["function", "scope", "allocs", "bytes", "equal", "time", "ratio"]]
    for row in comparison.functions:
        table += _rows(row)
    lines = ["allocations, bytes: before/after stock/after ours; time: stock/ours", ""]
    lines += _align(table, width)
    return [*lines, "", *_render_totals(comparison)]


def _rows(row: FunctionComparison) -> list[list[str]]:
    scopes = sorted({*row.before, *row.stock, *row.ours}) or [""]
    rows = []
    for scope in scopes:
        groups = [use.get(scope, Allocations()) for use in (row.before, row.stock, row.ours)]
        rows.append(["", scope or "-", _counts(groups), _sizes(groups), "", "", ""])
    times = _times(row.stock_seconds, row.ours_seconds)
    rows[0][0] = row.name
    rows[0][4:] = ["yes" if row.equal else "NO", times, f"{row.ratio:.1f}"]
    return rows


def _counts(groups: Sequence[Allocations]) -> str:
    """Write counts, with those of a size that is not constant behind a plus sign."""
    return "/".join(
        f"{group.count}+{group.symbolic}" if group.symbolic else str(group.count)
        for group in groups
    )


def _sizes(groups: Sequence[Allocations]) -> str:
    """Write sizes in the one unit that suits the largest of them."""
    return _scaled([group.nbytes for group in groups], 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def _times(*seconds: float) -> str:
    """Write times likewise."""
    return _scaled([t * 1e6 for t in seconds], 1000, ("us", "ms", "s"))


def _scaled(values: Sequence[float], step: int, units: Sequence[str]) -> str:
    power = 0
    while max(values) >= step ** (power + 1) and power + 1 < len(units):
        power += 1
    return "/".join(_three_digits(value / step**power) for value in values) + f" {units[power]}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _align(table: list[list[str]], width: int) -> list[str]:
    """Lay a table out in columns two spaces apart: the first two to the left, the rest right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= width else 1
    spare = width - sum(widths) - gap * (len(widths) - 1)
    for column, least in ((0, 16), (1, 8), (0, 4), (1, 4)):
        change = min(0, max(spare, least - widths[column]))
        widths[column] += change
        spare -= change
    return [
        (" " * gap)
        .join(
            _shorten(cell, n).ljust(n) if column < 2 else cell.rjust(n)
            for column, (cell, n) in enumerate(zip(row, widths, strict=True))
        )
        .rstrip()
        for row in table
    ]


def _render_totals(comparison: Comparison) -> list[str]:
    totals = comparison.totals
    different = totals.functions - totals.equal
    lines = [f"{totals.functions} functions: {totals.equal} equal, {different} different"]
    for scope in sorted({*totals.before, *totals.stock, *totals.ours}):
        lines += _render_scope(scope, totals.before, totals.stock, totals.ours)
    lines.append(
        f"time: {_times(totals.stock_seconds, totals.ours_seconds)}, ratio {totals.ratio:.2f}; "
        f"median of the ratios {totals.median_ratio:.2f}"
    )
    return lines


def _render_scope(scope: str, *uses: ByScope) -> list[str]:
    groups = [use.get(scope, Allocations()) for use in uses]
    lines = [f"{scope}: {_counts(groups)} allocations, {_sizes(groups)}"]
    if any(group.symbolic for group in groups):
        lines.append("  n+m: n of constant size, and m whose size the running program knows")
    return lines


def _shorten(text: str, width: int) -> str:
    """Take out the middle of a text: both ends of a function's name tell it from others."""
    if len(text) <= width:
        return text
    tail = (width - 2) // 2
    return f"{text[: width - 2 - tail]}..{text[len(text) - tail :]}"


# --------------------------------------------------------------------------------- the program


def _load(program: str, target_name: str | None) -> list[IRModule]:
    """Give the functions of a workload or file, each in a module of its own.

    Raises
    ------
    ValueError
        When there is no such program, it cannot be read or lowered, or has no PrimFunc.
    """
    target = None if target_name is None else known_target(target_name)
    path = Path(program)
    if path.suffix not in _READERS and len(path.parts) == 1 and not path.exists():
        return split(_lower_workload(program, target))
    mod = _read(path)
    try:
        return split(mod, target=target)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _lower_workload(name: str, target: Target | None) -> IRModule:
    # Here, because importing the workloads takes seconds and files do without.
    from tvm_ext import workloads

    workloads.find(name)
    try:
        return workloads.load(name, target)
    except Exception as error:  # any pass of the pipeline may raise anything
        kind = "its first target" if target is None else f"target kind {target.kind.name!r}"
        raise ValueError(
            f"cannot lower workload {name!r} for {kind}: {first_line(error)}"
        ) from error


def _read(path: Path) -> IRModule:
    """Read a module or function from a file of TVMScript or JSON."""
    if not path.exists():
        raise ValueError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(f"{path}: is a directory")
    if path.suffix not in _READERS:
        raise ValueError(f"{path}: the name ends neither in .py (TVMScript) nor in .json")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason} at {error.start})") from error
    if not text.strip():
        raise ValueError(f"{path}: the file is empty")
    return _READERS[path.suffix](path, text)


def _read_json(path: Path, text: str) -> IRModule:
    try:
        _check_graph(json.loads(text))
        loaded = tvm.ir.load_json(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except Exception as error:  # TVM raises whatever it stumbles on
        raise ValueError(
            f"{path}: not a module saved with tvm.ir.save_json: {first_line(error)}"
        ) from error
    if isinstance(loaded, PrimFunc):
        return IRModule.from_expr(loaded)
    if not isinstance(loaded, IRModule):
        raise ValueError(f"{path}: holds a {type(loaded).__name__}, not an IRModule")
    return loaded


def _check_graph(graph: Any) -> None:
    """Refuse a graph of objects that has a cycle: TVM crashes on one.

    `tvm.ir.save_json` writes each node after those that it refers to.

    Raises
    ------
    ValueError
        When it is not such a graph.
    """
    if not isinstance(graph, dict) or not isinstance(graph.get("nodes"), list):
        raise ValueError("it has no list of nodes")
    for index, node in enumerate(graph["nodes"]):
        if not isinstance(node, dict) or not isinstance(node.get("type"), str):
            raise ValueError(f"node {index} has no type")
        data = node.get("data")
        references: Iterable[Any] = ()
        if isinstance(data, dict):
            references = (data.get(name) for name in _reference_fields(node["type"]))
        elif isinstance(data, list) and node["type"] in _CONTAINERS:
            references = data
        if any(isinstance(other, int) and other >= index for other in references):
            raise ValueError(f"node {index} refers to one that does not stand before it")


@cache
def _reference_fields(type_key: str) -> tuple[str, ...]:
    """List the fields of a type that are saved as the index of a node, not as a plain value."""
    names: list[str] = []
    info = tvm_ffi.core._lookup_or_register_type_info_from_type_key(type_key)
    while info is not None:
        names += (f.name for f in info.fields or () if f.field_static_type_index not in _PLAIN)
        info = info.parent_type_info
    return tuple(names)


def _read_script(path: Path, text: str) -> IRModule:
    """Read TVMScript: a text like those that TVM prints is parsed, any other module is run.

    TVM prints one definition without imports, and what it prints need not be well-formed.
    Both ways evaluate what is written there.
    """
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        raise ValueError(f"{path}:{error.lineno}: not TVMScript: {error.msg}") from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise ValueError(f"{path}: not TVMScript: {first_line(error)}") from error
    definitions = [s for s in statements if isinstance(s, ast.ClassDef | ast.FunctionDef)]
    if len(definitions) == 1 and not any(
        isinstance(s, ast.Import | ast.ImportFrom) for s in statements
    ):
        found = {definitions[0].name: _parse(path, text)}
    else:
        found = _run(path)
    return _one_module(path, found)


def _parse(path: Path, text: str) -> Any:
    try:
        return tvm.script.from_source(text, check_well_formed=False)
    except Exception as error:  # names and calls in the text are evaluated
        raise _script_error(path, error) from error


def _run(path: Path) -> dict[str, Any]:
    name = f"_{_PROG}_program"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The names that a text printed by TVM counts on.
    vars(module).update(tvm=tvm, I=script_ir, R=script_relax, T=script_tirx, Axis=Axis)
    sys.modules[name] = module  # TVMScript finds the text of a class by it
    sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _script_error(path, error) from error
    finally:
        sys.path.remove(str(path.parent))
        del sys.modules[name]
    return dict(vars(module))


def _script_error(path: Path, error: BaseException) -> ValueError:
    """Say in one line what is wrong with a script, and in which line of it."""
    if isinstance(error, DiagnosticError):
        line = re.search(r"^ *--> .*?:(\d+):\d+$", str(error), re.MULTILINE)
        where = f"{path}:{line[1]}" if line else str(path)
        return ValueError(f"{where}: not TVMScript: {first_line(error).removeprefix('error: ')}")
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f"{path}:{lines[-1]}" if lines else str(path)
    return ValueError(f"{where}: {type(error).__name__}: {first_line(error)}")


def _one_module(path: Path, found: dict[str, Any]) -> IRModule:
    """Make one module of what a script defines: an IRModule, or functions."""
    modules = {name: value for name, value in found.items() if isinstance(value, IRModule)}
    functions: dict[str, Any] = {}
    for name, value in found.items():
        if not isinstance(value, PrimFunc | relax.Function):
            continue
        symbol = str((value.attrs or {}).get("global_symbol", name))
        if not functions.setdefault(symbol, value).same_as(value):
            raise ValueError(f"{path}: defines two functions with the symbol {symbol!r}")
    if not modules and not functions:
        raise ValueError(f"{path}: not TVMScript: it defines no PrimFunc and no IRModule")
    if not modules:
        return IRModule({s: func.with_attr("global_symbol", s) for s, func in functions.items()})
    if len(modules) > 1:
        raise ValueError(f"{path}: defines more than one IRModule ({', '.join(modules)})")
    ((module_name, mod),) = modules.items()
    for symbol, func in functions.items():
        if not any(tvm_ffi.structural_equal(func, member) for member in mod.functions.values()):
            raise ValueError(
                f"{path}: defines function {symbol!r} beside the IRModule {module_name}; "
                "put it into the module"
            )
    return mod


_READERS = {".json": _read_json, ".py": _read_script}


if __name__ == "__main__":
    sys.exit(main())
