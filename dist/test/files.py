"""Checks the files themselves: checksums, the tarball's content, the symbols, the list of third-party software."""

import json
import pathlib
import re
import sys

from harness import one, run, say, scratch, unpack


def check_software(packages, binary):
    bom = json.loads(one(packages, "codeq-*.cdx.json").read_text())
    names = {component["name"] for component in bom["components"]}
    references = {bom["metadata"]["component"]["bom-ref"]} | {component["bom-ref"] for component in bom["components"]}
    assert {"tokio", "redb", "rustls", "codeq-server"} <= names and "proptest" not in names, sorted(names)
    for entry in bom["dependencies"]:
        assert {entry["ref"], *entry["dependsOn"]} <= references, entry
    assert all(component["licenses"][0]["expression"] for component in bom["components"])
    licences = (packages / "THIRD-PARTY-LICENSES.txt").read_text()
    others = [component for component in bom["components"] if "purl" in component]
    missing = [other["name"] for other in others if f"  {other['name']} {other['version']}: " not in licences]
    assert not missing, missing
    for text in ("Apache License", "Permission is hereby granted", "ISC License", "mimalloc", "UNICODE LICENSE"):
        assert text in licences, f"no text of {text}"
    # The compiler leaves the paths of the sources in the binary.
    inside = set(re.findall(rb"/index\.crates\.io-[0-9a-f]+/([A-Za-z0-9_.+-]+?)/src/", binary.read_bytes()))
    listed = {f"{other['name']}-{other['version']}".encode() for other in others}
    assert len(inside) > 50 and inside <= listed, f"in the binary, but not in the list: {inside - listed}"
    say(f"{len(others)} third-party crates with licences; the {len(inside)} named inside the binary are among them")


def main(packages):
    run("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS", cwd=packages)
    listed = {line.split()[1] for line in (packages / "SHA256SUMS").read_text().splitlines()}
    present = {path.name for path in packages.iterdir()} - {"SHA256SUMS"}
    assert listed == present, listed ^ present
    with scratch() as work:
        tree = one(unpack(one(packages, "codeq-*-linux-*[0-9].tar.gz"), work / "tree"), "*")
        binary = tree / "bin/codeq"
        version = run(binary, "--version").stdout.strip()
        assert "debug_info" not in run("readelf", "-S", binary).stdout
        symbols = unpack(one(packages, "codeq-*-symbols.tar.gz"), work) / "codeq.debug"
        build = [re.search(r"Build ID: (\w+)", run("readelf", "-n", path).stdout) for path in (binary, symbols)]
        assert build[0] and build[0].group(1) == build[1].group(1), "the symbols are of another binary"
        for file in ("README.md", "CHANGELOG.md", "LICENSE", "THIRD-PARTY-LICENSES.txt", "examples/codeq.service",
                     "examples/codeq.yaml", "examples/codeq.default.yaml", "examples/prometheus/alerts.yml"):
            assert (tree / "share/doc/codeq" / file).stat().st_size, file
        # README's commands work next to it: the example workers are there, and so is whatever a page links to.
        doc = tree / "share/doc/codeq"
        assert (doc / "docs/examples/worker.py").is_file()
        missing = [f"{page.relative_to(doc)}: {link}" for page in doc.rglob("*.md")
                   for link in re.findall(r"\]\((?![a-z]+:|#)([^)#\s\[*]+)[)#]", page.read_text())
                   if not (page.parent / link).exists()]
        assert not missing, missing
        shell_worker = run(tree / "share/doc/codeq/docs/examples/resize.sh", check=False)
        assert shell_worker.returncode == 75 and "no such image" in shell_worker.stdout, shell_worker
        run(binary, "config", "check", "--config", tree / "share/doc/codeq/examples/codeq.default.yaml")
        say(f"{version}: checksums, documents and symbols fit")
        for path in ("man/man1", "bash-completion", "zsh", "fish"):
            if not (tree / "share" / path).exists():
                say(f"without share/{path}: the binary does not write it")
        completion = tree / "share/bash-completion/completions/codeq"
        if completion.exists():
            run("bash", "-n", completion)
        check_software(packages, binary)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
