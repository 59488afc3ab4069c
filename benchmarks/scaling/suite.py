"""Selects rows of a run of the suite by their properties."""
import statistics

from scaling import cells, rows

REPLICATE, FULL_SHARD = "replicate", "full-shard"
PEERS = ("FSDP2", "FSDP1", "DDP", "ZeroRedundancyOptimizer", "DataParallel")
SHARDED_RANKS = (1, 2, 4, 8)


def is_measured(row):
    return row is not None and row["status"] == "measured"


def is_too_large(row):
    """Returns True if the row was not run because it does not fit this machine."""
    return not rows.is_final(row)


def is_ours(row):
    return row["by"] == rows.OURS


def options_of(row):
    """Returns the options that differ from the default, in words."""
    words = [name for name in ("recompute", "offload") if row[name]]
    words += ["bfloat16"] * (row["param_dtype"] == "bfloat16")
    words += [f"prefetch {row['prefetch']}"] * (row["prefetch"] != 1)
    return words


def is_plain(row):
    """Returns True for a row without options or groups whose ranks are processes."""
    return not options_of(row) and row["replicate"] == 1 and not row["simulated"]


def step_ms(row):
    """Returns the median of all steps except the first, which allocates buffers."""
    steps = row["measured"]["step ms"]
    return statistics.median(steps[1:] or steps)


def growth(row):
    return row["measured"]["growth peak"]


def device_peak(row):
    return row["measured"]["device peak"]


def engine_bytes(phase):
    return sum(size for name, size in phase.items() if name != "LibTorch")


def state_bytes(row):
    """Returns the measured state before the optimizer's step; with offload the sum of device and host."""
    return engine_bytes(row["measured"]["phases"]["after backward"]) + row["measured"]["host"]


def of_plan(row):
    """Returns the measured peak of the device relative to the planned one."""
    return device_peak(row) / row["planned"]["device peak"]


def is_exact(row):
    """Returns True if the engine's bytes equal the plan in every phase and category."""
    def engine(phases):
        return {phase: {name: size for name, size in sizes.items() if name != "LibTorch"}
                for phase, sizes in phases.items()}

    planned, measured = row["planned"], row["measured"]
    return (engine(planned["phases"]) == engine(measured["phases"]) and
            planned["engine held"] == measured["engine held"])


def in_order(row):
    """Returns a sort key for tables: by ranks with the strategies together, then options, then simulated rows."""
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
        """Returns the row without options, or None."""
        return self._plain.get((model, strategy, ranks, by))

    def measured_plain(self, model, strategy, ranks, by=rows.OURS):
        row = self.plain(model, strategy, ranks, by)
        return row if is_measured(row) else None

    def of_model(self, model):
        return [row for row in self.rows if row["model"] == model]

    def peers_of(self, own):
        """Returns the peers' rows for the cell of our row."""
        return [row for row in self.rows if row["cell"] == own["cell"] and not is_ours(row)]

    def saved(self, model, ranks):
        """Returns the share of DDP's process growth that full shard saves, or None."""
        own = self.measured_plain(model, FULL_SHARD, ranks)
        ddp = self.measured_plain(model, REPLICATE, ranks, "DDP")
        return 1 - growth(own) / growth(ddp) if own and ddp else None

    def shown_model(self):
        """Returns the largest BERT with the most data for a picture by ranks; None if there is none."""
        def count(model):
            own = sum(bool(self.measured_plain(model, FULL_SHARD, ranks)) for ranks in SHARDED_RANKS)
            ddp = sum(bool(self.measured_plain(model, REPLICATE, ranks, "DDP")) for ranks in SHARDED_RANKS)
            return own + ddp

        counted = [model for model in self.models if count(model) > 0]
        return max(counted, key=lambda model: (count(model), model.startswith("bert"), self.parameters[model]),
                   default=None)
