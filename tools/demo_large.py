"""Runs tools/demo --large and checks its results. If a check fails, the program ends with 1."""

import json
import pathlib
import re
import select
import shutil
import subprocess
import sys
import textwrap
import time

WIDTH = 80
LIMIT = "4GiB"
STEPS, OFFLOADED_STEPS = 40, 3
MOST_LOSS_LEFT = 0.8  # mean of the last five steps over that of the first five
MOST_OFF_PLAN = 0.05
GIB = 1024**3

BIN = pathlib.Path("build/cpu/bin")
DATA = pathlib.Path("examples/bert_qa/data")
OUT = pathlib.Path("build/demo-large")
# 24 windows, 18 of them full, so nearly every batch has the longest sequence.
QUESTIONS = ["--train-file", DATA / "xquad-en-train.json", "--max-train-samples", 6,
             "--max-seq-length", 128, "--doc-stride", 68]
TRAINING = ["--per-device-train-batch-size", 2, "--dropout", 0, "--learning-rate", "1e-4",
            "--warmup-steps", 5, "--logging-steps", 1]
SHARDS = ["--max-shard-size", "500MB"]


def say(text, indent=""):
    print("\n".join(textwrap.fill(line, WIDTH, initial_indent=indent, subsequent_indent=indent,
                                  break_on_hyphens=False) for line in text.split("\n")), flush=True)


def fail(text):
    say(f"\ndemo: {text}\nWhat the runs printed is in {OUT}/*.txt.")
    sys.exit(1)


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class Progress:
    """A progress line. On a terminal it is redrawn every second; elsewhere it is printed every minute."""

    def __init__(self):
        self.began, self.drawn = time.time(), 0.0
        self.text, self.terminal = "building", sys.stdout.isatty()

    def show(self, text=None):
        news = text is not None and text != self.text
        self.text = text or self.text
        every = 1 if self.terminal else 60
        if time.time() - self.drawn < every and not (news and self.terminal):
            return
        self.drawn = time.time()
        line = f"    {clock(self.drawn - self.began)}  {self.text}"[:WIDTH - 1]
        print(f"\r{line:<{WIDTH - 1}}" if self.terminal else line,
              end="" if self.terminal else "\n", flush=True)

    def end(self):
        if self.terminal:
            print(f"\r{'':<{WIDTH - 1}}\r", end="", flush=True)
        return time.time() - self.began


