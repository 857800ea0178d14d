"""Checks the GitHub workflows with actionlint, and that each `make` target in them exists."""

import re

from harness import ROOT, go_tool, run, say

ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


def main():
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for workflow in workflows:
        used = set(re.findall(r"\bmake ([a-z-]+)$", workflow.read_text(), re.MULTILINE))
        assert used and used <= targets, f"{workflow.name} uses {used - targets}"
    run(go_tool("actionlint", ACTIONLINT), "-no-color", *workflows, cwd=ROOT)
    say(f"actionlint accepts {', '.join(workflow.stem for workflow in workflows)}")


if __name__ == "__main__":
    main()
