"""`python -m benchmarks`: the rounds."""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.brokers import BROKERS, CACHE, Broker
from benchmarks.measures import MEASURES, Options, warm_up
from benchmarks.report import RESULTS, Results, commit, machine, table, write_page


def names(known: dict[str, object] | list[str]) -> object:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        return chosen

    return parse


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--brokers", type=names(list(BROKERS)), default=list(BROKERS), help=", ".join(BROKERS))
    parser.add_argument("--only", type=names(list(MEASURES)), default=list(MEASURES), help=", ".join(MEASURES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--resume", type=Path, metavar="JSON", help="add the rounds that these results lack; loads as long as theirs"
    )
    parser.add_argument("--seconds", type=float, default=Options().seconds, help="of each load; default: %(default)s")
    parser.add_argument("--recovery-gb", type=float, default=1.0, help="log to start with; 8 is the aim's; default: 1")
    parser.add_argument("--compaction-gb", type=float, default=1.0, help="of updates; 10 is the aim's; default: 1")
    parser.add_argument("--config", action="append", default=[], metavar="NAME=VALUE", help="for both brokers")
    parser.add_argument(
        "--dir", type=Path, default=CACHE, help="where the logs lie while it runs; default: %(default)s"
    )
    parser.add_argument("--no-warm-up", action="store_true", help="measure cold; quicker when profiling")
    parser.add_argument("--json", type=Path, help="for the results; default: benchmarks/results/DATE.json")
    parser.add_argument("--note", action="append", default=[], help="for docs/performance.md; may be repeated")
    parser.add_argument("--write-docs", action="store_true", help="write docs/performance.md and its plots too")
    return parser.parse_args()


def due(broker: str, chosen: list[str], round_number: int, results: Results) -> list[str]:
    """The chosen measures in which this broker takes part and that it has not had in this round."""
    takes_part_in = BROKERS[broker].measures
    return [
        name
        for name in MEASURES
        if name in chosen
        and (takes_part_in is None or name in takes_part_in)
        and results.rounds_of(name, broker) < round_number
    ]


def one_round(broker: Broker, chosen: list[str], options: Options, results: Results, *, warm: bool) -> None:
    broker.start()
    try:
        if warm:
            results.warm_up.setdefault(broker.name, []).append(warm_up(broker))
        for name in chosen:
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


def command() -> str:
    return shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])


def main() -> int:
    chosen = arguments()
    now = datetime.datetime.now()
    path = chosen.resume or chosen.json or RESULTS / f"{now:%Y-%m-%d-%H%M}.json"
    if chosen.resume:
        results = Results.load(path)
        results.rounds = chosen.rounds
        results.notes.append(f"{now:%Y-%m-%d}: A later run at commit {commit()} added rounds, with `{command()}`.")
    else:
        results = Results(
            rounds=chosen.rounds,
            seconds=chosen.seconds,
            command=command(),
            date=f"{now:%Y-%m-%d}",
            commit=commit(),
            machine=machine(),
        )
    results.notes += chosen.note
    options = Options(
        seconds=results.seconds, recovery_bytes=int(chosen.recovery_gb * 1e9), compaction_gb=chosen.compaction_gb
    )
    chosen.dir.mkdir(parents=True, exist_ok=True)
    for number in range(1, chosen.rounds + 1):
        print(f"round {number} of {chosen.rounds}", file=sys.stderr, flush=True)
        for name in chosen.brokers if number % 2 else reversed(chosen.brokers):  # who goes first alternates
            measures = due(name, chosen.only, number, results)
            if not measures:
                continue
            broker = BROKERS[name](Path(tempfile.mkdtemp(prefix=f"{name}-", dir=chosen.dir)), tuple(chosen.config))
            one_round(broker, measures, options, results, warm=not chosen.no_warm_up)
            results.save(path)
    print(table(results))
    if chosen.write_docs:
        write_page(results, path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
