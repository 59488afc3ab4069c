"""Tests the tables and pictures of tools/bench memory_scaling on invented rows. The script restarts itself
under the project's Python, which has matplotlib. If that Python does not exist, it draws nothing."""
import contextlib
import copy
import csv
import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import measure  # noqa: E402
from scaling import (cells, csv_tables, largest, peers, pictures, pictures_price, pictures_step,  # noqa: E402
                     quantities, report, rows, runs, suite, tables)

WHO = {"commit": "abc", "dirty": False, "sources": "def", "fsdp": "1.0", "torch": "2.15.0", "peers torch": "2.15.0",
       "machine": "2 x cpu, 23 GiB", "seed": 1, "date": "2026-01-01"}
PHASES = ("rest", "forward peak", "after forward", "backward peak", "after backward")
PARAMETERS = 100 * 2**20
ACTIVATIONS = 10 * 2**20


def own_row(cell, status="measured", why=None):
    formula = rows.formula(cell, PARAMETERS)
    state = formula["step"]
    sizes = {"phases": {phase: {"main shards": formula["rest" if phase == "rest" else "step"], "reduce slots": 0,
                                "LibTorch": ACTIVATIONS} for phase in PHASES},
             "engine held": state, "torch peak": ACTIVATIONS, "device peak": state + ACTIVATIONS, "host": 0,
             "sent": 8 * PARAMETERS}
    row = {**rows.base(cell, rows.OURS, WHO), "parameters": PARAMETERS, "units": 5, "planned": sizes,
           "formula": formula, "status": status, "why": why}
    if status == "measured":
        row["measured"] = {**copy.deepcopy(sizes), "growth built": 1, "growth peak": state + 2 * ACTIVATIONS,
                           "resident sum": 1, "building peak": 1, "step ms": [9.0, 2.0, 4.0, 3.0],
                           "exposed ms": 0.5, "losses": [2.0, 1.0]}
    return row


def peer_row(cell, by, growth=None, why=None):
    row = {**rows.base(cell, by, WHO), "parameters": PARAMETERS, "formula": rows.formula(cell, PARAMETERS)}
    if growth is None:
        return {**row, "status": "impossible", "why": why}
    measured = {"growth built": 1, "growth peak": growth, "resident sum": 1, "step ms": [5.0]}
    return {**row, "measured": measured}


def plain(strategy, ranks, **options):
    return cells.Cell("bert-base", strategy, ranks, **options)


def some_rows():
    """Returns rows for every strategy and number of ranks, and rows that are simulated, with options, of peers, only
    planned, and failed."""
    made = [own_row(plain(strategy, ranks)) for strategy in ("full-shard", "zero2", "zero1", "replicate")
            for ranks in (1, 2, 4, 8)]
    made += [own_row(plain("full-shard", 64, simulated=True)), own_row(plain("full-shard", 2, recompute=True)),
             own_row(cells.Cell("bert-large", "replicate", 8), "planned", "too large")]
    made += [peer_row(plain("replicate", ranks), "DDP", 17 * PARAMETERS) for ranks in (1, 2, 4)]
    made += [peer_row(plain("replicate", 8), "DDP", why=f"{runs.CANNOT_HOLD}no room for 8")]
    return made


class Scratch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class QuantitiesTest(unittest.TestCase):
    def test_three_digits_are_told_and_none_of_nothing(self):
        self.assertEqual([quantities.spell(value) for value in (0, 0.5, 1.07, 62.34, 514.4, 1985.2)],
                         ["0", "0.50", "1.07", "62.3", "514", "1,985"])
        self.assertEqual([quantities.spell_bytes(size) for size in (0, 1000, 98304, 514 * 2**20, 5 * 2**40)],
                         ["0 B", "1000 B", "96.0 KiB", "514 MiB", "5.00 TiB"])
        self.assertEqual([quantities.spell_round_bytes(size) for size in (2**9, 2**19, 2**26, 2**35)],
                         ["512 B", "512 KiB", "64 MiB", "32 GiB"])
        self.assertEqual([quantities.spell_count(count) for count in (11_100_000, 1_272_000_000)],
                         ["11.1 M", "1.27 billion"])
        self.assertEqual([quantities.spell_deviation(ratio) for ratio in (1, 1.00001, 1.0123, 0.98)],
                         ["0 %", "0 %", "+1.23 %", "−2.00 %"])


