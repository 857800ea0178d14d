"""Checks the GitHub workflows with actionlint, and that each `make` target in them exists."""

import os
import re
import shutil

from harness import CACHE, ROOT, need, run, say, skip

ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


def actionlint():
    found = shutil.which("actionlint") or shutil.which("actionlint", path=CACHE / "bin")
    if found:
        return found
    need("go")
    say("building actionlint")
    built = run("go", "install", ACTIONLINT, check=False, cwd="/",
                env={**os.environ, "GOBIN": str(CACHE / "bin"), "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"})
    if built.returncode:
        skip(f"actionlint cannot be built: {built.stdout[-300:]}")
    return str(CACHE / "bin/actionlint")


def main():
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for workflow in workflows:
        used = set(re.findall(r"\bmake ([a-z-]+)$", workflow.read_text(), re.MULTILINE))
        assert used and used <= targets, f"{workflow.name} uses {used - targets}"
    run(actionlint(), "-no-color", *workflows, cwd=ROOT)
    say(f"actionlint accepts {', '.join(workflow.stem for workflow in workflows)}")


if __name__ == "__main__":
    main()
