"""Predictions for machines whose network is unknown, for large models and for K80s."""
import dataclasses
import time

from published_steps import fits, machines, steps
from published_steps.tables import Errors, predict

MODELS = ("llama-7b", "llama-13b", "llama-70b")
RANKS = tuple(8 << power for power in range(10))  # 8 to 4,096
BATCH, LENGTH = 2, 4096
# Bytes of BERT base's parameters in fp32, for the formula of DataParallel.
BERT_BASE_BYTES = 4 * 109_483_778
# Networks of fms-fsdp's machines by its README (400 and 800 Gb/s a host), of which collectives get about 0.9.
FMS_NETS = {"a100_80gb_400g": ("a100-80", 45), "h100_80gb_800g": ("h100", 90)}


def with_net(rates, gbps):
    """Returns rates with another bandwidth between hosts."""
    host, net = rates["link"]
    return {**rates, "link": [host, {**net, "gbps": machines.rounded(gbps)}]}


def fit_net(planner, machine, base, compute_bound, network_bound):
    """Returns rates of a machine, and the bandwidth of its network. The factor of compute comes from one step, the
    network from another."""
    net = machine.net
    for _ in range(3):
        rates = fits.fit_scale(planner, dataclasses.replace(machine, net=net), base, [compute_bound])
        before, net = net, fits.solve(lambda gbps, rates=rates: fits.mean_error(
            planner, [network_bound], with_net(rates, gbps)), 2, 1000)
        if abs(net / before - 1) < 0.02:
            break
    return with_net(rates, net), net


def predict_yafsdp(planner, all_steps):
    """Returns the predictions of both columns of YaFSDP's table: with the rates of a100-80, and with a factor of
    compute and a bandwidth of the network that come from two steps of the column."""
    machine, base = machines.FITTED["a100-80"], machines.load("a100-80")
    results, known = [], {}
    for engine in ("FSDP1", "YaFSDP"):
        chosen = steps.of(all_steps, "yafsdp", engine=engine)
        results += predict(planner, f"{engine}, nothing known", chosen, base)
        # Of Llama 7B: the longest sequence computes most for each byte, the shortest least.
        small = sorted((step for step in chosen if step.model == "llama2-7b"), key=lambda step: step.length)
        rates, net = fit_net(planner, machine, base, small[-1], small[0])
        known[engine] = (net, [small[-1].name, small[0].name])
        rest = [step for step in chosen if step not in (small[0], small[-1])]
        results += predict(planner, f"{engine}, two steps known", rest, rates)
    return results, known


def predict_maxtext(planner, all_steps):
    """Returns the predictions of maxtext's steps: compute comes from the step on one host, the network from the step on
    two."""
    one, two, *rest = steps.of(all_steps, "maxtext")
    machine, base = machines.FITTED["h100"], machines.load("h100")
    rates = fits.fit_scale(planner, machine, base, [one])
    results = predict(planner, "maxtext, network of h100", [two, *rest], rates)
    rates, net = fit_net(planner, machine, base, one, two)
    return results + predict(planner, "maxtext, network from 16 GPUs", rest, rates), net


def print_networks(yafsdp, known, maxtext, net):
    print("\nMachines whose network is not published:")
    for table in dict.fromkeys(found.table for found in yafsdp):
        print(f"  {table:30} {Errors.of([found.error for found in yafsdp if found.table == table])}")
    for engine, (gbps, names) in known.items():
        print(f"    {engine}: compute from {names[0]}; network from {names[1]}: {gbps:.0f} GB/s")
    for table in dict.fromkeys(found.table for found in maxtext):
        print(f"  {table:30} {Errors.of([found.error for found in maxtext if found.table == table])}")
    print(f"    maxtext: compute from 8 GPUs, network from 16: {net:.0f} GB/s for a host; then " + ", ".join(
        f"{found.step.gpus} GPUs {100 * found.error:+.1f} %" for found in maxtext if found.table.endswith("16 GPUs")))


def predict_sizes(planner):
    """Returns {model: (seconds of planning, {ranks: row of the plan})} on H100."""
    found = {}
    for model in MODELS:
        words = ["--model", model, "--ranks", ",".join(map(str, RANKS)), "--hosts",
                 ",".join(str(max(1, ranks // 8)) for ranks in RANKS), "--batch", str(BATCH), "--seq-len", str(LENGTH),
                 "--device", "cuda", "--param-dtype", "bfloat16", "--recompute", "3", "--json"]
        begin = time.monotonic()
        rows = planner.run(words, machines.load("h100"))
        found[model] = (time.monotonic() - begin, {row["ranks"]: row for row in rows})
    return found


def predict_fms(planner, all_steps):
    results = []
    for gpu, (name, gbps) in FMS_NETS.items():
        results += predict(planner, "fms-fsdp", steps.of(all_steps, "fms-fsdp", gpu=gpu),
                           with_net(machines.load(name), gbps))
    return results


def print_sizes(sizes, fms, all_steps):
    print(f"\nLlama on H100 (rates h100), {BATCH} × {LENGTH} tokens, a third of the layers recomputed; tokens/s a GPU:")
    print("  " + "ranks".ljust(10) + "".join(f"{ranks:7d}" for ranks in RANKS) + "  planned in")
    for model, (seconds, rows) in sizes.items():
        rates = "".join(f"{rows[ranks]['tokens_per_second']:7.0f}" for ranks in RANKS)
        print(f"  {model:10}{rates}  {seconds:.1f} s")
    print("Published runs beside it (no bar; other software, and networks by their sources):")
    for found in fms:
        step = found.step
        print(f"  fms-fsdp, {step.engine}, {step.name}: {step.value:.0f} tokens/s, planned "
              f"{step.tokens / found.predicted:.0f} ({100 * found.error:+.0f} % time)")
    [fair] = steps.of(all_steps, "fair")
    rows = sizes["llama-7b"][1]
    planned = rows[2048]["tokens_per_second"] / rows[128]["tokens_per_second"]
    print(f"  FAIR (arXiv 2411.13055), 7B: from 128 to {fair.gpus} H100 it keeps {fair.value:.2f}, planned "
          f"{planned:.2f} (its batch is not known)")


def predict_k80(planner, all_steps):
    """Returns the predictions for 4, 8 and 16 K80s, whose rates come from 1 and 2."""
    chosen = steps.of(all_steps, "determined")
    rates = machines.load("k80")
    return (predict(planner, "k80", chosen[:2], rates, fitted=True) + predict(planner, "k80", chosen[2:], rates), rates)


def data_parallel_seconds(step, compute, rates):
    """Returns the time of a step of torch.nn.DataParallel by formula: GPU 0 sends the parameters to N - 1 replicas
    and receives as many gradients over its link, and nothing of it is hidden."""
    sent = 2 * (step.gpus - 1) * BERT_BASE_BYTES
    return compute + sent / (1e9 * rates["link"][0]["gbps"])


def print_k80(results, rates):
    print("\nBERT base on SQuAD, K80 (Determined AI), minutes; DataParallel by formula:")
    compute = results[0].predicted
    for found in results:
        step = found.step
        minutes = step.value * found.predicted / step.seconds
        slower = data_parallel_seconds(step, compute, rates) / found.predicted
        note = "fitted" if found.fitted else f"{100 * found.error:+.1f} %"
        print(f"  {step.gpus:2d} GPUs: measured {step.value:.0f}, planned {minutes:.0f} ({note}); "
              f"DataParallel takes {slower:.1f} × the time")
