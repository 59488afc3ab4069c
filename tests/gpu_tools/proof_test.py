"""Tests the parts of tools/test gpu on programs that pass, fail, hang, die or print garbage. Also tests the reports
about these programs, with and without a GPU."""
import contextlib
import io
import os
import subprocess
import sys
import time
import unittest

from fakes import FACTS, GARBAGE, HANGS, LOSSES, NO_GPU, ROOT, Scratch, ends, exits, facts
import compare_bits
import doctor
import gpu_facts
import parts
import programs
import proof

BITS = "import sys\nopen(sys.argv[2], 'w').write('0123456789abcdef 4 adamw\\nend 1\\n')"
OTHER_BITS = BITS.replace("0123456789abcdef", "0123456789abcdee")
PATIENT = 600.0  # seconds, for tests that must not reach the limit
KILLS_ITSELF = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
# Imitates fsdp-run. The log of rank 1 in --log-dir reports when it was hit, and rank 0 names it.
FAKE_RUN = """import os, pathlib, sys, time
words = sys.argv[1:]
if 'training_rank' not in ' '.join(words):
    print('step 1 loss 4.2'); print('step 50 loss 0.3')
    print(os.environ.get('NCCL_MULTI_RANK_GPU_ENABLE'), os.environ.get('CUDA_VISIBLE_DEVICES'), words[1])
    sys.exit(0)
logs = pathlib.Path(words[words.index('--log-dir') + 1])
logs.mkdir()
(logs / 'rank-1.out').write_text(f'hit {time.monotonic() + 8}\\n')
cause = 'was killed by signal 9 (SIGKILL)' if 'kill' in words else 'did not arrive within 8.0 s'
(logs / 'rank-0.err').write_text(f'fsdp: error[75] rank 0/2 host h step 5: a rank died; rank 1 {cause}\\n')
sys.exit(75)
"""


class UntilSaid(programs.Deadline):
    """A deadline that expires when a program has printed something."""

    def __init__(self, log):
        super().__init__(PATIENT)
        self.log = log

    def left(self):
        return 0.0 if self.log.exists() and self.log.stat().st_size else super().left()


class ProgramsTest(Scratch):
    def run_body(self, body, deadline=None):
        return programs.run([self.program("one", body)], deadline or programs.Deadline(PATIENT),
                            self.folder / "one.log")

    def test_how_a_program_ends_is_told(self):
        ended = self.run_body("print('fine')")
        self.assertEqual((ended.code, ended.signal, ended.timed_out, ended.output), (0, None, False, "fine\n"))
        ended = self.run_body(exits(3, "no such thing", "stderr"))
        self.assertEqual((ended.code, ended.why), (3, "ended with code 3: no such thing"))
        ended = self.run_body(KILLS_ITSELF)
        self.assertEqual((ended.code, ended.signal, ended.why), (None, 9, "was killed by signal 9"))

    def test_a_program_that_hangs_ends_with_all_that_it_started(self):
        body = ("import subprocess\nchild = subprocess.Popen(['sleep', '600'])\nprint(child.pid, flush=True)\n" + HANGS)
        ended = self.run_body(body, UntilSaid(self.folder / "one.log"))
        self.assertEqual((ended.timed_out, ended.code, ended.signal), (True, None, None))
        self.assertIn("did not end within", ended.why)
        self.assertTrue(ends(int(ended.output)))

    def test_children_that_a_program_leaves_behind_are_ended(self):
        ended = self.run_body("import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)")
        self.assertEqual(ended.code, 0)
        self.assertTrue(ends(int(ended.output)))

    def test_of_garbage_the_end_is_kept(self):
        ended = self.run_body(GARBAGE)
        self.assertEqual(ended.code, 0)
        self.assertLessEqual(len(ended.output), programs.SHOWN)

    def test_the_line_that_says_most_is_the_first_error(self):
        self.assertEqual(programs.telling_line("a\nfsdp: error[70] x\nfsdp: error[75] y\nb\n"), "fsdp: error[70] x")
        self.assertEqual(programs.telling_line("a\nb\n\n"), "b")
        self.assertEqual(programs.telling_line(""), "")


