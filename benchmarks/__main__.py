"""`python -m benchmarks`: the rounds."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.brokers import BROKERS, CACHE, Broker
from benchmarks.measures import MEASURES, Options, warm_up
from benchmarks.report import Results, table, write_page


def names(known: dict[str, object] | list[str]) -> object:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        return chosen

    return parse


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--brokers", type=names(list(BROKERS)), default=list(BROKERS), help="default: rayka,kafka")
    parser.add_argument("--only", type=names(list(MEASURES)), default=list(MEASURES), help=", ".join(MEASURES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=Options().seconds, help="of each load; default: %(default)s")
    parser.add_argument("--recovery-gb", type=float, default=1.0, help="log to start with; 8 is the aim's; default: 1")
    parser.add_argument("--config", action="append", default=[], metavar="NAME=VALUE", help="for both brokers")
    parser.add_argument(
        "--dir", type=Path, default=CACHE, help="where the logs lie while it runs; default: %(default)s"
    )
    parser.add_argument("--no-warm-up", action="store_true", help="measure cold; quicker when profiling")
    parser.add_argument("--json", type=Path, help="write every figure of every round there")
    parser.add_argument("--write-docs", action="store_true", help="write docs/performance.md")
    return parser.parse_args()


def one_round(broker: Broker, chosen: list[str], options: Options, results: Results, *, warm: bool) -> None:
    broker.start()
    try:
        if warm:
            warm_up(broker)
        for name in MEASURES:
            if name in chosen:
                os.sync()  # no measure pays for what the one before it left to be written
                figures = MEASURES[name].run(broker, options)
                results.add(name, broker.name, figures)
                shown = "  ".join(f"{figure} {value:,.2f}" for figure, value in figures.items())
                print(f"  {broker.name:6} {name:18} {shown}", file=sys.stderr, flush=True)
        broker.stop()
    except BaseException:
        print(*broker.log[-50:], sep="\n", file=sys.stderr)
        broker.kill()
        raise
    finally:
        shutil.rmtree(broker.directory, ignore_errors=True)


def main() -> int:
    chosen = arguments()
    options = Options(seconds=chosen.seconds, recovery_bytes=int(chosen.recovery_gb * 1e9))
    results = Results(rounds=chosen.rounds)
    chosen.dir.mkdir(parents=True, exist_ok=True)
    for number in range(1, chosen.rounds + 1):
        print(f"round {number} of {chosen.rounds}", file=sys.stderr, flush=True)
        for name in chosen.brokers:
            broker = BROKERS[name](Path(tempfile.mkdtemp(prefix=f"{name}-", dir=chosen.dir)), tuple(chosen.config))
            one_round(broker, chosen.only, options, results, warm=not chosen.no_warm_up)
    print(table(results))
    if chosen.json:
        chosen.json.write_text(json.dumps(asdict(results), indent=2))
    if chosen.write_docs:
        write_page(results, shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
