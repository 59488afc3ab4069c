"""Reads the cells of the suite, which are its runs, from the files that list them (cells.txt explains the format)."""
import dataclasses
import itertools
import pathlib
import re

TABLE = pathlib.Path(__file__).resolve().parents[2] / "src/plan/placement.cpp"
# The strategies of the placement table.
STRATEGIES = re.findall(r'^ +{Strategy::k\w+, "([\w-]+)"', TABLE.read_text(encoding="utf-8"), re.MULTILINE)
BATCH, TOKENS = 1, 128  # a rank's sequences and their length
MOST_RANKS = 4096


class BadCells(Exception):
    """The error of a list of cells that cannot be read. The text names the file and the line."""


@dataclasses.dataclass(frozen=True)
class Cell:
    model: str
    strategy: str
    ranks: int
    replicate: int = 1  # groups of ranks
    recompute: bool = False
    offload: bool = False
    bfloat16: bool = False
    prefetch: int = 1
    simulated: bool = False

    @property
    def is_plain(self):
        """Returns True if all options are the defaults and the ranks are processes."""
        return self == Cell(self.model, self.strategy, self.ranks)

    @property
    def grouped_ranks(self):
        """Returns "4", or "2x2"."""
        return f"{self.replicate}x{self.ranks // self.replicate}" if self.replicate > 1 else str(self.ranks)

    @property
    def name(self):
        """Returns the cell as a line of a list, with the options that differ from the default."""
        words = [self.model, self.strategy, self.grouped_ranks]
        words += [option for option in ("recompute", "offload", "bfloat16") if getattr(self, option)]
        words += [f"prefetch {self.prefetch}"] * (self.prefetch != 1) + ["simulated"] * self.simulated
        return " ".join(words)

    @property
    def words(self):
        """Returns the words of scaling_probe's command line, without the number of ranks."""
        flags = {"--model": self.model, "--batch": BATCH, "--seq-len": TOKENS, "--strategy": self.strategy,
                 "--recompute": int(self.recompute),
                 "--offload": str(self.offload).lower(),
                 "--param-dtype": "bfloat16" if self.bfloat16 else "float32", "--prefetch": self.prefetch}
        return [str(word) for flag in flags.items() for word in flag]


def parse_ranks(word):
    """Returns (ranks, groups) for "4" or "2x2", or None for another word."""
    match = re.fullmatch(r"(?:([1-9][0-9]*)x)?([1-9][0-9]*)", word)
    if not match:
        return None
    groups = int(match[1] or 1)
    ranks = groups * int(match[2])
    return (ranks, groups) if ranks <= MOST_RANKS else None


def parse_option(word):
    """Returns the changes of an option in a Cell, or None for another word."""
    if word == "plain":
        return {}
    if word in ("recompute", "offload", "bfloat16", "simulated"):
        return {word: True}
    match = re.fullmatch(r"prefetch=([0-9]{1,3})", word)
    return {"prefetch": int(match[1])} if match else None


def parsed(words, parse, what):
    values = [parse(word) for word in words]
    for word, value in zip(words, values):
        if value is None:
            raise ValueError(f"'{word}' is not a {what}")
    return values


def cells_of(line):
    """Returns the cells of one line. Raises ValueError, which says what is wrong."""
    columns = [column.split() for column in line.split("|")]
    if len(columns) != 4 or not all(columns):
        raise ValueError("a line must have the form MODELS | STRATEGIES | RANKS | OPTIONS")
    models, strategies, ranks, options = columns
    parsed(strategies, lambda word: word if word in STRATEGIES else None, f"strategy: {', '.join(STRATEGIES)}")
    ranks = parsed(ranks, parse_ranks, f"number of ranks: 1 to {MOST_RANKS}, or GROUPSxRANKS")
    options = [parsed(word.split("/"), parse_option,
                      "option: plain, recompute, offload, bfloat16, prefetch=N or simulated") for word in options]
    for model, (count, groups), strategy, *chosen in itertools.product(models, ranks, strategies, *options):
        changed = {name: value for each in chosen for name, value in each.items()}
        yield Cell(model, strategy, count, groups, **changed)


def read_cells(path):
    """Returns the cells of a file, in its order and without repetitions. Raises BadCells."""
    found = {}
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                line = line.partition("#")[0].strip()
                if line:
                    try:
                        found.update((cell.name, cell) for cell in cells_of(line))
                    except ValueError as error:
                        raise BadCells(f"{path}:{number}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadCells(f"{path}: {getattr(error, 'strerror', None) or 'the file is not text'}") from None
    if not found:
        raise BadCells(f"{path}: the file has no cell")
    return list(found.values())
