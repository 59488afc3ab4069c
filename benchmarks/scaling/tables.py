"""Tables of a run of the suite, in Markdown."""
from scaling import checks, peers, pictures, quantities, suite

NONE = "–"
PEER_SHORT = {"ZeroRedundancyOptimizer": "ZeRO"}


def table(head, lines):
    """The first column is a name, the others are numbers."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines))


def identity(shown):
    """Of what was run, where and when; a line for each that occurs."""
    told = []
    for who in {tuple(row["identity"].items()): row["identity"] for row in shown.rows}.values():
        changed = " with changes" if who["dirty"] else ""
        peers = f", peers' PyTorch {who['peers torch']}" if who["peers torch"] else ""
        told.append(f"Commit {who['commit'] or 'unknown'}{changed}, fsdp {who['fsdp']}, LibTorch {who['torch']}"
                    f"{peers}; {who['machine']}; seed {who['seed']}; {who['date']}.")
    return "\n".join(told)


def summary(shown):
    """What the run came to, a line each."""
    measured = shown.measured
    planned = [row for row in shown.ours if row["status"] == "planned"]
    lines = [f"{count_cells(measured)} measured, {len(planned)} planned only"
             + (", as this machine cannot hold them" if planned else "")]
    if measured:
        exact = sum(suite.is_exact(row) for row in measured)
        worst = max(measured, key=lambda row: abs(suite.of_plan(row) - 1))
        grown = max(measured, key=growth_of_bar)
        lines += [f"engine bytes equal to the plan in every phase and category: {exact} of {count_cells(measured)}",
                  "peak with LibTorch's tensors, measured beyond the plan: "
                  f"{quantities.spell_deviation(suite.of_plan(worst))} at the most ({worst['cell']})",
                  f"growth of the process: {quantities.spell(growth_of_bar(grown))} of {checks.spell_growth_bar()} "
                  f"at the most ({grown['cell']})",
                  f"whether it fits, told by the plan for {len(checks.BUDGETS)} budgets from 16 MiB to 32 GiB: "
                  f"{sum(len(list(checks.check_fit(row))) for row in measured)} of "
                  f"{len(checks.BUDGETS) * len(measured)} wrong"]
    found = checks.faults(shown.rows)
    lines += [*peer_lines(shown), *saving_lines(shown),
              f"checks failed: {len(found)}" + "".join(f"\n  - {fault}" for fault in found)]
    return "\n".join(f"- {line}" for line in lines)


def growth_of_bar(row):
    return suite.growth(row) / checks.growth_bar(row)


def peer_lines(shown):
    """Of each peer, how much more than ours its processes grew."""
    for by in suite.PEERS:
        ratios = {}
        for peer in shown.rows:
            own = shown.plain(peer["model"], peer["strategy"], peer["ranks"]) if peer["by"] == by else None
            if suite.is_measured(peer) and suite.is_measured(own):
                ratios[peer["cell"]] = suite.growth(peer) / suite.growth(own)
        if ratios:
            least, most = min(ratios, key=ratios.get), max(ratios, key=ratios.get)
            ends = [f"{quantities.spell(ratios[cell])} ({cell})" for cell in dict.fromkeys((least, most))]
            yield f"{by}'s processes grew to {' to '.join(ends)} times ours; {count_cells(ratios)}"


def count_cells(some):
    return f"{len(some)} cell{'s' * (len(some) != 1)}"


def saving_lines(shown):
    for model in shown.models:
        told = [f"{quantities.spell_percent(saved)} on {ranks} ranks" for ranks in suite.SHARDED_RANKS
                if (saved := shown.saved(model, ranks)) is not None and ranks > 1]
        if told:
            yield f"saved against DDP, {pictures.model_name(model)}: {', '.join(told)}"


def short_table(shown, most=8):
    """Full shard by ranks, for a README: the shown model and the largest measured one, at most so many rows."""
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
    head = ["MiB of one rank", "ranks", "planned", "measured", "process", "FSDP2", "DDP", "saved against DDP"]
    return table(head, lines[-most:]) if lines else ""


def short_line(shown, model, ranks):
    own = shown.plain(model, suite.FULL_SHARD, ranks)
    done = suite.is_measured(own)
    fsdp2 = shown.plain(model, suite.FULL_SHARD, ranks, "FSDP2")
    ddp = shown.plain(model, suite.REPLICATE, ranks, "DDP")
    saved = shown.saved(model, ranks)
    name = f"{pictures.model_name(model)}, {quantities.spell_count(shown.parameters[model])}"
    return [name, str(ranks), quantities.spell_mib(own["planned"]["device peak"]),
            quantities.spell_mib(suite.device_peak(own)) if done else "planned only",
            quantities.spell_mib(suite.growth(own)) if done else NONE, grown(fsdp2), grown(ddp),
            NONE if saved is None else quantities.spell_percent(saved)]


def grown(peer):
    """MiB of a peer's process; said where there was no room for it, where it has no such strategy, and where it came
    to nothing."""
    if peer is None:
        return NONE
    if suite.is_measured(peer):
        return quantities.spell_mib(suite.growth(peer))
    if suite.is_too_large(peer):
        return "does not fit"
    return "has none" if peer["why"] == peers.NOTHING_TO_SHARD else "failed"


def model_tables(shown):
    """All cells of each model, with their peers."""
    parts = []
    for model in shown.models:
        own = [row for row in shown.ours if row["model"] == model]
        if own:
            parts.append(f"### {pictures.model_name(model)}, {quantities.spell_count(shown.parameters[model])} "
                         f"parameters, {units_of(own)} units\n\n{model_table(shown, own)}")
    return "\n\n".join(parts)


def units_of(own):
    return next((row["units"] for row in own if row["units"]), NONE)


def model_table(shown, own):
    head = ["MiB of a rank", "planned", "measured", "of the plan", "state, B/Ψ", "process", "step, ms",
            "exposed, ms", "sent", "peers' processes"]
    return table(head, [cell_line(shown, row) for row in sorted(own, key=suite.in_order)])


def cell_line(shown, row):
    name = row["cell"].partition(" ")[2]
    planned = row["planned"]
    if not suite.is_measured(row):
        return [name, quantities.spell_mib(planned["device peak"]) if planned else NONE, "planned only",
                *[NONE] * 5, quantities.spell_mib(planned["sent"]) if planned else NONE, peers_text(shown, row)]
    measured = row["measured"]
    return [name, quantities.spell_mib(planned["device peak"]), quantities.spell_mib(measured["device peak"]),
            quantities.spell_deviation(suite.of_plan(row)),
            quantities.spell(suite.state_bytes(row) / row["parameters"]), quantities.spell_mib(suite.growth(row)),
            quantities.spell_ms(suite.step_ms(row)), quantities.spell_ms(measured["exposed ms"]),
            quantities.spell_mib(measured["sent"]), peers_text(shown, row)]


def peers_text(shown, own):
    told = [f"{PEER_SHORT.get(row['by'], row['by'])} {grown(row)}" for row in shown.peers_of(own)]
    return "; ".join(told) or NONE


def phase_table(shown):
    """Where a rank's bytes are in each phase: replicate and full shard of the shown model."""
    parts = []
    for strategy in (suite.REPLICATE, suite.FULL_SHARD):
        rows = [shown.measured_plain(shown.shown_model(), strategy, ranks) for ranks in (4, 2, 8, 1)]
        row = next(filter(None, rows), None)
        if row is None:
            continue
        phases = row["measured"]["phases"]
        names = [name for name in next(iter(phases.values())) if any(sizes[name] for sizes in phases.values())]
        lines = [[name, *(quantities.spell_mib(sizes[name]) if sizes[name] else NONE for sizes in phases.values())]
                 for name in names]
        lines.append(["together", *(quantities.spell_mib(sum(sizes.values())) for sizes in phases.values())])
        parts.append(table([f"{row['cell']}, measured, MiB", *phases], lines))
    return "\n\n".join(parts)


