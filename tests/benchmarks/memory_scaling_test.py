"""Tests the parts of tools/bench memory_scaling, and its messages on bad input.
  memory_scaling_test.py --programs FOLDER"""
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from scaling import cells, checks, golden, jobs, progress, rows, runs  # noqa: E402

PROGRAMS = None
WHO = {"machine": "m", "torch": "2.15.0", "date": "2026-01-01"}


def phases(torch=0):
    return {name: {"main shards": 400, "LibTorch": torch} for name in
            ("rest", "forward peak", "after forward", "backward peak", "after backward")}


def row(cell="bert-mini full-shard 4", by=rows.OURS, growth=0, **more):
    model, strategy, ranks = cell.split()[:3]
    sizes = {"phases": phases(), "engine held": 400, "torch peak": 0, "device peak": 400, "host": 0, "sent": 8}
    return {"cell": cell, "by": by, "status": "measured", "model": model, "strategy": strategy, "ranks": int(ranks),
            "replicate": 1, "recompute": 0, "offload": False, "param_dtype": "float32", "prefetch": 1,
            "simulated": False,
            "formula": {"rest": 400, "step": 400}, "planned": sizes,
            "measured": {**json.loads(json.dumps(sizes)), "growth peak": growth}, "identity": WHO, **more}


class Scratch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, text, name="file"):
        path = self.folder / name
        path.write_text(text)
        return path


class CellsTest(Scratch):
    def read(self, text):
        return [cell.name for cell in cells.read_cells(self.file(text))]

    def test_words_of_options_are_multiplied_and_a_cell_is_there_once(self):
        self.assertEqual(self.read("a b | full-shard | 1 2x2 | plain # said\n\na | full-shard | 1 | plain\n"),
                         ["a full-shard 1", "a full-shard 2x2", "b full-shard 1", "b full-shard 2x2"])
        self.assertEqual(self.read("a | zero1 | 2 | plain/recompute offload prefetch=0/prefetch=1"),
                         ["a zero1 2 offload prefetch 0", "a zero1 2 offload", "a zero1 2 recompute offload prefetch 0",
                          "a zero1 2 recompute offload"])

    def test_a_bad_line_is_named_with_its_file(self):
        for line, what in (("a | full-shard | 2", "MODELS | STRATEGIES"), ("a | zero9 | 2 | plain", "'zero9'"),
                           ("a | zero1 | 0 | plain", "'0'"), ("a | zero1 | 2x | plain", "'2x'"),
                           ("a | zero1 | 9999 | plain", "'9999'"), ("a | zero1 | 2 | plain/fast", "'fast'"),
                           ("a | zero1 | | plain", "MODELS")):
            with self.assertRaisesRegex(cells.BadCells, "file:2: .*" + what.replace("|", r"\|")):
                self.read("# one\n" + line)
        with self.assertRaisesRegex(cells.BadCells, "no cell"):
            self.read("# nothing\n")

    def test_the_lists_that_ship_stay_within_their_bounds(self):
        folder = ROOT / "benchmarks/scaling"
        self.assertLessEqual(len(cells.read_cells(folder / "cells.txt")), 200)
        self.assertEqual({cell.strategy for cell in cells.read_cells(folder / "quick.txt")}, set(cells.STRATEGIES))


class RowsTest(Scratch):
    def test_the_formula_is_that_of_the_tables(self):
        for words, rest, step in ((("full-shard", 4), 3, 4), (("zero2", 4), 6, 7), (("zero1", 4), 6, 10),
                                  (("replicate", 4), 12, 16), (("zero1", 1), 12, 16),
                                  (("zero2", 4, 1, False, False, True), 5, 6),
                                  (("replicate", 4, 1, False, False, True), 14, 18),
                                  (("hybrid-shard", 4, 2), 6, 8), (("hfsdp", 4, 2), 4, 6), (("hpz", 4, 2), 4, 5)):
            self.assertEqual(rows.formula(cells.Cell("a", *words), 100), {"rest": 100 * rest, "step": 100 * step})

    def test_a_run_is_taken_up_by_the_same_programs_alone(self):
        path = self.folder / "results.jsonl"
        first = rows.Results(path, WHO)
        first.begin()
        first.add(row())
        first.add(row("m zero1 2", status="planned", why="this machine cannot hold it: today"))
        first.add(row("m zero1 2", "FSDP1", status="impossible", why="it has no such thing"))
        with open(path, "a", encoding="utf-8") as file:
            file.write('{"cell": "cut')
        again = rows.Results(path, {**WHO, "date": "another day", "commit": "another"})
        self.assertEqual([again.has(*job) for job in ((cells.Cell("bert-mini", "full-shard", 4), rows.OURS),
                                                      (cells.Cell("m", "zero1", 2), rows.OURS),
                                                      (cells.Cell("m", "zero1", 2), "FSDP1"))], [True, False, True])
        again.begin()
        self.assertEqual(len(path.read_text().splitlines()), 2)
        other = rows.Results(path, {**WHO, "torch": "2.16.0"})
        self.assertEqual((len(other.rows), other.others), (0, 2))
        other.begin()
        self.assertEqual(path.read_text(), "")
        self.assertTrue(path.with_suffix(".jsonl.before").exists())

    def test_a_file_that_is_none_of_ours_is_named_with_its_line(self):
        path = self.file(json.dumps(row()) + "\n[1]\n", "results.jsonl")
        with self.assertRaisesRegex(rows.BadResults, "results.jsonl:2: the line is not a row"):
            rows.Results(path, WHO)


