"""Checks the rows. Each function returns a line for each failed check."""
from . import rows, suite

STATE_TOLERANCE = 0.02  # relative to the formula, for padding
PEAK_TOLERANCE = 0.05  # relative to the plan
# Limit of a process's growth over its plan, the host's part included: a factor and a margin. A processor without
# bfloat16 instructions computes on copies in fp32, which belong to oneDNN and are not tensors of LibTorch.
GROWTH = {"float32": (1.05, 24 * 2**20), "bfloat16": (1.15, 48 * 2**20)}
BUDGETS = [2**power for power in range(24, 36)]  # 16 MiB to 32 GiB
SAVED = 0.6  # least share of DDP's process that full shard saves, on 4 ranks and more


def mib(size):
    return f"{size / 2**20:,.1f} MiB"


def engine_bytes(phase):
    return {name: size for name, size in phase.items() if name != "LibTorch"}


def state_of(row, phase):
    return sum(engine_bytes(row["measured"]["phases"][phase]).values())


def check_plan(row):
    planned, measured = row["planned"], row["measured"]
    for phase, sizes in measured["phases"].items():
        for name, size in engine_bytes(sizes).items():
            if size != planned["phases"][phase][name]:
                yield f"{phase}, {name}: planned {planned['phases'][phase][name]}, measured {size}"
    for name in ("engine held", "host", "sent"):
        if measured[name] != planned[name]:
            yield f"{name}: planned {planned[name]}, measured {measured[name]}"
    ratio = measured["device peak"] / planned["device peak"]
    if abs(ratio - 1) > PEAK_TOLERANCE:
        yield f"device peak: {ratio:.4f} of the plan"


def check_fit(row):
    """Checks for each budget that the plan predicts what fits."""
    planned, measured = row["planned"]["device peak"], row["measured"]["device peak"]
    for budget in BUDGETS:
        if (planned <= budget) != (measured <= budget):
            yield (f"of {mib(budget)} the plan says that it {'fits' if planned <= budget else 'does not fit'}: "
                   f"planned {mib(planned)}, measured {mib(measured)}")


def check_state(row):
    """Checks the state against its formula. With offload, the bytes on the host are added. Only
    their peak is known, so it is compared with the state before the optimizer's step."""
    on_host = row["measured"]["host"]
    for phase, moment in (("rest", "rest"), ("after backward", "step")):
        if row["offload"] and moment == "rest":
            continue
        ratio = (state_of(row, phase) + on_host) / row["formula"][moment]
        if abs(ratio - 1) > STATE_TOLERANCE:
            yield f"state {phase}: {ratio:.4f} of the formula"


def growth_bar(row):
    factor, room = GROWTH[row["param_dtype"]]
    return factor * (row["planned"]["device peak"] + row["planned"]["host"]) + room


def check_growth(row):
    growth, bar = row["measured"]["growth peak"], growth_bar(row)
    if growth > bar:
        yield f"the process grew by {mib(growth)}, at most {mib(bar)} are allowed"


def check_peer(own, peer):
    ours, theirs = (row["measured"]["growth peak"] for row in (own, peer))
    if ours > theirs or (peer["by"] == "FSDP2" and ours >= theirs):
        yield f"the process grew by {mib(ours)}, {peer['by']}'s by {mib(theirs)}"


def check_saving(own, ddp):
    """Checks the saving of a model's full shard against DDP on the same number of ranks."""
    ours, theirs = (row["measured"]["growth peak"] for row in (own, ddp))
    if 1 - ours / theirs <= SAVED:
        yield f"{1 - ours / theirs:.1%} saved against DDP ({mib(ours)} instead of {mib(theirs)}), more than 60 % wanted"


def saving_pairs(measured):
    """Returns pairs of full shard on four ranks and more, and DDP with the same model and ranks."""
    ddp = {(row["model"], row["ranks"]): row for row in measured if row["by"] == "DDP"}
    for row in measured:
        pair = ddp.get((row["model"], row["ranks"]))
        if (pair and suite.is_ours(row) and row["strategy"] == suite.FULL_SHARD and row["ranks"] >= 4 and
                suite.is_plain(row)):
            yield row, pair


def faults(all_rows):
    """Returns a line for each check that a measured row fails."""
    measured = [row for row in all_rows if suite.is_measured(row)]
    ours = {row["cell"]: row for row in measured if row["by"] == rows.OURS}
    found = []
    for name, row in ours.items():
        for check in (check_plan, check_fit, check_state, check_growth):
            found += [f"{name}: {line}" for line in check(row)]
    for row in measured:
        if row["by"] not in (rows.OURS, "DataParallel") and row["cell"] in ours:
            found += [f"{row['cell']}: {line}" for line in check_peer(ours[row["cell"]], row)]
    for own, ddp in saving_pairs(measured):
        found += [f"{own['cell']}: {line}" for line in check_saving(own, ddp)]
    return found