class TablesTest(unittest.TestCase):
    def setUp(self):
        self.shown = suite.Suite(some_rows())

    def test_the_table_of_a_readme_has_at_most_eight_rows_and_says_what_was_saved(self):
        lines = tables.short_table(self.shown).splitlines()
        self.assertLessEqual(len(lines), 2 + 8)
        self.assertIn("| fsdp: process growth, MiB | FSDP2: process growth, MiB | DDP: process growth, MiB |", lines[0])
        self.assertEqual([cell.strip() for cell in lines[4].strip("|").split("|")],
                         ["BERT base, 105 M", "4", "410", "410", "420", "–", "1,700", "75 %"])
        self.assertIn("does not fit", lines[5])

    def test_a_peer_without_the_strategy_is_told_from_one_that_does_not_fit(self):
        row = peer_row(plain("full-shard", 1), "FSDP1", why=peers.NOTHING_TO_SHARD)
        self.assertEqual(tables.grown(row), "has none")
        row = peer_row(plain("full-shard", 1), "FSDP1", why="Connection closed by peer")
        self.assertEqual(tables.grown(row), "failed")

    def test_what_was_planned_only_counts_in_no_result(self):
        told = tables.summary(self.shown)
        self.assertIn("- 18 cells measured; 1 planned only", told)
        self.assertIn("checks failed: 0", told)
        self.assertIn("phase and category: in 18 of 18 cells", told)
        self.assertIn("full shard saves compared with DDP: 52 % on 2, 75 % on 4 ranks\n", told)

    def test_what_differs_between_models_is_told_from_the_least_to_the_most(self):
        cell = cells.Cell("bert-large", "full-shard", 4)
        other = [own_row(cell), peer_row(cell, "FSDP2", 17 * PARAMETERS),
                 own_row(cells.Cell("bert-large", "replicate", 4)),
                 peer_row(cells.Cell("bert-large", "replicate", 4), "DDP", 30 * PARAMETERS)]
        told = tables.summary(suite.Suite(some_rows() + other))
        self.assertIn("compared with DDP: 52 % on 2, 75 %–86 % on 4 ranks\n", told)
        self.assertIn("ratio (number of cells): FSDP2 4.05 (1), DDP 1.05–1.85 (4)\n", told)

    def test_a_cell_that_is_not_as_planned_is_counted_and_told(self):
        bad = own_row(plain("zero1", 2))
        bad["measured"]["phases"]["rest"]["reduce slots"] = 1
        told = tables.summary(suite.Suite([own_row(plain("zero1", 4)), bad]))
        self.assertIn("phase and category: in 1 of 2 cells", told)
        self.assertIn("checks failed: 1\n  - bert-base zero1 2: rest, reduce slots: planned 0, measured 1", told)

    def test_the_time_of_a_step_is_the_median_behind_the_first(self):
        self.assertEqual(suite.step_ms(own_row(plain("zero1", 2))), 3.0)


class CsvTablesTest(Scratch):
    def setUp(self):
        super().setUp()
        self.shown = suite.Suite(some_rows())

    def test_cells_stand_by_ranks_then_by_options_then_those_that_are_simulated(self):
        names = [line["cell"] for line in csv_tables.cells(self.shown) if line["cell"].startswith("bert-base")]
        self.assertEqual(names[:5], ["bert-base replicate 1", "bert-base zero1 1", "bert-base zero2 1",
                                     "bert-base full-shard 1", "bert-base replicate 2"])
        self.assertEqual(names[-2:], ["bert-base full-shard 2 recompute", "bert-base full-shard 64 simulated"])

    def test_a_cell_has_its_sizes_and_those_of_its_peers(self):
        lines = {line["cell"]: line for line in csv_tables.cells(self.shown)}
        line = lines["bert-base replicate 4"]
        self.assertEqual([line[name] for name in ("planned", "measured", "of the plan", "process", "step ms",
                                                  "state, bytes a parameter", "DDP process")],
                         [1610.0, 1610.0, 1.0, 1620.0, 3.0, 16.0, 1700.0])
        self.assertEqual(lines["bert-base replicate 8"]["DDP process"], "does not fit")
        planned = lines["bert-large replicate 8"]
        self.assertEqual((planned["status"], planned["planned"], planned["sent"]), ("planned", 1610.0, 800.0))
        self.assertNotIn("measured", planned)

    def test_cells_that_were_not_measured_are_named_with_their_reason(self):
        self.assertEqual(csv_tables.left_out(self.shown), [
            {"cell": "bert-large replicate 8", "by": "fsdp", "status": "planned", "why": "too large"},
            {"cell": "bert-base replicate 8", "by": "DDP", "status": "impossible",
             "why": f"{runs.CANNOT_HOLD}no room for 8"}])

    def test_phases_have_a_line_for_each_category_that_has_bytes(self):
        lines = [line for line in csv_tables.phases(self.shown) if line["cell"] == "bert-base full-shard 4"]
        self.assertEqual([line["category"] for line in lines], ["main shards", "LibTorch"])
        self.assertEqual([lines[0][phase] for phase in PHASES], [300.0, 400.0, 400.0, 400.0, 400.0])

    def test_buffers_stand_beside_those_of_FSDP2_and_both_beside_the_formula(self):
        peer = peer_row(plain("full-shard", 4), "FSDP2", 17 * PARAMETERS)
        peer["measured"]["buffers peak"] = 6 * PARAMETERS
        self.assertEqual(csv_tables.buffers(suite.Suite([*some_rows(), peer])),
                         [{"cell": "bert-base full-shard 4", "ours": 400.0, "ours of the formula": 1.0,
                           "FSDP2": 600.0, "FSDP2 of the formula": 1.5}])


