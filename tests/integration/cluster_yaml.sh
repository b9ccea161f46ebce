#!/usr/bin/env bash
# cluster_yaml.sh PYTHON: brings cluster.yaml up and down over ssh, on this machine, and tells what it sees.
# Runs as root in namespaces of its own (`unshare --pid --mount --mount-proc`): `ray stop` goes by process names and
# would end every Ray on the machine, and the launcher writes to the home directory. Here it sees only its own.
set -euo pipefail
python=$1
scratch=/tmp/rayka-cluster-yaml
mkdir -p "$scratch" /tmp/ray /run/sshd
mount -t tmpfs none "$scratch"
mount -t tmpfs none /tmp/ray
mkdir "$scratch/upper" "$scratch/work"
mount -t overlay overlay -o "lowerdir=$HOME,upperdir=$scratch/upper,workdir=$scratch/work" "$HOME"
rm -rf "$HOME/.rayka"
# pip would compile thousands of files that are never imported here.
env -u XDG_CONFIG_HOME "$python" -m pip config --quiet --user set install.compile false

ssh-keygen -q -t ed25519 -N '' -f "$scratch/user"
ssh-keygen -q -t ed25519 -N '' -f "$scratch/host"
/usr/sbin/sshd -f /dev/null -h "$scratch/host" -E "$scratch/sshd.log" -o Port=2222 -o ListenAddress=127.0.0.1 \
  -o "AuthorizedKeysFile=$scratch/user.pub" -o StrictModes=no -o PidFile="$scratch/sshd.pid"
# Without Spark, which would be downloaded for minutes.
sed -e 's/192\.0\.2\.10/127.0.0.1/' -e 's/ssh_user: rayka/ssh_user: root/' \
  -e "s#ssh_private_key: .*#ssh_private_key: $scratch/user\n  ssh_proxy_command: $python $scratch/proxy.py#" \
  -e 's/9092/29092/g' -e 's/6379/6479/g' -e 's/src\[spark,data\]/src/' cluster.yaml > "$scratch/cluster.yaml"
cat > "$scratch/proxy.py" <<'PROXY'
import os, socket, threading

server = socket.create_connection(("127.0.0.1", 2222))


def inward() -> None:
    while data := server.recv(65536):
        os.write(1, data)
    os._exit(0)


threading.Thread(target=inward, daemon=True).start()
while data := os.read(0, 65536):
    server.sendall(data)
PROXY

ray="$(dirname "$python")/ray"
launcher() { "$ray" "$@" > "$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }; }
launcher up --yes --no-config-cache "$scratch/cluster.yaml"
grep -o 'rayka is ready on .*' "$scratch/log" | tr -d '\r'
"$python" - <<'CLIENT'
from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": "127.0.0.1:29092"})
producer.produce("greetings", b"hello over the wire")
print("undelivered:", producer.flush(120))
CLIENT
launcher exec "$scratch/cluster.yaml" 'rayka consume greetings'
grep 'hello over the wire' "$scratch/log" | tr -d '\r'

# A dead gcs_server is started again in place: Ray goes on, and so does the broker.
gcs=$(pgrep -x gcs_server) actors=$(pgrep -f '^ray::PartitionActor')
kill -9 "$gcs"
for _ in $(seq 300); do
  again=$(pgrep -x gcs_server || true)
  [ -n "$again" ] && [ "$again" != "$gcs" ] && break
  sleep 0.2
done
launcher exec "$scratch/cluster.yaml" 'rayka topics create later'
kill -0 $actors && echo "gcs_server ${again:+is back}, the partition actors stayed"
launcher up --yes --no-config-cache "$scratch/cluster.yaml"
launcher exec "$scratch/cluster.yaml" 'rayka consume greetings'
grep 'hello over the wire' "$scratch/log" | sed 's/hello/again hello/' | tr -d '\r'
launcher down --yes "$scratch/cluster.yaml"
for _ in $(seq 150); do
  left=$(ps -eo args= | grep -E -e 'bin/rayka|-m rayka|ray::|raylet|gcs_server' | grep -v -e grep -e cluster-yaml || true)
  [ -z "$left" ] && break
  sleep 0.2
done
echo "left: ${left:-nothing}"
