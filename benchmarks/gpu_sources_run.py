# SPDX-License-Identifier: Apache-2.0
"""Runs the kernels of this folder under two plans of shared memory; needs cupy, and no TVM.

    python run.py [--only TEXT]   # on a GPU: numbers, bits and times
    python run.py --racecheck     # each source under NVIDIA's compute-sanitizer
    python run.py --check         # without a GPU: files, sizes and launches

Each kernel runs under TVM's plan and under ours. Their results are to have equal bits, and to be
what numpy computed, within the kernel's tolerance. The exit status is 1 where one is not.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
MOST = {"threads": 1024, "static": 48 << 10, "dynamic": 227 << 10}  # Of a block
TIMED, LAUNCHES = 30, 10
HAZARDS = re.compile(r"RACECHECK SUMMARY: (\d+) hazards?")


class MissingError(Exception):
    """What a device cannot do, and why."""


def arguments_of(kernel, way, data):
    """Return what a kernel is launched with: arrays of its own, and numbers."""
    numbers = {name: np.dtype(d).type(value) for name, (d, value) in kernel["numbers"].items()}
    names = kernel["ways"][way]["arguments"]
    return [
        numbers[name] if name in numbers else data[f"{kernel['key']}/{name}"].copy()
        for name in names
    ]


class Gpu:
    """The first GPU, by cupy."""

    def __init__(self):
        import cupy

        self.cupy = cupy
        self.name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()

    def prepared(self, kernel, way, text, data):
        """Return what launches a source, and what it launches it on."""
        one = kernel["ways"][way]
        module = self.cupy.RawModule(code=text, options=("-std=c++17",))
        function = module.get_function("main_kernel")
        if one["dynamic"]:
            function.max_dynamic_shared_size_bytes = one["dynamic"]
        given = arguments_of(kernel, way, data)
        device = [self.cupy.asarray(v) if isinstance(v, np.ndarray) else v for v in given]
        launch = tuple(one["grid"]), tuple(one["block"]), tuple(device)
        return lambda: function(*launch, shared_mem=one["dynamic"]), device

    def run(self, kernel, way, text, data):
        """Run a source once, and return its arguments as they are then."""
        launch, device = self.prepared(kernel, way, text, data)
        launch()
        return [v.get() if isinstance(v, self.cupy.ndarray) else v for v in device]

    def seconds(self, kernel, texts, data):
        """Return the median time of each source, in turns."""
        each = {way: self.prepared(kernel, way, text, data)[0] for way, text in texts.items()}
        begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        found = {way: [] for way in each}
        for _ in range(TIMED):
            for way, launch in each.items():
                begin.record()
                for _ in range(LAUNCHES):
                    launch()
                end.record()
                end.synchronize()
                found[way].append(self.cupy.cuda.get_elapsed_time(begin, end) / 1e3 / LAUNCHES)
        return {way: float(np.median(times)) for way, times in found.items()}


def wrong(kernel, way, text, data):
    """Return what is wrong with a source and its launch, in words; none where nothing is."""
    one, key = kernel["ways"][way], kernel["key"]
    threads, bound = int(np.prod(one["block"])), re.search(r"__launch_bounds__\((\d+)\)", text)
    most = min(MOST["threads"], int(bound.group(1)) if bound else MOST["threads"])
    found = [] if 1 <= threads <= most else [f"{threads} threads, of {most}"]
    found += [f"{one[k]} bytes, {k}" for k in ("static", "dynamic") if one[k] > MOST[k]]
    head = re.search(r"main_kernel\(([^)]*)\)", text)
    if head is None or len(head.group(1).split(",")) != len(one["arguments"]):
        found.append("arguments that the source does not have")
    given = [name for name in one["arguments"] if name not in kernel["numbers"]]
    found += [f"no data of {name}" for name in given if f"{key}/{name}" not in data]
    for name in kernel["results"]:
        room, expected = (data.get(f"{key}/{name}{end}") for end in ("", "/expected"))
        if expected is None or room is None or room.size != expected.size:
            found.append(f"the size of {name}")
    return found


def check(kernels, texts, data):
    """Print what is wrong with the files; return how many kernels are."""
    found = {
        f"{one['name']}, {way}": wrong(one, way, text, data)
        for one in kernels
        for way, text in texts[one["key"]].items()
    }
    for name, lines in found.items():
        print(*([f"{name}:", *lines] if lines else []), sep="\n  ", end="\n" if lines else "")
    print(f"{len(kernels)} kernels, {len(found)} sources")
    return sum(map(bool, found.values()))


def racecheck(kernels):
    """Run each source under compute-sanitizer; return how many have hazards under our plan only."""
    worse = 0
    for kernel in kernels:
        hazards = {}
        for way in kernel["ways"]:
            command = ["compute-sanitizer", "--tool", "racecheck", sys.executable, __file__]
            command += ["--once", kernel["key"], way]
            said = HAZARDS.search(subprocess.run(command, capture_output=True, text=True).stdout)
            hazards[way] = int(said.group(1)) if said else "fails"
        worse += hazards["ours"] != 0 and hazards["stock"] == 0
        print(f"{kernel['name']:40} hazards: {hazards}", flush=True)
    return worse


def compare(device, kernels, texts, data):
    """Run all kernels both ways, and print a line of each; return how many are wrong."""
    bad, ratios, skipped = 0, [], 0
    for kernel in kernels:
        sources, results = texts[kernel["key"]], {}
        try:
            for way, one in kernel["ways"].items():
                given = device.run(kernel, way, sources[way], data)
                made = dict(zip(one["arguments"], given, strict=True))
                results[way] = [made[name] for name in kernel["results"]]
        except MissingError as error:
            skipped += 1
            print(f"{kernel['name']:40} skipped: {error}", flush=True)
            continue
        expected = [data[f"{kernel['key']}/{name}/expected"] for name in kernel["results"]]
        limits = dict.fromkeys(("rtol", "atol"), kernel["tolerance"])
        right = {
            way: all(np.allclose(*pair, **limits) for pair in zip(made, expected, strict=True))
            for way, made in results.items()
        }
        ours, stock = ([one.tobytes() for one in results[way]] for way in ("ours", "stock"))
        bad += ours != stock or not right["ours"]
        nbytes = {way: one["static"] + one["dynamic"] for way, one in kernel["ways"].items()}
        line = f"{kernel['name']:40} bytes {nbytes}, bits {'equal' if ours == stock else 'DIFFER'}"
        line += "".join(f", {way} {'right' if ok else 'WRONG'}" for way, ok in right.items())
        if hasattr(device, "seconds"):
            times = device.seconds(kernel, sources, data)
            ratios.append(times["ours"] / times["stock"])
            line += f", {1e6 * times['ours']:.1f} us, {ratios[-1]:.3f} of stock's"
        print(line, flush=True)
    print(f"{device.name}: {len(kernels) - skipped} kernels ran, {bad} wrong, {skipped} skipped")
    if ratios:
        print("time of stock's, in quarters:", *np.quantile(ratios, [0, 0.25, 0.5, 0.75, 1]))
    return bad


def read(folder):
    """Return the kernels of a folder, the sources of each, and all data."""
    kernels = json.loads((folder / "kernels.json").read_text())
    texts = {
        one["key"]: {way: (folder / of["file"]).read_text() for way, of in one["ways"].items()}
        for one in kernels
    }
    return kernels, texts, dict(np.load(folder / "data.npz"))


def main():
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="kernels with this text in their names")
    parser.add_argument("--racecheck", action="store_true", help="look for races")
    parser.add_argument("--check", action="store_true", help="look at the files alone")
    parser.add_argument("--once", nargs=2, metavar=("KEY", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    listed, texts, data = read(HERE)
    kernels = [one for one in listed if options.only in one["name"]]
    if options.once:
        key, way = options.once
        (kernel,) = (one for one in listed if one["key"] == key)
        Gpu().run(kernel, way, texts[key][way], data)
        return 0
    if options.check:
        return int(check(kernels, texts, data) > 0)
    found = racecheck(kernels) if options.racecheck else compare(Gpu(), kernels, texts, data)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
