"""Loads the container image, runs it with a read-only root, kills it with tasks inside, and runs it again."""

import contextlib
import gzip
import hashlib
import json
import os
import pathlib
import re
import signal
import sys

from harness import ROOT, Client, isolated, need, one, run, say, scratch, unpack, until

DATA = "/var/lib/codeq"


class Image:
    def __init__(self, archive, work):
        self.archive, self.layout = archive, unpack(archive, work / "layout")
        (listed,) = json.loads((self.layout / "manifest.json").read_text())
        (index,) = json.loads((self.layout / "index.json").read_text())["manifests"]
        self.digest = index["digest"]
        manifest = self.blob(index)
        assert f"blobs/{manifest['config']['digest'].replace(':', '/')}" == listed["Config"]
        self.config = self.blob(manifest["config"])["config"]
        (layer,) = listed["Layers"]
        assert self.blob(manifest["config"])["rootfs"]["diff_ids"] == ["sha256:" + pathlib.Path(layer).name]
        (work / "layer").symlink_to(self.layout / layer)
        for blob in (self.layout / "blobs/sha256").iterdir():
            assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name, f"{blob} has another digest"

    def blob(self, descriptor):
        data = (self.layout / "blobs" / descriptor["digest"].replace(":", "/")).read_bytes()
        assert len(data) == descriptor["size"]
        return json.loads(data)

    def user(self):
        return tuple(int(part) for part in self.config["User"].split(":"))


class Podman:
    """A container engine with its own storage."""

    def __init__(self, image, work):
        self.base = ["podman", f"--root={work / 'storage'}", f"--runroot={work / 'run'}", "--storage-driver=vfs",
                     "--cgroup-manager=cgroupfs", "--events-backend=file"]
        said = self("load", "--input", image.archive)
        assert "Loaded image" in said, said
        self.image = said.split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Containers outlive the program that started them.
        self("rm", "--force", "--all")

    def __call__(self, *args, check=True):
        return run(*self.base, *args, check=check).stdout.strip()

    def start(self, name):
        # The limits are what a container gets; podman's own are more than some machines allow.
        self("run", "--detach", "--name", name, "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges",
             "--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096", "--publish=8080:8080",
             f"--volume=codeq-data:{DATA}", self.image)
        until("a server that is ready", lambda: Client().ready() or self.ended(name))
        token = re.search(r"^  Token +(\S+)", self("logs", name), re.MULTILINE).group(1)
        return Client(producer=token, worker=token), int(self("inspect", "--format={{.State.Pid}}", name))

    def ended(self, name):
        state = self("inspect", "--format={{.State.Status}}", name)
        assert state == "running", f"{name} is {state}: {self('logs', name)}"


def check_isolation(pid, image):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    uid, _ = image.user()
    assert uid != 0 and f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}" in status, status
    assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status, status
    mounts = pathlib.Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    (root,) = [line.split() for line in mounts if line.split()[4] == "/"][-1:]
    assert "ro" in root[5].split(","), root


def check_archive(image, work):
    """The archive is read by a tool that knows the formats."""
    plain = work / "image.tar"
    plain.write_bytes(gzip.decompress(image.archive.read_bytes()))
    for transport in ("docker-archive", "oci-archive"):
        said = json.loads(run("skopeo", "inspect", f"{transport}:{plain}").stdout)
        assert said["Os"] == "linux" and len(said["Layers"]) == 1, said
    say("skopeo reads it as a docker archive and as an OCI archive")


def check_deterministic(packages, work):
    """The tarball has the files that the image was made of."""
    tree = one(unpack(one(packages, "codeq-*-linux-*[0-9].tar.gz"), work / "tree"), "*")
    digests = set()
    for number, zone in enumerate(("UTC", "Asia/Tokyo")):
        output = work / f"again-{number}.tar.gz"
        said = run(sys.executable, "-B", ROOT / "dist/image.py", "--binary", tree / "bin/codeq", "--version", "0.0.0",
                   "--arch", "amd64", "--doc", tree / "share/doc/codeq", "--output", output,
                   env={**os.environ, "TZ": zone, "SOURCE_DATE_EPOCH": "1767225600"}).stdout
        digests.add((hashlib.sha256(output.read_bytes()).hexdigest(), said.split()[-1]))
    assert len(digests) == 1, digests
    say("made twice from the same files: the same digest")


def main(packages):
    isolated()
    need("podman", "skopeo")
    with scratch() as work, contextlib.ExitStack() as stack:
        image = Image(one(packages, "codeq-*-image.tar.gz"), work)
        size = (work / "layer").stat().st_size
        say(f"{image.digest}: {size / 1e6:.0f} MB unpacked, {image.archive.stat().st_size / 1e6:.0f} MB to load")
        check_archive(image, work)
        podman = stack.enter_context(Podman(image, work))

        client, pid = podman.start("first")
        check_isolation(pid, image)
        say(f"runs as {image.config['User']} without capabilities, on a read-only root")
        done, waiting = client.enqueue("done"), client.enqueue("waits")
        client.complete(client.claim("done"))
        if "Healthcheck" in image.config:
            podman("healthcheck", "run", "first")
            say("its health check succeeds")
        else:
            say("no health check: the binary of this image has no `probe` command")
        os.kill(pid, signal.SIGKILL)
        podman("wait", "first")

        client, _ = podman.start("second")
        assert client.status(done) == "COMPLETED" and client.status(waiting) == "PENDING"
        say("kill -9, then a new container on the same volume: the tasks are there")
        podman("stop", "second")
        assert podman("inspect", "--format={{.State.ExitCode}}", "second") == "0", podman("logs", "second")
        said = podman("run", "--rm", "--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096", podman.image, "serve",
                      "--http-addr", "0.0.0.0:8080", check=False)
        assert "producerAuth" in said, said
        say("stops with code 0; `serve` on the network without tokens is refused")
        check_deterministic(packages, work)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
