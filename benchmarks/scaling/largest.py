"""Finds the largest model that trains under a memory cap, by the planner: as many layers of BERT large as fit."""
import dataclasses
import hashlib
import json
import pathlib
import subprocess
import tempfile

from scaling import cells, rows

# BERT large without the number of layers. Positions, types and words do not depend on the depth.
CONFIG = {"model_type": "bert", "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096,
          "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu",
          "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "layer_norm_eps": 1e-12,
          "initializer_range": 0.02, "pad_token_id": 0}
MOST_LAYERS = 4096  # limit of a readable folder
SEEDS = (24, 48)  # depths from which others are estimated
FULL = 0.99  # of a cap: a model that uses this share counts as the deepest, because a point would not move visibly


class NoPlan(Exception):
    """The error of a planner that failed. The text is its output."""


@dataclasses.dataclass(frozen=True)
class Planned:
    bytes: int  # needed of a rank's device
    parameters: int


class Planner:
    """Runs plans of scaling_probe and stores them in a file, which is valid until the program changes."""

    def __init__(self, program, memory):
        self.program, self.memory = pathlib.Path(program), pathlib.Path(memory)
        if not self.program.exists():
            raise NoPlan(f"{self.program} is not built")
        self.key = hashlib.sha256(self.program.read_bytes()).hexdigest()
        self.known = self.remembered()

    def remembered(self):
        try:
            kept = json.loads(self.memory.read_text(encoding="utf-8"))
            return kept["plans"] if kept["program"] == self.key else {}
        except (OSError, ValueError, TypeError, KeyError):
            return {}

    def ask(self, strategy, ranks, recompute, layers):
        name = f"{strategy} {ranks} {recompute:d} {layers}"
        if name not in self.known:
            self.known[name] = self.run(strategy, ranks, recompute, layers)
            self.memory.write_text(json.dumps({"program": self.key, "plans": self.known}), encoding="utf-8")
        return Planned(*self.known[name])

    def run(self, strategy, ranks, recompute, layers):
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "config.json"
            config.write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}), encoding="utf-8")
            cell = cells.Cell(folder, strategy, ranks, recompute=recompute)
            done = subprocess.run([self.program, *cell.words, "--planned-ranks", str(ranks), "--device", "cpu"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise NoPlan(f"{self.program.name} ended with {done.returncode}: {done.stderr.strip()}")
        seen = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
        return seen["planned"]["device peak"], seen["parameters"]


class Depths:
    """The needs of all tried depths, for one strategy and number of ranks."""

    def __init__(self, planner, strategy, ranks, recompute=False):
        self.plan = lambda layers: planner.ask(strategy, ranks, recompute, layers)
        self.tried = {layers: self.plan(layers) for layers in SEEDS}

    def largest(self, cap):
        """Returns the Planned of the deepest model that fits into `cap` bytes, or of one that uses FULL of them; None
        if no depth fits. Bytes are nearly linear in depth, so the next depth is interpolated; each plan narrows the
        range."""
        while True:
            fits = max((layers for layers, planned in self.tried.items() if planned.bytes <= cap), default=0)
            too_deep = min((layers for layers, planned in self.tried.items() if planned.bytes > cap),
                           default=MOST_LAYERS + 1)
            if too_deep - fits == 1 or (fits > 0 and self.tried[fits].bytes >= FULL * cap):
                return self.tried.get(fits)
            guess = min(max(self.guess(cap), fits + 1), too_deep - 1)
            self.tried[guess] = self.plan(guess)

    def guess(self, cap):
        one, two = sorted(self.tried, key=lambda layers: abs(self.tried[layers].bytes - cap))[:2]
        layer = (self.tried[two].bytes - self.tried[one].bytes) / (two - one)
        return one + int((cap - self.tried[one].bytes) // max(layer, 1))
