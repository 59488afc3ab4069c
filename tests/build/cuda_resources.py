"""usage: cuda_resources.py --tools FOLDER --nvcc VERSION --occupancy PROGRAM [--update] LIBRARY TABLE

Compares what every kernel of the library takes with the committed table, a line a kernel; --update
writes the table. Whatever the table says, no kernel may have a stack or local memory, and each has the
PTX of the newest architecture, for GPUs that are newer, and of the oldest, for the simulated one. Ends
with 77 where the table is another compiler's.
"""
import argparse
import collections
import pathlib
import re
import subprocess
import sys

HEAD = """\
# What each kernel takes: tests/build/cuda_resources.py compares, and writes it with --update (the test prints
# the command). No kernel has a stack or local memory.
#   threads, shared  of a block, the first by __launch_bounds__ (- without); shared in
#                    bytes, with 1024 that CUDA keeps for itself from sm_90 on
#   16 bytes         which accesses of global memory are that wide, on every architecture
#   sm_…             registers of a thread / percent of a multiprocessor's threads that run at once
"""
WIDTHS = [44, 9, 13, 12]  # fixed: a change of one kernel is a change of one line


def run(*command, text=None):
    return subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout


def short_names(mangled):
    """Returns the name without namespaces and parameters: adamw_kernel, reduce_kernel<(ReduceOp)1>."""
    names = {}
    for name, full in zip(mangled, run("c++filt", text="\n".join(mangled)).splitlines()):
        full = full.replace("(anonymous namespace)::", "").removeprefix("void ")
        depth = end = 0
        for end, letter in enumerate(full):
            depth += {"<": 1, ">": -1}.get(letter, 0)
            if letter == "(" and depth == 0:
                break
        names[name] = re.sub(r"\b[a-z_]\w*::", "", full[:end]).replace(" ", "")
    if len(set(names.values())) != len(names):
        sys.exit(f"two kernels have one name: {sorted(names.values())}")
    return names


def kernels_of(cuobjdump, library):
    """Returns kernel -> architecture -> resources, in the order of the library."""
    kernels = collections.defaultdict(dict)
    arch = name = None
    for line in run(cuobjdump, "--dump-resource-usage", library).splitlines():
        if match := re.match(r"arch = (sm_\d+)", line):
            arch = match[1]
        elif match := re.match(r" Function (\S+):", line):
            name = match[1]
        elif match := re.match(r"  REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line):
            values = map(int, match.groups())
            kernels[name][arch] = dict(zip(("registers", "stack", "shared", "local"), values))
            kernels[name][arch]["wide"] = set()
    return kernels


def read_accesses(cuobjdump, library, kernels):
    arch = name = None
    for line in run(cuobjdump, "-sass", library).splitlines():
        if match := re.match(r"\s*Function : (\S+)", line):
            name = match[1]
        elif match := re.match(r"arch = (sm_\d+)", line):
            arch = match[1]
        elif match := re.search(r"\s(LD|ST)(G|L)\b(\S*)", line):
            found = kernels[name][arch]
            if match[2] == "L":
                found["local"] = max(found["local"], 1)
            elif ".128" in match[3]:
                found["wide"].add("load" if match[1] == "LD" else "store")


def read_ptx(cuobjdump, library):
    """Returns two maps: kernel -> threads of a block, and kernel -> architectures of its PTX."""
    threads, archs, name, arch = {}, collections.defaultdict(set), None, None
    for line in run(cuobjdump, "-ptx", library).splitlines():
        if match := re.match(r"\.target (sm_\d+)", line):
            arch = match[1]
        elif match := re.search(r"\.entry (\w+)", line):
            name = match[1]
            archs[name].add(arch)
        elif match := re.match(r"\.(?:maxntid|reqntid) (\d+)", line):
            threads[name] = int(match[1])
    return threads, archs


def occupancies(program, rows):
    lines = [
        f"{number_of(arch) // 10} {number_of(arch) % 10} {threads} {it['registers']} {it['shared']}"
        for arch, threads, it in rows
    ]
    return run(program, text="\n".join(lines)).split()


def cells_of(name, threads, of_arch, program):
    shared = sorted({it["shared"] for it in of_arch.values()})
    wide = set.intersection(*(it["wide"] for it in of_arch.values()))
    archs = sorted(of_arch, key=number_of)
    percents = ["-"] * len(archs)
    if threads:
        percents = occupancies(program, [(arch, threads, of_arch[arch]) for arch in archs])
    return [name, str(threads or "-"), "/".join(map(str, shared)), "+".join(sorted(wide)) or "-",
            *(f"{of_arch[arch]['registers']}/{percent}" for arch, percent in zip(archs, percents))]


def number_of(arch):
    return int(arch.removeprefix("sm_"))


def table_of(arguments):
    cuobjdump = str(arguments.tools / "cuobjdump")
    kernels = kernels_of(cuobjdump, arguments.library)
    read_accesses(cuobjdump, arguments.library, kernels)
    threads, ptx = read_ptx(cuobjdump, arguments.library)
    names = short_names(list(kernels))
    wrong = [f"{names[kernel]}: a stack or local memory on {arch}: {it}"
             for kernel, of_arch in kernels.items() for arch, it in of_arch.items()
             if it["stack"] or it["local"]]
    archs = sorted({arch for of_arch in kernels.values() for arch in of_arch}, key=number_of)
    wrong += [f"{names[kernel]}: no PTX of {arch}"
              for kernel in kernels for arch in (archs[0], archs[-1]) if arch not in ptx[kernel]]
    if wrong or not kernels:
        sys.exit("\n".join(wrong) or f"no kernels in {arguments.library}")
    rows = [["kernel", "threads", "shared", "16 bytes", *archs]]
    rows += [cells_of(names[kernel], threads.get(kernel), kernels[kernel], arguments.occupancy)
             for kernel in sorted(kernels, key=names.get)]
    widths = WIDTHS + [9] * len(archs)
    lines = ["".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return [*HEAD.splitlines(), f"# nvcc {arguments.nvcc}", *lines]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--tools", type=pathlib.Path, required=True)
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--occupancy", required=True)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("library")
    parser.add_argument("table", type=pathlib.Path)
    arguments = parser.parse_args()
    for tool in ("cuobjdump", "nvdisasm"):
        if not (arguments.tools / tool).exists():
            print(f"skipped: there is no {arguments.tools / tool}; tools/setup installs it")
            sys.exit(77)
    committed = arguments.table.read_text().splitlines() if arguments.table.exists() else []
    compiler = f"# nvcc {arguments.nvcc}"
    if not arguments.update and committed and compiler not in committed:
        table_of(arguments)  # with any compiler: no stack, no local memory
        print(f"skipped: the table is another compiler's than nvcc {arguments.nvcc}")
        sys.exit(77)
    found = table_of(arguments)
    if arguments.update:
        arguments.table.write_text("\n".join(found) + "\n")
        return
    for line in committed:
        if line not in found:
            print("-", line)
    for line in found:
        if line not in committed:
            print("+", line)
    if found != committed:
        sys.exit(f"{arguments.table} says otherwise. If that is meant: {' '.join(sys.argv)} --update")
    print(f"{len(found) - len(HEAD.splitlines()) - 2} kernels as in {arguments.table.name}")


main()