class PagesTest(Scratch):
    FOUND = {"one": "1", "two": "2"}

    def test_what_stands_between_marks_is_replaced_and_nothing_else(self):
        page = "a\n<!-- begin one -->\nold\n<!-- end one -->\nb\n<!-- begin two -->\n<!-- end two -->\n"
        filled = report.fill("page", page, self.FOUND)
        self.assertEqual(filled, "a\n<!-- begin one -->\n\n1\n\n<!-- end one -->\nb\n<!-- begin two -->\n\n2\n\n"
                                 "<!-- end two -->\n")
        self.assertEqual(report.fill("page", filled, self.FOUND), filled)

    def test_marks_that_mean_nothing_are_refused_by_name(self):
        for page, said in (("<!-- begin three -->\n<!-- end three -->", "page: <!-- begin three -->: there are one"),
                           ("<!-- begin one -->\n", "page: a <!-- begin NAME --> is not followed"),
                           ("<!-- begin one -->\n<!-- end two -->\n", "page: a <!-- begin NAME --> is not followed")):
            with self.assertRaisesRegex(report.BadMark, said):
                report.fill("page", page, self.FOUND)

    def test_pages_tables_and_shown_pictures_of_the_documentation_are_brought_up_to_date(self):
        root = self.folder / "root"
        (root / report.PICTURES).mkdir(parents=True)
        for name in report.PAGES:
            (root / name).write_text("# A page\n<!-- begin summary -->\n<!-- end summary -->\n"
                                     "![](pictures/scaling-plan.png)\n", encoding="utf-8")
        drawn = [self.folder / "scaling-plan.png", self.folder / "scaling-plan.svg"]
        for path in drawn:
            path.write_bytes(b"png")
        with contextlib.redirect_stdout(io.StringIO()):
            report.bring_up_to_date(root, suite.Suite(some_rows()), drawn)
        for name in report.PAGES:
            self.assertIn("- 18 cells measured", (root / name).read_text(encoding="utf-8"))
        self.assertEqual([path.name for path in (root / report.PICTURES).iterdir()], ["scaling-plan.png"])
        self.assertEqual({path.name for path in (root / report.CSV_TABLES).iterdir()}, set(csv_tables.TABLES))

    def test_the_pages_that_ship_have_good_marks(self):
        found = report.sections(suite.Suite(some_rows()))
        for name in report.PAGES:
            report.fill(name, (ROOT / name).read_text(encoding="utf-8"), found)


