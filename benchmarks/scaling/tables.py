"""Makes Markdown tables of a run of the suite, for pages. Longer tables are CSV files: csv_tables.py."""
from scaling import checks, peers, pictures, quantities, suite

NONE = "–"


def table(head, lines):
    """Returns a table whose first column is a name and whose others are numbers."""
    rule = "|---|" + "---:|" * (len(head) - 1)
    shown = ["| " + " | ".join(cells) + " |" for cells in (head, *lines)]
    return "\n".join([shown[0], rule, *shown[1:]])


def identity(shown):
    """Returns a line for each combination of commit, versions, machine, seed and day of the rows."""
    told = []
    for who in {tuple(row["identity"].items()): row["identity"] for row in shown.rows}.values():
        changed = " with changes" if who["dirty"] else ""
        peers = f", peers' PyTorch {who['peers torch']}" if who["peers torch"] else ""
        told.append(f"Measured on {who['date']} at commit {who['commit'] or 'unknown'}{changed}, "
                    f"with fsdp {who['fsdp']}, LibTorch {who['torch']}{peers} and seed {who['seed']}, "
                    f"on {who['machine']} (CPU cores, memory).")
    return "\n".join(told)


def summary(shown):
    """Returns the results of the run, one on each line."""
    measured = shown.measured
    planned = [row for row in shown.ours if row["status"] == "planned"]
    lines = [f"{count_cells(measured)} measured; {len(planned)} planned only"
             + (", because they need more memory than this machine has" if planned else "")]
    if measured:
        exact = sum(suite.is_exact(row) for row in measured)
        worst = max(measured, key=lambda row: abs(suite.of_plan(row) - 1))
        grown = max(measured, key=growth_of_bar)
        wrong = sum(len(list(checks.check_fit(row))) for row in measured)
        lines += [f"engine bytes equal the plan in every phase and category: in {exact} of {count_cells(measured)}",
                  "largest difference between a measured peak and its plan: "
                  f"{quantities.spell_deviation(suite.of_plan(worst))} (cell {worst['cell']})",
                  f"largest growth of a process: {quantities.spell(growth_of_bar(grown))} times the allowed growth "
                  f"(cell {grown['cell']})",
                  f"wrong predictions of whether a cell fits a memory limit ({len(checks.BUDGETS)} limits, "
                  "16 MiB to 32 GiB): "
                  f"{wrong} of {len(checks.BUDGETS) * len(measured)}"]
    found = checks.faults(shown.rows)
    lines += [*peer_lines(shown), *saving_lines(shown),
              f"checks failed: {len(found)}" + "".join(f"\n  - {fault}" for fault in found)]
    return "\n".join(f"- {line}" for line in lines)


def growth_of_bar(row):
    return suite.growth(row) / checks.growth_bar(row)


def peer_lines(shown):
    """Returns the growth of the peers' processes relative to ours: one line, or none."""
    told = []
    for by in suite.PEERS:
        ratios = []
        for peer in shown.rows:
            own = shown.plain(peer["model"], peer["strategy"], peer["ranks"]) if peer["by"] == by else None
            if suite.is_measured(peer) and suite.is_measured(own):
                ratios.append(suite.growth(peer) / suite.growth(own))
        if ratios:
            told.append(f"{by} {spell_range(ratios, quantities.spell)} ({len(ratios)})")
    if told:
        yield ("growth of a peer's process, divided by the growth of fsdp's, smallest–largest ratio "
               f"(number of cells): {', '.join(told)}")


def spell_range(values, spelled):
    """Returns the smallest and the largest value, or one of them if both are spelled alike."""
    return "–".join(dict.fromkeys((spelled(min(values)), spelled(max(values)))))


def count_cells(some):
    return f"{len(some)} cell{'s' * (len(some) != 1)}"


def saving_lines(shown):
    """Returns the share of DDP's growth that full shard saves, over all models: one line, or none."""
    saved = {ranks: [each for model in shown.models if (each := shown.saved(model, ranks)) is not None]
             for ranks in suite.SHARDED_RANKS if ranks > 1}
    told = [f"{spell_range(values, quantities.spell_percent)} on {ranks}" for ranks, values in saved.items()
            if values]
    if told:
        yield f"growth that full shard saves compared with DDP: {', '.join(told)} ranks"


def short_table(shown, most=8):
    """Returns full shard by ranks, for the shown model and the largest measured one, with at most `most` rows."""
    def has(model):
        return any(shown.measured_plain(model, suite.FULL_SHARD, ranks) for ranks in suite.SHARDED_RANKS)

    chosen = [model for model in shown.models if has(model)]
    chosen = sorted({shown.shown_model(), *[model for model in chosen if model.startswith("bert")][-1:]} - {None},
                    key=shown.parameters.get)
    lines = []
    for model in chosen:
        for ranks in suite.SHARDED_RANKS:
            if shown.plain(model, suite.FULL_SHARD, ranks):
                lines.append(short_line(shown, model, ranks))
    head = ["model, parameters", "ranks", "fsdp: planned peak, MiB", "fsdp: measured peak, MiB", "fsdp: process growth, MiB",
            "FSDP2: process growth, MiB", "DDP: process growth, MiB", "process growth saved compared with DDP"]
    return table(head, lines[-most:]) if lines else ""


def short_line(shown, model, ranks):
    own = shown.plain(model, suite.FULL_SHARD, ranks)
    done = suite.is_measured(own)
    fsdp2 = shown.plain(model, suite.FULL_SHARD, ranks, "FSDP2")
    ddp = shown.plain(model, suite.REPLICATE, ranks, "DDP")
    saved = shown.saved(model, ranks)
    name = f"{pictures.model_name(model)}, {quantities.spell_count(shown.parameters[model])}"
    return [name, str(ranks), quantities.spell_mib(own["planned"]["device peak"]),
            quantities.spell_mib(suite.device_peak(own)) if done else "not measured",
            quantities.spell_mib(suite.growth(own)) if done else NONE, grown(fsdp2), grown(ddp),
            NONE if saved is None else quantities.spell_percent(saved)]


def grown(peer):
    """Returns the MiB of a peer's process, or a text if it did not fit, has no such strategy, or failed."""
    if peer is None:
        return NONE
    if suite.is_measured(peer):
        return quantities.spell_mib(suite.growth(peer))
    if suite.is_too_large(peer):
        return "does not fit"
    return "has none" if peer["why"] == peers.NOTHING_TO_SHARD else "failed"