class Run:
    """A run of bert_qa on `ranks` ranks. `name` is the name of its folder and of its log."""

    def __init__(self, name, ranks, words):
        launcher = [BIN / "fsdp-run", "-n", ranks] if ranks > 1 else []
        words = [*launcher, BIN / "bert_qa", *words, "--memory-limit", LIMIT, "--device", "cpu",
                 "--output-dir", OUT / name, "--overwrite-output-dir"]
        command = [str(word) for word in words]
        self.folder, progress = OUT / name, Progress()
        with open(OUT / f"{name}.err", "w+") as errors, open(OUT / f"{name}.txt", "w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
            buffered, self.out = b"", ""
            while True:
                if not select.select([process.stdout], [], [], 1)[0]:
                    progress.show()
                    continue
                piece = process.stdout.read1(65536)
                if not piece:
                    break
                buffered += piece
                *lines, buffered = buffered.split(b"\n")
                for line in (line.decode() for line in lines):
                    self.out += line + "\n"
                    log.write(line + "\n")
                    if re.match(r"step +\d", line):
                        progress.show(" ".join(line.split()))
            self.code, self.seconds = process.wait(), progress.end()
            errors.seek(0)
            said = errors.read()
            log.write(said)
        # Warnings about a slow disk may precede it.
        self.error = next((line for line in said.split("\n") if line.startswith("fsdp: error")), "")
        (OUT / f"{name}.err").unlink()

    def found(self, pattern, text):
        match = re.search(pattern, text)
        if not match:
            fail(f"{self.folder.name}: the output has no match of '{pattern}'")
        return match.group(1)

    def expect(self, code, what):
        if self.code != code:
            fail(f"{self.folder.name} should have {what} with code {code}, but it ended with code {self.code}: "
                 f"{self.error or 'no error line'}")


def show_error(run):
    say(run.error, "   ")


def refused(train):
    say("\n2. One rank alone: the plan of the run says that it cannot be.")
    run = Run("one-rank", 1, train)
    run.expect(78, "been refused")
    show_error(run)
    return run


def forced(train, planned_place):
    say("\n3. The same with --force: it goes on until the limit is reached.")
    run = Run("forced", 1, [*train, "--force"])
    run.expect(70, "ended")
    show_error(run)
    place = run.found(r"leaves [^(]+ \((.+?)\); held", run.error)
    if place != planned_place:
        fail(f"memory ran out in the {place}, but the plan says: {planned_place}")
    say(f"That is where the plan said: {place}.", "   ")
    return place


def trained(name, ranks, train, steps):
    run = Run(name, ranks, [*train, "--max-steps", steps, *SHARDS])
    run.expect(0, "trained")
    run.metrics = json.loads((run.folder / "metrics.json").read_text())
    log = (run.folder / "train_log.jsonl").read_text().splitlines()
    run.losses = [json.loads(line)["loss"] for line in log]
    runtime = run.metrics["train_runtime"]
    windows = run.found(r"(\d+ windows): ", run.out)
    say(f"{windows}, {len(log)} steps of {runtime / len(log):.1f} s; "
        f"{clock(run.seconds)} with reading and writing the model", "   ")
    at_end = run.out[run.out.index("trained on"):].split("\n")
    for line in at_end:
        if line.startswith(("device:", "        of which", "host:")):
            print("   " + line, flush=True)
    check_bytes(run)
    return run


def check_bytes(run):
    name, metrics = run.folder.name, run.metrics
    peak, planned = metrics["peak_device_bytes"], metrics["planned_device_bytes"]
    if metrics["peak_memory_bytes"] != metrics["planned_engine_bytes"]:
        fail(f"{name}: the engine held {metrics['peak_memory_bytes']} bytes, but the plan was "
             f"{metrics['planned_engine_bytes']}")
    if "are not the plan's" in run.out:
        fail(f"{name}: on a rank, the engine's buffers were not those of the plan")
    if peak > metrics["memory_limit"]:
        fail(f"{name}: {peak} bytes at the peak are more than the limit")
    if abs(peak - planned) > MOST_OFF_PLAN * planned:
        fail(f"{name}: {peak} bytes at the peak, but the plan was {planned}")


def check_loss(run):
    first, last = sum(run.losses[:5]) / 5, sum(run.losses[-5:]) / 5
    say(f"loss: {first:.3f} in the first five steps, {last:.3f} in the last five "
        f"({last / first:.2f} of it; at most {MOST_LOSS_LEFT} was wanted)", "   ")
    if last > MOST_LOSS_LEFT * first:
        fail(f"{run.folder.name}: the loss fell too little")
    return f"loss {first:.2f} to {last:.2f}"


def row(what, ranks, run, ended):
    metrics = run.metrics
    peak, planned = metrics["peak_device_bytes"], metrics["planned_device_bytes"]
    return (what, ranks, f"{planned / GIB:.2f} GiB", f"{peak / GIB:.2f} GiB",
            f"{100 * (peak / planned - 1):+.2f} %", ended)


def show_table(rows):
    head = ("run", "ranks", "planned", "measured", "off", "ended with")
    print()
    for what, ranks, planned, measured, off, ended in [head, *rows]:
        print(f"{what:<10} {ranks:>5} {planned:>9} {measured:>9} {off:>8}  {ended}"[:WIDTH])
    say(f"Bytes of a rank's device, activations included; the limit is {LIMIT}. The engine's own "
        "were the plan's in every run, to the byte.")


def initial_model(options):
    """Returns the folder of the initial model, and True if this demo wrote it."""
    options[:] = [part for word in options for part in
                  (word.split("=", 1) if word.startswith("--model=") else [word])]
    if "--model" in options:
        at = options.index("--model")
        if at + 1 == len(options):
            sys.exit("demo: --model needs a folder")
        model = pathlib.Path(options[at + 1])
        del options[at:at + 2]
        say(f"1. The model is {model}.")
        return model, False
    say("1. A BERT of 334 million parameters with random weights, as a Hugging Face folder in "
        f"files of at most 500 MB, under the limit of {LIMIT}, too.")
    run = Run("model", 1, ["init", "--preset", "large", "--vocab-file",
                           DATA / "bert-base-uncased-vocab.txt", *SHARDS])
    run.expect(0, "been written")
    files = sorted(run.folder.glob("model-*.safetensors"))
    size = sum(file.stat().st_size for file in files) / GIB
    say(f"{size:.2f} GiB in {len(files)} files and their index, in {clock(run.seconds)}. "
        f"{run.out.splitlines()[-1]}", "   ")
    return run.folder, True


def main():
    began, options = time.time(), sys.argv[1:]
    OUT.mkdir(parents=True, exist_ok=True)
    model, is_ours = initial_model(options)
    train = ["finetune", "--model", model, *QUESTIONS, *TRAINING, *options]
    alone = refused(train)
    needed = alone.found(r"needs (\S+ GiB)", alone.error)
    place = forced(train, alone.found(r"memory would run out in: ([^;]+);", alone.error))
    rows = [("one rank", 1, needed, "", "", "78: refused by its plan"),
            ("forced", 1, needed, "", "", "70: " + place.replace("bert.encoder.", ""))]
    for number, what, ranks in ((4, "two ranks", 2), (5, "four ranks", 4)):
        say(f"\n{number}. With {what} each has a part of parameters, gradients and moments.")
        run = trained(f"{ranks}-ranks", ranks, train, STEPS)
        rows.append(row(what, ranks, run, check_loss(run)))
    say("\n6. One rank with --offload: parameters, gradients and moments are the host's, and the "
        "device has what it computes with. Here both are the same memory, so nothing is won on "
        "this machine; with a GPU the first line below is what it needs.")
    offloaded = trained("offload", 1, [*train, "--offload"], OFFLOADED_STEPS)
    host = offloaded.metrics["peak_host_bytes"] / GIB
    rows.append(row("offload", 1, offloaded, f"{host:.2f} GiB on the host"))
    show_table(rows)
    for name in ["one-rank", "forced", "4-ranks", "offload"] + ["model"] * is_ours:
        shutil.rmtree(OUT / name, ignore_errors=True)
    say(f"\nAll of it held, in {clock(time.time() - began)}. The model that two ranks trained is "
        f"in {OUT / '2-ranks'}, what the runs printed in {OUT}/*.txt. The others' models"
        f"{' and the one that all began with' if is_ours else ''} were removed.")


main()