class PartsTest(unittest.TestCase):
    def run_parts(self, *runs, seconds=60.0):
        said = []
        made = [parts.Part(f"part {number}", 30, run) for number, run in enumerate(runs)]
        return parts.run_parts(made, seconds, said.append), said

    def test_each_part_has_its_own_end(self):
        def skips(_):
            raise parts.Skipped("no second GPU")

        def fails(_):
            raise parts.Failed("two bits\n differ")

        def cannot_start(_):
            raise FileNotFoundError(2, "No such file", "kernels")

        results, said = self.run_parts(lambda _: "7 cases", skips, fails, cannot_start, lambda _: None)
        self.assertEqual([each.state for each in results], ["passed", "skipped", "failed", "failed", "passed"])
        self.assertIn("two bits differ", said[2])
        self.assertRegex(said[1], r"^skipped  part 1 +no second GPU$")
        self.assertEqual(said[-1], "2 passed, 2 failed, 1 skipped")
        self.assertEqual(parts.exit_code(results), 1)
        self.assertEqual(parts.exit_code(results[:2]), 0)

    def test_a_part_has_its_own_limit(self):
        limits = []
        made = [parts.Part("short", 5, lambda deadline: limits.append((deadline.seconds, deadline.left())))]
        parts.run_parts(made, 60, lambda _: None)
        self.assertEqual(limits[0][0], 5)
        self.assertLessEqual(limits[0][1], 5)

    def test_a_part_has_what_is_left_of_all_and_none_is_tried_behind_that(self):
        limits = []

        def slow(deadline):
            limits.append(deadline.left())
            time.sleep(0.3)

        results, said = self.run_parts(slow, slow, seconds=0.2)
        self.assertLessEqual(limits[0], 0.2)
        self.assertEqual(len(limits), 1)
        self.assertEqual(results[1].state, "failed")
        self.assertIn("not tried", said[1])


class DoctorTest(Scratch):
    def ask(self, body):
        return doctor.ask(self.program("fsdp-doctor", body), programs.Deadline(PATIENT), self.folder / "doctor.log")

    def test_its_three_answers(self):
        self.assertTrue(self.ask("print('ready')").is_ready)
        found = self.ask(NO_GPU)
        self.assertEqual((found.is_ready, found.no_gpu, found.why), (False, True, "no GPU can be used; no driver"))
        found = self.ask(exits(1, "the driver is too old"))
        self.assertEqual((found.is_ready, found.no_gpu), (False, False))
        self.assertIn("the driver is too old", found.why)

    def test_one_that_says_nothing_dies_or_is_not_there(self):
        self.assertEqual(self.ask("import sys\nsys.exit(78)").why, "the doctor found no GPU")
        self.assertFalse(self.ask(KILLS_ITSELF).no_gpu)
        found = doctor.ask(self.bin / "none", programs.Deadline(1), self.folder / "log")
        self.assertIn("cannot be started", found.why)


class FactsTest(Scratch):
    def read(self, body):
        return gpu_facts.read(self.program("gpu_facts", body), programs.Deadline(PATIENT), self.folder / "log")

    def test_what_is_told(self):
        told = self.read(facts())
        self.assertEqual(told.device, "Fake GPU, 80 GB")
        self.assertIsNone(told.cannot_share())
        self.assertIn("2.28.9 refuses", self.read(facts(nccl="2.28.9")).cannot_share())
        self.assertIn("no NCCL", self.read(facts(nccl="")).cannot_share())
        self.assertTrue(self.read(facts(gpus=FACTS["gpus"] * 4)).device.startswith("4 × Fake"))

    def test_what_is_no_answer_is_an_error(self):
        for body in (GARBAGE, exits(1, "{}"), "print('[1]')", "print('{\"gpus\": 3}')", ""):
            with self.assertRaises(gpu_facts.NoFacts):
                self.read(body)

    def test_no_gpu_is_an_error_with_its_reason(self):
        with self.assertRaisesRegex(gpu_facts.NoFacts, "sees no GPU: all are hidden"):
            self.read(facts(gpus=[], why_none="all are hidden"))

    def test_one_gpu_is_the_first_that_is_seen(self):
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.addCleanup(lambda: os.environ.pop("CUDA_VISIBLE_DEVICES", None) if before is None
                        else os.environ.update(CUDA_VISIBLE_DEVICES=before))
        os.environ["CUDA_VISIBLE_DEVICES"] = "3,1"
        self.assertEqual(gpu_facts.first_gpu(), {"CUDA_VISIBLE_DEVICES": "3"})
        del os.environ["CUDA_VISIBLE_DEVICES"]
        self.assertEqual(gpu_facts.first_gpu(), {"CUDA_VISIBLE_DEVICES": "0"})


