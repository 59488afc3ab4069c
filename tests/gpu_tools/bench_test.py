"""Tests tools/bench gpu on programs that imitate the real ones: its rows, limits and tables, and programs that hang,
die, or print a wrong answer."""
import json
import subprocess
import sys
import time
import unittest

from fakes import FACTS, GARBAGE, HANGS, NO_GPU, ROOT, Scratch, exits, facts
import gpu_facts
import programs
from gpu_bars import bench as benches
from gpu_bars import contestants, kernels, memory, report, steps
import schedule

# The second argument selects the answers: one number for all lines, or a number for each first word
# of a line.
PROBE = """import sys
answers = {ANSWERS}[sys.argv[2]]
for line in sys.stdin:
    answer = answers.get(' '.join(sys.argv[3:4]), answers) if sys.argv[2] == 'step' else answers
    print(answer[line.split()[0]], flush=True)
"""
GOOD = {"rates": {"copy": 3000.0, "matrix": 700.0},
        "adamw": {"ours": 2900.0, "ours_copy": 2910.0, "torch": 2800.0, "torch_copy": 2500.0},
        "step": {"full-shard": {"run": 50.0, "loss": 2.5}, "common-path": {"run": 51.0, "loss": 9.0},
                 "plain": {"run": 50.2, "loss": 2.5001}},
        "collectives": {"all_gather": 2800.0, "reduce_scatter": 2700.0},
        "overlap": {"step": 52100.0}}
SMALL = benches.Sizes(rounds=2, warm_up=0, repetitions=1, steps=1, copied=8, matrix=8, parameters=((1_000_000, 2),),
                      preset="tiny", shapes=((1, 8), (2, 8)), qa_shape=(32, 8), collective_bytes=2**20,
                      thread_ranks=(2,), capped=("bert-tiny", 8, "1GiB", 1), process_ranks=(2, 4),
                      pauses=(64, 8, 2000, 4000), wires=(1000,))
PHASES = {name: {"main shards": 8, "LibTorch": 3} for name in ("rest", "backward peak")}
PLAN = {"phases": PHASES, "engine held": 8, "host": 0, "sent": 4, "device peak": 2**30}
REFUSAL = exits(78, "fsdp: error[78] rank 0/1 host h: a step needs 2 GiB, but the memory limit is 1 GiB", "stderr")


def probe(**changed):
    return PROBE.replace("{ANSWERS}", repr({**GOOD, **changed}))


class BenchCase(Scratch):
    def setUp(self):
        super().setUp()
        self.program("gpu_probe", probe())
        self.deadline = programs.Deadline(600)
        self.bench = benches.Bench(self.bin, "cuda", gpu_facts.Facts(FACTS["gpus"], "2.30.7"), SMALL, [],
                                   self.folder / "output")

    def with_peers(self, body):
        self.bench.peers = [self.program("peer", body)]


class ContestantTest(Scratch):
    def ask(self, body, seconds=600.0):
        who = contestants.Contestant([self.program("one", body)])
        self.addCleanup(who.close)
        return who.ask("run 1", programs.Deadline(seconds))

    def test_a_number_is_an_answer(self):
        self.assertEqual(self.ask("input()\nprint(2.5, flush=True)\n" + HANGS), 2.5)

    def test_what_is_none_is_said(self):
        for body, said in ((HANGS, r"one did not answer 'run 1' within 0 s"), (exits(3, "no memory", "stderr"),
                                                                             "one ended with code 3: no memory"),
                           ("input()\nprint('nan', flush=True)\n" + HANGS, "answered 'run 1' with 'nan'"),
                           ("input()\nprint('fast', flush=True)\n" + HANGS, "answered 'run 1' with 'fast'"),
                           (GARBAGE, "one "), ("import os\nos.write(1, b'x' * 10**6)\n" + HANGS, "more than a line"),
                           ("import os\nos.kill(os.getpid(), 9)", "was killed by signal 9")):
            with self.assertRaisesRegex(contestants.NoAnswer, said):
                self.ask(body, 0.4 if body == HANGS else 600.0)

    def test_one_that_is_not_there_is_said(self):
        with self.assertRaisesRegex(contestants.NoAnswer, "cannot be started"):
            contestants.Contestant([self.bin / "none"])


