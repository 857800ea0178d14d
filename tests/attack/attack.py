"""What an attack is: a name, a description, settings, and functions that prepare and run it."""

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
    # How long it may last, in seconds; B is measured as long as it lasts.
    seconds: float = 8
    # Whether B's load runs during it. Attacks that only check a response do not need it.
    victim: bool = True
    # Settings in addition to harness.SETTINGS; `optional` ones are left out if the binary does not know them.
    settings: dict = dataclasses.field(default_factory=dict)
    optional: dict = dataclasses.field(default_factory=dict)
    # How the server is started: keywords of harness.Server.
    server: dict = dataclasses.field(default_factory=dict)


def attack(key, title, **more):
    """Registers a function as an attack. Its doc comment becomes the attack's text."""

    def register(function):
        ATTACKS[key] = Attack(key, title, function, " ".join(function.__doc__.split()), **more)
        return function

    return register


class Run:
    """One attack on one server: what it may use, and where it records what it saw."""

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
        """Waits until the end of the attack, or for this many seconds if that is sooner."""
        end = self.deadline if seconds is None else min(self.deadline, time.monotonic() + seconds)
        while time.monotonic() < end and self.server.alive():
            time.sleep(0.05)

    def end_measurement(self):
        """B is measured up to here: from now on, the attack itself stops the server."""
        self.measured_until = time.monotonic()

    def fact(self, name, value):
        self.facts[name] = value

    def check(self, name, good, seen=""):
        """Something that must hold: for B, or of the server."""
        self.checks.append({"what": name, "good": bool(good), "seen": str(seen)})