class BitsTest(Scratch):
    def compare(self, left, right):
        sides = [(self.program(name, body), "gpu") for name, body in (("left", left), ("right", right))]
        return compare_bits.compare(*sides, self.folder / "bits", programs.Deadline(PATIENT))

    def test_equal_bits_pass_and_a_difference_names_its_case(self):
        self.assertEqual(self.compare(BITS, BITS), (1, []))
        self.assertEqual(self.compare(BITS, OTHER_BITS), (1, ["adamw: 0123456789abcdef and 0123456789abcdee"]))
        self.assertEqual(self.compare(BITS, BITS.replace("adamw", "sgd"))[1],
                         ["adamw: only on the left", "sgd: only on the right"])

    def test_a_file_that_is_not_whole_is_no_result(self):
        for text in ("", "garbage\n", "0123456789abcdef 4 adamw\n", "0123456789abcdef 4 adamw\nend 2\n", "end 0\n",
                     "0123456789abcdef 4 a\n0123456789abcdef 4 a\nend 2\n"):
            with self.assertRaises(compare_bits.BadBits):
                self.compare(BITS, f"import sys\nopen(sys.argv[2], 'w').write({text!r})")

    def test_a_program_that_fails_or_writes_nothing_is_named(self):
        for body, said in ((exits(77, "not run: no driver"), "right gpu ended with code 77: not run: no driver"),
                           ("pass", "No such file"), (KILLS_ITSELF, "was killed by signal 9")):
            with self.assertRaisesRegex(compare_bits.BadBits, said):
                self.compare(BITS, body)


