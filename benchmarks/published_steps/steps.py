"""Reads the published steps: steps.csv has a row for each, sources.csv their origin and licence."""
import csv
import dataclasses
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent

# Width, layers and heads of llm-foundry's MPT models.
MPT = {"mpt-125m": (768, 12, 12), "mpt-350m": (1024, 24, 16), "mpt-760m": (1536, 24, 12), "mpt-1b": (2048, 24, 16),
       "mpt-3b": (2560, 32, 20), "mpt-7b": (4096, 32, 32), "mpt-13b": (5120, 40, 40), "mpt-30b": (7168, 48, 56),
       "mpt-70b": (8192, 80, 64)}
MPT_VOCABULARY = 50368
# Since PyTorch 2.1 a checkpoint without reentrant autograd ends the second forward as soon as nothing more is needed:
# before the last product of a block. llm-foundry's steps of pure bf16 stand in its table since May 2023, when its
# image had PyTorch 1.13; the others are of PyTorch 2.1.
STOP_EARLY = ("FSDP1 torch 2.1", "FSDP2 compile")
LLAMA3_8B_LAST_PRODUCT = (32, 4096, 14336)
# Selective activation checkpointing of torchtitan and fms-fsdp has no equivalent in fsdp-plan. This share of the
# layers, recomputed, takes about the same time.
SELECTIVE_SHARE = 1 / 3
# The article on K80 does not state the batch and the number of windows. They change only the rates of k80.json.
SQUAD_BATCH, SQUAD_WINDOWS, SQUAD_EPOCHS = 4, 88524, 2
LLAMA2_7B_PARAMETERS = 6738415616


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step that was published, with the fields of the CSV. A batch of a GPU has `sequences` ×
    `accumulation` sequences of `length` tokens."""
    source: str
    engine: str
    model: str
    gpu: str
    gpus: int
    gpus_of_host: int
    sequences: int
    accumulation: int
    length: int
    precision: str
    strategy: str
    recompute: str
    value: float
    unit: str

    @property
    def hosts(self):
        return max(1, self.gpus // self.gpus_of_host)

    @property
    def tokens(self):
        """Returns the tokens of a GPU and a step."""
        return self.sequences * self.accumulation * self.length

    @property
    def seconds(self):
        """Returns the measured time of a step."""
        if self.unit == "tokens/s/GPU":
            return self.tokens / self.value
        if self.unit == "TFLOP/s/GPU":
            return 6 * LLAMA2_7B_PARAMETERS * self.tokens / (self.value * 1e12)
        if self.unit == "minutes":
            return 60 * self.value * self.gpus * self.sequences / (SQUAD_WINDOWS * SQUAD_EPOCHS)
        raise ValueError(f"{self.name}: {self.unit} is no time of a step")

    @property
    def name(self):
        return f"{self.model} {self.sequences}×{self.length} on {self.gpus} {self.gpu}"

    @property
    def stops_early(self):
        """Returns True if the second forward of a block left out its last product."""
        return self.recompute == "1" and self.engine in STOP_EARLY

    @property
    def last_product(self):
        """Returns the layers, and the two sizes of the last product of each."""
        if self.model not in MPT:
            return LLAMA3_8B_LAST_PRODUCT
        width, layers, _ = MPT[self.model]
        return layers, width, 4 * width

    @property
    def recomputed_share(self):
        if self.recompute == "sac":
            return SELECTIVE_SHARE
        return float(self.recompute) if self.recompute not in ("", "minimal") else 0.0


def load():
    """Returns all steps. A step without a batch (K80) has an assumed one; rows of ratios have none."""
    with open(FOLDER / "steps.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for name in ("gpus", "gpus_of_host", "accumulation"):
            row[name] = int(row[name])
        row["sequences"] = int(row["sequences"] or SQUAD_BATCH)
        row["length"] = int(row["length"] or 0)
        row["value"] = float(row["value"])
    return [Step(**row) for row in rows]


def sources():
    """Returns {source: row of sources.csv}."""
    with open(FOLDER / "sources.csv", newline="", encoding="utf-8") as file:
        return {row["source"]: row for row in csv.DictReader(file)}


def of(all_steps, source, **fields):
    """Returns the steps of a source whose fields have these values. A callable value is a condition."""
    def fits(step):
        return step.source == source and all(
            value(getattr(step, name)) if callable(value) else getattr(step, name) == value
            for name, value in fields.items())
    return [step for step in all_steps if fits(step)]
