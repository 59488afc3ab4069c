#!/usr/bin/env python3
"""usage: tools/test gpu [--bin FOLDER] [--output FOLDER] [--seconds N]

Runs the checks that need a GPU, part by part, in ten minutes: kernels, also under compute-sanitizer; the simulated
GPU against the real one, bit by bit; thread ranks on one GPU; NCCL; a killed and a stopped rank. Prints a line per
part: passed, failed or skipped, with the reason. Without a GPU all are skipped. Exits with 1 if one failed.
  --bin FOLDER      folder of the programs (build/cpu/bin)
  --output FOLDER   folder for the parts' output (build/cpu/gpu_proof)
  --seconds N       time limit of all parts together (600)
"""
import argparse
import pathlib
import re
import sys
import time

import compare_bits
import doctor
import faults
import gpu_facts
import parts
import programs

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SECONDS = 600
FEW = 60           # seconds, for short parts
SANITIZER_ERROR = 99
MOST_RANKS = 4     # of the jobs with a fault


def sanitizer_of(root):
    """Returns the compute-sanitizer that tools/setup --gpu installs, or None."""
    return next(iter(sorted(root.glob(".venv/lib/python3*/site-packages/nvidia/cu*/bin/compute-sanitizer"))), None)


def require_fall(output):
    """Checks that the losses fall which hello_unit prints, and returns the first and the last as a line."""
    losses = [float(text) for text in re.findall(r"^step \d+ loss ([0-9.]+)$", output, re.MULTILINE)]
    if len(losses) < 2 or not losses[-1] < losses[0] / 2:
        raise parts.Failed(f"the loss does not fall: {losses[:1] + losses[-1:]}")
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f}"


class Proof:
    """The parts of the proof, with the programs of one folder."""

    def __init__(self, bin_folder, output, sanitizer):
        self.bin, self.output, self.sanitizer = bin_folder, output, sanitizer
        self.facts = None

    def log(self, name):
        return self.output / f"{name}.log"

    def passes(self, name, command, deadline, environment=None):
        ended = programs.run(command, deadline, self.log(name), environment)
        if ended.code != 0:
            raise parts.Failed(f"{ended.why} (see {self.log(name)})")
        return ended

    def tell_facts(self, deadline):
        if self.facts is None:
            try:
                self.facts = gpu_facts.read(self.bin / "gpu_facts", deadline, self.log("gpu_facts"))
            except gpu_facts.NoFacts as why:
                raise parts.Failed(str(why)) from None
        return self.facts

    def doctor(self, deadline):
        found = doctor.ask(self.bin / "fsdp-doctor", deadline, self.log("doctor"))
        if not found.is_ready:
            raise parts.Failed(found.why)
        return self.tell_facts(deadline).device

    def kernels(self, deadline):
        self.passes("kernels", [self.bin / "kernels_on_gpu_tests"], deadline, gpu_facts.first_gpu())

    def sanitized(self, tool, deadline):
        if self.sanitizer is None:
            raise parts.Skipped("compute-sanitizer was not found; tools/setup --gpu installs it")
        self.passes(tool, [self.sanitizer, "--tool", tool, "--error-exitcode", SANITIZER_ERROR,
                           self.bin / "kernels_on_gpu_tests"], deadline, gpu_facts.first_gpu())

    def against_simulator(self, deadline):
        try:
            count, found = compare_bits.compare((self.bin / "bits_simulated", "gpu"), (self.bin / "bits_on_gpu", "gpu"),
                                                self.output / "bits", deadline, gpu_facts.first_gpu())
        except compare_bits.BadBits as why:
            raise parts.Failed(str(why)) from None
        if found:
            raise parts.Failed(f"{len(found)} of {count} differ, the first: {found[0]} (see {self.output / 'bits'})")
        return f"{count} results have the same bits"

    def thread_ranks(self, deadline):
        self.passes("thread_ranks", [self.bin / "training_on_gpu_tests"], deadline, gpu_facts.first_gpu())

    def train_processes(self, name, ranks, deadline, environment=None):
        command = [self.bin / "fsdp-run", "-n", ranks, self.bin / "hello_unit", "--device", "cuda"]
        return require_fall(self.passes(name, command, deadline, environment).output)

    def one_process(self, deadline):
        return self.train_processes("nccl_1", 1, deadline)

    def all_gpus(self, deadline):
        count = len(self.tell_facts(deadline).gpus)
        if count < 2:
            raise parts.Skipped("this process sees one GPU")
        return f"{count} ranks, " + self.train_processes("nccl_all", count, deadline)

    def two_on_one_gpu(self, deadline):
        why = self.tell_facts(deadline).cannot_share()
        if why:
            raise parts.Skipped(why)
        return self.train_processes("nccl_shared", 2, deadline, gpu_facts.shared_gpu())

    def fault(self, fault, deadline):
        facts = self.tell_facts(deadline)
        ranks, environment = min(len(facts.gpus), MOST_RANKS), {}
        if ranks < 2:
            why = facts.cannot_share()
            if why:
                raise parts.Skipped(f"one GPU, and {why}")
            ranks, environment = 2, gpu_facts.shared_gpu()
        return faults.run(self.bin, fault, ranks, self.output / f"fault_{fault.name}", deadline,
                          {**environment, "TRAINING_DEVICE": "cuda"}, time.monotonic)

    def parts(self):
        return [parts.Part("doctor", FEW, self.doctor),
                parts.Part("kernels", 90, self.kernels),
                parts.Part("kernels under memcheck", 150, lambda deadline: self.sanitized("memcheck", deadline)),
                parts.Part("kernels under racecheck", 150, lambda deadline: self.sanitized("racecheck", deadline)),
                parts.Part("simulator against silicon", 120, self.against_simulator),
                parts.Part("thread ranks on one GPU", 120, self.thread_ranks),
                parts.Part("NCCL at world 1", FEW, self.one_process),
                parts.Part("NCCL at all GPUs", FEW, self.all_gpus),
                parts.Part("NCCL, two ranks on one GPU", FEW, self.two_on_one_gpu),
                parts.Part("a rank killed", FEW, lambda deadline: self.fault(faults.KILLED, deadline)),
                parts.Part("a rank stopped", FEW, lambda deadline: self.fault(faults.STOPPED, deadline))]

    def possible_parts(self):
        """Returns the parts; all skipped if the doctor finds no GPU."""
        found = doctor.ask(self.bin / "fsdp-doctor", programs.Deadline(FEW), self.log("doctor"))
        return parts.skip_all(self.parts(), found.why) if found.no_gpu else self.parts()


def main():
    usage, _, description = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(usage=usage.removeprefix("usage: "), description=description, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: parser.exit(64, f"test gpu: {message}\n")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/cpu/bin", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/cpu/gpu_proof", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    proof = Proof(options.bin, options.output, sanitizer_of(ROOT))
    results = parts.run_parts(proof.possible_parts(), options.seconds, lambda line: print(line, flush=True))
    return parts.exit_code(results)


if __name__ == "__main__":
    sys.exit(main())
