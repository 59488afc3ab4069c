"""Holds the parts that G1 to G6 share: paths of programs, sizes of the work, and turns."""
import contextlib
import dataclasses
import pathlib

import gpu_facts
import measure
from gpu_bars.contestants import Contestant


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of the work."""
    rounds: int
    warm_up: int
    repetitions: int       # of a kernel or a collective in a round
    steps: int             # of a training in a round
    copied: int            # floats
    matrix: int
    parameters: tuple      # of G1: (parameters, units)
    preset: str
    shapes: tuple          # of G2: (windows, tokens)
    qa_shape: tuple        # of G3
    collective_bytes: int
    thread_ranks: tuple    # of G4
    capped: tuple          # of G5: (model, tokens, limit, batch)
    process_ranks: tuple
    pauses: tuple          # of G6: (width, units, µs of a forward, µs of a backward)
    wires: tuple           # µs of a collective


ON_GPU = Sizes(rounds=5, warm_up=1, repetitions=10, steps=5, copied=2**28, matrix=8192,
               parameters=((335_000_000, 26), (1_000_000_000, 26)), preset="large", shapes=((1, 128), (32, 384)),
               qa_shape=(32, 384), collective_bytes=2**28, thread_ranks=(2, 4),
               capped=("bert-1.3b", 384, "16GiB", 1), process_ranks=(2, 4, 8), pauses=(1024, 8, 2000, 4000),
               wires=(1000, 2000, 4000))
# The sizes are so small that a test of all parts without a GPU takes seconds. The results are meaningless.
ON_CPU = Sizes(rounds=1, warm_up=1, repetitions=1, steps=1, copied=2**16, matrix=64, parameters=((30_000, 3),),
               preset="tiny", shapes=((1, 16),), qa_shape=(2, 16), collective_bytes=2**16, thread_ranks=(2,),
               capped=("bert-tiny", 16, "56MiB", 1), process_ranks=(2,), pauses=(64, 4, 1000, 2000), wires=(2000,))


@dataclasses.dataclass
class Bench:
    bin: pathlib.Path
    device: str            # cuda, or cpu to test the script itself
    facts: gpu_facts.Facts
    sizes: Sizes
    peers: list            # the command of peers/gpu_step.py; empty: no peers
    output: pathlib.Path   # output of programs

    @property
    def environment(self):
        return gpu_facts.first_gpu() if self.device == "cuda" else {}

    def probe(self, *words):
        return [self.bin / "gpu_probe", self.device, *words]

    @contextlib.contextmanager
    def contestants(self, commands):
        """Returns {name: Contestant} for {name: command}, all on one GPU."""
        with contextlib.ExitStack() as stack:
            started = {}
            for name, command in commands.items():
                started[name] = Contestant(command, self.environment)
                stack.callback(started[name].close)
            yield started

    def take_turns(self, asked, deadline):
        """Returns {name: samples} for {name: (contestant, line)}, with a sample for each round."""
        return measure.take_turns({name: lambda who=who, line=line: who.ask(line, deadline)
                                   for name, (who, line) in asked.items()}, self.sizes.rounds, self.sizes.warm_up)


def barred(bar, row, least, more=None):
    """Returns the row with its bar. The bar is the smallest allowed ratio of medians to the peer."""
    return {**row, "details": {"bar": bar, "least": least, "holds": row["ratio"] >= least, **(more or {})}}


def noted(bar, row, more=None):
    """Returns the row without a bar."""
    return {**row, "details": {"bar": bar, "least": None, "holds": None, **(more or {})}}
