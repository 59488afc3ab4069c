"""Cases of tools/test hosts in which no rank fails, or in which ranks disagree."""
import dataclasses
import itertools
import math
import pathlib
import re

import parts
import programs
from jobs import Job
from network import Network

LARGE = 100_003             # elements of a sweep's largest case
WHOLE = 16 * 2**20          # float32 elements of the collectives whose bytes are counted
TIMES = 4                   # of each of them
BYTES_BAR = 0.02
TRIES = 3                   # retransmitted packets only add bytes, so the smallest number of all tries counts
STEPS = 5                   # of a training
DISAGREE = "ranks disagree about a collective: "
# Kind of difference -> texts of the two ranks.
MISMATCHES = {"count": ("of 8 float32 'norm' #7", "of 4 float32 'norm' #7"),
              "dtype": ("of 8 float32 'norm' #7", "of 8 int32 'norm' #7"),
              "reduce-op": ("all_reduce (sum) of 8", "all_reduce (max) of 8"),
              "operation": ("all_reduce (sum) of 8 float32 'norm' #7", "barrier 'norm' #7"),
              "order": ("'norm' #7", "'norm' #8"),
              "name60": ("issued all_reduce", "issued all_reduce")}


@dataclasses.dataclass
class Bench:
    """The programs, and a folder for their output."""
    bin: pathlib.Path
    output: pathlib.Path
    by_hand: bool = False  # ranks are started as torchrun does
    numbers: itertools.count = dataclasses.field(default_factory=itertools.count)

    def folder(self, name):
        """Returns the path of a new folder."""
        return self.output / f"{next(self.numbers):03}-{name.replace(' ', '-')}"

    def job(self, network, ranks, words, name, program="hosts_rank", **options):
        """Starts a job."""
        options = {"by_hand": self.by_hand, **options}
        return Job(network, ranks, [self.bin / program, *words], self.folder(name), bin_folder=self.bin, **options)


def require_success(ends):
    for end in ends:
        if end.code != 0:
            raise parts.Failed(f"rank {end.rank} ended with code {end.code}: {end.line} {end.output[-300:]}")


def run(bench, hosts, ranks, words, deadline, name, **options):
    """Runs a job that must succeed, and returns the Ends of its ranks."""
    with Network(hosts) as network, bench.job(network, ranks, words, name, **options) as job:
        ends = job.wait(deadline)
        require_success(ends)
        return ends


def sweep(bench, hosts, ranks, deadline):
    run(bench, hosts, ranks, ["sweep", LARGE], deadline, "sweep", timeout=60)


def by_hand(bench, hosts, ranks, deadline):
    run(bench, hosts, ranks, ["sweep", 257], deadline, "by-hand", timeout=60, by_hand=True)
    return "started as torchrun does"


def groups(bench, hosts, ranks, deadline):
    run(bench, hosts, ranks, ["sweep-groups", 257], deadline, "groups", timeout=60)


def random_calls(bench, hosts, ranks, deadline):
    run(bench, hosts, ranks, ["calls", hosts * 10 + ranks, 40], deadline, "calls", timeout=60)


def disagreements(bench, hosts, ranks, deadline):
    odd = hosts * ranks - 1
    with Network(hosts) as network:
        for kind, (ours, theirs) in MISMATCHES.items():
            with bench.job(network, ranks, ["mismatch", kind, odd], f"mismatch-{kind}") as job:
                for end in job.wait(deadline):
                    if end.code != 75 or not says(end.line, ours, theirs, odd):
                        raise parts.Failed(f"{kind}: rank {end.rank} ended with code {end.code}: {end.line}")
                line = end.line
    return f"{len(MISMATCHES)} kinds, code 75 on all ranks; the last: {line}"


def says(line, ours, theirs, odd):
    _, _, told = line.partition(DISAGREE)
    match = re.search(r"^rank (\d+) (issued .*), rank (\d+) (issued .*)", told)
    return bool(match) and int(match[3]) == odd and ours in match[2] and theirs in match[4]


def bits(model, bench, hosts, ranks, deadline):
    """Compares every bit of trainings with those of threads of one process that sum in the order of hosts."""
    words = [model, STEPS, 0]
    log = bench.output / f"reference-{model}-{hosts}-{ranks}.log"
    expected = programs.run([bench.bin / "hosts_rank", "reference", *words, hosts * ranks, hosts], deadline, log)
    if expected.code != 0:
        raise parts.Failed(f"the reference {expected.why}")
    own = run(bench, hosts, ranks, ["train", *words], deadline, f"train-{model}", timeout=60)[0].output.splitlines()
    wanted = log.read_text().splitlines()
    for one, other in zip(own, wanted):
        if one != other:
            raise parts.Failed(f"{one} instead of {other}")
    if len(own) != len(wanted):
        raise parts.Failed(f"{len(own)} trainings instead of {len(wanted)}")
    return f"{len(own)} trainings of {STEPS} steps have the reference's bits"


def sent(bench, hosts, ranks, deadline):
    """Compares the bytes that each host sends with the formula."""
    share, told = (hosts - 1) / hosts, []
    formulas = {"all_gather": [share] * hosts, "reduce_scatter": [share] * hosts, "all_reduce": [2 * share] * hosts,
                "broadcast": [hosts - 1] + [0] * (hosts - 1)}
    for operation, factors in formulas.items():
        smallest = [math.inf] * hosts
        for _ in range(TRIES):
            smallest = list(map(min, smallest, bytes_of(bench, hosts, ranks, operation, deadline)))
            off = [size - factor for size, factor in zip(smallest, factors)]
            if all(abs(each) <= BYTES_BAR * max(factor, 1 / hosts) for each, factor in zip(off, factors)):
                break
        else:
            raise parts.Failed(f"{operation}: bytes of the hosts / S are {smallest}, expected {factors}")
        told.append(f"{operation} {smallest[0]:.3f} ({factors[0]:.3f})")
    return "bytes of a host / S (formula): " + ", ".join(told)


def bytes_of(bench, hosts, ranks, operation, deadline):
    """Returns the bytes that each host sends for a collective, divided by the size of its largest buffer."""
    words = ["bytes", operation, WHOLE, TIMES]
    with Network(hosts) as network, bench.job(network, ranks, words, f"bytes-{operation}", timeout=60) as job:
        ends = job.wait(deadline)
        require_success(ends)
        whole = int(ends[0].output.split()[0]) * TIMES
        return [network.sent(host) / whole for host in range(hosts)]


def gpt(bench, hosts, ranks, deadline):
    return bits("gpt", bench, hosts, ranks, deadline)


def bert(bench, hosts, ranks, deadline):
    return bits("bert", bench, hosts, ranks, deadline)


# Name, time limit in seconds, function.
ALL = [("every collective", 90, sweep), ("groups of ranks", 90, groups), ("random collectives", 60, random_calls),
       ("started by hand", 60, by_hand), ("ranks that disagree", 90, disagreements), ("bits of a GPT", 120, gpt),
       ("bits of a BERT", 120, bert), ("bytes", 60, sent)]
