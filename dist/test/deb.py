"""Installs the Debian package in a clean Debian system that runs systemd, upgrades, removes and purges it."""

import os
import pathlib
import re
import signal
import sys

from harness import (AUTH, CACHE, ROOT, Client, Process, isolated, need, one, run, say, scratch, unpack, until)

SUITE = "bookworm"
NEXT = "99.0.0"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}


def clean_root():
    """A Debian system with systemd, as an archive that is made once."""
    cached = CACHE / f"debian-{SUITE}.tar"
    if not cached.exists():
        need("mmdebstrap")
        CACHE.mkdir(parents=True, exist_ok=True)
        say(f"making a Debian root in {cached}")
        part = cached.with_suffix(".part.tar")
        run("mmdebstrap", "--variant=minbase", "--include=adduser,ca-certificates,dbus,systemd,systemd-sysv", SUITE, part)
        part.rename(cached)
    return cached


class Machine:
    """A booted Debian system in namespaces of its own, on the network of this test."""

    def __init__(self, root, log):
        self.root = root
        # Which version of control groups the guest uses follows from the host's.
        unified = pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists()
        self.process = Process(log, "systemd-nspawn", "--boot", f"--directory={root}", "--register=no", "--keep-unit",
                               "--link-journal=no", "--console=pipe", "--resolv-conf=off",
                               env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1" if unified else "0"})

    def __enter__(self):
        self.process.__enter__()
        self.init = until("the guest's first process", self.first_process)
        until("a booted system", lambda: self("systemctl", "is-system-running", check=False).stdout.strip()
              in ("running", "degraded"))
        return self

    def __exit__(self, *error):
        os.kill(self.process.child.pid, signal.SIGTERM)
        until("the guest's end", lambda: self.process.child.poll() is not None)
        self.process.__exit__(*error)

    def first_process(self):
        assert self.process.child.poll() is None, self.process.text()
        pid = self.process.child.pid
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if pathlib.Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return int(child)
        return None

    def __call__(self, *command, **options):
        return run("nsenter", f"--target={self.init}", "--mount", "--uts", "--ipc", "--pid", "--root", "--wd=/",
                   *command, env=ENVIRONMENT, **options)

    def install(self, package):
        target = self.root / "root" / package.name
        target.write_bytes(package.read_bytes())
        return self("dpkg", "-i", f"/root/{package.name}").stdout

    def stat(self, path):
        return self("stat", "-c", "%U:%G %a", path).stdout.strip()

    def main_pid(self):
        """The service's process, by its number inside the guest; 0 if there is none."""
        return int(self("systemctl", "show", "--property=MainPID", "--value", "codeq").stdout)

    def until_ready(self, client):
        def found():
            state = self("systemctl", "is-active", "codeq", check=False).stdout.strip()
            assert state in ("active", "activating"), self("journalctl", "-u", "codeq", "-n", "30").stdout
            return client.ready()
        until("a service that is ready", found)


def check_unit(machine):
    said = machine("systemd-analyze", "verify", "/lib/systemd/system/codeq.service", check=False)
    assert said.returncode == 0 and "codeq.service" not in said.stdout, said.stdout
    said = machine("systemd-analyze", "security", "codeq.service", check=False).stdout
    score = re.search(r"Overall exposure level for codeq.service: ([0-9.]+)", said)
    assert score and float(score.group(1)) < 2.0, said
    say(f"systemd accepts the unit; exposure {score.group(1)} of 10")


def check_process(machine):
    status = machine("cat", f"/proc/{machine.main_pid()}/status").stdout
    uid = machine("id", "-u", "codeq").stdout.strip()
    assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}" in status, status
    for line in ("CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert line in status, f"no {line} in {status}"
    listening = [line.split()[3] for line in run("ss", "-Hltn").stdout.splitlines()]
    assert listening and all(address.startswith("127.0.0.1:") for address in listening), listening


def install(machine, package):
    machine.install(package)
    assert machine.stat("/var/lib/codeq") == "codeq:codeq 700"
    assert machine.stat("/etc/codeq/codeq.yaml") == "root:codeq 640"
    assert machine("systemctl", "is-enabled", "codeq").stdout.strip() == "enabled"
    assert machine("dpkg", "--verify", "codeq").stdout == ""
    say(f"installed: {machine('codeq', '--version').stdout.strip()}")


def upgrade(machine, packages, work):
    """The next version, built from the files of this one."""
    tree = one(unpack(one(packages, "codeq-*-linux-*[0-9].tar.gz"), work / "tree"), "*")
    arch = machine("dpkg", "--print-architecture").stdout.strip()
    run(ROOT / "dist/debian/build", tree, arch, work,
        env={**os.environ, "CODEQ_VERSION": NEXT, "CODEQ_MAINTAINER": "Nobody <nobody@example.org>",
             "SOURCE_DATE_EPOCH": "1767225600"})
    package = one(work, "codeq_*.deb")
    before = machine.main_pid()
    said = machine.install(package)
    assert machine("dpkg-query", "-W", "-f", "${Version}", "codeq").stdout == NEXT
    assert "Preparing to unpack" in said and "onfiguration file" not in said, said
    assert machine.stat("/etc/codeq/codeq.yaml") == "root:codeq 640"
    assert machine.main_pid() not in (0, before), "the service was not restarted"
    return package


def main(packages):
    # Downloads, so it comes before isolated(), which takes the network away.
    debian = clean_root()
    isolated()
    need("systemd-nspawn", "nsenter", "ss")
    client = Client()
    with scratch() as work:
        root = work / "root"
        root.mkdir()
        run("tar", "-xf", debian, "-C", root, "--exclude=./dev/*")
        config, data = root / "etc/codeq/codeq.yaml", root / "var/lib/codeq"
        with Machine(root, work / "console") as machine:
            install(machine, one(packages, "codeq_*.deb"))
            check_unit(machine)
            machine.until_ready(client)
            check_process(machine)
            assert client.call("POST", "/v1/codeq/tasks", {"command": "a", "payload": {}})[0] == 401
            say("the service runs in its sandbox as user codeq, listens on localhost, and has no token by default")

            settings = config.read_text()
            config.write_text(settings[:settings.index("producerAuth")] + AUTH)
            machine("systemctl", "reload", "codeq")
            until("the new token", lambda: client.call("GET", "/v1/codeq/admin/queues")[0] == 200)
            waiting = [client.enqueue("waits") for _ in range(20)]
            done = client.enqueue("done")
            client.complete(client.claim("done"))
            say("tokens were added with a reload; 21 tasks written, one completed")

            killed = machine.main_pid()
            machine("systemctl", "kill", "--signal=KILL", "codeq")
            until("a restart", lambda: machine.main_pid() not in (0, killed))
            machine.until_ready(client)
            assert all(client.status(task) == "PENDING" for task in waiting)
            say("killed with kill -9: systemd has started it again, and the tasks are there")

            package = upgrade(machine, packages, work)
            machine.until_ready(client)
            assert all(client.status(task) == "PENDING" for task in waiting) and client.status(done) == "COMPLETED"
            say(f"upgraded to {NEXT}: restarted, tasks and settings are there, and dpkg asked nothing")

            said = machine("dpkg", "--remove", "codeq").stdout
            assert "the tasks stay in /var/lib/codeq" in said and not client.ready(), said
            assert (data / "MANIFEST").exists() and config.exists()
            machine.install(package)
            machine.until_ready(client)
            assert client.status(waiting[0]) == "PENDING"
            say("removed and installed again: the tasks are there")

            said = machine("dpkg", "--purge", "codeq").stdout
            assert "deleting all tasks in /var/lib/codeq" in said and not client.ready(), said
            assert not data.exists() and not (root / "etc/codeq").exists()
            places = [root / place for place in ("usr", "etc", "var/lib", "lib/systemd")]
            left = run("find", *places, "-xdev", "-name", "*codeq*").stdout
            assert not left, left
            say("purged: it said so, and nothing is left")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
