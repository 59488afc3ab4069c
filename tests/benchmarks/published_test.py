"""Tests the parts of tools/bench published on invented steps. The script restarts itself under the project's Python,
which has numpy. If that Python does not exist, it does not test fits."""
import dataclasses
import importlib.util
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import measure  # noqa: E402
from published_steps import fits, golden, machines, plans, steps, tables  # noqa: E402

STEP = steps.Step("llm-foundry", "FSDP1 torch 2.1", "mpt-7b", "h100_80gb", 16, 8, 2, 3, 2048, "amp_bf16/default",
                  "FULL_SHARD", "0", 12288.0, "tokens/s/GPU")
NUMBERS = fits.Numbers(limit=7e14, half=700, attention=2e14, contention=0.6)


def found(seconds, **fields):
    return tables.Found("t", dataclasses.replace(STEP, **fields), seconds)


class StepsTest(unittest.TestCase):
    def test_each_published_step_has_a_source_with_a_licence_and_a_positive_value(self):
        sources = steps.sources()
        for step in steps.load():
            self.assertTrue(sources[step.source]["licence"])
            self.assertGreater(step.value, 0)

    def test_the_time_of_a_step_is_its_tokens_over_the_published_rate(self):
        self.assertEqual(STEP.tokens, 12288)
        self.assertEqual(STEP.seconds, 1.0)
        self.assertEqual(STEP.hosts, 2)

    def test_only_pytorch_2_1_ends_a_second_forward_early(self):
        again = dataclasses.replace(STEP, recompute="1")
        self.assertTrue(again.stops_early)
        self.assertFalse(dataclasses.replace(again, engine="FSDP1 torch 1.13").stops_early)
        self.assertFalse(STEP.stops_early)


class PlansTest(unittest.TestCase):
    def test_shares_of_recomputed_layers_are_between_two_plans(self):
        self.assertEqual(plans.recompute_parts(0), [(0, 1.0)])
        self.assertEqual(plans.recompute_parts(1), [(1, 1.0)])
        self.assertEqual(plans.recompute_parts(0.125), [(8, 1.0)])
        [(one, weight), (two, rest)] = plans.recompute_parts(0.625)
        self.assertEqual((one, two), (1, 2))
        self.assertAlmostEqual(weight + rest / 2, 0.625)

    def test_a_failed_plan_states_the_error_of_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "fsdp-plan"
            program.write_text("#!/bin/sh\necho 'no such model' >&2\nexit 64\n", encoding="utf-8")
            program.chmod(0o755)
            with plans.Plans(folder) as planner, self.assertRaisesRegex(plans.PlanFailed, "no such model"):
                planner.predict(STEP, NUMBERS.rates(machines.FITTED["h100"]))


class TablesTest(unittest.TestCase):
    def test_nine_of_ten_errors_are_at_most_p90(self):
        errors = tables.Errors.of([part / 100 for part in range(1, 11)])
        self.assertEqual((errors.count, errors.p90, errors.worst), (10, 0.09, 0.1))
        self.assertAlmostEqual(errors.median, 0.055)

    def test_pairs_count_only_if_their_measured_times_differ(self):
        slow, fast, near = found(2.0, value=6144.0), found(1.0), found(1.5, value=12300.0)
        self.assertEqual(tables.pairs([slow, fast]), (1, 1))
        self.assertEqual(tables.pairs([fast, near]), (0, 0))
        self.assertEqual(tables.pairs([found(0.5, value=6144.0), fast]), (0, 1))
        self.assertEqual(tables.pairs([slow, found(1.0, gpu="a100_40gb")]), (0, 0))


class RatesTest(unittest.TestCase):
    def test_the_text_of_a_rates_file_keeps_all_numbers(self):
        rates = NUMBERS.rates(machines.FITTED["h100"], residuals=[{"rows": "r", "count": 3, "median": 0.021}])
        self.assertEqual(json.loads(machines.to_text(rates)), rates)

    def test_a_golden_file_that_is_none_is_refused(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write("[1]")
            file.flush()
            self.assertEqual(golden.check(None, file.name), 64)


@unittest.skipUnless(importlib.util.find_spec("numpy"), "no numpy")
class FitsTest(unittest.TestCase):
    def test_a_fit_finds_the_numbers_with_which_its_steps_were_made(self):
        class Made:
            """Predicts steps by the parts of a plan."""

            def predict_all(self, chosen, rates):
                results = []
                for index, step in enumerate(chosen):
                    side = min(steps.MPT[step.model][0], step.sequences * step.length)
                    share = rates["contention"] / (1 + rates["contention"])
                    products = (2 + index % 3) * 4e14 / plans.product_rate(rates, "bfloat16", side)
                    attention = (1 + index % 4) * 5e13 / rates["attention"]["bfloat16"]
                    beside = 0.1 + 0.2 * (index % 5)
                    total = products + attention + beside * share
                    results.append(plans.Prediction(total, products, attention, beside, exposed=0))
                return results

        made = Made()
        machine = machines.FITTED["h100"]
        models = [model for model in steps.MPT for _ in range(4)]
        chosen = [dataclasses.replace(STEP, model=model) for model in models]
        truth = made.predict_all(chosen, NUMBERS.rates(machine))
        chosen = [dataclasses.replace(step, value=step.tokens / each.total) for step, each in zip(chosen, truth)]
        fitted = fits.fit_many(made, "h100", chosen)
        self.assertLess(fitted.distance(NUMBERS), 0.03)

    def test_a_zero_is_found_between_its_bounds(self):
        self.assertAlmostEqual(fits.solve(lambda value: value - 3, 0.1, 100), 3, places=3)
        self.assertEqual(fits.solve(lambda value: value + 1, 0.1, 100), 0.1)


if __name__ == "__main__":
    if measure.PYTHON.exists():
        measure.use_matplotlib()
    unittest.main()
