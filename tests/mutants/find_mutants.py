#!/usr/bin/env python3
"""usage: find_mutants.py BUILD [NAME…]
       find_mutants.py --applies

Applies each patch of this folder, or those named, to a copy of what it changes, compiles that, links it
into the test program that the patch names in place of the library's own object, and runs the test. Each
mutant has to be found: the test fails, or still runs after the seconds of "hangs". Ends with 1 where a
patch does not apply, a mutant survives, or the test fails without it. --applies only applies the patches.

A patch begins with lines "key: value":
  what      the mistake
  program   the test program, in BUILD/bin
  cases     doctest's pattern of the test cases that find it
  hangs     seconds; only where the mistake makes the test hang
  compiles  the sources to compile where the patch changes a header (default: what it changes)
"""
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEYS = {"what", "program", "cases", "hangs", "compiles"}
LIMIT_S = 600  # seconds for a test that must not hang


class Wrong(Exception):
    """The mutant could not be tried, or was not found."""


@dataclasses.dataclass
class Mutant:
    name: str
    patch: pathlib.Path
    keys: dict
    files: list  # the files that it changes

    @property
    def sources(self):
        return self.keys["compiles"].split() if "compiles" in self.keys else self.files


def read_mutant(patch):
    text = patch.read_text()
    head = text.partition("\n--- ")[0]
    keys = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    if set(keys) - KEYS or not {"what", "program", "cases"} <= set(keys):
        raise Wrong(f"{patch.name}: the keys are {', '.join(sorted(keys)) or 'missing'}")
    return Mutant(patch.stem, patch, keys, re.findall(r"^\+\+\+ b/(\S+)", text, re.MULTILINE))


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise Wrong(f"{shlex.join(map(str, command))[:200]} ended with {done.returncode}:\n"
                    f"{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def apply(mutant, scratch):
    for file in mutant.files:
        if not (ROOT / file).exists():
            raise Wrong(f"{file}, which the patch changes, does not exist")
        (scratch / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, scratch / file)
    # Git must not see the repository around the scratch folder.
    run(["git", "apply", mutant.patch], cwd=scratch,
        env=os.environ | {"GIT_CEILING_DIRECTORIES": str(scratch.resolve().parent)})


class Build:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        if not (self.folder / "build.ninja").exists():
            raise Wrong(f"{self.folder} is no build of ninja's")
        self.compilations = [each for each in json.loads(self.ninja("compdb"))
                             if each["output"].endswith(".o")]

    def ninja(self, *tool):
        return run(["ninja", "-C", self.folder, "-t", *tool])

    def last_command(self, target):
        return self.ninja("commands", target).splitlines()[-1]

    def of_cpp(self, source):
        """Returns the file of the library that the compiler compiles for the source, and the command."""
        wanted = f'"{ROOT / source}"'
        for each in self.compilations:
            file = self.folder / each["file"]
            if each["output"].startswith("tests/"):  # a program's own copy
                continue
            if file == ROOT / source or (file.parent.name == "Unity" and wanted in file.read_text()):
                return file, each["command"]
        raise Wrong(f"nothing compiles {source}")

    def of_cu(self, source):
        for part in self.last_command(f"cuda/{source}.o").split(" && "):
            if " -c " in part:
                # The simulated GPU runs PTX of only one architecture.
                part = re.sub(r"code=\[[^]]*\]", "code=[sm_80,compute_80]", part)
                return ROOT / source, part
        raise Wrong(f"nothing compiles {source}")

    def compile(self, source, scratch):
        file, command = self.of_cu(source) if source.endswith(".cu") else self.of_cpp(source)
        mutated = scratch / source
        if file.parent.name == "Unity":
            mutated = scratch / file.name
            text = file.read_text()
            for each in scratch.rglob("*.cpp"):
                text = text.replace(f'"{ROOT / each.relative_to(scratch)}"', f'"{each}"')
            mutated.write_text(text)
        elif not mutated.exists():  # the mutant changes a header of it
            mutated = file
        tokens = shlex.split(command)
        output = scratch / (file.name + ".o")
        for option, value in (("-o", output), ("-c", mutated), ("-MF", scratch / "depends"),
                              ("-MT", output)):
            if option in tokens:
                tokens[tokens.index(option) + 1] = str(value)
        first = next(i for i, token in enumerate(tokens) if token.startswith("-I"))
        run(tokens[:first] + [f"-I{scratch}"] + tokens[first:], cwd=self.folder)
        return output

    def link(self, program, objects, scratch):
        """Links the objects before the libraries, so that they replace the libraries' own."""
        command = self.last_command(f"bin/{program}").removeprefix(": && ").removesuffix(" && :")
        tokens = shlex.split(command)
        tokens[tokens.index("-o") + 1] = str(scratch / program)
        first = next(i for i, token in enumerate(tokens) if token.endswith(".o"))
        run(tokens[:first] + [str(each) for each in objects] + tokens[first:], cwd=self.folder)
        return scratch / program


def run_test(program, mutant, limit):
    """Returns the output and the exit status. The status is None if the program still runs after the limit."""
    test = subprocess.Popen([program, f"--test-case={mutant.keys['cases']}"], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                            env=os.environ | {"FSDP_SIM_SEEDS": "2"})
    try:
        printed = test.communicate(timeout=limit)[0]
        return printed, test.returncode
    except subprocess.TimeoutExpired:
        os.killpg(test.pid, signal.SIGKILL)
        return test.communicate()[0], None


def find(mutant, build):
    scratch = build.folder / "mutants" / mutant.name
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    apply(mutant, scratch)
    program = mutant.keys["program"]
    run(["cmake", "--build", build.folder, "--target", program])
    printed, status = run_test(build.folder / "bin" / program, mutant, LIMIT_S)
    if status != 0 or not re.search(r"test cases: +[1-9]", printed):
        raise Wrong(f"the test without the mutant ends with {status}:\n{printed[-3000:]}")
    objects = [build.compile(source, scratch) for source in mutant.sources]
    mutated = build.link(program, objects, scratch)
    hangs = "hangs" in mutant.keys
    printed, status = run_test(mutated, mutant, int(mutant.keys["hangs"]) if hangs else LIMIT_S)
    mutated.unlink()
    if status == 0:
        raise Wrong(f"it survives {program} --test-case='{mutant.keys['cases']}'")
    if status is None and not hangs:
        raise Wrong(f"the test still runs after {LIMIT_S} s:\n{printed[-3000:]}")
    # If no test case was printed, the test found nothing, because the program did not start.
    if status is not None and "TEST CASE:" not in printed:
        raise Wrong(f"the program ends with {status} outside of a test case:\n{printed[-3000:]}")
    return "it hangs" if status is None else f"ends with {status}"


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if len(sys.argv) > 1 else 64)
    build, names = None if sys.argv[1] == "--applies" else Build(sys.argv[1]), sys.argv[2:]
    patches = sorted(HERE.glob("*.patch"))
    unknown = set(names) - {patch.stem for patch in patches}
    if unknown or not patches:
        sys.exit(f"no patch is called {', '.join(sorted(unknown))}")
    lost = 0
    for patch in patches:
        if names and patch.stem not in names:
            continue
        begin = time.monotonic()
        try:
            mutant = read_mutant(patch)
            if build is None:
                with tempfile.TemporaryDirectory() as scratch:
                    apply(mutant, pathlib.Path(scratch))
                continue
            how = f"found: {mutant.keys['program']} {find(mutant, build)}"
        except Wrong as wrong:
            lost += 1
            how = f"NOT FOUND: {wrong}"
        print(f"{patch.stem} {how} ({time.monotonic() - begin:.0f} s)", flush=True)
    sys.exit(1 if lost else 0)


main()
