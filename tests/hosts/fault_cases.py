"""Cases of tools/test hosts with faults, slow networks, and programs that do not belong to the job. The jobs have two
ranks on each of two hosts."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import collective_cases as cases
import parts
from network import Network

HOSTS, RANKS = 2, 2
GUILTY = 3           # a rank of host 1
TIMEOUT = 6.0        # seconds, of a collective
AT_ONCE = 5.0        # seconds in which all other ranks end after a rank was killed
LATE = 6.0           # seconds after the time-out in which all other ranks end
FOREVER = 10**9      # steps
CODE = 75
# A rank of the other host is named, or the network.
UNREACHABLE = (r"rank [0-3](, [0-3])* did not (report|arrive)|the hosts did not exchange|store on rank 0 is lost|"
               r"connection to rank")
WILDCARDS = ("0.0.0.0", "*", "[::]")


def require_ended(ends, named, limit):
    """Requires that the ranks ended with code 75, in time, and with an error that matches `named`. Returns a line."""
    for end in ends:
        if end.code != CODE:
            raise parts.Failed(f"rank {end.rank} ended with code {end.code}, expected {CODE}: {end.line}")
        if end.seconds > limit:
            raise parts.Failed(f"rank {end.rank} ended {end.seconds:.1f} s after the fault, expected at most "
                               f"{limit:.0f} s: {end.line}")
        if not re.search(named, end.cause):
            raise parts.Failed(f"rank {end.rank} does not say '{named}': {end.line}")
    seconds = max(end.seconds for end in ends)
    causes = {end.rank // RANKS: end.cause for end in ends}
    told = "; ".join(f"host {host}: {cause}" for host, cause in sorted(causes.items()))
    return f"code {CODE} on {len(ends)} ranks, all after {seconds:.1f} s; {told}"


def faulty(bench, deadline, name, act, survivors, named, limit, timeout=TIMEOUT):
    """Runs steps until the fault act(network, job). Returns require_ended of the surviving ranks."""
    with Network(HOSTS) as network, \
            bench.job(network, RANKS, ["steps", FOREVER], name, timeout=timeout) as job:
        job.wait_for_begin(deadline)
        job.hit(lambda: act(network, job))
        return require_ended(job.wait(deadline, survivors), named, limit)


def killed(bench, deadline):
    return faulty(bench, deadline, "killed", lambda _, job: os.kill(job.pid(GUILTY), signal.SIGKILL), (0, 1, 2),
                  rf"rank {GUILTY} (was killed by signal 9|died)", AT_ONCE, timeout=60)


def first_killed(bench, deadline):
    """Kills the rank that serves the store."""
    return faulty(bench, deadline, "first-killed", lambda _, job: os.kill(job.pid(0), signal.SIGKILL), (1, 2, 3),
                  r"rank 0\b", AT_ONCE, timeout=60)


def stopped(bench, deadline):
    def stop(_, job):
        os.kill(job.pid(GUILTY), signal.SIGSTOP)

    named = rf"^rank {GUILTY} did not .*{TIMEOUT:.1f} s"
    return faulty(bench, deadline, "stopped", stop, (0, 1, 2), named, TIMEOUT + LATE)


def link_down(bench, deadline):
    return faulty(bench, deadline, "link-down", lambda network, _: network.take_link_down(1), range(4),
                  UNREACHABLE, TIMEOUT + LATE)


def vanished(bench, deadline):
    return faulty(bench, deadline, "vanished", lambda network, _: network.unplug(1), range(4), UNREACHABLE,
                  TIMEOUT + LATE)


def slow(bench, deadline, name, **options):
    """Runs steps and a mismatch on a slow network: neither may count as a failure of another kind."""
    with Network(HOSTS, **options) as network:
        with bench.job(network, RANKS, ["steps", 10], name) as job:
            cases.require_success(job.wait(deadline))
            seconds = time.monotonic() - job.began
        with bench.job(network, RANKS, ["mismatch", "count", GUILTY], f"{name}-mismatch") as job:
            line = require_ended(job.wait(deadline), re.escape(cases.DISAGREE), 60)
    return f"10 steps, all of the job {seconds:.1f} s; a mismatch: {line}"


def delayed(bench, deadline):
    return slow(bench, deadline, "delay", delay=0.05)


def limited(bench, deadline):
    with Network(HOSTS, rate=10e6) as network, \
            bench.job(network, RANKS, ["bytes", "all_reduce", 2 * 2**20, 3], "rate", timeout=20) as job:
        cases.require_success(job.wait(deadline))
        told = f"{network.sent(0) / 1e6:.0f} MB left a host, all of the job {time.monotonic() - job.began:.1f} s"
    return f"{told}; {slow(bench, deadline, 'rate', rate=10e6)}"


def two_jobs(bench, deadline):
    with Network(HOSTS) as network, \
            bench.job(network, RANKS, ["calls", 1, 20], "first", timeout=60, port=29500) as one, \
            bench.job(network, RANKS, ["calls", 2, 20], "second", timeout=60, port=29600) as other:
        for job in (one, other):
            cases.require_success(job.wait(deadline))


class Strangers:
    """A program on a third host that connects to every port of the job, from the time at which the port is open."""

    def __init__(self, network, way):
        script = pathlib.Path(__file__).with_name("stranger.py")
        self.network, self.known, self.wildcards = network, set(), set()
        self.process = subprocess.Popen(network.command(HOSTS, [sys.executable, script, way]), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()  # "ready"

    def look(self):
        for host in range(HOSTS):
            for address, port in self.network.listening(host):
                if address in WILDCARDS:
                    self.wildcards.add(f"{address}:{port} on host {host}")
                    address = self.network.address(host)
                if (address, port) not in self.known and not address.startswith("127."):
                    self.known.add((address, port))
                    print(address, port, file=self.process.stdin, flush=True)

    def close(self):
        try:
            counts, _ = self.process.communicate(timeout=20)
        finally:
            self.process.kill()
            self.process.wait()
        return json.loads(counts)


def strangers(bench, way, deadline):
    # The third host has no rank.
    with Network(HOSTS + 1) as network:
        strange = Strangers(network, way)
        try:
            with bench.job(network, RANKS, ["calls", 3, 200], f"stranger-{way}", hosts=HOSTS, timeout=30) as job:
                while not job.look() and deadline.left() > 0:
                    strange.look()
                    time.sleep(0.05)
                cases.require_success(job.wait(deadline))
        finally:
            counts = strange.close()
    if strange.wildcards:
        raise parts.Failed(f"the job listens at {', '.join(sorted(strange.wildcards))}")
    reached = sum(count > 0 for count in counts.values())
    if reached == 0:
        raise parts.Failed(f"the stranger reached no port of {sorted(counts)}")
    return f"{sum(counts.values())} connections to {reached} of {len(counts)} ports, none at a wildcard address"


def silent(bench, deadline):
    return strangers(bench, "silent", deadline)


def noise(bench, deadline):
    return strangers(bench, "noise", deadline)


def flood(bench, deadline):
    return strangers(bench, "flood", deadline)


# Name, time limit in seconds, function.
ALL = [("a rank killed", 60, killed), ("rank 0 killed", 60, first_killed), ("a rank stopped", 60, stopped),
       ("a link down", 60, link_down), ("a host that vanishes", 60, vanished), ("a delay of 50 ms", 90, delayed),
       ("10 MB/s", 90, limited), ("two jobs", 60, two_jobs), ("a stranger that is silent", 60, silent),
       ("a stranger that sends noise", 60, noise), ("a stranger that floods", 60, flood)]
