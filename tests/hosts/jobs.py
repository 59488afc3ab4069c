"""Jobs on the hosts of a network. fsdp-run starts the ranks of each host, or they are started by hand, as by torchrun.
"""
import dataclasses
import json
import os
import pathlib
import re
import secrets
import signal
import subprocess
import time

import parts

POLL = 0.01        # seconds
PORT = 29500
TOLD = "fsdp: error["


def first_error(text):
    """Returns the first error line of fsdp in a text, without the hint, or else the end of the text."""
    told = [line for line in text.splitlines() if line.startswith(TOLD)]
    return told[0].partition("; hint:")[0] if told else " ".join(text.split())[-300:] or "nothing"


def make_token(folder):
    """Makes a token file in a folder, and returns its path."""
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_bytes(secrets.token_bytes(32))
    return token


@dataclasses.dataclass
class End:
    rank: int
    code: int       # exit code, or minus the signal that killed the rank; None: it still runs
    seconds: float  # from the fault, or else from the start of the job; under fsdp-run, of the whole host
    output: str
    errors: str

    @property
    def line(self):
        """Returns the rank's first error line, without the hint."""
        return first_error(self.errors)

    @property
    def cause(self):
        """Returns that line without its beginning, which names this rank and its host."""
        return re.sub(r"^fsdp: error\[\d+\] rank \d+/\d+ host \S+( step \d+)?: ", "", self.line)


