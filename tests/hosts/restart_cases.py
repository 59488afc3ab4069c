"""Cases of tools/test hosts with fsdp-run --max-restarts. Two ranks on each of two hosts train, and save a checkpoint
after every step. The model at the end must have the bytes of trainings that no fault disturbs, on the same hosts from
the same checkpoints."""
import dataclasses
import filecmp
import os
import re
import signal

import collective_cases as cases
import parts
from jobs import children_of, make_token, Processes
from network import Network

HOSTS, RANKS = 2, 2
STEPS = 40
PAUSE_MS = 40     # after a step
WAIT = 6          # seconds of --restart-after
FIRST_SAVED = 3   # steps before the first fault
CODE = 75
LIMIT = 240       # seconds, of a part with its references


class Training(Processes):
    """A training on the hosts of a network, whose files are in a folder."""

    def __init__(self, bench, network, name, nnodes, flags, words=()):
        super().__init__(network, bench.folder(name))
        self.bench, self.nnodes, self.flags, self.words = bench, nnodes, flags, words
        self.token, self.launchers = make_token(self.folder), {}

    def start(self, host):
        """Starts the launcher of a host."""
        command = [self.bench.bin / "fsdp-run", "--nnodes", self.nnodes, "--node-rank", host,
                   "--master-addr", self.network.address(0), "--master-port", 29500, "--token-file", self.token,
                   "-n", RANKS, *self.flags, "--log-dir", self.folder / f"logs-{host}", self.bench.bin / "resume_rank",
                   "--device", "cpu", "--steps", STEPS, "--save-steps", 1, "--pause-ms", PAUSE_MS, "--timeout", 10,
                   "--save-dir", self.checkpoints, "--weights", self.weights, *self.words]
        self.launchers[host] = len(self.processes)
        self.start_process(host, f"host-{host}-{len(self.processes)}", command, {"OMP_NUM_THREADS": "1"})
        return self

    @property
    def checkpoints(self):
        return self.folder / "checkpoints"

    @property
    def weights(self):
        return self.folder / "weights"

    def checkpoint(self, step):
        return self.checkpoints / f"step-{step:08}"

    def wait_for_step(self, step, deadline):
        self.wait_until(lambda: self.checkpoint(step).exists(), deadline, f"no checkpoint of step {step}")

    def output(self, attempt):
        """Returns the output of rank 0 in a start of the job."""
        file = self.folder / "logs-0" / f"rank-0{f'.{attempt}' if attempt else ''}.out"
        return file.read_text() if file.exists() else ""

    def first_step(self, attempt):
        """Returns the first step of a start of the job, or None."""
        step = re.search(r"^step (\d+) loss", self.output(attempt), re.M)
        return int(step[1]) if step else None

    def wait_for_start(self, attempt, deadline):
        """Waits for the first step of a start. Returns the step from which it has resumed."""
        self.wait_until(lambda: self.first_step(attempt), deadline, f"start {attempt} made no step")
        return self.first_step(attempt) - 1

    def kill(self, host):
        """Kills all processes of a host, its launcher first."""
        launcher = self.processes[self.launchers[host]].pid
        ranks = children_of(launcher)
        os.killpg(launcher, signal.SIGKILL)
        for rank in ranks:
            try:
                os.killpg(rank, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def kill_rank(self, rank):
        os.kill(children_of(self.processes[self.launchers[rank // RANKS]].pid)[rank % RANKS], signal.SIGKILL)

    def require_codes(self, codes, deadline):
        """Waits for the launchers of hosts, and compares their exit codes."""
        self.wait_for_ends(deadline, {self.launchers[host] for host in codes})
        for host, code in codes.items():
            found = self.processes[self.launchers[host]].returncode
            if found != code:
                raise parts.Failed(f"the launcher of host {host} ended with code {found}, expected {code}: "
                                   f"{self.told()}")


@dataclasses.dataclass
class Restarted:
    """A start that an undisturbed training repeats: its number of hosts, and the step from which it resumed."""
    hosts: int
    resumed: int


def undisturbed(bench, deadline, name, starts):
    """Trains on the hosts of each start from the checkpoint of the training before. Returns the last weights."""
    before = None
    for number, start in enumerate(starts):
        words = ["--resume", before.checkpoint(start.resumed)] if before else []
        with Network(start.hosts) as network, \
                Training(bench, network, f"{name}-reference-{number}", start.hosts, [], words) as training:
            for host in range(start.hosts):
                training.start(host)
            training.require_codes(dict.fromkeys(range(start.hosts), 0), deadline)
        before = training
    return before.weights


def compare(bench, deadline, name, training, starts):
    reference = undisturbed(bench, deadline, name, starts)
    if not filecmp.cmp(training.weights, reference, shallow=False):
        raise parts.Failed(f"{training.weights} differs from {reference}")
    told = ", ".join(f"{start.hosts} hosts from step {start.resumed}" for start in starts[1:])
    return f"restarts on {told}: the {reference.stat().st_size} bytes of the model are those of undisturbed trainings"


def restart_flags(nnodes):
    return nnodes, ["--max-restarts", 3, "--restart-after", WAIT]


def begin(training, deadline):
    for host in range(HOSTS):
        training.start(host)
    training.wait_for_step(FIRST_SAVED, deadline)


def rank_killed(bench, deadline):
    """A fixed number of hosts: the ranks of both start again."""
    with Network(HOSTS) as network, Training(bench, network, "restart-rank", *restart_flags("2")) as training:
        begin(training, deadline)
        training.kill_rank(3)
        resumed = training.wait_for_start(1, deadline)
        training.require_codes({0: 0, 1: 0}, deadline)
    return compare(bench, deadline, "restart-rank", training, [Restarted(2, 0), Restarted(2, resumed)])


def host_lost(bench, deadline):
    """Host 1 is lost, and comes back during the second start. Then a rank of host 0 is killed."""
    with Network(HOSTS) as network, Training(bench, network, "restart-host", *restart_flags("1:2")) as training:
        begin(training, deadline)
        training.kill(1)
        alone = training.wait_for_start(1, deadline)
        training.wait_for_step(alone + FIRST_SAVED, deadline)
        training.start(1)
        note = training.folder / f"host-1-{training.launchers[1]}.err"
        training.wait_until(lambda: "from the next start" in note.read_text(), deadline, "host 1 did not come back")
        training.kill_rank(0)
        together = training.wait_for_start(2, deadline)
        training.require_codes({0: 0, 1: 0}, deadline)
    return compare(bench, deadline, "restart-host", training,
                   [Restarted(2, 0), Restarted(1, alone), Restarted(2, together)])


def host_unplugged(bench, deadline):
    """The network of host 1 is lost: both launchers notice, and host 0 continues alone."""
    with Network(HOSTS) as network, Training(bench, network, "restart-unplugged", *restart_flags("1:2")) as training:
        begin(training, deadline)
        network.unplug(1)
        alone = training.wait_for_start(1, deadline)
        training.require_codes({0: 0, 1: CODE}, deadline)
    return compare(bench, deadline, "restart-unplugged", training, [Restarted(2, 0), Restarted(1, alone)])


def first_host_lost(bench, deadline):
    """Host 0 serves the launchers' store, so its loss ends the job. A new start by hand resumes."""
    with Network(HOSTS) as network:
        with Training(bench, network, "restart-first", *restart_flags("1:2")) as training:
            begin(training, deadline)
            training.kill(0)
            training.require_codes({1: CODE}, deadline)
            training.words = ["--resume", "auto"]
            for host in range(HOSTS):
                training.start(host)
            training.require_codes({0: 0, 1: 0}, deadline)
            resumed = training.first_step(0) - 1
    return compare(bench, deadline, "restart-first", training, [Restarted(2, 0), Restarted(2, resumed)])


# Name, time limit in seconds, function.
ALL = [("restarts: a rank killed", LIMIT, rank_killed), ("restarts: a host lost and back", LIMIT, host_lost),
       ("restarts: a host unplugged", LIMIT, host_unplugged), ("restarts: host 0 lost", LIMIT, first_host_lost)]
