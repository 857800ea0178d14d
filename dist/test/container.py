"""Runs the container image as `docker run --read-only` would, kills it with tasks inside, and runs it again."""

import gzip
import hashlib
import json
import os
import pathlib
import shutil
import signal
import sys

from harness import ROOT, Client, Process, isolated, one, run, say, scratch, skip, unpack, until

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
        self.rootfs = work / "rootfs"
        self.rootfs.mkdir()
        run("tar", "-xpf", self.layout / layer, "-C", self.rootfs)
        for blob in (self.layout / "blobs/sha256").iterdir():
            assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name, f"{blob} has another digest"

    def blob(self, descriptor):
        data = (self.layout / "blobs" / descriptor["digest"].replace(":", "/")).read_bytes()
        assert len(data) == descriptor["size"]
        return json.loads(data)

    def command(self):
        return self.config["Entrypoint"] + self.config["Cmd"]

    def user(self):
        return tuple(int(part) for part in self.config["User"].split(":"))


def crun(image, data, work):
    """An OCI runtime, with the settings that docker gives a container with --read-only and --cap-drop=ALL."""
    uid, gid = image.user()
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
        {"destination": DATA, "type": "bind", "source": str(data), "options": ["rbind", "rw"]},
    ]
    bundle = work / "bundle"
    bundle.mkdir(exist_ok=True)
    (bundle / "config.json").write_text(json.dumps({
        "ociVersion": "1.0.2", "hostname": "codeq",
        "root": {"path": str(image.rootfs), "readonly": True},
        "process": {"terminal": False, "user": {"uid": uid, "gid": gid}, "args": image.command(),
                    "env": image.config["Env"], "cwd": image.config["WorkingDir"], "noNewPrivileges": True,
                    "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted")}},
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]},
    }))
    name = f"codeq-dist-{os.getpid()}"
    program = shutil.which("crun") or shutil.which("runc")
    base = [program, *(["--cgroup-manager=disabled"] if program.endswith("crun") else []), f"--root={work / 'state'}"]
    return [*base, "run", "--bundle", bundle, name], lambda *args: [*base, "exec", name, *args]


def bubblewrap(image, data, _):
    """Namespaces without an OCI runtime; the user is changed before, because bubblewrap may map only one."""
    uid, gid = image.user()
    base = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--bounding-set=-all", "bwrap",
            "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--ro-bind", image.rootfs, "/",
            "--proc", "/proc", "--dev", "/dev", "--bind", data, DATA, "--chdir", DATA, "--die-with-parent"]
    return [*base, *image.command()], lambda *args: [*base, *args]


def runtime():
    if shutil.which("crun") or shutil.which("runc"):
        return crun
    if shutil.which("bwrap"):
        return bubblewrap
    skip("not installed: crun, runc or bubblewrap")


def server_pid(process, command):
    """The server, which is a child of the runtime."""
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
            line = (entry.parent / "cmdline").read_text().split("\0")[:-1]
        except OSError:
            continue
        # Fields after the name: state, parent, process group, session.
        if int(fields[3]) == process.child.pid and line == command:
            return int(entry.parent.name)
    return None


def check_isolation(pid, image):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    uid, _ = image.user()
    assert uid != 0 and f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}" in status, status
    assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status, status
    mounts = pathlib.Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    (root,) = [line.split() for line in mounts if line.split()[4] == "/"][-1:]
    assert "ro" in root[5].split(","), root


def check_tools(image, work):
    """The archive is read by tools that are not ours."""
    plain = work / "image.tar"
    plain.write_bytes(gzip.decompress(image.archive.read_bytes()))
    if shutil.which("skopeo"):
        for transport in ("docker-archive", "oci-archive"):
            said = json.loads(run("skopeo", "inspect", f"{transport}:{plain}").stdout)
            assert said["Os"] == "linux" and len(said["Layers"]) == 1, said
        say("skopeo reads it as a docker archive and as an OCI archive")
    if shutil.which("podman"):
        storage = [f"--root={work / 'storage'}", f"--runroot={work / 'run'}", "--storage-driver=vfs"]
        said = run("podman", *storage, "load", "--input", image.archive).stdout
        assert "Loaded image" in said, said
        say("podman loads it")
    if not (shutil.which("skopeo") or shutil.which("podman")):
        say("neither skopeo nor podman is installed: the archive is not read by another tool")


def check_deterministic(image, packages, work):
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
    with scratch() as work:
        image = Image(one(packages, "codeq-*-image.tar.gz"), work)
        size = sum(path.stat().st_size for path in image.rootfs.rglob("*") if path.is_file() and not path.is_symlink())
        say(f"{image.digest}: {size / 1e6:.0f} MB unpacked, {image.archive.stat().st_size / 1e6:.0f} MB to load")
        check_tools(image, work)
        # A new volume takes owner and mode from the image.
        data = work / "volume"
        shutil.copytree(image.rootfs / DATA.strip("/"), data)
        os.chown(data, *image.user())
        make = runtime()
        start, execute = make(image, data, work)
        log = work / "log"

        with Process(log, *start) as process:
            process.until_ready(Client())
            token = process.token()
            client = Client(producer=token, worker=token)
            pid = until("the server's process", lambda: server_pid(process, image.command()))
            check_isolation(pid, image)
            say(f"{make.__name__}: runs as {image.config['User']} without capabilities, on a read-only root")
            done, waiting = client.enqueue("done"), client.enqueue("waits")
            client.complete(client.claim("done"))
            if "Healthcheck" in image.config:
                run(*execute(*image.config["Healthcheck"]["Test"][1:]))
                say("its health check succeeds")
            else:
                say("this image has no health check: the binary has no `probe` command")
            os.kill(pid, signal.SIGKILL)
            process.child.wait(timeout=60)
        with Process(log, *make(image, data, work)[0]) as process:
            process.until_ready(Client())
            token = process.token()
            client = Client(producer=token, worker=token)
            assert client.status(done) == "COMPLETED" and client.status(waiting) == "PENDING"
            pid = until("the server's process", lambda: server_pid(process, image.command()))
            os.kill(pid, signal.SIGTERM)
            assert process.child.wait(timeout=60) == 0, process.text()
        say("killed with kill -9 and started again: the tasks are there; SIGTERM ends it with code 0")
        check_deterministic(image, packages, work)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
