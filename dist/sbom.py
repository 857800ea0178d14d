"""Writes the list of the crates in the binary (CycloneDX 1.5), and a text file with their licences.

Everything comes from `cargo metadata` and the sources that cargo has downloaded. The network is not used.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
FEATURES = "cloud,otlp"
LICENCE_FILE = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)
CARGO = os.environ.get("CARGO", "cargo")


def cargo(*args):
    said = subprocess.run([CARGO, *args, "--locked", "--offline"], cwd=ROOT, capture_output=True, text=True)
    if said.returncode:
        raise SystemExit(f"cargo {args[0]} failed: {said.stderr}\nRun `cargo fetch --locked` first.")
    return said.stdout


def linked():
    """The packages in the binary, and what each depends on: no build scripts' crates, no procedural macros."""
    # `cargo metadata` joins the features of the whole workspace. `cargo tree` lists what the binary really has.
    tree = cargo("tree", "--package", "codeq", "--features", FEATURES, "--edges", "normal,no-proc-macro",
                 "--prefix", "none", "--format", "{p}")
    inside = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    meta = json.loads(cargo("metadata", "--format-version=1", "--filter-platform=host-tuple",
                            "--manifest-path", "crates/codeq/Cargo.toml", "--features", FEATURES))
    packages = {package["id"]: package for package in meta["packages"]
                if (package["name"], f"v{package['version']}") in inside}
    if len(packages) != len(inside):
        raise SystemExit(f"cargo tree lists {len(inside)} packages, cargo metadata knows {len(packages)} of them")
    deps = {node["id"]: [dep["pkg"] for dep in node["deps"]
                         if dep["pkg"] in packages and any(kind["kind"] is None for kind in dep["dep_kinds"])]
            for node in meta["resolve"]["nodes"]}
    root = next(package["id"] for package in packages.values() if package["name"] == "codeq")
    return root, {name: (package, deps[name]) for name, package in packages.items()}


def checksums():
    """The checksums in Cargo.lock, by name and version."""
    text = (ROOT / "Cargo.lock").read_text()
    entry = re.compile(r'name = "(.*)"\nversion = "(.*)"\n(?:source = ".*"\n)?(?:checksum = "(.*)"\n)?')
    return {(name, version): checksum for name, version, checksum in entry.findall(text)}


def expression(package):
    """The licence as an SPDX expression; old crates write `MIT/Apache-2.0`."""
    licence = package["license"]
    if not licence:
        raise SystemExit(f"{package['name']} {package['version']} names no licence")
    return re.sub(r"\s*/\s*", " OR ", licence)


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, version, sums):
    own = package["source"] is None
    entry = {
        "type": "application" if package["name"] == "codeq" else "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": version if own else package["version"],
        "licenses": [{"expression": expression(package)}],
    }
    if package["description"]:
        entry["description"] = " ".join(package["description"].split())
    if not own:
        entry["purl"] = reference(package)
        entry["hashes"] = [{"alg": "SHA-256", "content": sums[package["name"], package["version"]]}]
        if package["repository"]:
            entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return entry


def sbom(root, packages, version, epoch):
    sums = checksums()
    ordered = sorted(packages.values(), key=lambda entry: reference(entry[0]))
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": epoch,
            "component": component(packages[root][0], version, sums),
            "properties": [{"name": "cargo:features", "value": FEATURES}],
        },
        "components": [component(package, version, sums) for package, _ in ordered if package["id"] != root],
        "dependencies": [
            {"ref": reference(package), "dependsOn": sorted({reference(packages[dep][0]) for dep in deps})}
            for package, deps in ordered
        ],
    }
    # The serial number names this content, so that the same sources give the same file.
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return {"$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
            "serialNumber": f"urn:uuid:{uuid.UUID(digest[:32], version=4)}", **body}


def licence_files(package):
    directory = pathlib.Path(package["manifest_path"]).parent
    files = [path for path in directory.iterdir() if path.is_file() and LICENCE_FILE.match(path.name)]
    # C libraries inside a crate have licences of their own.
    for inner in ("aws-lc", "c_src", "vendor"):
        files += [path for path in (directory / inner).rglob("*") if path.is_file() and LICENCE_FILE.match(path.name)]
    return sorted(files, key=lambda path: (len(path.parts), str(path)))


def licences(packages):
    """One section per distinct text, headed by the crates that it covers."""
    crates = sorted((package for package, _ in packages.values() if package["source"]), key=reference)
    lines = ["Third-party software in codeQ", "",
             "codeQ is licensed under Apache-2.0. Its binary contains the following libraries:", ""]
    texts, bare = {}, []
    for package in crates:
        name = f"{package['name']} {package['version']}"
        lines.append(f"  {name}: {expression(package)}")
        files = licence_files(package)
        if not files:
            bare.append(name)
        for path in files:
            text = path.read_text(errors="replace").replace("\r\n", "\n").strip()
            texts.setdefault(text, []).append(name)
    if bare:
        lines += ["", "These come without a licence file; the licence named above applies, and its text is below:", ""]
        lines += [f"  {name}" for name in bare]
    for text, names in sorted(texts.items(), key=lambda item: item[1]):
        lines += ["", "-" * 80, ", ".join(sorted(set(names))), "-" * 80, "", text]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--sbom", type=pathlib.Path, required=True)
    parser.add_argument("--licences", type=pathlib.Path, required=True)
    args = parser.parse_args()
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    epoch = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    root, packages = linked()
    args.sbom.write_text(json.dumps(sbom(root, packages, args.version, epoch), indent=1, ensure_ascii=False) + "\n")
    args.licences.write_text(licences(packages))


if __name__ == "__main__":
    main()
