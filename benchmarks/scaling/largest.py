"""The largest model that trains under a memory cap: layers of BERT large, as many as fit, by the planner."""
import dataclasses
import hashlib
import json
import pathlib
import subprocess
import tempfile

from scaling import cells, rows

# BERT large but for the number of its layers. Positions, types and words are as many whatever the depth.
CONFIG = {"model_type": "bert", "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096,
          "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu",
          "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "layer_norm_eps": 1e-12,
          "initializer_range": 0.02, "pad_token_id": 0}
MOST_LAYERS = 4096  # of a folder that can be read
SEEDS = (24, 48)  # depths from which others are estimated
FULL = 0.99  # of a cap: a model that takes so much of it is as good as the deepest, a point does not move


class NoPlan(Exception):
    """The planner has not answered; says what it said."""


@dataclasses.dataclass(frozen=True)
class Planned:
    bytes: int  # that a rank's device must have
    parameters: int


class Planner:
    """Asks scaling_probe, and remembers its answers in a file until the program is another."""

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
    """Of one strategy on so many ranks: how much each depth takes that was tried."""

    def __init__(self, planner, strategy, ranks, recompute=False):
        self.plan = lambda layers: planner.ask(strategy, ranks, recompute, layers)
        self.tried = {layers: self.plan(layers) for layers in SEEDS}

    def largest(self, cap):
        """What is Planned of the deepest model that fits into `cap` bytes, or of one that is FULL of it; None where no
        depth fits. Bytes grow nearly in a straight line over depth, along which the next one is guessed; each
        narrows what is left."""
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