def children_of(pid):
    try:
        return list(map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


class Processes:
    """Programs on the hosts of a network, with their output in a new folder. A context manager: the end kills what
    still runs."""

    def __init__(self, network, folder):
        self.network, self.folder = network, pathlib.Path(folder)
        self.folder.mkdir(parents=True)
        self.processes, self.ended_at, self.files = [], {}, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start_process(self, host, name, command, environment):
        files = [open(self.folder / f"{name}.{end}", "wb") for end in ("out", "err")]
        self.files += files
        self.processes.append(subprocess.Popen(
            self.network.command(host, command), stdin=subprocess.DEVNULL, stdout=files[0], stderr=files[1],
            start_new_session=True, env={**os.environ, **environment}))

    def look(self, numbers=None):
        """Notes the processes that have ended. Returns True if all have, or all with these numbers."""
        for number, process in enumerate(self.processes):
            if number not in self.ended_at and process.poll() is not None:
                self.ended_at[number] = time.monotonic()
        return self.ended_at.keys() >= set(range(len(self.processes)) if numbers is None else numbers)

    def wait_until(self, condition, deadline, why):
        while not condition():
            if self.look():
                raise parts.Failed(f"{why}: {self.told()}")
            if deadline.left() <= 0:
                raise parts.Failed(f"{why} within {deadline.seconds:.0f} s")
            time.sleep(POLL)

    def wait_for_ends(self, deadline, numbers=None):
        """Waits for the processes with these numbers (default: all). Raises parts.Failed at the deadline."""
        while not self.look(numbers):
            if deadline.left() <= 0:
                late = sorted(set(range(len(self.processes))) - self.ended_at.keys())
                raise parts.Failed(f"processes {late} did not end within {deadline.seconds:.0f} s: {self.told()}")
            time.sleep(POLL)

    def error_of(self, number):
        """Returns the name of a process and its first error line."""
        file = pathlib.Path(self.files[2 * number + 1].name)
        return f"{file.stem}: {first_error(file.read_text(errors='replace'))}"

    def told(self):
        """Returns the error lines of all processes."""
        return "; ".join(map(self.error_of, range(len(self.processes))))

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                # fsdp-run and torchrun start each rank in its own process group.
                for pid in [*children_of(process.pid), process.pid]:
                    try:
                        os.killpg(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
            process.wait()
        for file in self.files:
            file.close()


class Job(Processes):
    """One program on `ranks` ranks of each of the first `hosts` hosts of a network (default: all)."""

    def __init__(self, network, ranks, words, folder, *, hosts=None, timeout=8.0, port=PORT, by_hand=False,
                 bin_folder=None, environment=None):
        super().__init__(network, folder)
        self.ranks, self.hosts, self.port = ranks, hosts or network.hosts, port
        self.by_hand, self.bin, self.token = by_hand, bin_folder, make_token(self.folder)
        self.environment = {"TEST_TIMEOUT_MS": str(int(timeout * 1000)), "TEST_BEGUN": str(self.folder / "begun"),
                            "OMP_NUM_THREADS": "1", **(environment or {})}
        self.began = self.hit_at = time.monotonic()
        try:
            for host in range(self.hosts):
                self.start(host, words)
        except BaseException:
            self.close()
            raise

    @property
    def world(self):
        return self.hosts * self.ranks

    def start(self, host, words):
        runtime = self.folder / f"runtime-{host}"  # ranks that are started by hand meet there
        runtime.mkdir()
        shared = {**self.environment, "XDG_RUNTIME_DIR": str(runtime)}
        if not self.by_hand:
            command = [self.bin / "fsdp-run", "--nnodes", self.hosts, "--node-rank", host,
                       "--master-addr", self.network.address(0), "--master-port", self.port,
                       "--token-file", self.token, "-n", self.ranks, "--log-dir", self.logs(host), *words]
            self.start_process(host, f"host-{host}", command, shared)
            return
        for local in range(self.ranks):
            rank = host * self.ranks + local
            own = {"RANK": rank, "WORLD_SIZE": self.world, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": self.ranks,
                   "GROUP_RANK": host, "FSDP_NODE": host, "MASTER_ADDR": self.network.address(0),
                   "MASTER_PORT": self.port, "TORCHELASTIC_RESTART_COUNT": 0, "FSDP_JOB_TOKEN_FILE": self.token}
            self.start_process(host, f"rank-{rank}", words, {**shared, **{key: str(own[key]) for key in own}})

    def logs(self, host):
        return self.folder / f"logs-{host}"

    def pid(self, rank):
        """Returns the process of a rank."""
        if self.by_hand:
            return self.processes[rank].pid
        return children_of(self.processes[rank // self.ranks].pid)[rank % self.ranks]

    def wait_for_begin(self, deadline):
        """Waits until the ranks run steps, and one second more."""
        self.wait_until(lambda: (self.folder / "begun").exists(), deadline, "the ranks did not begin")
        until = time.monotonic() + 1
        self.wait_until(lambda: time.monotonic() >= until, deadline, "the ranks did not begin")

    def hit(self, act):
        """Causes a fault. Times count from here."""
        act()
        self.hit_at = time.monotonic()

    def wait(self, deadline, ranks=None):
        """Waits for the ranks (default: all), and returns their Ends. Raises parts.Failed at the deadline."""
        numbers = None if ranks is None else {self.number(rank) for rank in ranks}
        self.wait_for_ends(deadline, numbers)
        return [end for end in self.ends() if ranks is None or end.rank in ranks]

    def number(self, rank):
        """Returns the index of the process of a rank, or of its launcher."""
        return rank if self.by_hand else rank // self.ranks

    def told(self):
        return "; ".join(end.line for end in self.ends())

    def ends(self):
        return [self.end(rank) for rank in range(self.world)]

    def end(self, rank):
        number = self.number(rank)
        seconds = self.ended_at.get(number, time.monotonic()) - self.hit_at
        folder = self.folder if self.by_hand else self.logs(rank // self.ranks)
        texts = [file.read_text(errors="replace") if file.exists() else ""
                 for file in (folder / f"rank-{rank}.{end}" for end in ("out", "err"))]
        if self.by_hand:
            return End(rank, self.processes[rank].poll(), seconds, *texts)
        file = folder / f"ends-host-{rank // self.ranks}.jsonl"
        ends = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        own = [end for end in ends if end["rank"] == rank]
        if not own:  # fsdp-run has started no rank
            texts[1] = (self.folder / f"host-{rank // self.ranks}.err").read_text(errors="replace")
            return End(rank, self.processes[number].poll(), seconds, *texts)
        return End(rank, own[0].get("code", -own[0].get("signal", 0)), seconds, *texts)
