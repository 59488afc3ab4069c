"""Hosts for tests: network namespaces of this machine, with a switch between them. Needs Linux and root.

Host h has the address 10.77.0.(h + 1) on its interface eth0. The switch is a namespace, too. All names contain the
number of this process, so that a later test removes the namespaces of a test that was killed.
"""
import collections
import fcntl
import json
import os
import pathlib
import re
import select
import shutil
import signal
import struct
import subprocess
import threading
import time

MTU = 9000           # of each interface; headers then are less than 1 % of the bytes
NAME = re.compile(r"fsdp-(\d+)-(\d+|switch)$")
KILL_SECONDS = 10
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000


def call(*words):
    words = list(map(str, words))
    said = subprocess.run(words, capture_output=True, text=True)
    if said.returncode != 0:
        raise OSError(f"{' '.join(words)}: {said.stderr.strip()}")
    return said.stdout


def ip(*words):
    return call("ip", *words)


def why_not():
    """Returns the reason why this machine cannot have such hosts, or None if it can."""
    for tool in ("ip", "tc", "ss", "unshare"):
        if shutil.which(tool) is None:
            return f"there is no program '{tool}' (Debian packages iproute2, util-linux)"
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    probe = f"fsdp-{os.getpid()}-switch"
    try:
        ip("netns", "add", probe)
    except OSError as error:
        return f"this machine refuses network namespaces: {error}"
    ip("netns", "delete", probe)
    return None


def is_running(pid):
    return pathlib.Path(f"/proc/{pid}").exists()


def delete_namespace(name):
    """Kills the processes of a namespace, waits until they end, and deletes it, with its interfaces."""
    until = time.monotonic() + KILL_SECONDS
    while (pids := ip("netns", "pids", name).split()) and time.monotonic() < until:
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)
    ip("netns", "delete", name)


def remove_leftovers():
    """Deletes the namespaces of tests that no longer run."""
    for line in ip("netns", "list").splitlines():
        match = NAME.match(line.split()[0])
        if match and not is_running(match[1]):
            delete_namespace(match[0])


class Router(threading.Thread):
    """Forwards IP packets between hosts after a delay. Used instead of the kernel's netem, which not every kernel has.
    """

    def __init__(self, delay):
        super().__init__(daemon=True)
        self.delay, self.devices, self.ending = delay, [], threading.Event()

    def make_device(self, name):
        """Makes a TUN device of that name in the caller's namespace."""
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
        self.devices.append(device)

    def run(self):
        waiting = collections.deque()  # (time, device, packet), in the order of times
        poll = select.poll()
        for device in self.devices:
            poll.register(device, select.POLLIN)
        while not self.ending.is_set():
            pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.1
            for device, _ in poll.poll(min(pause, 0.1) * 1e3):
                self.read(device, waiting)
            while waiting and waiting[0][0] <= time.monotonic():
                _, device, packet = waiting.popleft()
                try:
                    os.write(device, packet)
                except OSError:
                    pass  # the interface is down, or its queue is full: the packet is lost

    def read(self, device, waiting):
        while True:
            try:
                packet = os.read(device, MTU + 100)
            except OSError:  # no further packet, or the interface is down
                return
            host = packet[19] - 1 if packet[0] >> 4 == 4 and len(packet) >= 20 else -1
            if 0 <= host < len(self.devices):
                waiting.append((time.monotonic() + self.delay, self.devices[host], packet))

    def close(self):
        self.ending.set()
        if self.is_alive():
            self.join()
        for device in self.devices:
            os.close(device)


class Network:
    """Hosts that reach each other. A context manager: the end removes everything.

    rate: bytes a second that a host can send, None for no limit. delay: seconds that each packet takes.
    """

    def __init__(self, hosts, rate=None, delay=0.0):
        self.hosts, self.prefix = hosts, f"fsdp-{os.getpid()}-"
        self.switch = self.prefix + "switch"
        self.namespaces, self.router = [], Router(delay) if delay else None
        try:
            self.make(rate)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def name(self, host):
        return f"{self.prefix}{host}"

    def address(self, host):
        return f"10.77.0.{host + 1}"

    def make(self, rate):
        self.add_namespace(self.switch)
        ip("-n", self.switch, "link", "add", "switch", "type", "bridge")
        ip("-n", self.switch, "link", "set", "switch", "mtu", MTU, "up")
        for host in range(self.hosts):
            self.add_namespace(self.name(host))
            self.add_interface(host)
            ip("-n", self.name(host), "link", "set", "lo", "up")
            ip("-n", self.name(host), "link", "set", "eth0", "mtu", MTU, "up")
            ip("-n", self.name(host), "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            if rate is not None:
                self.limit(host, rate)
        if self.router:
            self.router.start()

    def add_namespace(self, name):
        ip("netns", "add", name)
        self.namespaces.append(name)

    def add_interface(self, host):
        if self.router:
            device = f"fsdp{os.getpid()}-{host}"
            self.router.make_device(device)
            ip("link", "set", device, "netns", self.name(host), "name", "eth0")
            return
        ip("-n", self.switch, "link", "add", f"port{host}", "mtu", MTU, "type", "veth", "peer", "name", "eth0",
           "netns", self.name(host))
        ip("-n", self.switch, "link", "set", f"port{host}", "master", "switch", "up")

    def limit(self, host, rate):
        # A burst of 10 ms is enough for timers of any kernel, and the queue holds 0.4 s.
        call("tc", "-n", self.name(host), "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{int(rate * 8)}bit",
             "burst", max(256 * 1024, int(rate / 100)), "latency", "400ms")

    def command(self, host, words):
        """Returns a command that runs `words` on a host, which is also the host's name for programs."""
        rename = ["sh", "-c", 'hostname "$0" && exec "$@"', f"host-{host}"]
        return ["ip", "netns", "exec", self.name(host), "unshare", "--uts", *rename, *map(str, words)]

    def sent(self, host):
        """Returns the bytes that a host has sent until now, with headers."""
        link = json.loads(ip("-n", self.name(host), "-j", "-s", "link", "show", "eth0"))
        return link[0]["stats64"]["tx"]["bytes"]

    def listening(self, host):
        """Returns the addresses at which programs of a host listen, as (address, port)."""
        said = ip("netns", "exec", self.name(host), "ss", "-ltnH")
        return [tuple(line.split()[3].rsplit(":", 1)) for line in said.splitlines()]

    def take_link_down(self, host):
        """Takes a host's own interface down."""
        ip("-n", self.name(host), "link", "set", "eth0", "down")

    def unplug(self, host):
        """Drops all packets from and to a host. The host itself sees a link without a carrier."""
        ip("-n", self.switch, "link", "set", f"port{host}", "down")

    def close(self):
        if self.router:
            self.router.close()
        for name in self.namespaces:
            delete_namespace(name)
        self.namespaces = []