class PicturesTest(Scratch):
    def write(self, made, **more):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            report.write_report(made, self.folder, programs=self.folder, **more)
        return said.getvalue(), {path.name for path in self.folder.iterdir()}

    def trace(self):
        events = [{"ph": "C", "pid": 0, "ts": time, "args": {"main shards": 8, "reduce slots": slots}}
                  for time, slots in ((0, 0), (1000, 4), (2000, 0))]
        events += [{"ph": "X", "cat": cat, "name": f"{cat}{unit}", "pid": 0, "ts": 100, "dur": 900}
                   for cat in ("forward", "backward") for unit in ("", " a.b.0", " a.b.1")]
        path = self.folder / "trace.json"
        path.write_text(json.dumps({"traceEvents": events}))
        return path

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "matplotlib is not here")
    def test_each_picture_is_drawn_of_what_it_needs(self):
        _, names = self.write(some_rows(), trace=self.trace())
        for name in ("ranks", "plan", "price", "step"):
            self.assertIn(f"scaling-{name}.png", names)
            self.assertIn(f"scaling-{name}.svg", names)

    def test_the_price_has_gathered_shards_where_the_plan_knows_better_than_mapped_ones(self):
        row, base = own_row(plain("full-shard", 2)), own_row(plain("replicate", 2))
        device = row["planned"]["device peak"]

        def probe(_programs, words):
            self.assertEqual(words[words.index("--planned-ranks") + 1], "2")
            maps = words[words.index("--map-shards") + 1] == "true"
            return {"planned": {"device peak": device if maps else device + gap, "host": 0, "sent": 77}}, None

        with unittest.mock.patch.object(pictures_price.runs, "run_probe", probe):
            gap = base["measured"]["device peak"]
            found = pictures_price.gathered(row, base, None)
            self.assertEqual([each.name for each in found], ["full shard, gathered"])
            self.assertAlmostEqual(found[0].memory, device / gap + 1)
            self.assertIsNone(found[0].time)
            gap = 0  # nothing was mapped
            self.assertEqual(pictures_price.gathered(row, base, None), [])
            device += 1
            with self.assertRaisesRegex(pictures_price.CannotPlan, "has another plan now"):
                pictures_price.gathered(row, base, None)

    def test_a_picture_without_data_is_left_out_and_said(self):
        said, names = self.write([])
        self.assertEqual(names, {"results.csv", "tables.md", *csv_tables.TABLES})
        for text in ("memory by ranks: neither full shard", "course of a step: no trace is given",
                     "scaling_probe is not built", "plan and measurement: no cell was measured", "price: replicate"):
            self.assertIn(text, said)

    def test_every_row_is_in_the_csv_with_its_bytes_by_phase(self):
        report.write_csv(some_rows(), self.folder / "results.csv")
        with open(self.folder / "results.csv", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        self.assertEqual(len(lines), len(some_rows()))
        self.assertEqual(lines[2]["measured.phases.rest.main shards"], str(3 * PARAMETERS))
        self.assertEqual((lines[-1]["by"], lines[-1]["measured.growth peak"]), ("DDP", ""))

    def test_ticks_are_doublings_around_all_values_and_not_too_many(self):
        self.assertEqual(pictures.doublings(1, 8), [1, 2, 4, 8])
        self.assertEqual(pictures.doublings(1.5, 9), [1, 2, 4, 8, 16])
        self.assertEqual(pictures.doublings(2**20, 2**30, most_ticks=6), [2**power for power in range(20, 31, 2)])

    def test_what_is_no_trace_is_said(self):
        path = self.folder / "bad.json"
        for text in ("", "{}", '{"traceEvents": []}'):
            path.write_text(text)
            with self.assertRaisesRegex(pictures.NoData, "bad.json"):
                pictures_step.draw(path, "", self.folder)

    def test_labels_that_would_touch_move_apart_and_others_stay(self):
        self.assertEqual(pictures.spread([5, 1, 9], 2), [5, 1, 9])
        self.assertEqual(pictures.spread([1, 1], 2), [0, 2])
        placed = pictures.spread([1.0, 1.1, 1.2, 9.0], 1)
        self.assertEqual([round(high - low, 6) for low, high in zip(placed[:2], placed[1:3])], [1, 1])
        self.assertEqual(placed[3], 9.0)


class LargestTest(unittest.TestCase):
    class Planner:
        """A planner whose bytes grow faster from 30 layers on, when the layers exceed a fixed cost."""
        asked = 0

        def ask(self, strategy, ranks, recompute, layers):
            del strategy, ranks, recompute
            self.asked += 1
            return largest.Planned(max(3000, 100 * layers) + 10 * layers, 7 * layers)

    def test_the_deepest_model_that_fits_is_found_in_few_tries(self):
        planner = self.Planner()
        depths = largest.Depths(planner, "full-shard", 2)
        for cap, least, most in ((3010, 1, 1), (3300, 1, 30), (11000, 99, 100), (11110, 100, 101), (10**5, 900, 909)):
            found = depths.largest(cap)
            self.assertTrue(least <= found.parameters // 7 <= most, (cap, found))
            self.assertLessEqual(found.bytes, cap)
        self.assertIsNone(depths.largest(3009))
        self.assertLess(planner.asked, 20)

    def test_a_program_that_is_not_there_is_said(self):
        with self.assertRaisesRegex(largest.NoPlan, "nowhere/scaling_probe is not built"):
            largest.Planner("nowhere/scaling_probe", "nowhere/largest.json")


class CommandLineTest(Scratch):
    def test_bad_input_ends_with_64_and_a_line(self):
        bad = self.folder / "bad.jsonl"
        bad.write_text("[1]\n")
        for words, said in (([], "required: RESULTS.jsonl, FOLDER"), ([bad, self.folder], "bad.jsonl:1: the line is not a row"),
                            ([self.folder / "none", self.folder], "No such file"),
                            ([bad, self.folder, "--fast"], "unrecognized arguments: --fast")):
            ended = subprocess.run([sys.executable, ROOT / "benchmarks/scaling/report.py", *map(str, words)],
                                   capture_output=True, text=True, check=False)
            self.assertEqual(ended.returncode, 64, ended.stderr)
            self.assertIn(said, ended.stderr.splitlines()[-1])


if __name__ == "__main__":
    if measure.PYTHON.exists():
        measure.use_matplotlib()
    unittest.main()
