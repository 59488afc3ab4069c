"""Makes, stores and reads the rows of results.jsonl, one for each run of ours or of a peer.

cell, by               its name; `fsdp`, or the peer's name
status, why            measured; planned: it does not fit this machine, there is only a plan; impossible: the peer lacks
                       it, or it does not fit this machine
model … seq_len        model, strategy, ranks (`replicate` groups of `shard`), batch; simulated: one process with
                       simulated peers
recompute … prefetch   the options
formula                bytes of a rank's state by docs/memory.md, at rest and before the optimizer's step
planned, measured      sizes in bytes:
  phases               by category, at rest, at the peak of forward, after it, at the peak of backward, after it;
                       LibTorch: its tensors, which are activations, gradients before their reduction, inputs
  engine held          bytes of the engine's pools
  torch peak           the peak of LibTorch's tensors
  device peak          the peak of these and the engine's buffers together
  host                 bytes of offload on the host
  sent                 bytes that a rank sends in a step
only measured:
  growth built, peak   growth of the largest rank's process over an empty program, when the model is built, and at its
                       peak: its own memory by proportional set size, without pages of files, which processes share
  resident sum         proportional set size of all ranks together at its peak, watched from outside
  building peak        peak of resident memory while the model was built
  step ms, losses      of each step
  exposed ms           time that a step waited for communication
identity               commit, hash of the programs' sources, versions, machine, seed, day; a run reuses a row if all
                       except commit and day are equal
"""
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess

from . import cells, runs

SEED = 1
OURS = "fsdp"


def command_output(*words, folder):
    result = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return result.stdout.strip() if result.returncode == 0 else ""


def version_in(path, pattern):
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8"))
    except OSError:
        return None
    return match and match[1]


def peers_torch(root):
    found = sorted(root.glob(".venv-peers/lib/python3*/site-packages/torch/version.py"))
    return version_in(found[0], r"__version__ = '([^'+]+)") if found else None


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        model = re.search(r"model name\s*: (.*)", info.read())
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} x {model[1] if model else 'unknown'}, {gib:.0f} GiB"


# Sources of a row's programs, and of the scripts that run them.
SOURCES = ["CMakeLists.txt", "cmake", "include", "src", "kernels", "examples/models", "examples/planning",
           "benchmarks/scaling_probe.cpp", "benchmarks/peers/scaling.py", "benchmarks/scaling/runs.py"]


def identity(root, torch):
    """Returns the identity of the programs and the machine. `torch`: LibTorch's version by scaling_probe."""
    committed = command_output("git", "ls-tree", "-r", "HEAD", "--", *SOURCES, folder=root)
    changes = command_output("git", "diff", "HEAD", "--", *SOURCES, folder=root)
    return {"commit": command_output("git", "rev-parse", "--short=10", "HEAD", folder=root) or None,
            "dirty": bool(changes),
            "sources": hashlib.sha256((committed + changes).encode()).hexdigest()[:10] if committed else None,
            "fsdp": version_in(root / "CMakeLists.txt", r"project\(fsdp VERSION ([0-9.]+)"),
            "torch": torch, "peers torch": peers_torch(root), "machine": machine(), "seed": SEED,
            "date": datetime.date.today().isoformat()}


def is_same(one, other):
    """Returns True for the same programs on the same machine; day and commit may differ."""
    elsewhere = {"date": None, "commit": None}
    return {**one, **elsewhere} == {**other, **elsewhere}


def base(cell, by, who):
    """Returns the fields that every row has."""
    return {"cell": cell.name, "by": by, "status": "measured", "why": None, "model": cell.model,
            "strategy": cell.strategy, "ranks": cell.ranks, "shard": cell.ranks // cell.replicate,
            "replicate": cell.replicate, "simulated": cell.simulated, "batch": cells.BATCH,
            "seq_len": cells.TOKENS, "recompute": int(cell.recompute), "offload": cell.offload,
            "param_dtype": "bfloat16" if cell.bfloat16 else "float32", "prefetch": cell.prefetch,
            "parameters": None, "units": None, "formula": None, "planned": None, "measured": None,
            "identity": who}


def formula(cell, parameters):
    """Returns the state of a rank by docs/memory.md, at rest and before the optimizer's step; with offload the sum of
    device and host."""
    ranks, group = cell.ranks, cell.ranks // cell.replicate
    half = cell.bfloat16
    strategy = "replicate" if ranks == 1 and not cell.offload else cell.strategy
    whole = {"full-shard": None, "hybrid-shard": None, "hfsdp": group, "hpz": group}.get(strategy, 1)
    state = {"replicate": 1, "hybrid-shard": group}.get(strategy, ranks)
    gradients = {"zero1": 1, "replicate": 1, "hybrid-shard": group, "hfsdp": group}.get(strategy, ranks)
    rest = 12 / state
    if whole and half:
        rest += 2 / whole
    elif whole and cell.offload:
        rest += 4 / whole  # parameters and main shards are separate
    elif whole:
        rest += 4 / whole - 4 / state  # main shards are part of the parameters
    return {"rest": round(rest * parameters), "step": round((rest + 4 / gradients) * parameters)}


def is_final(row):
    """Returns False if the machine had too little free memory on that day."""
    return row["status"] == "measured" or not (row["why"] or "").startswith(runs.CANNOT_HOLD)


class Results:
    """The file results.jsonl. It keeps finished rows even if the run fails later."""

    def __init__(self, path, who):
        self.path, self.who = pathlib.Path(path), who
        self.rows, self.others = {}, 0
        if self.path.exists():
            kept = list(read(self.path))
            own = [row for row in kept if is_same(row["identity"], who)]
            self.others = len(kept) - len(own)
            self.rows = {(row["cell"], row["by"]): row for row in own if is_final(row)}

    def forget(self):
        """Drops all rows, so that everything runs again."""
        self.rows, self.others = {}, 0

    def has(self, cell, by):
        return (cell.name, by) in self.rows

    def begin(self):
        """Keeps in the file the rows that are reused, without a line that an interrupted run has cut. If other rows are
        removed, the whole file is kept as results.jsonl.before."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.others > 0:
            self.path.replace(self.path.with_suffix(".jsonl.before"))
        partial = self.path.with_suffix(".partial")
        with open(partial, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.rows.values())
        partial.replace(self.path)

    def add(self, row):
        self.rows[row["cell"], row["by"]] = row
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


class BadResults(Exception):
    """The error of a file that is not a results.jsonl. The text names the file and the line."""


def read(path):
    """Returns the rows of a file, without the last line if it was cut."""
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise BadResults(f"{path}: {getattr(error, 'strerror', None) or 'the file is not text'}") from None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            row["cell"], row["by"], row["identity"]["machine"]  # pylint: disable=pointless-statement
        except (ValueError, TypeError, KeyError):
            if number == len(lines) and not line.endswith("\n"):
                return
            raise BadResults(f"{path}:{number}: the line is not a row of memory_scaling") from None
        yield row