class BarsTest(BenchCase):
    def bars(self, rows):
        return [(row["peer_name"], row["details"]["holds"]) for row in rows]

    def test_g1_is_held_against_the_copy_rate_and_torch(self):
        rows = kernels.g1(self.bench, self.deadline)
        self.assertEqual(self.bars(rows), [("copy", True), ("copy", True), ("torch fused", True),
                                           ("torch fused + cast", True)])
        self.assertAlmostEqual(rows[0]["ratio"], 2900 / 3000)
        self.assertEqual(rows[0]["calibration"], {"copy": 3000.0})
        self.program("gpu_probe", probe(adamw={**GOOD["adamw"], "ours": 2600.0}))
        self.assertEqual([holds for _, holds in self.bars(kernels.g1(self.bench, self.deadline))],
                         [False, True, False, True])

    def test_g2_taxes_one_rank_and_one_of_eight(self):
        rows = steps.g2(self.bench, self.deadline)
        self.assertEqual(self.bars(rows), [("plain LibTorch", True)] * 4)
        self.program("gpu_probe", probe(step={**GOOD["step"], "common-path": {"run": 53.0, "loss": 1.0}}))
        self.assertEqual([holds for _, holds in self.bars(steps.g2(self.bench, self.deadline))], [True, False] * 2)

    def test_g2_wants_half_as_much_again_of_fsdp2_at_the_smallest_batch_only(self):
        self.with_peers("for line in open(0):\n print(70.0 if 'run' in line else 2.5, flush=True)")
        rows = [row for row in steps.g2(self.bench, self.deadline) if row["peer_name"] == "FSDP2"]
        self.assertEqual([row["details"]["holds"] for row in rows], [False, None])
        self.assertAlmostEqual(rows[0]["ratio"], 1.4)

    def test_times_of_other_losses_do_not_count(self):
        self.with_peers("for line in open(0):\n print(70.0 if 'run' in line else 3.5, flush=True)")
        with self.assertRaisesRegex(steps.DifferentLosses, r"2.5 \(ours\) and 3.5 \(FSDP2\)"):
            steps.g2(self.bench, self.deadline)

    def test_g3_counts_sequences(self):
        self.with_peers("for line in open(0):\n print(60.0 if 'run' in line else 2.5, flush=True)")
        rows = steps.g3(self.bench, self.deadline)
        self.assertEqual(rows[0]["ours"], 640.0)
        self.assertEqual(self.bars(rows), [("the bar", True), ("plain PyTorch", True), ("FSDP2", None)])
        self.bench.peers = []
        self.program("gpu_probe", probe(step={"full-shard": {"run": 70.0, "loss": 2.5}}))
        self.assertEqual(self.bars(steps.g3(self.bench, self.deadline)), [("the bar", False)])

    def test_g4_has_a_bar_for_each_collective(self):
        self.assertEqual(self.bars(kernels.g4(self.bench, self.deadline)), [("copy", True)] * 2)
        self.program("gpu_probe", probe(collectives={"all_gather": 2800.0, "reduce_scatter": 2500.0}))
        self.assertEqual(self.bars(kernels.g4(self.bench, self.deadline)), [("copy", True), ("copy", False)])

    def test_g6_is_held_against_the_schedule_with_prefetch(self):
        # There are eight units of 2 + 4 ms, and a collective takes 1 ms. The time is the first
        # gather, all compute, and the last reduction.
        self.assertEqual(schedule.overlapped_ahead([2000] * 8, [4000] * 8, 1000, 1), 1000 + 48000 + 1000)
        self.assertEqual([row["details"]["holds"] for row in steps.g6(self.bench, self.deadline)], [None, False])
        self.program("gpu_probe", probe(overlap={"step": 50900.0}))
        self.assertEqual([row["details"]["holds"] for row in steps.g6(self.bench, self.deadline)], [None, True])


class CapTest(BenchCase):
    def capped(self, told=None):
        self.program("scaling_probe", REFUSAL)
        self.program("fsdp-run", f"print({json.dumps(told or {'planned': PLAN, 'measured': PLAN})!r})")
        return memory.g5(self.bench, self.deadline)

    def test_one_rank_is_refused_and_others_are_as_planned(self):
        rows = self.capped()
        self.assertIn("memory limit is 1 GiB", rows[0]["details"]["said"])
        self.assertEqual((rows[1]["ours"], rows[1]["ratio"]), (1.0, 1.0))
        self.assertEqual(rows[2]["details"]["said"], "not run: 4 processes need as many GPUs, there are 1")

    def test_what_is_not_as_planned_fails(self):
        for changed, said in (({"engine held": 9}, "engine held: planned 8, measured 9"),
                              ({"device peak": 2**31}, "device peak: 2.0000 of the plan")):
            with self.assertRaisesRegex(memory.Unexpected, said):
                self.capped({"planned": PLAN, "measured": {**PLAN, **changed}})

    def test_one_rank_that_is_not_refused_fails(self):
        self.program("scaling_probe", "print('{}')")
        with self.assertRaisesRegex(memory.Unexpected, "expected code 78"):
            memory.g5(self.bench, self.deadline)


