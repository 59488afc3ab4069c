"""Runs programs that print numbers on request, in turn. A program may hang, die or print another text."""
import math
import os
import select
import subprocess
import tempfile

import programs


class NoAnswer(Exception):
    """The error of a program that did not print a number. The text gives the reason."""


class Contestant:
    """A program that answers each line with a line of one number. When it ends, its children are ended, too."""

    def __init__(self, command, environment=None):
        self.name = " ".join(str(word).rpartition("/")[2] for word in command)
        self.errors = tempfile.TemporaryFile()
        self.rest = b""
        try:
            self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=self.errors, start_new_session=True, bufsize=0,
                                            env={**os.environ, **(environment or {})})
        except OSError as error:
            self.errors.close()
            raise NoAnswer(f"{self.name} cannot be started: {error.strerror}") from None

    def ask(self, line, deadline):
        """Returns the number. Raises NoAnswer."""
        try:
            self.process.stdin.write(f"{line}\n".encode())
        except BrokenPipeError:
            pass  # the program has ended; the code below reports its last output
        answer = self.read_line(line, deadline)
        try:
            number = float(answer)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise NoAnswer(f"{self.name} answered '{line}' with {answer[:80]!r}")
        return number

    def read_line(self, line, deadline):
        output = self.process.stdout
        while b"\n" not in self.rest:
            if not select.select([output], [], [], deadline.left())[0]:
                raise NoAnswer(f"{self.name} did not answer '{line}' within {deadline.seconds:.0f} s")
            some = os.read(output.fileno(), 2**16)
            if not some:
                raise NoAnswer(f"{self.name} {self.end()}")
            self.rest += some
            if len(self.rest) > 2**16:
                raise NoAnswer(f"{self.name} answered '{line}' with more than a line")
        answer, _, self.rest = self.rest.partition(b"\n")
        return answer.decode(errors="replace").strip()

    def end(self):
        """Returns a text that says how the program ended."""
        code = self.process.wait()
        self.errors.seek(0)
        said = programs.telling_line(self.errors.read().decode(errors="replace"))
        how = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
        return f"{how}: {said}" if said else how

    def close(self):
        if self.process.returncode is None:
            programs.end_session(self.process.pid)
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.errors.close()
