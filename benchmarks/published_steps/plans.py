"""Predicts published steps with fsdp-plan."""
import concurrent.futures
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import subprocess
import tempfile
import threading

from published_steps import machines, steps

LLAMAS = {"llama2-7b": "llama-7b", "llama2-13b": "llama-13b", "llama2-70b": "llama-70b", "llama3-8b": "llama-3-8b",
          "llama3.1-8b": "llama-3-8b", "llama3-70b": "llama-3-70b"}
PRESET_LENGTH = 4096  # longest sequence of Llama 2's presets


def llama2(layers, width, heads, key_value_heads, inner):
    return {"model_type": "llama", "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads,
            "num_key_value_heads": key_value_heads, "intermediate_size": inner, "vocab_size": 32000,
            "max_position_embeddings": 8192}


# Models without a preset, or with longer sequences.
FOLDERS = {"llama2-34b": llama2(48, 8192, 64, 8, 22016), "llama2-7b": llama2(32, 4096, 32, 32, 11008)}
# Types of compute and of reductions. fsdp-plan has no fp8: such a step is planned in bfloat16, with rates that come
# from a step of this type.
DTYPES = {"amp_bf16/default": ("bfloat16", "float32"), "bf16/pure": ("bfloat16", "bfloat16"),
          "bf16/fp32reduce": ("bfloat16", "float32"), "bf16": ("bfloat16", "bfloat16"), "fp8": ("bfloat16", "float32"),
          "fp16": ("float16", "float32"), "fp32": ("float32", "float32")}
STRATEGIES = {"FULL_SHARD": ["full-shard"], "SHARD_GRAD_OP": ["full-shard", "--reshard-after-forward", "false"],
              "REPLICATE": ["replicate"], "HYBRID_SHARD": ["hybrid-shard", "--shard", "8"]}


class PlanFailed(Exception):
    """The error of a step that fsdp-plan refuses."""


@dataclasses.dataclass
class Prediction:
    """Predicted seconds of a step, and their parts. `overlapped` is the time in which collectives run beside
    compute."""
    total: float
    products: float
    attention: float
    overlapped: float
    exposed: float


def product_rate(rates, dtype, side):
    """Returns the rate of products with this smallest side: linear in the logarithms, as in the planner."""
    points = rates["products"][dtype]
    if side <= points[0][0]:
        return points[0][1]
    for (low, slow), (high, fast) in zip(points, points[1:]):
        if side <= high:
            return slow * (fast / slow) ** (math.log(side / low) / math.log(high / low))
    return points[-1][1]


def recompute_parts(share):
    """Returns [(value of --recompute, weight)]: every N-th layer recomputes a share of 1/N. Other shares are between
    two of them."""
    if share == 0:
        return [(0, 1.0)]
    more = math.floor(1 / share + 1e-9)  # the N of a larger share
    weight = (share - 1 / (more + 1)) / (1 / more - 1 / (more + 1))
    return [(n, part) for n, part in ((more, weight), (more + 1, 1 - weight)) if part > 1e-9]


class Plans:
    """Runs fsdp-plan, several at a time, and remembers their results. Close it to remove its files."""

    def __init__(self, programs):
        self.program = pathlib.Path(programs) / "fsdp-plan"
        self.scratch = tempfile.TemporaryDirectory(prefix="published-steps-")
        self.folder = pathlib.Path(self.scratch.name)
        self.results = {}
        self.written = threading.Lock()
        self.threads = os.cpu_count() or 1

    def close(self):
        self.scratch.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def model(self, step):
        """Returns the preset of a step's model, or a folder with its configuration."""
        is_long = step.model in FOLDERS and step.length > PRESET_LENGTH
        if step.model in LLAMAS and not is_long:
            return LLAMAS[step.model]
        if step.model in steps.MPT:
            width, layers, heads = steps.MPT[step.model]
            config = {"model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": heads,
                      "n_positions": step.length, "vocab_size": steps.MPT_VOCABULARY}
        elif step.model in FOLDERS:
            config = FOLDERS[step.model]
        else:
            return step.model
        folder = self.folder / f"{step.model}-{step.length}"
        self.write(folder / "config.json", json.dumps(config))
        return str(folder)

    def write(self, file, text):
        """Writes a file once. Other threads' programs may read it then."""
        with self.written:
            if not file.exists():
                file.parent.mkdir(exist_ok=True)
                file.write_text(text, encoding="utf-8")

    def words(self, step, recompute):
        compute, reduce = DTYPES[step.precision]
        return ["--model", self.model(step), "--ranks", str(step.gpus), "--hosts", str(step.hosts), "--batch",
                str(step.sequences), "--seq-len", str(step.length), "--device", "cuda", "--param-dtype", compute,
                "--reduce-dtype", reduce, "--recompute", str(recompute),
                "--strategy", *STRATEGIES[step.strategy], "--json"]

    def run(self, words, rates):
        """Returns the rows of a plan. `rates`: the contents of a rates file."""
        text = machines.to_text({key: value for key, value in rates.items() if key != "residuals"})
        key = (*words, text)
        if key not in self.results:
            file = self.folder / f"rates-{hashlib.sha256(text.encode()).hexdigest()}.json"
            self.write(file, text)
            done = subprocess.run([self.program, *words, "--time", file], capture_output=True, text=True, check=False)
            if not done.stdout:
                raise PlanFailed(f"fsdp-plan {' '.join(words)}: {done.stderr.strip()}")
            self.results[key] = [json.loads(line) for line in done.stdout.splitlines()]
        return self.results[key]

    def predict(self, step, rates):
        """Returns the Prediction of a step. Accumulation repeats everything except the optimizer: FSDP1 in Composer
        reduces gradients after each micro-batch."""
        total = Prediction(0, 0, 0, 0, 0)
        for recompute, weight in recompute_parts(step.recomputed_share):
            [row] = self.run(self.words(step, recompute), rates)
            parts = weight * 1e-9 * step.accumulation
            optimizer = weight * 1e-9 * row["optimizer_ns"]
            total.total += parts * row["step_ns"] - (step.accumulation - 1) * optimizer
            total.products += parts * row["products_ns"]
            total.attention += parts * row["attention_ns"]
            total.exposed += parts * row["exposed_ns"]
            total.overlapped += parts * (row["gather_ns"] + row["reduce_ns"] - row["exposed_ns"])
        if step.stops_early:
            saved = step.accumulation * not_recomputed(step, rates)
            total.total -= saved
            total.products -= saved
        return total

    def predict_all(self, chosen, rates):
        with concurrent.futures.ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(lambda step: self.predict(step, rates), chosen))

    def errors(self, chosen, rates):
        """Returns predicted / measured - 1 of each step."""
        return [found.total / step.seconds - 1 for step, found in zip(chosen, self.predict_all(chosen, rates))]


def not_recomputed(step, rates):
    """Returns the seconds of the last product of each block in a forward of a micro-batch."""
    layers, width, inner = step.last_product
    tokens = step.sequences * step.length
    return layers * 2 * tokens * width * inner / product_rate(rates, DTYPES[step.precision][0], min(width, tokens))
