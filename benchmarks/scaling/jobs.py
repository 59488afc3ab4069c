"""Runs the jobs one after the other. A job is a cell that our program or a peer runs. Its result is a row."""
import dataclasses
import pathlib
import statistics

import measure

from . import cells, checks, peers, rows, runs

REFUSED = 78  # exit code for an impossible configuration, or one that does not fit
HEADROOM = 2**30  # bytes to leave free beside a run's largest growth
EMPTY_PROCESS = 60 * 2**20  # own memory of a process without a model
# Models with at least this number of parameters run two steps: the second step has all buffers, and each takes seconds.
LARGE, LARGE_STEPS = 2e8, 2


def parameters_of(cell):
    """Estimates the parameters of a model that is not built yet: those of layers and of the vocabulary's embeddings."""
    layers, hidden, _ = peers.SHAPES.get(cell.model, (4, 256, 4))
    return 12 * layers * hidden**2 + 30000 * hidden


@dataclasses.dataclass
class Bench:
    programs: pathlib.Path
    device: str = "cpu"
    steps: int = 4

    @property
    def device_words(self):
        return ["--device", self.device]

    def jobs(self, chosen, with_peers):
        """Returns (cell, contestant) pairs; a cell's peers follow it."""
        for cell in chosen:
            yield cell, rows.OURS
            if with_peers:
                yield from ((cell, peer) for peer in peers.peers_of(cell, self.device == "cuda"))

    def weight(self, cell, by):
        """Estimates the seconds of a job, as if its processes started and computed one after the other. A cell
        that does not fit this machine is only planned, or skipped."""
        parameters = parameters_of(cell)
        ranks = 1 if cell.simulated else cell.ranks
        is_peer = by != rows.OURS
        if ranks * rows.formula(cell, parameters)["step"] > runs.free_bytes() - HEADROOM:
            return 0.1 if is_peer else 1
        return ranks * (0.5 + self.steps_of(cell) * parameters / 1e8) * (3 if is_peer else 1) + 2

    def steps_of(self, cell):
        return LARGE_STEPS if parameters_of(cell) >= LARGE else self.steps

    def identity(self, root):
        self.torch = self.seen_plan(cells.Cell("bert-tiny", "full-shard", 1))["torch"]
        self.who = rows.identity(root, self.torch)
        return self.who

    def seen_plan(self, cell):
        words = [*cell.words, "--planned-ranks", cell.grouped_ranks, *self.device_words]
        return runs.run_probe(self.programs, words)[0]

    def trace(self, cell, path):
        """Traces one step of a cell."""
        runs.run_probe(self.programs, [*cell.words, *self.device_words, "--trace", str(path)], cell.ranks)

    def run(self, cell, by, results):
        """Returns the row. Raises runs.RunFailed if a run of ours that fits this machine fails."""
        return self.run_ours(cell) if by == rows.OURS else self.run_peer(cell, by, results)

    def run_ours(self, cell):
        row = rows.base(cell, rows.OURS, self.who)
        words = [*cell.words, "--steps", str(self.steps_of(cell)), *self.device_words]
        if cell.simulated:
            words += ["--simulated-ranks", cell.grouped_ranks]
        else:
            words += ["--replicate", str(cell.replicate)]
            seen = self.seen_plan(cell)
            self.fill(row, cell, seen)
            why = cannot_hold(row)
            if why:
                return {**row, "status": "planned", "why": why}
        try:
            seen, watch = runs.run_probe(self.programs, words, 1 if cell.simulated else cell.ranks)
        except runs.RunFailed as error:
            if error.code == REFUSED or isinstance(error, runs.NoMemory):
                return {**row, "status": "planned", "why": error.why}
            raise
        self.fill(row, cell, seen)
        measured = row["measured"] = seen["measured"]
        before = measured.pop("resident before")
        measured["growth built"] = measured.pop("resident built") - before
        measured["growth peak"] = measured.pop("resident peak") - before
        measured["resident sum"] = watch.together
        return row

    @staticmethod
    def fill(row, cell, seen):
        row.update(parameters=seen["parameters"], units=seen["units"], planned=seen["planned"],
                   formula=rows.formula(cell, seen["parameters"]))

    def run_peer(self, cell, by, results):
        """Returns a peer's row, also if the peer cannot run the cell."""
        row = rows.base(cell, by, self.who)
        own = results.rows.get((cell.name, rows.OURS))
        if own is None:
            return {**row, "status": "impossible", "why": "ours came to nothing"}
        row.update(parameters=own["parameters"], formula=own["formula"])
        why = peers.cannot_do(by, cell) or peers.cannot_hold(row)
        if not why:
            kills = oom_kills()
            try:
                return {**row, "measured": peers.run(by, cell, self.steps_of(cell))}
            except runs.RunFailed as error:
                killed = oom_kills() > kills
                why = f"{runs.CANNOT_HOLD}the kernel ended one of {cell.ranks} ranks" if killed else error.why
        return {**row, "status": "impossible", "why": why}


def oom_kills():
    """Returns how many processes the kernel has killed for lack of memory; 0 if it does not count them."""
    with open("/proc/vmstat", encoding="ascii") as counts:
        return next((int(line.split()[1]) for line in counts if line.startswith("oom_kill ")), 0)


def cannot_hold(row):
    """Returns why all ranks of our row do not fit this machine; None if they do."""
    needed = row["ranks"] * (checks.growth_bar(row) + EMPTY_PROCESS)
    free = runs.free_bytes() - HEADROOM
    if needed <= free:
        return None
    return (f"{runs.CANNOT_HOLD}{row['ranks']} ranks may grow to {needed / 2**30:.1f} GiB, "
            f"{free / 2**30:.1f} GiB are free")


def told(row):
    """Returns a line about a finished row."""
    name = f"{row['cell']}, {row['by']}"
    if row["status"] != "measured":
        return f"{name}: {row['status']}: {row['why']}"
    measured = row["measured"]
    step_ms = statistics.median(measured["step ms"][1:] or measured["step ms"])
    grown = f"process {checks.mib(measured['growth peak'])}, {step_ms:.0f} ms a step"
    if row["by"] != rows.OURS:
        return f"{name}: {grown}"
    return (f"{name}: device {checks.mib(measured['device peak'])} "
            f"({measured['device peak'] / row['planned']['device peak']:.4f} of the plan), {grown}")
