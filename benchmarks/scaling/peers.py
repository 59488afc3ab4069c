"""Maps our strategies to PyTorch's counterparts, and runs these."""
import measure

from . import cells, runs

OF_STRATEGY = {"full-shard": ["FSDP2", "FSDP1"], "replicate": ["DDP"], "zero1": ["ZeroRedundancyOptimizer"]}
SCRIPT = measure.ROOT / "benchmarks/peers/scaling.py"

# Layers, hidden size and heads, as in examples/models.
SHAPES = {"bert-tiny": (2, 128, 2), "bert-mini": (4, 256, 4), "bert-small": (4, 512, 8),
          "bert-medium": (8, 512, 8), "bert-base": (12, 768, 12), "bert-large": (24, 1024, 16),
          "bert-0.8b": (24, 1600, 25), "bert-1.3b": (24, 2048, 32), "gpt2": (12, 768, 12),
          "gpt2-medium": (24, 1024, 16)}
# Upper bound of a peer process's memory beside its strategy's state: interpreter and own libraries, and for sharded
# strategies several copies of some whole units.
PROCESS_BYTES = 250 * 2**20
NOTHING_TO_SHARD = "on one rank FSDP1 shards nothing (NO_SHARD)"


def peers_of(cell, on_gpu=False):
    if not cell.is_plain or cell.model not in SHAPES:
        return []
    if on_gpu:
        return ["DataParallel"] if cell.strategy == "replicate" else []
    return OF_STRATEGY.get(cell.strategy, [])


def words_of(mode, cell, last):
    family = "gpt2" if cell.model.startswith("gpt2") else "bert"
    return [measure.PEERS_PYTHON, SCRIPT, mode, *SHAPES[cell.model], family, cells.BATCH, cells.TOKENS, last]


def cannot_do(peer, cell):
    """Returns why the peer has no such strategy; None if it has."""
    if peer == "FSDP1" and cell.ranks == 1:
        return NOTHING_TO_SHARD
    return None


def cannot_hold(row):
    """Returns why the peer of our row cannot fit this machine; None if it may."""
    needed = row["ranks"] * (row["formula"]["step"] + PROCESS_BYTES)
    free = runs.free_bytes()
    if needed <= free:
        return None
    return (f"{runs.CANNOT_HOLD}the state of {row['ranks']} ranks alone takes {needed / 2**30:.1f} GiB, "
            f"{free / 2**30:.1f} GiB are free")


def run(peer, cell, steps):
    """Returns the output of rank 0 and the growth of the processes. Raises runs.RunFailed."""
    ranks = 1 if peer == "DataParallel" else cell.ranks
    port = measure.free_port()
    environments = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_PORT": port,
                     "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"} for rank in range(ranks)]
    seen, watch = runs.measure([words_of(peer, cell, steps)] * ranks, lambda pids: pids, environments)
    before = seen["resident before"]
    measured = {"growth built": seen["resident built"] - before,
                "growth peak": seen["resident peak"] - before,
                "resident sum": watch.together, "step ms": seen["step ms"], "losses": seen["losses"]}
    if peer == "FSDP2":
        counted, _ = runs.measure([words_of("count", cell, ranks)], lambda pids: [])
        measured.update(counted)
    return measured
