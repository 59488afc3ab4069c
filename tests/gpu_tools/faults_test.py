"""Kills a rank of a real training job on the CPU, and stops a rank of another job. tools/test gpu does the same on
GPUs.  faults_test.py BIN-FOLDER"""
import dataclasses
import pathlib
import sys
import time
import unittest

from fakes import Scratch
import faults
import parts
import programs

BIN = pathlib.Path(sys.argv.pop()) if len(sys.argv) > 1 else None


class FaultsTest(Scratch):
    def run_fault(self, fault):
        return faults.run(BIN, fault, 3, self.folder / "logs", programs.Deadline(60), {"TRAINING_DEVICE": "cpu"},
                          time.monotonic)

    def test_a_rank_that_is_killed_is_named_by_all_in_time_and_by_its_real_cause(self):
        self.assertRegex(self.run_fault(faults.KILLED), r"^3 ranks, all out after \d+\.\d s")
        with self.assertRaisesRegex(parts.Failed, "rank 0 does not say 'rank 1 was eaten'"):
            faults.require_named(dataclasses.replace(faults.KILLED, cause="rank 1 was eaten"), 3, self.folder / "logs")

    def test_a_rank_that_is_stopped_is_named_when_the_deadline_is_over(self):
        self.assertIn("3 ranks", self.run_fault(dataclasses.replace(faults.STOPPED, timeout=2.0)))


if __name__ == "__main__":
    unittest.main()