class ReportTest(BenchCase):
    def told(self):
        return {"device": "NVIDIA H100 80GB HBM3", "date": "2030-01-02", "cuda": "13.2", "driver": "13.2", "nccl": "",
                "calibration": {"copy": 3000.0, "matrix": 700.0},
                "rows": kernels.g1(self.bench, self.deadline) + steps.g6(self.bench, self.deadline),
                "parts": [{"name": "G1", "state": "passed", "detail": "4 bars held", "seconds": 3.0},
                          {"name": "G2", "state": "skipped", "detail": "no | driver", "seconds": 0.0}]}

    def test_both_files_are_named_by_device_and_date(self):
        paths = report.write(self.folder / "results", self.told())
        self.assertEqual([path.name for path in paths], ["gpu-nvidia-h100-80gb-hbm3-2030-01-02.json",
                                                         "gpu-nvidia-h100-80gb-hbm3-2030-01-02.md"])
        self.assertEqual(json.loads(paths[0].read_text(encoding="utf-8"))["rows"][0]["ours"], 2900.0)

    def test_the_table_has_a_line_a_row_with_its_bar_and_whether_it_holds(self):
        lines = report.table(self.told()).splitlines()
        self.assertEqual(lines[0], "# NVIDIA H100 80GB HBM3, 2030-01-02")
        self.assertIn("copy 3,000 GB/s, matrix 700 TFLOP/s", lines[2])
        self.assertIn("| G1 | AdamW, 1 M | 1 | 2,900 GB/s | copy: 3,000 | 0.967 (0.967–0.967) | ≥ 0.9 | holds |",
                      lines)
        self.assertTrue(any(line.startswith("| G6 ") and line.endswith("| **missed** |") for line in lines))
        self.assertIn("- G1: passed: 4 bars held", lines)
        self.assertEqual({line.count("|") for line in lines if line.startswith("|")}, {9})


class CommandLineTest(Scratch):
    def call(self, *words):
        return subprocess.run([sys.executable, ROOT / "benchmarks/gpu", "--bin", self.bin, "--results",
                               self.folder / "results", "--no-peers", *words], capture_output=True, text=True,
                              check=False)

    def test_without_a_gpu_each_bar_is_named_as_skipped_and_nothing_is_written(self):
        self.program("fsdp-doctor", NO_GPU)
        ended = self.call()
        self.assertEqual(ended.returncode, 0, ended.stderr)
        lines = ended.stdout.splitlines()
        self.assertEqual([line.split()[:2] for line in lines[:-1]],
                         [["skipped", name] for name in ("calibration", "G1", "G2", "G3", "G4", "G5", "G6")])
        self.assertTrue(all("no GPU can be used; no driver" in line for line in lines[:-1]))
        self.assertFalse((self.folder / "results").exists())

    def test_a_doctor_that_fails_ends_it(self):
        self.program("fsdp-doctor", exits(1, "an old driver"))
        ended = self.call()
        self.assertEqual((ended.returncode, ended.stderr), (1, "gpu: the doctor ended with code 1: an old driver\n"))

    def test_a_bar_that_is_missed_ends_it_with_1_and_is_in_the_results(self):
        self.program("fsdp-doctor", "pass")
        self.program("gpu_facts", facts())
        self.program("gpu_probe", probe(collectives={"all_gather": 100.0, "reduce_scatter": 2900.0}))
        self.program("scaling_probe", REFUSAL)
        self.program("fsdp-run", f"print({json.dumps({'planned': PLAN, 'measured': PLAN})!r})")
        ended = self.call("--json", self.folder / "rows.jsonl")
        self.assertEqual(ended.returncode, 1, ended.stderr)
        failed = [line for line in ended.stdout.splitlines() if line.startswith("failed ")]
        self.assertEqual(len(failed), 2, ended.stdout)  # G4, and G6: its times assume one link
        self.assertIn("missed: all_gather, 256 MiB: 0.0333", failed[0])
        table = next((self.folder / "results").glob("gpu-fake-gpu-80-gb-*.md")).read_text(encoding="utf-8")
        self.assertIn("**missed**", table)
        self.assertGreater(len((self.folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()), 20)

    def test_a_probe_that_hangs_costs_its_time_and_no_more(self):
        self.program("fsdp-doctor", "pass")
        self.program("gpu_facts", facts())
        self.program("gpu_probe", HANGS)
        self.program("scaling_probe", REFUSAL)
        self.program("fsdp-run", HANGS)
        began = time.monotonic()
        ended = self.call("--seconds", "2")
        self.assertLess(time.monotonic() - began, 300)  # most of it starts programs
        self.assertEqual(ended.returncode, 1)
        self.assertIn("did not answer", ended.stdout)
        self.assertIn("not tried: the 2 s of all parts are over", ended.stdout)

    def test_a_word_that_is_not_understood_ends_it_with_64(self):
        self.assertEqual(self.call("--fast").returncode, 64)


if __name__ == "__main__":
    unittest.main()
