"""The rows of a run of the suite, to be asked for by what they are of."""
import statistics

from scaling import cells, rows

REPLICATE, FULL_SHARD = "replicate", "full-shard"
PEERS = ("FSDP2", "FSDP1", "DDP", "ZeroRedundancyOptimizer", "DataParallel")
SHARDED_RANKS = (1, 2, 4, 8)


def is_measured(row):
    return row is not None and row["status"] == "measured"


def is_too_large(row):
    """It was not run, as this machine cannot hold it."""
    return not rows.is_final(row)


def is_ours(row):
    return row["by"] == rows.OURS


def options_of(row):
    """What differs from the default, in words."""
    words = [name for name in ("recompute", "offload") if row[name]]
    words += ["bfloat16"] * (row["param_dtype"] == "bfloat16")
    words += [f"prefetch {row['prefetch']}"] * (row["prefetch"] != 1)
    return words


def is_plain(row):
    """No option, no groups, and every rank is a process."""
    return not options_of(row) and row["replicate"] == 1 and not row["simulated"]


def step_ms(row):
    """Median of the steps behind the first, in which buffers are made."""
    steps = row["measured"]["step ms"]
    return statistics.median(steps[1:] or steps)


def growth(row):
    return row["measured"]["growth peak"]


def device_peak(row):
    return row["measured"]["device peak"]


def engine_bytes(phase):
    return sum(size for name, size in phase.items() if name != "LibTorch")


def state_bytes(row):
    """Measured, before the optimizer's step; with offload of device and host together."""
    return engine_bytes(row["measured"]["phases"]["after backward"]) + row["measured"]["host"]


def of_plan(row):
    """The most of the device that was measured, of what was planned."""
    return device_peak(row) / row["planned"]["device peak"]


def is_exact(row):
    """Whether the engine held what was planned, in every phase and category."""
    def engine(phases):
        return {phase: {name: size for name, size in sizes.items() if name != "LibTorch"}
                for phase, sizes in phases.items()}

    planned, measured = row["planned"], row["measured"]
    return (engine(planned["phases"]) == engine(measured["phases"]) and
            planned["engine held"] == measured["engine held"])


def in_order(row):
    """For tables: by ranks, each strategy beside the others; then options; then what is simulated."""
    known = ["replicate", "zero1", "zero2"]
    strategies = [*known, *(each for each in cells.STRATEGIES[1:] if each not in known), FULL_SHARD]
    return (row["simulated"], bool(options_of(row)), row["ranks"], strategies.index(row["strategy"]),
            len(options_of(row)), options_of(row))


class Suite:
    def __init__(self, all_rows):
        self.rows = list(all_rows)
        self.ours = [row for row in self.rows if is_ours(row)]
        self.measured = [row for row in self.ours if is_measured(row)]
        known = {row["model"]: row["parameters"] for row in self.rows if row["parameters"]}
        self.models = sorted(known, key=known.get)
        self.parameters = known
        self._plain = {(row["model"], row["strategy"], row["ranks"], row["by"]): row
                       for row in self.rows if is_plain(row)}

    def plain(self, model, strategy, ranks, by=rows.OURS):
        """The row without options, or None."""
        return self._plain.get((model, strategy, ranks, by))

    def measured_plain(self, model, strategy, ranks, by=rows.OURS):
        row = self.plain(model, strategy, ranks, by)
        return row if is_measured(row) else None

    def of_model(self, model):
        return [row for row in self.rows if row["model"] == model]

    def peers_of(self, own):
        """Rows of the peers of one of ours: the same cell."""
        return [row for row in self.rows if row["cell"] == own["cell"] and not is_ours(row)]

    def saved(self, model, ranks):
        """The share that full shard saves of what DDP's process grows to, or None."""
        own = self.measured_plain(model, FULL_SHARD, ranks)
        ddp = self.measured_plain(model, REPLICATE, ranks, "DDP")
        return 1 - growth(own) / growth(ddp) if own and ddp else None

    def shown_model(self):
        """The largest BERT of which most is there that a picture by ranks needs; None without any."""
        def count(model):
            own = sum(bool(self.measured_plain(model, FULL_SHARD, ranks)) for ranks in SHARDED_RANKS)
            ddp = sum(bool(self.measured_plain(model, REPLICATE, ranks, "DDP")) for ranks in SHARDED_RANKS)
            return own + ddp

        counted = [model for model in self.models if count(model) > 0]
        return max(counted, key=lambda model: (count(model), model.startswith("bert"), self.parameters[model]),
                   default=None)
