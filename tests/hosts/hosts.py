#!/usr/bin/env python3
"""usage: tools/test hosts [--only PATTERN] [--launchers] [--by-hand] [--output FOLDER] [--seconds N]

Tests ranks on the CPUs of several hosts, in twenty minutes. The hosts are network namespaces of this machine, so this
needs Linux and root; elsewhere all parts are skipped. On 2 × 2, 3 × 1 and 2 × 3 ranks: every collective, random
collectives, ranks that disagree, bits of a GPT and of a BERT, and bytes that leave a host. On 2 × 2 ranks: a rank that
is killed or stopped, a link that is down, a host that vanishes, a slow network, two jobs, strangers that connect to the
job's ports, and restarts. Prints a line per part. Exits with 1 if one failed.
  --only PATTERN    only parts with such a name: '2 x 2: *'
  --launchers       also train on 2 x 2 ranks that fsdp-run, torchrun, mpirun or srun has started, and compare the bytes
                    of the models. torchrun needs tools/setup --peers; mpirun and srun need the Debian packages
                    openmpi-bin and slurm-wlm; a launcher that is not installed is skipped
  --by-hand         start ranks as torchrun does, without fsdp-run
  --output FOLDER   folder for the ranks' output (build/cpu/hosts)
  --seconds N       time limit of all parts together (1200)
"""
import argparse
import fnmatch
import functools
import pathlib
import shutil
import signal
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tools/gpu_proof"))

import collective_cases  # noqa: E402
import fault_cases  # noqa: E402
import launcher_cases  # noqa: E402
import network  # noqa: E402
import parts  # noqa: E402
import restart_cases  # noqa: E402

SECONDS = 1200
TOPOLOGIES = ((2, 2), (3, 1), (2, 3))


def parts_of(bench, launchers):
    found = []
    for hosts, ranks in TOPOLOGIES:
        for name, limit, run in collective_cases.ALL:
            found.append(parts.Part(f"{hosts} x {ranks}: {name}", limit, functools.partial(run, bench, hosts, ranks)))
    others = fault_cases.ALL + restart_cases.ALL + (launcher_cases.ALL if launchers else [])
    return found + [parts.Part(name, limit, functools.partial(run, bench)) for name, limit, run in others]


def main():
    usage, _, description = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(usage=usage.removeprefix("usage: "), description=description, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: parser.exit(64, f"test hosts: {message}\n")
    parser.add_argument("build", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", default="*", help=argparse.SUPPRESS)
    parser.add_argument("--launchers", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--by-hand", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    output = (options.output or options.build / "hosts").resolve()
    shutil.rmtree(output, ignore_errors=True)
    # SIGTERM ends this program as Ctrl-C does, so that the namespaces are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = collective_cases.Bench(options.build.resolve() / "bin", output, options.by_hand)
    chosen = [part for part in parts_of(bench, options.launchers) if fnmatch.fnmatchcase(part.name, options.only)]
    if not chosen:
        parser.error(f"--only: no part is called '{options.only}'")
    why = network.why_not()
    if why:
        chosen = parts.skip_all(chosen, why)
    else:
        network.remove_leftovers()
    return parts.exit_code(parts.run_parts(chosen, options.seconds, lambda line: print(line, flush=True)))


if __name__ == "__main__":
    sys.exit(main())
