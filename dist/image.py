"""Writes a container image without a container engine: the binary, the few libraries it loads, and CA certificates.

The archive is both what `docker save` writes and an OCI image layout, so `docker load`, `podman load` and `skopeo` read
it. The same input gives the same digest: names are sorted, dates are SOURCE_DATE_EPOCH, and nothing depends on the
builder's user or time zone.
"""

import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import tarfile

# A number instead of a name, so that Kubernetes can see that it is not root.
USER = 65532
DATA = "/var/lib/codeq"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
SECOND = 1_000_000_000


def libraries(binary):
    """The shared libraries that the binary loads, with the loader, by the paths under which it looks for them."""
    said = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True).stdout
    if "not found" in said:
        raise SystemExit(f"{binary} needs libraries that this machine does not have:\n{said}")
    return sorted(set(re.findall(r"(/\S+) \(0x", said)))


def packages(files):
    """The Debian packages of the files, for scanners and for their licences."""
    found = {}
    for path in files:
        # /lib is a link to /usr/lib, and dpkg knows a file by one of the two paths.
        real = os.path.realpath(path)
        for name in (path, real, real.removeprefix("/usr")):
            said = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
            if said.returncode == 0:
                package = said.stdout.split(": ")[0].split(",")[0]
                status = subprocess.run(["dpkg-query", "-s", package], check=True, capture_output=True, text=True)
                found[package.split(":")[0]] = status.stdout
                break
    return found


class Layer:
    """A tar file with sorted names and fixed dates."""

    def __init__(self, epoch):
        self.epoch = epoch
        self.entries = {}

    def directory(self, path, mode=0o755, owner=0):
        self.entries[path.strip("/")] = (tarfile.DIRTYPE, mode, owner, b"")

    def file(self, path, data, mode=0o644):
        for parent in pathlib.PurePosixPath(path).parents:
            if str(parent) not in ("/", ".") and str(parent).strip("/") not in self.entries:
                self.directory(str(parent))
        self.entries[path.strip("/")] = (tarfile.REGTYPE, mode, 0, data)

    def bytes(self):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for path, (kind, mode, owner, data) in sorted(self.entries.items()):
                info = tarfile.TarInfo(path)
                info.type, info.mode = kind, mode
                info.uid = info.gid = owner
                info.mtime, info.size = self.epoch, len(data)
                tar.addfile(info, io.BytesIO(data) if kind == tarfile.REGTYPE else None)
        return out.getvalue()


def filesystem(binary, doc, epoch):
    layer = Layer(epoch)
    layer.file("/usr/bin/codeq", binary.read_bytes(), 0o755)
    shared = libraries(binary)
    for path in shared:
        layer.file(path, pathlib.Path(path).read_bytes(), 0o755)
    layer.file(CERTIFICATES, pathlib.Path(CERTIFICATES).read_bytes())
    layer.file("/etc/passwd", f"root:x:0:0:root:/:/sbin/nologin\ncodeq:x:{USER}:{USER}::{DATA}:/sbin/nologin\n".encode())
    layer.file("/etc/group", f"root:x:0:\ncodeq:x:{USER}:\n".encode())
    layer.file("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    layer.directory("/tmp", 0o1777)
    # A new volume takes its owner and mode from this directory.
    layer.directory("/var")
    layer.directory("/var/lib")
    layer.directory(DATA, 0o700, USER)
    # Nobody reads pages in an image without a shell.
    for path in sorted(path for path in doc.rglob("*") if path.is_file() and doc / "docs" not in path.parents):
        layer.file(f"/usr/share/doc/codeq/{path.relative_to(doc)}", path.read_bytes())
    for package, status in packages([*shared, "/usr/sbin/update-ca-certificates"]).items():
        layer.file(f"/var/lib/dpkg/status.d/{package}", status.encode())
        notice = pathlib.Path(f"/usr/share/doc/{package}/copyright")
        if notice.exists():
            layer.file(f"/usr/share/doc/{package}/copyright", notice.read_bytes())
    return layer.bytes()


def can_probe(binary):
    return subprocess.run([binary, "probe", "--help"], capture_output=True).returncode == 0


def config(binary, version, arch, layer, epoch):
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = {
        "User": f"{USER}:{USER}",
        "Env": ["PATH=/usr/bin"],
        "Entrypoint": ["/usr/bin/codeq"],
        # A server to try: it prints a random token. Production runs `serve` with a configuration.
        "Cmd": ["dev", "--http-addr", "0.0.0.0:8080", "--data-dir", DATA],
        "WorkingDir": DATA,
        "ExposedPorts": {"8080/tcp": {}, "9091/tcp": {}, "9092/tcp": {}},
        "Volumes": {DATA: {}},
        "StopSignal": "SIGTERM",
        "Labels": {
            "org.opencontainers.image.title": "codeq",
            "org.opencontainers.image.description": "A durable, multi-tenant task queue in one binary",
            "org.opencontainers.image.version": version,
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    }
    if can_probe(binary):
        run["Healthcheck"] = {"Test": ["CMD", "/usr/bin/codeq", "probe"], "Interval": 10 * SECOND,
                              "Timeout": 5 * SECOND, "StartPeriod": 30 * SECOND, "Retries": 3}
    else:
        print("dist: this binary has no `probe` command: the image comes without a health check", flush=True)
    return {
        "architecture": arch, "os": "linux", "created": created, "config": run,
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        "history": [{"created": created, "created_by": "dist/image.py"}],
    }


def archive(layer, settings, name, version, epoch):
    """All blobs by digest, with an index for OCI tools and one for `docker load`."""
    def descriptor(data, media):
        return {"mediaType": media, "digest": "sha256:" + hashlib.sha256(data).hexdigest(), "size": len(data)}

    def at(data):
        return "blobs/sha256/" + hashlib.sha256(data).hexdigest()

    # Docker's types inside OCI's layout: OCI's own have no health check, and podman would drop it.
    types = "application/vnd.docker"
    manifest_type = f"{types}.distribution.manifest.v2+json"
    listed = json.dumps({"schemaVersion": 2, "mediaType": manifest_type,
                         "config": descriptor(settings, f"{types}.container.image.v1+json"),
                         "layers": [descriptor(layer, f"{types}.image.rootfs.diff.tar")]}, sort_keys=True).encode()
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [
        {**descriptor(listed, manifest_type),
         "annotations": {"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"{name}:{version}"}}]}
    docker = [{"Config": at(settings), "RepoTags": [f"{name}:{version}"], "Layers": [at(layer)]}]
    out = Layer(epoch)
    for blob in (layer, settings, listed):
        out.file(at(blob), blob)
    out.file("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
    out.file("index.json", json.dumps(index, sort_keys=True).encode())
    out.file("manifest.json", json.dumps(docker, sort_keys=True).encode())
    return descriptor(listed, "")["digest"], out.bytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--doc", type=pathlib.Path, required=True, help="directory for /usr/share/doc/codeq")
    parser.add_argument("--name", default="codeq")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    layer = filesystem(args.binary, args.doc, epoch)
    settings = json.dumps(config(args.binary, args.version, args.arch, layer, epoch), sort_keys=True).encode()
    digest, data = archive(layer, settings, args.name, args.version, epoch)
    args.output.write_bytes(gzip.compress(data, 6, mtime=0))
    print(f"dist: image {args.name}:{args.version} {digest}", flush=True)


if __name__ == "__main__":
    main()
