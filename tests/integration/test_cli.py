"""The `rayka` command against a running broker, as scripts use it: output, exit codes, one-line errors."""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from rayka.cli.attached import find
from rayka.cli.daemon.processes import descendants
from rayka.cli.main import main
from rayka.testing import BrokerProcess, wait_until
from tests.integration.conftest import OneAtATime, commanded

RAYKA = [sys.executable, "-m", "rayka"]


class Outcome(NamedTuple):
    code: int
    out: bytes
    err: str

    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    def json(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.lines()]


@pytest.fixture(scope="module")
def broker(one_at_a_time: OneAtATime, tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    data_dir = tmp_path_factory.mktemp("cli")
    started: BrokerProcess = one_at_a_time.get("cli", lambda: commanded(data_dir))
    return started


class Cli:
    """Runs commands in this process, which stays connected to Ray from one to the next."""

    def __init__(self, data_dir: Path, capture: pytest.CaptureFixture[bytes], directory: Path) -> None:
        self._target = ["--data-dir", str(data_dir)]
        self._capture = capture
        self._directory = directory

    def __call__(self, *words: str) -> Outcome:
        self._capture.readouterr()
        code = main([*words, *self._target])
        sys.stdout.flush()
        out, err = self._capture.readouterr()
        return Outcome(code, out, err.decode())

    def ok(self, *words: str) -> Outcome:
        outcome = self(*words)
        assert outcome.code == 0, outcome
        return outcome

    def produce(self, topic: str, data: bytes, *words: str) -> Outcome:
        path = self._directory / "input"
        path.write_bytes(data)
        return self("produce", topic, str(path), *words)


@pytest.fixture
def cli(broker: BrokerProcess, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Cli:
    return Cli(broker.data_dir, capfdbinary, tmp_path)


def test_topics_from_creation_to_deletion(cli: Cli) -> None:
    cli.ok("topics", "create", "life", "--partitions", "3", "--config", "retention.ms=1000")
    again = cli("topics", "create", "life")
    assert (again.code, again.err) == (1, "rayka: TOPIC_ALREADY_EXISTS: life: Topic 'life' already exists.\n")
    cli.ok("topics", "create", "life", "--if-not-exists")
    assert "life" in cli.ok("topics", "list").lines()
    described = cli.ok("topics", "describe", "life", "--json").json()[0]
    assert described["configs"] == {"retention.ms": "1000"}
    assert len(described["partitions"]) == 3
    cli.ok("topics", "alter", "life", "--partitions", "5", "--config", "segment.bytes=2097152")
    cli.ok("topics", "alter", "life", "--delete-config", "retention.ms")
    described = cli.ok("topics", "describe", "life", "--json").json()[0]
    assert described["configs"] == {"segment.bytes": "2097152"}
    assert len(described["partitions"]) == 5
    cli.ok("topics", "delete", "life")
    gone = cli("topics", "describe", "life")
    assert (gone.code, gone.err.count("\n")) == (3, 1)
    assert "life" in gone.err


def test_wrong_requests_say_what_was_wrong(cli: Cli) -> None:
    cli.ok("topics", "create", "wrongs")
    for words, code, part in [
        (("topics", "create", "a/b"), 1, "a/b"),
        (("topics", "create", "other", "--config", "no.such=1"), 1, "no.such"),
        (("topics", "create", "other", "--config", "segment.bytes=many"), 1, "segment.bytes"),
        (("topics", "alter", "wrongs", "--partitions", "1"), 1, "wrongs"),
        (("topics", "alter", "wrongs"), 2, "nothing to change"),
        (("topics", "delete", "nothing"), 3, "nothing"),
        (("configs", "set", "--topic", "nothing", "retention.ms=1"), 3, "nothing"),
        (("configs", "set", "--topic", "wrongs", "retention.ms"), 2, "NAME=VALUE"),
        (("consume", "nothing"), 3, "nothing"),
        (("consume", "wrongs", "--partition", "7"), 3, "no partition 7"),
        (("consume", "wrongs", "--from", "someday"), 2, "'someday' is neither earliest, latest"),
        (("consume", "wrong.*"), 1, "topic wrong.* has a name that is not valid"),
        (("consume", "wrongs", "--max-messages", "-1"), 2, "-1 is not in the range x>=0"),
        (("topics", "delete-records", "wrongs", "--before", "5"), 1, "wrongs-0 ends at offset 0, before 5"),
        (("produce", "wrongs", __file__, "--partition", "7"), 3, "wrongs has no partition 7; it has 1"),
        (("configs", "delete", "--topic", "wrongs", "retention.mss"), 1, "topic wrongs has no setting retention.mss"),
        (("configs", "describe", "--broker", "99"), 3, "there is no broker 99"),
        (("tree", "brokers"), 2, "must begin with /"),
        (("topic", "list"), 2, "No such command 'topic'. Did you mean 'topics'?"),
        (("produce", "wrongs", "/does/not/exist"), 2, "/does/not/exist"),
    ]:
        outcome = cli(*words)
        assert outcome.code == code, (words, outcome)
        assert part in outcome.err
        assert outcome.err.startswith("rayka: ")
        assert outcome.err.count("\n") == 1, outcome.err


def test_settings_are_set_shown_and_deleted(cli: Cli) -> None:
    cli.ok("topics", "create", "settings")
    cli.ok("configs", "set", "--topic", "settings", "retention.ms=5000", "cleanup.policy=compact,delete")
    shown = {
        line["name"]: line["value"] for line in cli.ok("configs", "describe", "--topic", "settings", "--json").json()
    }
    assert shown == {"retention.ms": "5000", "cleanup.policy": "compact,delete"}
    cli.ok("configs", "delete", "--topic", "settings", "retention.ms")
    assert "retention.ms" not in cli.ok("configs", "describe", "--topic", "settings").out.decode()
    assert "retention.ms" in cli.ok("configs", "describe", "--topic", "settings", "--all").out.decode()
    cli.ok("configs", "set", "--all-brokers", "log.retention.ms=123456")
    assert "123456" in cli.ok("configs", "describe", "--all-brokers").out.decode()
    cli.ok("configs", "delete", "--all-brokers", "log.retention.ms")


def test_a_record_above_the_limit_is_named_with_the_setting(cli: Cli) -> None:
    cli.ok("topics", "create", "limited", "--config", "max.message.bytes=1000")
    refused = cli.produce("limited", b"x" * 2000)
    assert refused.code == 1
    assert refused.err.startswith("rayka: a record for limited-0 was not acknowledged: ")
    assert refused.err.endswith("; the topic's max.message.bytes is the limit\n")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_come_back(cli: Cli, codec: str) -> None:
    topic = f"lines-{codec}"
    cli.ok("topics", "create", topic)
    data = b"".join(b"line %d \xff\n" % number for number in range(2_000))
    assert cli.produce(topic, data, "--codec", codec).code == 0
    assert cli.ok("consume", topic).out == data


def test_keys_headers_and_partitions(cli: Cli) -> None:
    cli.ok("topics", "create", "keyed", "--partitions", "4")
    assert cli.produce("keyed", b"a:1\nb:2\na:3\n", "--key-separator", ":", "--header", "h=x").code == 0
    assert sorted(cli.ok("consume", "keyed", "--format", "%k=%s %h\\n").lines()) == ["a=1 h=x", "a=3 h=x", "b=2 h=x"]
    assert cli.produce("keyed", b"c\n", "--partition", "3").code == 0
    assert cli.ok("consume", "keyed", "--partition", "3", "--from", "-1").lines() == ["c"]


def test_a_line_that_is_no_record_ends_with_how_many_were_written(cli: Cli) -> None:
    cli.ok("topics", "create", "stopped")
    wrong = cli.produce("stopped", b"a:1\nnone\nb:2\n", "--key-separator", ":")
    reason = "rayka: line 2 has no ':' between key and value; 1 record before it was written\n"
    assert (wrong.code, wrong.out, wrong.err) == (1, b"", reason)
    wrong = cli.produce("stopped", b"1\n", "--json")
    assert (wrong.code, wrong.err) == (1, "rayka: line 1 is not a JSON object; 0 records before it were written\n")
    wrong = cli.produce("stopped", b'{"value": "x"}\n' * 5000 + b'{"values": 1}\n', "--json")
    assert wrong.err.startswith("rayka: line 5001 has the unknown name 'values'")
    assert wrong.err.endswith("; 5,000 records before it were written\n")
    assert len(cli.ok("consume", "stopped").lines()) == 5001


def test_a_record_that_is_refused_is_named_also_if_a_later_line_is_no_record(cli: Cli) -> None:
    cli.ok("topics", "create", "small", "--config", "max.message.bytes=200")
    wrong = cli.produce("small", b"a:" + b"x" * 1000 + b"\nnone\n", "--key-separator", ":")
    assert (wrong.code, wrong.out) == (1, b"")
    assert "too large" in wrong.err.lower()
    assert wrong.err.endswith("line 2 has no ':' between key and value; 0 records before it were written\n")


def test_without_share_groups_there_is_a_note_and_no_output(cli: Cli) -> None:
    for words in (("list",), ("describe",), ("describe", "--in-flight")):
        told = cli.ok("share-groups", *words)
        assert (told.out, told.err) == (b"", "rayka: there are no share groups\n")


def test_produce_says_which_topic_it_has_created(cli: Cli) -> None:
    assert cli.produce("misspelt", b"a\n").err == "rayka: created topic misspelt\n"
    assert cli.produce("misspelt", b"b\n").err == ""
    assert cli.ok("consume", "misspelt").lines() == ["a", "b"]


def test_json_lines_copy_a_topic_byte_for_byte(cli: Cli) -> None:
    for topic in ("original", "copy"):
        cli.ok("topics", "create", topic, "--partitions", "3")
    lines = [
        {
            "key": "k",
            "value": "v",
            "headers": [["h", "1"], ["h", None]],
            "partition": 0,
            "timestamp": 1_600_000_000_000,
        },
        {"key": None, "value": None, "headers": [], "partition": 1, "timestamp": 1_600_000_000_001},
        {"key": {"base64": base64.b64encode(b"\xff\0").decode()}, "value": "", "partition": 2, "timestamp": 5},
    ]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert cli.produce("original", data, "--json", "--same-partition").code == 0
    original = cli.ok("consume", "original", "--json")
    assert cli.produce("copy", original.out, "--json", "--same-partition").code == 0
    assert cli.ok("consume", "copy", "--json").out == original.out.replace(b'"topic": "original"', b'"topic": "copy"')


def test_where_consuming_begins_and_ends(cli: Cli) -> None:
    cli.ok("topics", "create", "range")
    data = b"".join(b'{"value": "%d", "timestamp": %d}\n' % (n, 1_600_000_000_000 + n * 1000) for n in range(100))
    assert cli.produce("range", data, "--json").code == 0
    for start, expected in [
        ("earliest", range(100)),
        ("latest", range(0)),
        ("97", range(97, 100)),
        ("-2", range(98, 100)),
        ("@1600000095500", range(96, 100)),
        ("2020-09-13T12:28:10Z", range(90, 100)),
        ("2033-01-01", range(0)),
    ]:
        assert cli.ok("consume", "range", "--from", start).lines() == [str(number) for number in expected], start
    assert cli.ok("consume", "range", "--max-messages", "3").lines() == ["0", "1", "2"]


def test_changing_commands_say_what_they_did(cli: Cli) -> None:
    assert cli.ok("topics", "create", "told", "--partitions", "2").out == b"Created topic told with 2 partitions.\n"
    assert cli.ok("topics", "create", "told", "--if-not-exists").out == b"Topic told already exists.\n"
    assert cli.produce("told", b"a\nb\n").out == b"Wrote 2 records to told.\n"
    altered = cli.ok("topics", "alter", "told", "--partitions", "3", "--config", "retention.ms=1000")
    assert altered.out == b"Changed 1 setting and the number of partitions to 3 of topic told.\n"
    changed = cli.ok("configs", "set", "--topic", "told", "retention.ms=2000")
    assert changed.out == b"Set retention.ms=2000 for topic told.\n"
    assert cli.ok("topics", "delete", "told").out == b"Deleted topic told.\n"


def test_records_are_deleted_up_to_an_offset_and_reading_below_the_log_start_says_so(cli: Cli) -> None:
    cli.ok("topics", "create", "shortened")
    assert cli.produce("shortened", b"".join(b"%d\n" % number for number in range(10))).code == 0
    deleted = cli.ok("topics", "delete-records", "shortened", "--before", "4", "--json")
    assert deleted.json() == [{"topic": "shortened", "partition": 0, "log_start_offset": 4}]
    read = cli.ok("consume", "shortened", "--from", "0")
    assert read.lines() == ["4", "5", "6", "7", "8", "9"]
    assert read.err == "rayka: shortened-0 begins at offset 4: the records from 0 to 3 were deleted\n"
    assert cli.ok("consume", "shortened", "--from", "earliest").err == ""
    beyond = cli.ok("consume", "shortened", "--from", "99")
    assert (beyond.out, beyond.err) == (b"", "rayka: shortened-0 ends at offset 10, before 99\n")
    cli.ok("topics", "delete-records", "shortened", "--before", "latest")
    assert cli.ok("consume", "shortened").out == b""


def test_several_topics_and_patterns_are_read_together(cli: Cli) -> None:
    for topic in ("logs-a", "logs-b", "metrics"):
        cli.ok("topics", "create", topic)
        assert cli.produce(topic, topic.encode() + b"\n").code == 0
    assert sorted(cli.ok("consume", "logs-a", "metrics").lines()) == ["logs-a", "metrics"]
    assert sorted(cli.ok("consume", "--pattern", "logs-.*").lines()) == ["logs-a", "logs-b"]
    assert cli("consume", "--pattern", "nothing-.*").code == 3
    assert cli("consume", "--pattern", "(").code == 2


def test_a_group_goes_on_where_its_last_reader_stopped(cli: Cli) -> None:
    cli.ok("topics", "create", "grouped", "--partitions", "2")
    assert cli.produce("grouped", b"".join(b"%d\n" % number for number in range(10))).code == 0
    first = cli.ok("consume", "grouped", "--group", "readers", "--max-messages", "4").lines()
    rest = cli.ok("consume", "grouped", "--group", "readers").lines()
    assert sorted(first + rest, key=int) == [str(number) for number in range(10)]
    assert len(first) == 4
    assert cli.ok("consume", "grouped", "--group", "readers").lines() == []
    assert cli("consume", "grouped", "--group", "readers", "--from", "42").code == 2


def test_a_reader_that_is_terminated_leaves_its_group(broker: BrokerProcess, cli: Cli) -> None:
    cli.ok("topics", "create", "left")
    assert cli.produce("left", b"first\n").code == 0
    command = [*RAYKA, "consume", "left", "--group", "leavers", "--follow", "--data-dir", str(broker.data_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "first\n"
        reader.terminate()
        assert reader.wait(60) == 128 + signal.SIGTERM
    assert "leavers has no members" in cli.ok("groups", "describe", "leavers").err


def test_any_broker_is_reached_by_its_address_alone(broker: BrokerProcess, cli: Cli) -> None:
    cli.ok("topics", "create", "reached")
    listed = subprocess.run(
        [*RAYKA, "topics", "list", "--bootstrap-server", broker.bootstrap], capture_output=True, text=True, check=True
    )
    assert "reached" in listed.stdout.splitlines()
    nobody = subprocess.run([*RAYKA, "topics", "list", "--bootstrap-server", "127.0.0.1:1"], capture_output=True)
    assert nobody.returncode == 3
    assert nobody.stderr.startswith(b"rayka: BROKER_NOT_AVAILABLE: no broker answers at 127.0.0.1:1: ")


@pytest.mark.alone
@pytest.mark.parametrize("words", [("topics", "list"), ("groups", "list"), ("configs", "describe", "--all-brokers")])
def test_commands_answer_in_under_four_tenths_of_a_second(broker: BrokerProcess, words: tuple[str, ...]) -> None:
    command = [*RAYKA, *words, "--bootstrap-server", broker.bootstrap]
    # Processor time: on a machine that does nothing else the command takes hardly longer.
    assert min(processor_time_s(command) for _ in range(3)) < 0.4


def processor_time_s(command: list[str]) -> float:
    """What a command uses; more on a machine whose cores are busy with something else."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_shell_completes_topics(broker: BrokerProcess, cli: Cli) -> None:
    cli.ok("topics", "create", "completed-1")
    line = f"rayka topics describe --data-dir {broker.data_dir} comple"
    environment = {**os.environ, "_RAYKA_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": "5"}

    def completed() -> bool:
        """A broker that does not answer in a second has no topics, so that the shell need not wait."""
        done = subprocess.run(RAYKA, env=environment, capture_output=True, text=True, check=False)
        return done.stdout.splitlines() == ["plain,completed-1"]

    wait_until(completed, 60, "the shell shows the topic")


def test_status_shows_every_partition_and_process(cli: Cli, broker: BrokerProcess) -> None:
    cli.ok("topics", "create", "seen", "--partitions", "2")
    status = json.loads(cli.ok("status", "--json").out)
    assert [one["partition"] for one in status["partitions"] if one["topic"] == "seen"] == [0, 1]
    actors = {one["name"]: one["pid"] for one in status["actors"]}
    assert "controller" in actors
    assert set(actors.values()) <= {process.pid for process in broker.children()}
    assert "seen-1" in cli.ok("status", "--partitions").out.decode()


def test_follow_shows_what_comes_until_it_is_interrupted(broker: BrokerProcess, cli: Cli) -> None:
    cli.ok("topics", "create", "followed")
    command = [*RAYKA, "consume", "followed", "--follow", "--data-dir", str(broker.data_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        assert follower.stdout is not None
        for number in range(3):
            producer.produce("followed", f"word {number}")
            assert producer.flush(60) == 0
            assert follower.stdout.readline() == f"word {number}\n"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(60) == 130


def test_a_reader_that_has_enough_is_no_error(broker: BrokerProcess, cli: Cli) -> None:
    cli.ok("topics", "create", "plenty")
    assert cli.produce("plenty", b"x" * 99 + b"\n" + b"y\n" * 50_000).code == 0
    command = " ".join([*RAYKA, "consume", "plenty", "--data-dir", str(broker.data_dir)])
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command} | head -n 1"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "x" * 99 + "\n", "")


def test_the_program_in_the_readme_runs(broker: BrokerProcess) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    program = "import rayka\n" + readme.partition("```python\nimport rayka\n")[2].partition("```")[0]
    # It ends with its record, not when none has come for two seconds: on a busy machine the first takes as long.
    program = program.replace("consumer_timeout_ms=2000", "consumer_timeout_ms=60_000") + "            break\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert done.stdout.splitlines() == ["acknowledged at offset 0", "1 0 b'kitchen' b'21.5'"], done.stderr


def test_a_program_with_a_broker_of_its_own_ends_without_complaints(tmp_path: Path) -> None:
    program = f"""
import rayka
with rayka.start({str(tmp_path)!r}, "127.0.0.1:0"):
    queue = rayka.Queue(name="jobs")
    queue.put("job")
    print(queue.get(timeout=60))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert done.stdout.splitlines() == ["job"], done.stderr
    assert not [word for word in ("Traceback", "unavailable", "failed") if word in done.stderr], done.stderr


def test_no_broker_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--data-dir", str(tmp_path)]) == 3
    assert main(["down", "--data-dir", str(tmp_path)]) == 3
    assert capsys.readouterr().err.count("\n") == 2


def test_in_the_background_and_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    target = ["--data-dir", str(tmp_path)]
    started = subprocess.run([*RAYKA, "up", "--listen", "127.0.0.1:0", "--background", *target], capture_output=True)
    assert (started.returncode, started.stderr) == (0, b"")
    assert started.stdout.startswith(b"rayka is ready on 127.0.0.1:")
    pid = find(str(tmp_path)).pid
    second = subprocess.run([*RAYKA, "up", "--background", *target], capture_output=True, text=True)
    assert (second.returncode, second.stdout) == (1, "")
    assert f"is in use by another `rayka up` (process {pid})" in second.stderr
    assert subprocess.run([*RAYKA, "down", *target]).returncode == 0
    assert subprocess.run([*RAYKA, "down", *target], capture_output=True).returncode == 3


def test_down_says_that_it_killed_a_broker_that_did_not_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    target = ["--data-dir", str(tmp_path)]
    subprocess.run([*RAYKA, "up", "--listen", "127.0.0.1:0", "--background", *target], capture_output=True, check=True)
    for pid in descendants(find(str(tmp_path)).pid):
        if b"rayka.cli.daemon.serve" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGSTOP)
    down = subprocess.run([*RAYKA, "down", *target], capture_output=True, text=True)
    assert down.stdout.startswith(f"Killed the broker on {tmp_path}, which did not stop cleanly"), down


def test_a_setting_that_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    command = [*RAYKA, "up", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path), "--config", "num.partitions=none"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "num.partitions" in done.stderr