def tracker_table(shown):
    """Engine buffers of full shard at their highest, beside what FSDP2's own tracker counts of its buffers."""
    lines = []
    for peer in shown.rows:
        own = shown.plain(peer["model"], peer["strategy"], peer["ranks"]) if peer["by"] == "FSDP2" else None
        if not suite.is_measured(own) or not suite.is_measured(peer) or "buffers peak" not in peer["measured"]:
            continue
        ours, state = suite.engine_bytes(own["measured"]["phases"]["backward peak"]), own["formula"]["step"]
        theirs = peer["measured"]["buffers peak"]
        lines.append([own["cell"], quantities.spell_mib(ours), quantities.spell(ours / state),
                      quantities.spell_mib(theirs), quantities.spell(theirs / state)])
    head = ["buffers at their highest, MiB", "ours", "of 16Ψ/N", "FSDP2's", "of 16Ψ/N"]
    return table(head, lines) if lines else "FSDP2's tracker was not asked."


def first_sentence(text):
    return text.split(". ")[0].strip()


def left_out(shown):
    """Cells that were planned only, and peers that could not, with why."""
    lines = [[row["cell"], "planned only" if suite.is_ours(row) else row["by"], first_sentence(row["why"] or NONE)]
             for row in shown.rows if not suite.is_measured(row)]
    if not lines:
        return "None: every cell was measured, and every peer."
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (["cell", "", "why"], ["---"] * 3, *lines))
