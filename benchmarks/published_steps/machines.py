"""Rates files of examples/planning/rates: what is assumed about each machine, and from which steps the rest comes."""
import dataclasses
import json
import pathlib

RATES = pathlib.Path(__file__).resolve().parents[2] / "examples/planning/rates"
SIDES = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
# Latencies of NCCL's rings (src/graph/tuning.cc, protocol Simple) in ns: of a collective, of a step over NVLink or
# PCIe, and of a step over a network.
BASE, NVLINK_STEP, PCIE_STEP, NET_STEP = 8400, 3400, 5700, 14000
MPT_SOURCE = ("MPT models of llm-foundry scripts/train/benchmarking @8c8dd48f (FSDP1, {software}); products, attention "
              "and contention are fitted, memory and links are assumed, latencies are NCCL's")


@dataclasses.dataclass(frozen=True)
class Machine:
    """The assumed part of a rates file. Bandwidths in GB/s; `net` 0: unknown. `published`: rates that come from
    published steps, or from NCCL's source."""
    machine: str
    source: str
    copy: float
    peak: dict
    host: float
    net: float = 0
    host_step: float = NVLINK_STEP
    published: tuple = ("products", "attention", "latency", "contention")

    @property
    def origins(self):
        names = ["products", "attention", "copy", "host", *["net"] * bool(self.net), "latency", "contention"]
        return {name: "published" if name in self.published else "assumed" for name in names}


FITTED = {
    "h100": Machine("H100 SXM 80 GB, hosts of 8", MPT_SOURCE.format(software="torch 2.1, amp_bf16"), 3350,
                    {"bfloat16": 9.894e14}, 360, 350),
    "a100-80": Machine("A100 80 GB, hosts of 8", MPT_SOURCE.format(software="torch 2.1, amp_bf16"), 2039,
                       {"bfloat16": 3.12e14}, 240, 180),
    "a100-40": Machine("A100 40 GB, hosts of 8", MPT_SOURCE.format(software="torch 1.13, pure bf16"), 1555,
                       {"bfloat16": 3.12e14}, 240, 180),
}
GPUS = {"h100": "h100_80gb", "a100-80": "a100_80gb", "a100-40": "a100_40gb"}  # fields gpu of their steps

BY_FACTOR = ("products", "attention", "copy", "latency")
BY_HOST = ("products", "attention", "host", "latency")
FACTOR = "all rates of compute are those of h100, times a factor; the rest is assumed"
THIN = {  # copy 0: h100's, times the factor
    "h100-500w": Machine("H100 96 GB HBM2e at 500 W, hosts of 8",
                         "torchtitan benchmarks/llama3_h100_202412 @b5bcd76c (Llama 3.1 8B, FSDP2 without compile); "
                         + FACTOR, 0, {"bfloat16": 9.894e14}, 360, 350, published=BY_FACTOR),
    "h200": Machine("H200, hosts of 4",
                    "KempnerForge benchmarks/mfu_scaling 2026-04 (Llama 3 8B, FSDP2 with compile); " + FACTOR, 0,
                    {"bfloat16": 9.894e14}, 360, 350, published=BY_FACTOR),
    "gb200": Machine("GB200 NVL72 with fp8 products, one host of 72",
                     "Megatron-Bridge docs/performance-summary-archive.md @067f987d (Llama 3 70B, Megatron-FSDP "
                     "26.04.01, fp8 products, planned as bfloat16); " + FACTOR, 0, {"bfloat16": 2.5e15}, 670,
                     published=BY_FACTOR),
    "v100": Machine("V100 SXM 32 GB, one host of 8",
                    "NVIDIA DeepLearningExamples BERT large on SQuAD (DDP of apex, fp32); products and attention are "
                    "those of a100-40, times a factor; the bandwidth of the host comes from the steps; the rest is "
                    "assumed", 900, {"float32": 1.57e13}, 130, published=BY_HOST),
    "k80": Machine("K80 over PCIe, one host",
                   "Determined AI, BERT base on SQuAD in fp32 (an article with minutes, without batch and windows, "
                   "which are assumed); one rate of all products and attention; the bandwidth of the host comes from "
                   "the steps; the rest is assumed", 240, {"float32": 4.37e12}, 8, host_step=PCIE_STEP,
                   published=BY_HOST),
}


def rounded(value, digits=3):
    return float(f"{value:.{digits}g}")


def product_curve(limit, half):
    """Returns rates by smallest side: `limit` × side / (side + half)."""
    return [[side, rounded(limit * side / (side + half))] for side in SIDES]


def contents(machine, products, attention, contention, **rest):
    """Returns the contents of a rates file. `products` and `attention` are by type."""
    link = [{"scope": "host", "gbps": rounded(machine.host), "base_ns": BASE, "step_ns": machine.host_step}]
    if machine.net:
        link.append({"scope": "net", "gbps": rounded(machine.net), "step_ns": NET_STEP})
    return {"format": "fsdp rates 1", "machine": machine.machine, "source": machine.source,
            "device": {"copy_gbps": machine.copy, "host_ns_per_call": 0}, "products": products,
            "attention": {dtype: rounded(rate) for dtype, rate in attention.items()}, "peak": machine.peak,
            "link": link, "origins": machine.origins, "contention": rounded(contention), **rest}


def spell(value):
    """Returns JSON of a number as people write it: 3.12e14, 0.034, 240."""
    if isinstance(value, int) or abs(value) < 1e7 and value == int(value):
        return str(int(value))
    return f"{value:.4g}".replace("e+", "e") if abs(value) >= 1e7 else json.dumps(value)


def to_text(rates):
    """Returns the text of a rates file, with a line for each field."""
    def inline(value):
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(key)}: {inline(each)}" for key, each in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(inline, value)) + "]"
        return spell(value) if isinstance(value, (int, float)) else json.dumps(value, ensure_ascii=False)

    lines = []
    for key, value in rates.items():
        if key in ("link", "residuals"):
            lines.append(f"  {json.dumps(key)}: [\n" + ",\n".join(f"    {inline(each)}" for each in value) + "]")
        elif key == "products":
            types = []
            for dtype, points in value.items():
                rows = [", ".join(map(inline, points[i:i + 5])) for i in range(0, len(points), 5)]
                types.append(f"{json.dumps(dtype)}: [\n    " + ",\n    ".join(rows) + "]")
            lines.append('  "products": {' + ", ".join(types) + "}")
        else:
            lines.append(f"  {json.dumps(key)}: {inline(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def load(name):
    return json.loads((RATES / f"{name}.json").read_text(encoding="utf-8"))


def write(name, rates):
    path = RATES / f"{name}.json"
    path.write_text(to_text(rates), encoding="utf-8")
    return path
