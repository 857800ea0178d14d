"""What an attack is: a name, a sentence, settings, and functions that prepare and do it."""

import dataclasses
import time
from typing import Callable

ATTACKS = {}


@dataclasses.dataclass
class Attack:
    key: str
    title: str
    run: Callable
    # What it does, and what is expected of the server.
    text: str
    prepare: Callable | None = None
    # How long it goes on at most; B is measured as long as it lasts.
    seconds: float = 8
    # Whether B's load runs beside it. Attacks that only ask a question do not need it.
    victim: bool = True
    # Settings beside harness.SETTINGS; and those that a binary may not know yet.
    settings: dict = dataclasses.field(default_factory=dict)
    optional: dict = dataclasses.field(default_factory=dict)
    # How the server is started: keywords of harness.Server.
    server: dict = dataclasses.field(default_factory=dict)


def attack(key, title, **more):
    """Registers a function as an attack. Its doc comment is the text."""

    def register(function):
        ATTACKS[key] = Attack(key, title, function, " ".join(function.__doc__.split()), **more)
        return function

    return register


class Run:
    """One attack on one server: what it may use, and where it says what it saw."""

    def __init__(self, server, directory):
        self.server = server
        self.directory = directory
        self.deadline = time.monotonic()
        self.facts = {}
        self.checks = []
        # What prepare leaves for the attack.
        self.kept = {}
        self.measured_until = None
        # Called when all is over, whatever happened.
        self.closing = []

    def left(self):
        return self.deadline - time.monotonic()

    def on(self):
        """Whether the attack should go on."""
        return self.left() > 0 and self.server.alive()

    def hold(self, seconds=None):
        """Stays as it is, to the end of the attack or for so long."""
        end = self.deadline if seconds is None else min(self.deadline, time.monotonic() + seconds)
        while time.monotonic() < end and self.server.alive():
            time.sleep(0.05)

    def end_measurement(self):
        """B is measured up to here. What becomes of the server after it is the attack's own doing."""
        self.measured_until = time.monotonic()

    def fact(self, name, value):
        self.facts[name] = value

    def check(self, name, good, seen=""):
        """Something that must hold: for B, or of the server."""
        self.checks.append({"what": name, "good": bool(good), "seen": str(seen)})
