"""Cases of tools/test hosts --launchers. A launcher starts a training with two ranks on each of two hosts. The training
must write the same bytes as one that is started without a launcher."""
import contextlib
import filecmp
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile

import collective_cases as cases
import parts
from jobs import PORT, Processes, make_token
from network import Network

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HOSTS, RANKS = 2, 2
LIMIT = 180  # seconds, of a part with its reference
WORDS = ["--device", "cpu", "--preset", "tiny", "--max-steps", 10, "--max-new-tokens", 2, "--output-dir"]
CONNECTED = f"{HOSTS * RANKS} ranks are connected by Gloo on host-0 (10.77.0.1), host-1 (10.77.0.2)"
SLURM = """\
ClusterName=hosts
SlurmctldHost=host-0({first})
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
NodeName=host-0 NodeAddr={first} CPUs={ranks} State=UNKNOWN
NodeName=host-1 NodeAddr={second} CPUs={ranks} State=UNKNOWN
PartitionName=all Nodes=host-0,host-1 Default=YES MaxTime=10 State=UP
"""
SLURMCTLD_PORT = "6817"


def program(name, package):
    """Returns the path of a program. Raises parts.Skipped if it is not installed."""
    path = shutil.which(name)
    if path is None:
        raise parts.Skipped(f"there is no program '{name}' ({package})")
    return path


def model_folder(bench, name):
    return bench.output / f"model-{name}"


def require_connected(text):
    if CONNECTED not in text:
        raise parts.Failed(f"no rank printed '{CONNECTED}'")


def train(bench, deadline, name, by_hand):
    """Trains on ranks that fsdp-run starts, or that are started without a launcher."""
    words = [*WORDS, model_folder(bench, name)]
    with Network(HOSTS) as network, \
            bench.job(network, RANKS, words, name, program="gpt", by_hand=by_hand) as job:
        ends = job.wait(deadline)
    cases.require_success(ends)
    require_connected("".join(end.errors for end in ends))


def compare(bench, deadline, name):
    """Compares the model of a launcher with that of a training without a launcher. The first call trains."""
    own, reference = (model_folder(bench, each) / "model.safetensors" for each in (name, "by-hand"))
    if not reference.exists():
        train(bench, deadline, "by-hand", by_hand=True)
    if not filecmp.cmp(own, reference, shallow=False):
        raise parts.Failed(f"{own} differs from {reference}")
    return f"the {own.stat().st_size} bytes of the model are those of ranks without a launcher"


def fsdp_run(bench, deadline):
    train(bench, deadline, "fsdp-run", by_hand=False)
    return compare(bench, deadline, "fsdp-run")


class Launched(Processes):
    """A training that a launcher starts on two hosts, and the launcher's daemons."""

    def __init__(self, bench, name, network, temporary):
        super().__init__(network, bench.folder(name))
        self.temporary = pathlib.Path(temporary)
        self.training = [bench.bin / "gpt", *WORDS, model_folder(bench, name)]
        self.environment = {"OMP_NUM_THREADS": "1", "TMPDIR": temporary, "XDG_RUNTIME_DIR": temporary}
        # Variables that mpirun and srun do not set.
        self.rendezvous = {"MASTER_ADDR": network.address(0), "MASTER_PORT": str(PORT),
                           "FSDP_JOB_TOKEN_FILE": str(make_token(self.folder))}

    def start(self, host, name, words, environment=None):
        self.start_process(host, name, words, {**self.environment, **(environment or {})})

    def check(self, deadline, launchers):
        """Waits for the processes with these numbers. Requires that all end with 0, and that all ranks connected."""
        self.wait_for_ends(deadline, launchers)
        for number in launchers:
            code = self.processes[number].returncode
            if code != 0:
                raise parts.Failed(f"code {code}, expected 0; {self.error_of(number)}")
        require_connected("".join(file.read_text(errors="replace") for file in self.folder.glob("*.err")))


@contextlib.contextmanager
def launched(bench, name):
    """Yields a Launched without processes. The end kills all processes of its hosts."""
    # Launchers keep their sockets in the folder. The paths of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="fsdp-hosts-") as temporary, Network(HOSTS) as network, \
            Launched(bench, name, network, temporary) as job:
        yield job


def torchrun(bench, deadline):
    peers = ROOT / ".venv-peers/bin/torchrun"
    path = peers if peers.exists() else program("torchrun", "tools/setup --peers")
    with launched(bench, "torchrun") as job:
        for host in range(HOSTS):
            job.start(host, f"torchrun-{host}",
                      [path, "--nnodes", HOSTS, "--node-rank", host, "--master-addr", job.network.address(0),
                       "--master-port", PORT, "--no-python", "--nproc-per-node", RANKS, *job.training])
        job.check(deadline, range(HOSTS))
    return compare(bench, deadline, "torchrun")


def mpirun(bench, deadline):
    path = program("mpirun", "Debian package openmpi-bin")
    said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in said:
        raise parts.Skipped(f"{path} is not Open MPI")
    with launched(bench, "mpirun") as job:
        # The agent replaces ssh. Its arguments are a host and a command.
        agent = job.temporary / "agent"
        enter = shlex.join(job.network.command(1, ["sh", "-c"]))
        agent.write_text(f'#!/bin/sh\nshift\nexec env -i PATH="$PATH" TMPDIR="$TMPDIR" {enter} "$*"\n')
        agent.chmod(0o700)
        names = ["OMP_NUM_THREADS", "XDG_RUNTIME_DIR", *job.rendezvous]
        job.start(0, "mpirun", [path, "--allow-run-as-root", "--bind-to", "none", "--mca", "plm_rsh_agent", agent,
                                "--host", ",".join(f"host-{host}:{RANKS}" for host in range(HOSTS)),
                                *(word for name in names for word in ("-x", name)), *job.training], job.rendezvous)
        job.check(deadline, [0])
    return compare(bench, deadline, "mpirun")


def srun(bench, deadline):
    path, control, daemon = (program(name, "Debian package slurm-wlm") for name in ("srun", "slurmctld", "slurmd"))
    with launched(bench, "srun") as job:
        file = job.temporary / "slurm.conf"
        file.write_text(SLURM.format(folder=job.temporary, ranks=RANKS, first=job.network.address(0),
                                     second=job.network.address(1)))
        # ip netns exec hides the control groups, which slurmd needs.
        visible = ["nsenter", f"--mount=/proc/{os.getpid()}/ns/mnt"]
        job.environment["SLURM_CONF"] = str(file)
        job.start(0, "slurmctld", [*visible, control, "-D", "-f", file])
        job.wait_until(lambda: any(port == SLURMCTLD_PORT for _, port in job.network.listening(0)), deadline,
                       "slurmctld does not listen")
        for host in range(HOSTS):
            job.start(host, f"slurmd-{host}", [*visible, daemon, "-D", "-N", f"host-{host}", "-f", file])
        job.start(0, "srun", [path, "-N", HOSTS, "--ntasks-per-node", RANKS, *job.training], job.rendezvous)
        job.check(deadline, [3])
    return compare(bench, deadline, "srun")


# Name, time limit in seconds, function.
ALL = [("started by fsdp-run", LIMIT, fsdp_run), ("started by torchrun", LIMIT, torchrun),
       ("started by mpirun", LIMIT, mpirun), ("started by srun", LIMIT, srun)]