class ChecksTest(unittest.TestCase):
    def faults(self, *all_rows):
        return "\n".join(checks.faults(all_rows))

    def test_a_row_that_is_as_planned_has_no_fault(self):
        self.assertEqual(self.faults(row()), "")

    def test_each_figure_that_is_not_as_planned_is_told(self):
        def changed(**measured):
            bad = row()
            bad["measured"].update(measured)
            return self.faults(bad)

        wrong = phases()
        wrong["forward peak"]["main shards"] = 401
        self.assertIn("4: forward peak, main shards: planned 400, measured 401", changed(phases=wrong))
        self.assertIn("sent: planned 8, measured 9", changed(sent=9))
        self.assertIn("device peak: 1.0525 of the plan", changed(**{"device peak": 421}))
        self.assertIn("at most 24.0 MiB are allowed", changed(**{"growth peak": 25 * 2**20}))
        half = phases()
        half["after backward"]["main shards"] = 200
        self.assertIn("state after backward: 0.5000 of the formula", changed(phases=half))

    def test_a_budget_between_plan_and_measurement_is_wrong_however_near_they_are(self):
        bad = row(growth=0)
        bad["planned"]["device peak"], bad["measured"]["device peak"] = 2**30, 2**30 + 1
        self.assertIn("of 1,024.0 MiB the plan says that it fits", self.faults(bad))

    def test_a_peer_that_takes_less_is_told_and_FSDP2_as_much(self):
        self.assertEqual(self.faults(row(growth=7), row(by="FSDP1", growth=7)), "")
        self.assertIn("FSDP2's by", self.faults(row(growth=7), row(by="FSDP2", growth=7)))
        self.assertIn("DDP's by", self.faults(row("m replicate 2", growth=8), row("m replicate 2", "DDP", growth=7)))

    def test_too_little_saved_against_DDP_is_told(self):
        def faults(growth):
            return self.faults(row("m full-shard 4", growth=growth), row("m replicate 4", "DDP", growth=1000))

        self.assertEqual(faults(399), "")
        self.assertIn("60.0% saved against DDP", faults(400))


class PeersTest(unittest.TestCase):
    def run_that_fails(self, kills):
        bench = jobs.Bench(pathlib.Path())
        bench.who = WHO
        cell = cells.Cell("bert-mini", "full-shard", 4)
        results = types.SimpleNamespace(rows={(cell.name, rows.OURS): {**row(), "parameters": 8, "formula": {"step": 8}}})
        failure = runs.RunFailed(1, "Connection closed by peer")
        with unittest.mock.patch.object(jobs, "oom_kills", side_effect=kills), \
                unittest.mock.patch.object(jobs.peers, "run", side_effect=failure):
            return bench.run(cell, "FSDP2", results)

    def test_what_a_peer_cannot_do_is_a_row_that_says_why(self):
        failed = self.run_that_fails(kills=[3, 3])
        self.assertEqual((failed["status"], failed["why"]), ("impossible", "Connection closed by peer"))

    def test_a_peer_that_the_kernel_ended_did_not_fit(self):
        killed = self.run_that_fails(kills=[3, 4])
        self.assertEqual(killed["why"], "this machine cannot hold it: the kernel ended one of 4 ranks")
        self.assertGreaterEqual(jobs.oom_kills(), 0)


