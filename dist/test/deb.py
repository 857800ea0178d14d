"""Installs the Debian package in a clean Debian root, runs the service's command, upgrades, removes and purges."""

import contextlib
import os
import pathlib
import re
import signal
import sys

from harness import (AUTH, CACHE, ROOT, Client, Process, isolated, need, one, run, say, scratch, unpack, until)

SUITE = "bookworm"
NEXT = "99.0.0"


def clean_root():
    """A Debian system with systemd, as an archive that is made once."""
    cached = CACHE / f"debian-{SUITE}.tar"
    if not cached.exists():
        need("mmdebstrap")
        CACHE.mkdir(parents=True, exist_ok=True)
        say(f"making a Debian root in {cached}")
        part = cached.with_suffix(".part.tar")
        run("mmdebstrap", "--variant=minbase", "--include=adduser,ca-certificates,systemd,systemd-sysv", SUITE, part)
        part.rename(cached)
    return cached


class Machine:
    """A root directory to change into."""

    def __init__(self, root):
        self.root = root
        run("mount", "--make-rprivate", "/")
        run("mount", "-t", "proc", "proc", root / "proc")
        run("mount", "--rbind", "/dev", root / "dev")

    def __call__(self, *command, **options):
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
        return run("chroot", self.root, *command, env=environment, **options)

    def install(self, package):
        target = self.root / "tmp" / package.name
        target.write_bytes(package.read_bytes())
        return self("dpkg", "-i", f"/tmp/{package.name}").stdout

    def stat(self, path):
        return self("stat", "-c", "%U:%G %a", path).stdout.strip()

    def service(self, log):
        """The service's own command, as its user, without any capability."""
        unit = (self.root / "lib/systemd/system/codeq.service").read_text()
        command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE).group(1).split()
        user = re.search(r"^User=(.*)$", unit, re.MULTILINE).group(1)
        return Process(log, "chroot", self.root, "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups",
                       "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", *command,
                       env={"PATH": "/usr/sbin:/usr/bin"}, cwd="/")


@contextlib.contextmanager
def running(machine, log, client):
    with machine.service(log) as process:
        process.until_ready(client)
        yield process
        os.kill(process.child.pid, signal.SIGTERM)
        assert process.child.wait(timeout=60) == 0, process.text()


def check_unit(machine):
    said = machine("systemd-analyze", "verify", "/lib/systemd/system/codeq.service", check=False)
    assert said.returncode == 0 and "codeq.service" not in said.stdout, said.stdout
    said = machine("systemd-analyze", "security", "--offline=yes", "codeq.service", check=False).stdout
    score = re.search(r"Overall exposure level for codeq.service: ([0-9.]+)", said)
    assert score and float(score.group(1)) < 2.0, said
    say(f"systemd accepts the unit; exposure {score.group(1)} of 10")


def main(packages):
    isolated()
    package = one(packages, "codeq_*.deb")
    client = Client()
    with scratch() as work:
        root = work / "root"
        root.mkdir()
        run("tar", "-xf", clean_root(), "-C", root, "--exclude=./dev/*")
        machine = Machine(root)
        config, data, log = root / "etc/codeq/codeq.yaml", root / "var/lib/codeq", work / "log"

        machine.install(package)
        assert machine.stat("/var/lib/codeq") == "codeq:codeq 700"
        assert machine.stat("/etc/codeq/codeq.yaml") == "root:codeq 640"
        assert (root / "etc/systemd/system/multi-user.target.wants/codeq.service").is_symlink(), "not enabled"
        assert machine("dpkg", "--verify", "codeq").stdout == ""
        version = machine("codeq", "--version").stdout.strip()
        say(f"installed: {version}; user, data directory and configuration have their owners")
        check_unit(machine)

        with running(machine, log, client) as process:
            status = pathlib.Path(f"/proc/{process.child.pid}/status").read_text()
            uid = machine("id", "-u", "codeq").stdout.strip()
            assert f"Uid:\t{uid}\t{uid}" in status and "CapEff:\t0000000000000000" in status, status
            assert client.call("POST", "/v1/codeq/tasks", {"command": "a", "payload": {}})[0] == 401
            listening = [line.split()[3] for line in run("ss", "-Hltn").stdout.splitlines()]
            assert listening and all(address.startswith("127.0.0.1:") for address in listening), listening
            say("runs as user codeq without capabilities, listens on localhost, and has no token by default")
            settings = config.read_text()
            config.write_text(settings[:settings.index("producerAuth")] + AUTH)
            os.kill(process.child.pid, signal.SIGHUP)
            until("the new token", lambda: client.call("GET", "/v1/codeq/admin/queues")[0] == 200)
            waiting = [client.enqueue("waits") for _ in range(20)]
            done = client.enqueue("done")
            client.complete(client.claim("done"))
        say("tokens were added with a reload; 21 tasks written, one completed")

        unpacked = one(unpack(one(packages, "codeq-*-linux-*[0-9].tar.gz"), work / "tree"), "*")
        arch = machine("dpkg", "--print-architecture").stdout.strip()
        run(ROOT / "dist/debian/build", unpacked, arch, work,
            env={**os.environ, "CODEQ_VERSION": NEXT, "SOURCE_DATE_EPOCH": "1767225600"})
        said = machine.install(one(work, "codeq_*.deb"))
        assert machine("dpkg-query", "-W", "-f", "${Version}", "codeq").stdout == NEXT
        assert "Preparing to unpack" in said and "onfiguration file" not in said, said
        assert machine.stat("/etc/codeq/codeq.yaml") == "root:codeq 640"
        with running(machine, log, client):
            assert all(client.status(task) == "PENDING" for task in waiting)
            assert client.status(done) == "COMPLETED"
        say(f"upgraded to {NEXT}: tasks and settings are there, and dpkg asked nothing")

        said = machine("dpkg", "--remove", "codeq").stdout
        assert "the tasks stay in /var/lib/codeq" in said, said
        assert (data / "MANIFEST").exists() and config.exists()
        machine.install(one(work, "codeq_*.deb"))
        with running(machine, log, client):
            assert client.status(waiting[0]) == "PENDING"
        say("removed and installed again: the tasks are there")

        said = machine("dpkg", "--purge", "codeq").stdout
        assert "deleting all tasks in /var/lib/codeq" in said, said
        assert not data.exists() and not (root / "etc/codeq").exists()
        left = run("find", root / "usr", root / "etc", root / "lib", root / "var", "-xdev", "-name", "*codeq*").stdout
        assert not left, left
        say("purged: it said so, and nothing is left")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
