"""Programs that imitate the real ones."""
import json
import pathlib
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools/gpu_proof"), str(ROOT / "benchmarks")]

HANGS = "import time\ntime.sleep(600)"
GARBAGE = "import os\nos.write(1, bytes(range(256)) * 300)"
LOSSES = "print('step 1 loss 4.200')\nprint('step 50 loss 0.300')"
FACTS = {"gpus": [{"name": "Fake GPU", "memory_bytes": 80 * 10**9, "capability": "9.0"}], "nccl": "2.30.7",
         "driver_cuda": "13.2", "runtime_cuda": "13.2"}
NO_GPU = ("print('gpu  none')\nimport sys\nprint('fsdp: error[78] rank 0/1 host h: no GPU can be used; no driver; "
          "hint: buy one', file=sys.stderr)\nsys.exit(78)")


def facts(**changed):
    return f"print({json.dumps({**FACTS, **changed})!r})"


def exits(code, said="", stream="stdout"):
    return f"import sys\nprint({said!r}, file=sys.{stream})\nsys.exit({code})"


class Scratch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.bin = self.folder / "bin"
        self.bin.mkdir()

    def program(self, name, body):
        """Writes a program of this name that runs a body of Python."""
        path = self.bin / name
        path.write_text(f"#!{sys.executable} -IS\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
        return path


def state_of(pid):
    """Returns the state letter of the process, or None if it does not exist."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def ends(pid, seconds=60):
    """Returns True if the process ends in time. A killed process still exists for a short time."""
    until = time.monotonic() + seconds
    while state_of(pid) not in (None, "Z", "X"):
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True