class GoldenTest(Scratch):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "golden.json"
        golden.write(self.path, [row()])

    def differences(self, *measured, is_whole=True):
        return golden.differences(golden.load(self.path), measured, is_whole)

    def test_each_figure_that_differs_is_named(self):
        self.assertEqual(self.differences(row()), [])
        bad = row()
        bad["planned"]["sent"] = bad["measured"]["sent"] = 9
        bad["planned"]["phases"]["rest"]["LibTorch"] = 5
        self.assertEqual(self.differences(bad), ["bert-mini full-shard 4: rest, LibTorch: golden 0, planned 5",
                                                 "bert-mini full-shard 4: sent: golden 8, planned 9, measured 9"])

    def test_LibTorchs_bytes_are_held_against_the_same_version_alone(self):
        other = row(identity={**WHO, "torch": "2.16.0"})
        other["planned"]["phases"]["rest"]["LibTorch"] = 5
        self.assertEqual(self.differences(other), [])

    def test_cells_that_one_side_lacks_are_named(self):
        self.assertEqual(self.differences(row("bert-mini zero1 4")),
                         ["bert-mini full-shard 4: in the golden file, and not run",
                          "bert-mini zero1 4: not in the golden file"])
        self.assertEqual(self.differences(is_whole=False), [])

    def test_what_is_no_golden_file_is_refused(self):
        for text in ("", "[]", '{"torch": 1, "cells": {}}', '{"torch": "", "cells": {"a": {"bytes": {"b": "c"}}}}'):
            with self.assertRaisesRegex(golden.BadGolden, "not a golden file"):
                golden.load(self.file(text))
        with self.assertRaisesRegex(golden.BadGolden, "No such file"):
            golden.load(self.folder / "none")


class ProgressTest(unittest.TestCase):
    def test_times_are_told_as_one_says_them(self):
        self.assertEqual([progress.spell_time(seconds) for seconds in (5, 100, 3 * 3600 + 240)],
                         ["5 s", "2 min", "3 h 4 min"])


class CommandLineTest(Scratch):
    def refused(self, *words, code=64):
        ended = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(ended.returncode, code, ended.stderr)
        return ended.stderr.strip().splitlines()[-1]

    def test_the_bench_refuses_what_it_cannot_read(self):
        bench, bad, none = ROOT / "benchmarks/memory_scaling", self.file("a | b"), self.folder / "none"
        for words, said in ((["--fast"], "unrecognized arguments: --fast"),
                            (["--quick", "--check", bad], "not allowed"),
                            (["--check", bad], "not a golden file"),
                            (["--check"], "expected one argument"),
                            (["--list", bad], "file:1: a line must have the form"),
                            (["--list", none], "No such file"),
                            (["--cells", "none*"], "no cell is called 'none*'"),
                            (["--device", "tpu"], "invalid choice"),
                            (["--output", self.folder, "--quick"], "results.jsonl:1: the line is not a row")):
            self.file("no row\n", "results.jsonl")
            with self.subTest(words=words):
                self.assertIn(said, self.refused(bench, "--programs", PROGRAMS, *words))
        self.assertIn("cannot be started",
                      self.refused(bench, "--quick", "--programs", self.folder, "--output", self.folder / "empty"))

    def test_the_probe_refuses_what_it_cannot_do(self):
        probe = PROGRAMS / "scaling_probe"
        mini = ["--model", "bert-mini"]
        for words, said in (([], "no model is given"),
                            (["--model", "bert-mni"], "did you mean bert-mini"),
                            ([*mini, "--stepz", "3"], "did you mean --steps"),
                            ([*mini, "--steps", "1"], "--steps cannot be"),
                            ([*mini, "--seq-len"], "has no value"),
                            ([*mini, "--batch", "-1"], "--batch cannot be '-1'"),
                            ([*mini, "--seq-len", "600"], "use at most 512"),
                            ([*mini, "--planned-ranks", "2x"], "cannot be"),
                            ([*mini, "--planned-ranks", "2", "--simulated-ranks", "2"], "exclude each other")):
            with self.subTest(words=words):
                self.assertIn(said, self.refused(probe, "--device", "cpu", *words))
        self.assertIn("the memory limit is 8.0 MiB",
                      self.refused(probe, "--device", "cpu", *mini, "--memory-limit", "8MiB", code=78))


if __name__ == "__main__":
    PROGRAMS = pathlib.Path(sys.argv.pop(2))
    sys.argv.remove("--programs")
    unittest.main()