class ProofTest(Scratch):
    def setUp(self):
        super().setUp()
        for name in ("fsdp-doctor", "kernels_on_gpu_tests", "training_on_gpu_tests"):
            self.program(name, "pass")
        for name in ("bits_simulated", "bits_on_gpu"):
            self.program(name, BITS)
        self.program("fsdp-run", FAKE_RUN)
        self.program("gpu_facts", facts())
        self.sanitizer = self.program("compute-sanitizer", "pass")

    def prove(self):
        made = proof.Proof(self.bin, self.folder / "output", self.sanitizer)
        said = []
        results = parts.run_parts(made.possible_parts(), PATIENT, said.append)
        return {each.name: (each.state, each.detail) for each in results}, said

    def test_on_a_good_gpu_all_parts_pass_but_those_that_need_another(self):
        found, said = self.prove()
        self.assertEqual([name for name, (state, _) in found.items() if state != "passed"], ["NCCL at all GPUs"])
        self.assertEqual(found["doctor"][1], "Fake GPU, 80 GB")
        self.assertEqual(found["NCCL at world 1"][1], "loss 4.200 to 0.300")
        self.assertEqual(said[-1], "10 passed, 0 failed, 1 skipped")

    def test_without_a_gpu_each_part_is_named_and_skipped_with_the_reason(self):
        self.program("fsdp-doctor", NO_GPU)
        found, _ = self.prove()
        self.assertEqual(len(found), 11)
        self.assertEqual(set(found.values()), {("skipped", "no GPU can be used; no driver")})

    def test_where_the_doctor_fails_the_others_are_tried(self):
        self.program("fsdp-doctor", exits(1, "an old driver"))
        found, _ = self.prove()
        self.assertEqual(found["doctor"], ("failed", "ended with code 1: an old driver"))
        self.assertEqual(found["kernels"][0], "passed")

    def test_a_program_that_fails_hides_no_other(self):
        self.program("kernels_on_gpu_tests", exits(1, "TEST CASE: adamw"))
        self.program("bits_on_gpu", OTHER_BITS)
        self.program("training_on_gpu_tests", exits(77, "not run: hidden"))
        found, said = self.prove()
        self.assertIn("TEST CASE: adamw", found["kernels"][1])
        self.assertIn("1 of 1 differ, the first: adamw", found["simulator against silicon"][1])
        self.assertEqual(found["thread ranks on one GPU"][0], "failed")
        self.assertEqual(found["a rank stopped"][0], "passed")
        self.assertEqual(said[-1], "7 passed, 3 failed, 1 skipped")

    def test_what_the_sanitizer_finds_fails_its_part_and_none_is_no_failure(self):
        self.program("compute-sanitizer", "import sys\nsys.exit(99 if 'racecheck' in sys.argv else 0)")
        found, _ = self.prove()
        self.assertEqual([found[f"kernels under {tool}"][0] for tool in ("memcheck", "racecheck")],
                         ["passed", "failed"])
        self.sanitizer = None
        found, _ = self.prove()
        self.assertEqual(found["kernels under memcheck"][0], "skipped")

    def test_ranks_share_a_gpu_only_where_nccl_lets_them(self):
        self.program("gpu_facts", facts(nccl="2.28.9"))
        found, _ = self.prove()
        for name in ("NCCL, two ranks on one GPU", "a rank killed", "a rank stopped"):
            self.assertEqual(found[name][0], "skipped")
            self.assertIn("2.28.9 refuses", found[name][1])

    def test_ranks_that_share_are_told_so_and_others_have_all_gpus(self):
        self.prove()
        said = (self.folder / "output/nccl_shared.log").read_text().splitlines()[-1]
        self.assertEqual(said, f"1 {gpu_facts.first_gpu()['CUDA_VISIBLE_DEVICES']} 2")
        self.program("gpu_facts", facts(gpus=FACTS["gpus"] * 3))
        found, _ = self.prove()
        self.assertTrue(found["NCCL at all GPUs"][1].startswith("3 ranks, loss"))

    def test_a_loss_that_does_not_fall_or_is_not_told_fails(self):
        for body in (LOSSES.replace("0.300", "4.100"), GARBAGE, "pass"):
            self.program("fsdp-run", body)
            self.assertEqual(self.prove()[0]["NCCL at world 1"][0], "failed", body)

    def test_a_job_that_does_not_name_the_rank_or_has_another_code_fails(self):
        for other, said in ((FAKE_RUN.replace("sys.exit(75)", "sys.exit(70)"), "expected code 75"),
                            (FAKE_RUN.replace("rank 1 {cause}", "?"), "does not say"),
                            (FAKE_RUN.replace("hit {", "miss {"), "never reached the rank"),
                            (FAKE_RUN.replace("time.monotonic() + 8", "time.monotonic() - 50"), "after the fault")):
            self.program("fsdp-run", other)
            state, detail = self.prove()[0]["a rank killed"]
            self.assertEqual(state, "failed", other)
            self.assertIn(said, detail)

    def test_programs_that_are_not_built_fail_by_name(self):
        (self.bin / "kernels_on_gpu_tests").unlink()
        (self.bin / "gpu_facts").unlink()
        found, _ = self.prove()
        self.assertIn("kernels_on_gpu_tests", found["kernels"][1])
        self.assertIn("gpu_facts", found["NCCL at all GPUs"][1])


class CommandLineTest(Scratch):
    def call(self, *words):
        return subprocess.run([sys.executable, ROOT / "tools/gpu_proof/proof.py", "--bin", self.bin, "--output",
                               self.folder / "output", *words], capture_output=True, text=True, check=False)

    def test_without_a_gpu_it_ends_with_0_and_a_line_a_part(self):
        self.program("fsdp-doctor", NO_GPU)
        ended = self.call()
        self.assertEqual(ended.returncode, 0, ended.stderr)
        lines = ended.stdout.splitlines()
        self.assertEqual(len(lines), 12, lines)
        self.assertTrue(all(line.startswith("skipped ") for line in lines[:-1]))
        self.assertEqual(lines[-1], "0 passed, 0 failed, 11 skipped")

    def test_a_part_that_fails_ends_it_with_1_and_a_bad_word_with_64(self):
        self.program("fsdp-doctor", exits(1, "no"))
        self.assertEqual(self.call().returncode, 1)
        self.assertEqual(self.call("--fast").returncode, 64)

    def test_two_sides_are_compared_by_hand(self):
        left, right = self.program("left", BITS), self.program("right", OTHER_BITS)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            before, sys.argv = sys.argv, ["compare_bits.py", "--left", str(left), "cpu", "--right", str(right), "gpu"]
            try:
                self.assertEqual(compare_bits.main(), 1)
            finally:
                sys.argv = before
        self.assertEqual(said.getvalue(), "adamw: 0123456789abcdef and 0123456789abcdee\n1 results, 1 differ\n")


if __name__ == "__main__":
    unittest.main()
